package kafkapub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/fenceline/fenceline/internal/devstack/testmain"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
)

const produceKey = int16(kmsg.Produce)

// The shared broker ends before goroutines are counted: what is left is ours.
func TestMain(m *testing.M) { goleak.VerifyTestMain(testmain.Wrap(m)) }

// fake starts a broker with topic "orders" of three partitions.
func fake(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	return kafkatest.Kfake(t, append([]kfake.Opt{kfake.SeedTopics(3, "orders")}, opts...)...)
}

// open makes a publisher that the test closes at its end.
func open(t *testing.T, brokers []string, change ...func(*Config)) *Publisher {
	t.Helper()
	c := Config{Brokers: brokers, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// events makes a batch of partition 0 from the seqs of one key.
func events(seqs ...int64) *relay.Batch {
	b := &relay.Batch{Topic: "orders"}
	for _, s := range seqs {
		b.Records = append(b.Records, record("k", s, fmt.Appendf(nil, "%d", s)))
	}
	return b
}

// insist sends b until it is acknowledged, as the relay does on an unknown
// outcome, and counts the attempts that were needed.
func insist(t *testing.T, p *Publisher, b *relay.Batch) int {
	t.Helper()
	for attempt := 1; ; attempt++ {
		err := p.Produce(within(t), b)
		if err == nil {
			return attempt
		}
		if certain(err) || attempt == 200 {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
		select { // the relay's backoff, in short
		case <-time.After(5 * time.Millisecond):
		case <-within(t).Done():
		}
	}
}

// certain: err is one of the answers that are not "send it again".
func certain(err error) bool {
	var re *relay.RefusedError
	var te *relay.TopicError
	return errors.As(err, &re) || errors.As(err, &te) || errors.Is(err, relay.ErrFenced)
}

// unknown requires that err asks for the same batch again.
func unknown(t *testing.T, err error) {
	t.Helper()
	if err == nil || certain(err) {
		t.Fatalf("got %v, want an unknown outcome", err)
	}
}

// stored reads the seqs in partition 0 of a topic, in order.
func stored(t *testing.T, brokers []string, topic string) (seqs []int64) {
	t.Helper()
	for _, r := range consume(t, brokers, topic, 0) {
		var hs []outbox.WireHeader
		for _, h := range r.Headers {
			hs = append(hs, outbox.WireHeader{Key: h.Key, Value: h.Value})
		}
		for _, h := range hs {
			if h.Key == "ce_fenceseq" {
				var n int64
				_, _ = fmt.Sscanf(strings.TrimLeft(string(h.Value), "0"), "%d", &n)
				seqs = append(seqs, n)
			}
		}
	}
	return seqs
}

// consume reads a partition to its end.
func consume(t *testing.T, brokers []string, topic string, partition int32) (records []*kgo.Record) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := within(t)
	end := endOffset(ctx, t, c, topic, partition)
	for next := int64(0); next < end; {
		fs := c.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) { records, next = append(records, r), r.Offset+1 })
	}
	return records
}

func endOffset(ctx context.Context, t *testing.T, c *kgo.Client, topic string, partition int32) int64 {
	t.Helper()
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp = partition, -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic, rt.Partitions = topic, []kmsg.ListOffsetsRequestTopicPartition{p}
	req := kmsg.NewPtrListOffsetsRequest()
	req.Topics = []kmsg.ListOffsetsRequestTopic{rt}
	resp, err := req.RequestWith(ctx, c)
	if err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatalf("end of %s/%d: %v %+v", topic, partition, err, resp)
	}
	return resp.Topics[0].Partitions[0].Offset
}

// wire is what a produce request said.
type wire struct {
	acks       int16
	timeout    int32
	records    []byte
	producerID int64
	sequence   int32
}

// tap notes the produce requests that reach the broker.
type tap struct {
	mu   sync.Mutex
	seen []wire
}

func listen(c *kfake.Cluster) *tap {
	w := &tap{}
	c.ControlKey(produceKey, func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		w.note(r)
		return nil, nil, false
	})
	return w
}

func (w *tap) note(r kmsg.Request) {
	req := r.(*kmsg.ProduceRequest)
	raw := req.Topics[0].Partitions[0].Records
	var b kmsg.RecordBatch
	if err := b.ReadFrom(raw); err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, wire{req.Acks, req.TimeoutMillis, bytes.Clone(raw), b.ProducerID, b.FirstSequence})
}

func (w *tap) all() []wire {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// answer lets the broker answer the next n produce requests with a code and,
// where given, the places of bad records, without appending anything.
func answer(c *kfake.Cluster, n int, code int16, bad ...int32) {
	c.ControlKey(produceKey, func(r kmsg.Request) (kmsg.Response, error, bool) {
		if n--; n > 0 {
			c.KeepControl()
		} else {
			c.DropControl()
		}
		resp, p := reply(r)
		p.ErrorCode = code
		for _, i := range bad {
			e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
			e.RelativeOffset, e.ErrorMessage = i, kmsg.StringPtr("bad")
			p.ErrorRecords = append(p.ErrorRecords, e)
		}
		return resp, nil, true
	})
}

// reply is an empty answer to a produce request.
func reply(r kmsg.Request) (*kmsg.ProduceResponse, *kmsg.ProduceResponseTopicPartition) {
	req := r.(*kmsg.ProduceRequest)
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	rt := kmsg.NewProduceResponseTopic()
	rt.Topic = req.Topics[0].Topic
	p := kmsg.NewProduceResponseTopicPartition()
	p.Partition = req.Topics[0].Partitions[0].Partition
	rt.Partitions = append(rt.Partitions, p)
	resp.Topics = append(resp.Topics, rt)
	return resp, &resp.Topics[0].Partitions[0]
}
