package kafkapub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// A topic of hundreds of partitions has hundreds of lanes, each with a request
// of its own and, in kafka-go, a connection under it. Where their batches are
// small the requests cost more than the records, at both ends. So when as many
// requests are on their way to a broker as are good for it, further batches
// wait for one of these to be answered, and then go together.
//
// For a lane nothing changes: it has one batch on its way, and an answer of its
// own. A request that fails as a whole is an unknown outcome for each.
//
// Also under a trickle: what the relay reads in one look is for some lanes at once,
// which come here within microseconds, and two small batches in one request cost
// client and broker little more than one. So whoever comes first lets those go first
// that are about to run, and takes along who has come meanwhile. No time is waited.
//
// What goes together is answered together: the broker waits for the replicas
// of all. So a lane whose last attempt failed goes alone, and so does one that
// has waited for joinWait, which is what happens where the broker is slow and
// its latency is better spent side by side. Of those that come at the same time, a
// lane whose last answer was slow takes nobody along and goes along with nobody: a
// partition whose replicas are slow keeps them waiting once, and not from then on. Those
// that wait for others go with any: at a full desk everybody is slow, for having waited.
const (
	// maxSending is how many requests to a broker are on their way before the
	// next ones wait.
	maxSending = 8
	// maxJoined bounds, in bytes, the batches that go together.
	maxJoined = 4 << 20
	// joinWait is how long a batch waits at most before it goes alone.
	joinWait = 50 * time.Millisecond
	// maxGathered is the largest batch that goes together with others that come at
	// the same time: to send larger ones side by side costs no more.
	maxGathered = 16 << 10
	// prompt is how long the answer took at most of a lane that isn't slow.
	prompt = 20 * time.Millisecond
)

// others lets those run that are about to.
func others() {
	runtime.Gosched()
	runtime.Gosched() // whom the first ones have woken
}

// outcome is what became of an attempt.
type outcome struct {
	err      error         // the broker's verdict, or why there is none
	named    map[int]error // the records that it names
	throttle time.Duration
	answered bool // err is the broker's, or nil
	unsent   bool // nothing was sent
	alone    bool // nothing was sent, and it must not go with others
}

// joiner sends the batches of a topic's lanes.
type joiner struct {
	route   *route
	topic   string
	life    context.Context
	timeout time.Duration // of a request
	every   time.Duration // between two looks at who leads what
	wait    time.Duration // joinWait; tests have another
	gather  func()        // others; tests have another, nil: nobody is taken along
	most    int           // maxJoined, or what one batch may have if that is less

	// turn is held by who looks at the leaders.
	turn       chan struct{}
	leaders    map[int]int // by partition; changed by replacing it
	looked     time.Time
	generation int         // of the route, when it was looked
	stale      atomic.Bool // they were found to be others

	mu      sync.Mutex
	desks   map[int]*desk // by the broker's id
	sending sync.WaitGroup
}

// desk is what is on its way to one broker, and what waits for that.
type desk struct {
	sending int
	waiting []*waiting
	// gathering is a request that is about to be sent; nil: there is none.
	gathering *gathering
}

// gathering is the batches of a request that is about to be sent.
type gathering struct {
	batches []*waiting
	bytes   int
}

// waiting is a batch that waits for others. Whoever takes it off the desk
// answers it.
type waiting struct {
	partition int
	buf       []byte
	answer    chan outcome
}

func newJoiner(life context.Context, r *route, topic string, c *Config) *joiner {
	return &joiner{route: r, topic: topic, life: life, timeout: c.Timeout, every: c.MetadataTTL, wait: joinWait, gather: others,
		most: min(maxJoined, c.MaxBatchBytes), turn: make(chan struct{}, 1), desks: make(map[int]*desk)}
}

// produce sends a batch, and returns when it is answered or ctx has ended. alone: by
// itself and at once; slow: not with others that come at the same time.
func (j *joiner) produce(ctx context.Context, partition int, buf []byte, alone, slow bool) outcome {
	if alone {
		return j.one(ctx, partition, buf)
	}
	leader, known := j.leader(ctx, partition)
	if !known {
		return j.one(ctx, partition, buf)
	}
	j.mu.Lock()
	d := j.desks[leader]
	if d == nil {
		d = &desk{}
		j.desks[leader] = d
	}
	slow = slow || len(buf) > maxGathered || j.gather == nil
	g := d.gathering
	if !slow && g != nil && g.bytes+len(buf) <= j.most {
		w := g.add(partition, buf)
		j.mu.Unlock()
		return j.await(ctx, w)
	}
	if d.sending < maxSending {
		d.sending++
		if !slow && g == nil {
			return j.first(ctx, d, partition, buf)
		}
		j.mu.Unlock()
		defer j.next(d)
		return j.one(ctx, partition, buf)
	}
	w := &waiting{partition, buf, make(chan outcome, 1)}
	d.waiting = append(d.waiting, w)
	j.mu.Unlock()

	patience := time.NewTimer(j.wait)
	defer patience.Stop()
	select {
	case o := <-w.answer:
		return j.orAlone(ctx, w, o)
	case <-patience.C:
	case <-ctx.Done():
	}
	if j.withdraw(d, w) {
		return j.one(ctx, partition, buf)
	}
	return j.await(ctx, w)
}

// await waits for the answer to a batch that is another's to send.
func (j *joiner) await(ctx context.Context, w *waiting) outcome {
	select {
	case o := <-w.answer:
		return j.orAlone(ctx, w, o)
	case <-ctx.Done():
		return outcome{err: ctx.Err()}
	}
}

// first sends a batch and those that come at the same time. Called under the mutex,
// which it leaves, with a place on the desk.
func (j *joiner) first(ctx context.Context, d *desk, partition int, buf []byte) outcome {
	g := &gathering{}
	w := g.add(partition, buf)
	d.gathering = g
	j.mu.Unlock()
	j.gather()
	j.mu.Lock()
	d.gathering = nil
	j.mu.Unlock()
	if len(g.batches) == 1 {
		defer j.next(d)
		return j.one(ctx, partition, buf)
	}
	j.serve(d, g.batches)
	return j.await(ctx, w)
}

func (g *gathering) add(partition int, buf []byte) *waiting {
	w := &waiting{partition, buf, make(chan outcome, 1)}
	g.batches, g.bytes = append(g.batches, w), g.bytes+len(buf)
	return w
}

func (j *joiner) orAlone(ctx context.Context, w *waiting, o outcome) outcome {
	if o.alone {
		return j.one(ctx, w.partition, w.buf)
	}
	return o
}

// one sends a batch by itself.
func (j *joiner) one(ctx context.Context, partition int, buf []byte) outcome {
	if err := ctx.Err(); err != nil {
		return outcome{err: err, unsent: true}
	}
	answers, err := j.send(ctx, &waiting{partition: partition, buf: buf})
	if err != nil {
		return outcome{err: err}
	}
	return answers[0]
}

// withdraw takes a batch off the desk, unless it was taken.
func (j *joiner) withdraw(d *desk, w *waiting) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.Index(d.waiting, w)
	if i < 0 {
		return false
	}
	d.waiting = slices.Delete(d.waiting, i, i+1)
	return true
}

// next hands the place of a request that was answered to those that wait.
func (j *joiner) next(d *desk) {
	if group := j.take(d); group != nil {
		j.serve(d, group)
	}
}

// serve sends batches together, and then what waits, as long as something does: in
// a goroutine of its own, since each of those who wait may give up.
func (j *joiner) serve(d *desk, group []*waiting) {
	j.sending.Go(func() {
		for ; group != nil; group = j.take(d) {
			j.together(group)
		}
	})
}

// take gives what goes together now; if there is nothing, the place is free.
func (j *joiner) take(d *desk) (group []*waiting) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, bytes := 0, 0
	for ; n < len(d.waiting); n++ {
		if bytes += len(d.waiting[n].buf); n > 0 && bytes > j.most {
			break
		}
	}
	if n == 0 {
		d.sending--
		return nil
	}
	group = slices.Clone(d.waiting[:n])
	d.waiting = slices.Delete(d.waiting, 0, n)
	return group
}

// together sends batches in one request, and gives each its answer. Its time is
// its own: that one of those who wait has given up must not end it for the others.
func (j *joiner) together(group []*waiting) {
	ctx, cancel := context.WithTimeout(j.life, j.timeout)
	defer cancel()
	answers, err := j.send(ctx, group...)
	var whole outcome // where the request failed as such
	var unsent *rawproduce.Error
	switch {
	case errors.As(err, &unsent):
		// By the layout that kafka-go has now they don't go to one broker, or one of
		// them goes nowhere: each finds out for itself.
		j.stale.Store(true)
		whole = outcome{err: err, unsent: true, alone: true}
	case err != nil:
		whole = outcome{err: cause(ctx, err)}
	}
	for i, w := range group {
		if err != nil {
			w.answer <- whole
		} else {
			w.answer <- answers[i]
		}
	}
}

// send makes one request of batches, each of another partition, and gives their
// answers in the same order. The error is the request's own.
func (j *joiner) send(ctx context.Context, batches ...*waiting) ([]outcome, error) {
	partitions := make([]rawproduce.RequestPartition, len(batches))
	for i, w := range batches {
		partitions[i] = rawproduce.RequestPartition{Partition: int32(w.partition), RecordSet: protocol.RawRecordSet{Reader: bytes.NewReader(w.buf)}}
	}
	left := j.timeout
	if end, bounded := ctx.Deadline(); bounded {
		left = min(left, time.Until(end))
	}
	m, err := j.route.transport.RoundTrip(ctx, j.route.client.Addr, &rawproduce.Request{
		Acks:    int16(kafka.RequireAll),
		Timeout: int32((left / 2).Milliseconds()), // as kafka-go's client has it
		Topics:  []rawproduce.RequestTopic{{Topic: j.topic, Partitions: partitions}},
	})
	if err != nil {
		return nil, err
	}
	resp, ok := m.(*produce.Response)
	if !ok {
		return nil, fmt.Errorf("the answer to a produce request is a %T", m)
	}
	throttle := time.Duration(resp.ThrottleTimeMs) * time.Millisecond
	found := make(map[int]outcome, len(batches))
	for i := range resp.Topics {
		for k := range resp.Topics[i].Partitions {
			if p := &resp.Topics[i].Partitions[k]; resp.Topics[i].Topic == j.topic {
				found[int(p.Partition)] = verdictOf(p, throttle)
			}
		}
	}
	answers := make([]outcome, len(batches))
	for i, w := range batches {
		if answers[i], ok = found[w.partition]; !ok {
			answers[i] = outcome{err: errors.New("the broker's answer does not speak of the partition"), throttle: throttle}
		}
	}
	return answers, nil
}

func verdictOf(p *produce.ResponsePartition, throttle time.Duration) outcome {
	o := outcome{throttle: throttle, answered: true}
	switch {
	case p.ErrorCode == 0:
	case p.ErrorMessage == "":
		o.err = kafka.Error(p.ErrorCode)
	default:
		o.err = fmt.Errorf("%w: %s", kafka.Error(p.ErrorCode), p.ErrorMessage)
	}
	for _, e := range p.RecordErrors {
		if o.named == nil {
			o.named = make(map[int]error, len(p.RecordErrors))
		}
		o.named[int(e.BatchIndex)] = errors.New(e.BatchIndexErrorMessage)
	}
	return o
}

// leader is who leads a partition, as kafka-go's cache has it: what doesn't go
// by it any more is found out before it is sent.
func (j *joiner) leader(ctx context.Context, partition int) (id int, known bool) {
	select {
	case j.turn <- struct{}{}:
		defer func() { <-j.turn }()
	case <-ctx.Done():
		return 0, false
	}
	if seen := j.route.seen(); j.stale.Swap(false) || j.looked.IsZero() || seen != j.generation || time.Since(j.looked) > j.every {
		j.leaders, j.generation, j.looked = map[int]int{}, seen, time.Now()
		partitions, err := j.route.partitions(ctx, j.topic)
		if err != nil {
			return 0, false // the request itself will say what is wrong
		}
		for _, p := range partitions {
			j.leaders[p.ID] = p.Leader.ID
		}
	}
	id, known = j.leaders[partition]
	return id, known
}

// close returns when nothing is on its way any more. The publisher's life has
// ended, and no call is under way.
func (j *joiner) close() { j.sending.Wait() }
