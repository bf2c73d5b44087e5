package consumertest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// Bench is a consumer that runs, and the topic that it reads.
type Bench struct {
	t        testing.TB
	log      *log
	mapping  consumer.Mapping
	observer consumer.Observer

	mu      sync.Mutex
	results []consumer.Result
	changed chan struct{}
	text    bytes.Buffer
	err     error
	ended   bool
}

// Patience is how long Deliver waits for the consumer to decide. Defaults to
// one minute: a busy machine takes several times as long as an idle one.
var Patience = time.Minute

// Run starts a consumer with the handler until the test ends. What cfg leaves
// empty has its usual default, but for a few that would make a test slow: Name is
// the test's, Attempts 3, and the pauses between tries milliseconds. The test
// fails if Run returns an error.
func Run(t testing.TB, pool *pgxpool.Pool, cfg consumer.Config, h consumer.Handler) *Bench {
	t.Helper()
	b := &Bench{t: t, log: newLog("consumertest"), mapping: cfg.Mapping, observer: cfg.Observer, changed: make(chan struct{})}
	if cfg.Name == "" {
		cfg.Name = t.Name()
	}
	if cfg.Attempts == 0 {
		cfg.Attempts = 3
	}
	if cfg.RetryMin == 0 && cfg.RetryMax == 0 {
		cfg.RetryMin, cfg.RetryMax = time.Millisecond, 20*time.Millisecond
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler((*text)(b), nil))
	}
	cfg.Observer = (*observer)(b)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := consumer.Run(ctx, pool, b.log, cfg, h)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.err, b.ended = err, true
		b.wake()
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.err != nil {
			t.Errorf("consumertest: Run: %v", b.err)
		}
		if t.Failed() {
			t.Logf("what the consumer logged:\n%s", b.text.String())
		}
	})
	return b
}

// Delivered is what became of records.
type Delivered struct {
	// Results are those of the records, in the order in which they were
	// delivered.
	Results []consumer.Result
	// Resumed are those of records that had waited in the park and went on.
	Resumed []consumer.Result

	t testing.TB
}

// Deliver publishes the records in this order and waits until each is decided.
func (b *Bench) Deliver(records ...outbox.Record) Delivered {
	b.t.Helper()
	raw := make([]consumer.KafkaRecord, len(records))
	for i := range records {
		r := &records[i]
		raw[i] = consumer.KafkaRecord{Time: r.CreatedAt, Key: []byte(r.Key), Value: outbox.WireValue(r), Headers: outbox.AppendWireHeaders(nil, r)}
	}
	return b.DeliverRaw(raw...)
}

// DeliverRaw does the same with whatever Kafka may hold. Their offsets are the
// bench's.
func (b *Bench) DeliverRaw(records ...consumer.KafkaRecord) Delivered {
	b.t.Helper()
	b.mu.Lock()
	seen := len(b.results)
	b.mu.Unlock()
	first := b.log.append(records)
	out := Delivered{t: b.t, Results: make([]consumer.Result, len(records))}
	late := time.NewTimer(Patience)
	defer late.Stop()
	for decided := 0; decided < len(records); {
		b.mu.Lock()
		for ; seen < len(b.results); seen++ {
			r := b.results[seen]
			switch i := r.Offset - first; {
			case r.Resumed:
				out.Resumed = append(out.Resumed, r)
			case i >= 0 && i < int64(len(records)) && out.Results[i].Outcome == "":
				out.Results[i] = r
				decided++
			}
		}
		changed, ended, err := b.changed, b.ended, b.err
		b.mu.Unlock()
		if decided == len(records) {
			break
		}
		if ended {
			b.t.Fatalf("consumertest: the consumer has ended with %d of %d records undecided: %v", len(records)-decided, len(records), err)
		}
		select {
		case <-changed:
		case <-late.C:
			b.t.Fatalf("consumertest: %d of %d records are not decided after %v", len(records)-decided, len(records), Patience)
		}
	}
	return out
}

// Storm delivers the records in the worst of orders: the first one first, since
// that is where the consumer joins, then all of them in random order, in pieces
// of random size, many of them more than once. It gives what became of each
// copy. The same seed gives the same storm.
func (b *Bench) Storm(seed uint64, records ...outbox.Record) Delivered {
	b.t.Helper()
	if len(records) == 0 {
		return Delivered{t: b.t}
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	copies := slices.Clone(records[1:])
	for range len(records) {
		copies = append(copies, records[rnd.IntN(len(records))])
	}
	rnd.Shuffle(len(copies), func(i, j int) { copies[i], copies[j] = copies[j], copies[i] })
	out := b.Deliver(records[0])
	for len(copies) > 0 {
		n := 1 + rnd.IntN(min(len(copies), 20))
		d := b.Deliver(copies[:n]...)
		out.Results, out.Resumed, copies = append(out.Results, d.Results...), append(out.Resumed, d.Resumed...), copies[n:]
	}
	return out
}

// Want fails the test unless the records had exactly these outcomes.
func (d Delivered) Want(outcomes ...consumer.Outcome) Delivered {
	d.t.Helper()
	got := make([]consumer.Outcome, len(d.Results))
	for i, r := range d.Results {
		got[i] = r.Outcome
	}
	if !slices.Equal(got, outcomes) {
		d.t.Errorf("consumertest: outcomes are %v, want %v (%s)", got, outcomes, d)
	}
	return d
}

// WantResumed fails the test unless exactly these records came out of the park,
// in this order, and were applied or absorbed.
func (d Delivered) WantResumed(records ...outbox.Record) Delivered {
	d.t.Helper()
	var got, want []string
	for _, r := range d.Resumed {
		if r.Outcome == consumer.Applied || r.Outcome == consumer.Absorbed {
			got = append(got, r.Position.String())
		}
	}
	for i := range records {
		r := &records[i]
		want = append(want, consumer.Position{StreamKey: consumer.StreamKey{Stream: r.Stream, Key: r.Key}, Epoch: r.Epoch, Seq: r.Seq, Kind: r.Kind}.String())
	}
	if !slices.Equal(got, want) {
		d.t.Errorf("consumertest: resumed %v, want %v", got, want)
	}
	return d
}

// Count is how many of the records, and of those out of the park, had the
// outcome.
func (d Delivered) Count(o consumer.Outcome) (n int) {
	for _, rs := range [][]consumer.Result{d.Results, d.Resumed} {
		for _, r := range rs {
			if r.Outcome == o {
				n++
			}
		}
	}
	return n
}

// String lists what became of each record, with the rule that decided.
func (d Delivered) String() string {
	var parts []string
	for _, r := range append(slices.Clone(d.Results), d.Resumed...) {
		s := fmt.Sprintf("%s: %s by %s", r.Position, r.Outcome, r.Rule)
		if r.Reason != "" {
			s += " (" + string(r.Reason) + ")"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, "; ")
}

// wake tells whoever waits that something has changed. b.mu is held.
func (b *Bench) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// observer and text are Bench as the consumer sees it.
type (
	observer Bench
	text     Bench
)

func (o *observer) Committed(c consumer.Committed) {
	b := (*Bench)(o)
	b.mu.Lock()
	b.results = append(b.results, c.Results...)
	b.wake()
	b.mu.Unlock()
	if b.observer != nil {
		b.observer.Committed(c)
	}
}

func (o *observer) Failing(f consumer.Failure) {
	if o.observer != nil {
		o.observer.Failing(f)
	}
}

func (o *observer) Alarm(a consumer.Alarm) {
	if o.observer != nil {
		o.observer.Alarm(a)
	}
}

// PartitionChanged is for an observer that is a consumer.PartitionObserver too.
func (o *observer) PartitionChanged(c consumer.PartitionChange) {
	if p, is := o.observer.(consumer.PartitionObserver); is {
		p.PartitionChanged(c)
	}
}

func (t *text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}
