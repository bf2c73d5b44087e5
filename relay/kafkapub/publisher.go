package kafkapub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
)

// ErrClosed is matched by the errors of a publisher that was closed.
var ErrClosed = errors.New("kafkapub: publisher is closed")

// Publisher is a [relay.Publisher] that writes to Kafka. Make one with [New].
type Publisher struct {
	config    Config
	dialer    *dialer
	producers *producers
	// uncompressed is set when a broker refuses our compression.
	uncompressed atomic.Bool
	// life ends with Close, and with it every call and kafka-go's goroutines.
	life context.Context
	end  context.CancelCauseFunc

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup     // added to under mu, and not after closed
	routes map[string]*joiner // by topic
	lanes  map[laneKey]*lane
}

type laneKey struct {
	topic     string
	partition int
}

var _ relay.Publisher = (*Publisher)(nil)

// New makes a publisher. It connects when it is first used, so a broker that is
// down is no error here. Close it when it is no longer needed.
func New(config Config) (*Publisher, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	p := &Publisher{
		config: config.withDefaults(),
		dialer: &dialer{},
		routes: make(map[string]*joiner),
		lanes:  make(map[laneKey]*lane),
	}
	p.producers = newProducers(p.config.Logger)
	p.life, p.end = context.WithCancelCause(context.Background())
	return p, nil
}

// Produce implements [relay.Publisher]. It returns within Config.Timeout.
func (p *Publisher) Produce(ctx context.Context, b *relay.Batch) error {
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if b.Topic == "" || b.Partition < 0 || len(b.Records) == 0 {
		return fmt.Errorf("kafkapub: batch of %d records for topic %q, partition %d: name a topic and a partition, and hand in at least one record",
			len(b.Records), b.Topic, b.Partition)
	}
	l := p.lane(b.Topic, b.Partition)
	if !l.busy.TryLock() {
		return fmt.Errorf("kafkapub: %s: Produce was called while another call for this partition is running: nothing was sent; produce the batches of a partition one after the other", l)
	}
	defer l.busy.Unlock()
	if err := l.pause(ctx); err != nil {
		return fmt.Errorf("kafkapub: %s: nothing was sent: %w", l, cause(ctx, err))
	}
	seen := l.joiner.route.seen()
	f, err := l.prepare(ctx, b, p.producers, p.codec(), p.config.MaxBatchBytes)
	if err != nil {
		var re *relay.RefusedError
		if errors.As(err, &re) {
			return err
		}
		if classify(err) == moved {
			l.joiner.route.forget(seen)
		}
		return fmt.Errorf("kafkapub: %s: nothing was sent: %w", l, cause(ctx, err))
	}
	began := time.Now()
	o := l.joiner.produce(ctx, b.Partition, f.buf, l.alone, l.slow)
	l.alone, l.slow = o.err != nil, time.Since(began) > prompt
	switch {
	case o.unsent:
		// It holds numbers, and may go out under them later.
		return fmt.Errorf("kafkapub: %s: nothing was sent: %w", l, cause(ctx, o.err))
	case !o.answered:
		f.unanswered = true
	}
	if o.throttle > 0 {
		l.notBefore = time.Now().Add(o.throttle)
	}
	err = o.err
	if err == nil {
		l.settled()
		b.Frozen = nil
		f.release()
		return nil
	}
	return p.judge(ctx, l, b, seen, err, o.named)
}

// judge turns the error of an attempt into Produce's answer, and the lane into
// the state that goes with it.
func (p *Publisher) judge(ctx context.Context, l *lane, b *relay.Batch, seen int, err error, named map[int]error) error {
	v := classify(err)
	if v == notIdempotent && l.producer == unnumbered {
		v = closed // it is not the producer id that it objects to
	}
	if v == notCompressed && p.codec() == nil {
		v = again // nothing is compressed any more
	}
	switch v {
	case moved:
		l.joiner.route.forget(seen)
	case absent:
		if te := l.joiner.route.confirm(ctx, l.topic, l.partition, seen); te != nil {
			return te
		}
	case anew:
		p.config.Logger.Warn("broker does not continue our sequence; sending again under a new producer id"+
			" (harmless after a long pause; otherwise records that were acknowledged may have been lost: look for an unclean leader election)",
			"topic", l.topic, "partition", l.partition, "sequence", l.sequence, "error", err)
		l.restart()
	case notIdempotent:
		p.producers.refuse(err)
		l.restart()
	case notCompressed:
		p.dropCompression(err)
		// It is encoded anew: nothing of this attempt was appended.
		l.open.release()
		b.Frozen = nil
		l.restart()
	case refused:
		l.restart()
		return &relay.RefusedError{Indexes: indexes(named, b.Records), TooLarge: errors.Is(err, kafka.MessageSizeTooLarge) || errors.Is(err, kafka.RecordListTooLarge), Reason: fmt.Sprintf("%s: %v", l, err), Err: err}
	case closed:
		return &relay.TopicError{Topic: l.topic, Reason: closedReason(err), Err: err}
	case fenced:
		return fmt.Errorf("%w: %s: %w", relay.ErrFenced, l, err)
	}
	return fmt.Errorf("kafkapub: %s: outcome unknown: %w", l, cause(ctx, err))
}

// indexes gives the places of the refused records, nil where they can't be
// told. The broker's word is checked: an index that isn't there, taken at its
// word, would blame a record of another batch.
func indexes(named map[int]error, records []outbox.Record) []int {
	places := slices.Sorted(maps.Keys(named))
	places = slices.DeleteFunc(places, func(i int) bool { return i < 0 || i >= len(records) })
	if len(places) == 0 {
		return theOne(records)
	}
	return places
}

// theOne: where a batch has only one record, it is to blame.
func theOne(records []outbox.Record) []int {
	if len(records) == 1 {
		return []int{0}
	}
	return nil
}

// Close implements [relay.Publisher]. It returns when all calls have ended, and
// may be called more than once.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	routes := slices.Collect(maps.Values(p.routes))
	p.mu.Unlock()
	p.end(ErrClosed)
	p.calls.Wait()
	for _, j := range routes {
		j.close()
		j.route.close()
	}
	p.dialer.close()
	return nil
}

// enter begins a call: its context ends with the caller's, with Close and with
// the timeout.
func (p *Publisher) enter(ctx context.Context) (context.Context, func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, ErrClosed
	}
	p.calls.Add(1)
	ctx, cancelTimeout := context.WithTimeout(ctx, p.config.Timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.life, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		cancelTimeout()
		p.calls.Done()
	}, nil
}

// cause adds to an error of ctx why ctx ended.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.Is(err, c) {
		return fmt.Errorf("%w: %w", c, err)
	}
	return err
}

func (p *Publisher) lane(topic string, partition int) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := laneKey{topic, partition}
	l := p.lanes[k]
	if l == nil {
		j := p.routes[topic]
		if j == nil {
			j = newJoiner(p.life, newRoute(p.life, &p.config, topic, p.dialer), topic, &p.config)
			p.routes[topic] = j
		}
		l = &lane{topic: topic, partition: partition, joiner: j}
		p.lanes[k] = l
	}
	return l
}
