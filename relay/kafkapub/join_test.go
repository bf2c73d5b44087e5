package kafkapub

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fenceline/fenceline/relay"
)

// crowd is a topic of many partitions and a broker that keeps its answers to the
// first requests back, so that what comes behind them waits.
type crowd struct {
	*testing.T
	cluster *kfake.Cluster
	p       *Publisher
	release chan struct{}
	batches []*relay.Batch // of all

	mu   sync.Mutex
	held int     // requests that are kept back
	sent [][]int // partitions of each request that came
	edit func(kmsg.Request) (kmsg.Response, bool)
}

const crowded = 40 // partitions

func newCrowd(t *testing.T, wait time.Duration, opts ...kfake.Opt) *crowd {
	t.Helper()
	c := &crowd{T: t, cluster: fake(t, append([]kfake.Opt{kfake.SeedTopics(crowded, "wide")}, opts...)...), release: make(chan struct{})}
	c.p = open(t, c.cluster.ListenAddrs(), func(cfg *Config) { cfg.Timeout = 5 * time.Minute })
	c.lane(0).joiner.wait, c.lane(0).joiner.gather = wait, nil
	c.cluster.ControlKey(produceKey, func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.cluster.KeepControl()
		var partitions []int
		for _, p := range r.(*kmsg.ProduceRequest).Topics[0].Partitions {
			partitions = append(partitions, int(p.Partition))
		}
		c.mu.Lock()
		c.sent = append(c.sent, partitions)
		hold := c.held < maxSending
		if hold {
			c.held++
		}
		edit := c.edit
		c.mu.Unlock()
		if hold {
			c.cluster.SleepControl(func() {
				select {
				case <-c.release:
				case <-t.Context().Done():
				}
			})
		}
		if edit != nil {
			resp, ok := edit(r)
			return resp, nil, ok
		}
		return nil, nil, false
	})
	return c
}

func (c *crowd) lane(partition int) *lane { return c.p.lane("wide", partition) }

func wide(partition int, seqs ...int64) *relay.Batch {
	b := events(seqs...)
	b.Topic, b.Partition = "wide", partition
	return b
}

// all produces a batch in each of the partitions at once. The first of them are
// on their way, and kept back, when the others begin.
func (c *crowd) all(partitions int) (errs []error) {
	c.Helper()
	errs = make([]error, partitions)
	for i := range partitions {
		c.batches = append(c.batches, wide(i, 1))
	}
	var done sync.WaitGroup
	start := func(i int) {
		done.Go(func() { errs[i] = c.p.Produce(within(c.T), c.batches[i]) })
	}
	for i := range maxSending {
		start(i)
	}
	c.until(func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.held == maxSending })
	for i := maxSending; i < partitions; i++ {
		start(i)
	}
	c.until(func() bool { return c.waiting() == partitions-maxSending })
	close(c.release)
	done.Wait()
	return errs
}

func (c *crowd) waiting() (n int) {
	j := c.lane(0).joiner
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, d := range j.desks {
		n += len(d.waiting)
	}
	return n
}

func (c *crowd) until(ok func() bool) {
	c.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.Fatal("it does not come to that")
		}
	}
}

func (c *crowd) requests() [][]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.sent)
}

// logs wants each partition to have these seqs.
func (c *crowd) logs(partitions int, want ...int64) {
	c.Helper()
	for i := range partitions {
		var got []int64
		for range consume(c.T, c.cluster.ListenAddrs(), "wide", int32(i)) {
			got = append(got, int64(len(got)+1))
		}
		if !slices.Equal(got, want) {
			c.Errorf("partition %d has %d records, want %d", i, len(got), len(want))
		}
	}
}

func TestBatchesThatWaitForABrokerGoTogether(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	for i, err := range c.all(crowded) {
		if err != nil {
			t.Errorf("partition %d: %v", i, err)
		}
	}
	sent := c.requests()
	if len(sent) != maxSending+1 || len(sent[maxSending]) != crowded-maxSending {
		t.Errorf("requests for the partitions %v, want %d by themselves, and the rest in one", sent, maxSending)
	}
	c.logs(crowded, 1)
	// A place that was handed on is free again.
	for _, d := range c.lane(0).joiner.desks {
		if d.sending != 0 {
			t.Errorf("%d requests are still counted", d.sending)
		}
	}
}

func TestARefusalInASharedRequestIsItsOwnBatchs(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	const bad, gone = crowded - 1, crowded - 2
	c.edit = func(r kmsg.Request) (kmsg.Response, bool) {
		req := r.(*kmsg.ProduceRequest)
		if len(req.Topics[0].Partitions) == 1 {
			return nil, false
		}
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		resp.ThrottleMillis = 1
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = "wide"
		for _, asked := range req.Topics[0].Partitions {
			p := kmsg.NewProduceResponseTopicPartition()
			switch p.Partition = asked.Partition; p.Partition {
			case bad:
				p.ErrorCode, p.ErrorMessage = kafkaCode(kafka.InvalidRecord), kmsg.StringPtr("no such schema")
				e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
				e.ErrorMessage = kmsg.StringPtr("bad")
				p.ErrorRecords = append(p.ErrorRecords, e)
			case gone:
				continue // the answer doesn't speak of it
			}
			rt.Partitions = append(rt.Partitions, p)
		}
		resp.Topics = append(resp.Topics, rt)
		return resp, true
	}
	for i, err := range c.all(crowded) {
		var refused *relay.RefusedError
		switch i {
		case bad:
			if !errors.As(err, &refused) || !slices.Equal(refused.Indexes, []int{0}) || !strings.Contains(err.Error(), "no such schema") {
				t.Errorf("partition %d: %v", i, err)
			}
		case gone:
			unknown(t, err)
		default:
			if err != nil {
				t.Errorf("partition %d: %v", i, err)
			}
		}
	}
}

// The broker has appended them, and says that its time was over.
func TestALostAcknowledgementOfASharedRequestLeavesOneCopyOfEach(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	lost := c.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.RequestTimedOut, Count: maxSending + 1})
	for i, err := range c.all(crowded) {
		unknown(t, err)
		insist(t, c.p, c.batches[i])
	}
	if lost.Hits() != maxSending+1 {
		t.Errorf("%d answers were lost", lost.Hits())
	}
	c.logs(crowded, 1)
}

func TestWhoWaitsTooLongForABrokerGoesAlone(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Millisecond, kfake.NumBrokers(1))
	var done sync.WaitGroup
	for i := range crowded {
		done.Go(func() {
			if err := c.p.Produce(within(t), wide(i, 1)); err != nil {
				t.Errorf("partition %d: %v", i, err)
			}
		})
	}
	// Nothing is answered that was kept back, and all the others are sent.
	c.until(func() bool { return len(c.requests()) == crowded })
	close(c.release)
	done.Wait()
	c.logs(crowded, 1)
}

func TestWhoGivesUpWhileItWaitsWasNotSent(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	var done sync.WaitGroup
	for i := range maxSending {
		done.Go(func() { insist(t, c.p, wide(i, 1)) })
	}
	c.until(func() bool { return len(c.requests()) == maxSending })
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	b := wide(maxSending, 1)
	go func() { left <- c.p.Produce(ctx, b) }()
	c.until(func() bool { return c.waiting() == 1 })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) || certain(err) || !strings.Contains(err.Error(), "nothing was sent") {
		t.Errorf("got %v", err)
	}
	close(c.release)
	done.Wait()
	if n := len(c.requests()); n != maxSending {
		t.Errorf("%d requests were sent", n)
	}
	insist(t, c.p, b)
	c.logs(maxSending+1, 1)
}

// The leaders that were looked up may be of yesterday.
func TestBatchesThatDoNotGoToOneBrokerAnyMoreGoAlone(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(3))
	keepBack := func(n int) { c.mu.Lock(); defer c.mu.Unlock(); c.held = maxSending - n }
	keepBack(0)
	insist(t, c.p, wide(0, 1)) // so that the leaders are known
	keepBack(maxSending)
	j := c.lane(0).joiner
	for p := range j.leaders {
		j.leaders[p] = 7
	}
	errs := make([]error, crowded)
	var done sync.WaitGroup
	for i := 1; i < crowded; i++ {
		done.Go(func() { errs[i] = c.p.Produce(within(t), wide(i, 1)) })
	}
	c.until(func() bool { return c.waiting() == crowded-1-maxSending })
	close(c.release)
	done.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("partition %d: %v", i, err)
		}
	}
	c.logs(crowded, 1)
	insist(t, c.p, wide(1, 2))
	if j.leaders[1] == 7 {
		t.Error("nobody has looked again who leads what")
	}
}

func TestALaneWhoseLastAttemptFailedGoesAlone(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	c.edit = func(r kmsg.Request) (kmsg.Response, bool) {
		if p := r.(*kmsg.ProduceRequest).Topics[0].Partitions; len(p) == 1 && p[0].Partition == maxSending {
			resp, answer := reply(r)
			answer.ErrorCode = kerr.NotEnoughReplicas.Code
			return resp, true
		}
		return nil, false
	}
	var done sync.WaitGroup
	patient, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for i := range maxSending {
		done.Go(func() { _ = c.p.Produce(patient, wide(i, 1)) })
	}
	c.until(func() bool { return len(c.requests()) == maxSending })
	b := wide(maxSending, 1)
	c.lane(maxSending).alone = true // as after a failure
	failed := make(chan error, 1)
	go func() { failed <- c.p.Produce(patient, b) }()
	c.until(func() bool { return len(c.requests()) > maxSending }) // although others are on their way
	unknown(t, <-failed)
	if !c.lane(maxSending).alone {
		t.Error("it would wait for others although it has failed")
	}
	close(c.release)
	done.Wait()
	c.mu.Lock()
	c.edit = nil
	c.mu.Unlock()
	insist(t, c.p, b)
	if c.lane(maxSending).alone {
		t.Error("it goes alone for ever")
	}
}

// A broker ends the connection over a request that is larger than it takes.
func TestASharedRequestIsNoLargerThanABatchMayBe(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]int{0: 4, 1000: 1, 1300: 2} {
		p := open(t, []string{"127.0.0.1:9092"}, func(c *Config) { c.MaxBatchBytes = most })
		d := &desk{sending: 1}
		for i := range 4 {
			d.waiting = append(d.waiting, &waiting{partition: i, buf: make([]byte, 600)})
		}
		if group := p.lane("wide", 0).joiner.take(d); len(group) != want {
			t.Errorf("with batches of at most %d bytes, %d of 600 go together, want %d", most, len(group), want)
		}
	}
}

func TestCloseEndsASharedRequestAndThoseWhoWait(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, time.Minute, kfake.NumBrokers(1))
	c.held = maxSending // none is kept back
	insist(t, c.p, wide(0, 1))
	j := c.lane(0).joiner
	j.timeout = time.Hour
	var d *desk
	for _, d = range j.desks {
		d.sending = maxSending // as if so many were on their way
	}
	c.mu.Lock()
	c.edit = func(kmsg.Request) (kmsg.Response, bool) { <-c.release; return nil, false }
	c.mu.Unlock()
	errs := make([]error, crowded)
	var done sync.WaitGroup
	produce := func(i int) { done.Go(func() { errs[i] = c.p.Produce(within(t), wide(i, 1)) }) }
	for i := 1; i < crowded/2; i++ {
		produce(i)
	}
	c.until(func() bool { return c.waiting() == crowded/2-1 })
	j.next(d)
	c.until(func() bool { return len(c.requests()) == 2 }) // it is with the broker, who doesn't answer
	for i := crowded / 2; i < crowded; i++ {
		produce(i)
	}
	c.until(func() bool { return c.waiting() == crowded/2 })
	closed := make(chan error, 1)
	go func() { closed <- c.p.Close() }() // what it leaves running is found at the end of all tests
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-within(t).Done():
		t.Error("Close waits for the request's time to be over")
	}
	done.Wait()
	for i, err := range errs[1:] {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("partition %d: %v", i+1, err)
		}
	}
	close(c.release)
}
