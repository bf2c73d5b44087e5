package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// partition reads one partition during one generation: fetch, apply, note the
// offset, again. Only its own goroutine touches it.
type partition struct {
	*runner
	gen      Generation
	assigned Assignment
	commits  *committer
	applying context.Context // ends when what is in flight must be given up
	whole    context.Context // ends when a batch is to be cut behind the event in hand
	log      *slog.Logger

	fetchBytes int  // of one fetch
	inTurn     bool // a stream whose parked events fail for a passing reason has its turn again after the others

	stream StreamKey // whose parked events don't go on, while that is told
	offset int64     // to fetch next
	end    int64     // the high watermark of the last fetch
	unread int64     // where a batch can't be read, or NoOffset
	failed fails     // parked events that failed when their turn came
	lost   fails     // parked events that took the connection with them
	over   int64     // the lowest offset of what did not fit, or NoOffset
	again  rereading // of what did not fit
	since  time.Time // when what fails began to; zero if all goes well
	stalls bool      // the alarm about that was raised
}

// run works until reading ends, and returns nil then. An error ends Run.
func (p *partition) run(reading context.Context) error {
	p.changed(Reading, nil)
	defer p.changed(Released, nil)
	pause := p.backoff()
	located := false
	var next *ahead
	defer func() { next.drop() }()
	for reading.Err() == nil {
		if !located {
			if err := p.locate(reading); err != nil {
				if err := p.outage(reading, pause, "the partition can't be begun, trying again", err); err != nil {
					return err
				}
				continue
			}
			located = true
		}
		if next != nil && next.offset != p.offset {
			next.drop() // it was read for another place
			next = nil
		}
		if next == nil {
			next = p.fetch(reading, p.offset)
		}
		if !next.wait(p.cfg.PollInterval) {
			if err := p.seekBack(reading); err != nil {
				return err
			}
			continue // nothing has come; if it is to be read elsewhere, next is dropped
		}
		f, err := next.f, next.err
		next.drop()
		next = nil
		if err != nil {
			// Behind an outage the topic can be another one, and where the log does
			// not have the offset something was lost: look again where we are.
			located = false
			p.unreadable(err)
			if err := p.outage(reading, pause, "fetch failed, trying again", err); err != nil {
				return err
			}
			continue
		}
		pause.Reset()
		p.recovered()
		p.end = f.HighWatermark
		if len(f.Records) > 0 {
			next = p.fetch(reading, f.Next) // while this is being applied
		}
		if err := p.consume(reading, f); err != nil {
			if errors.Is(err, errStopped) {
				return nil
			}
			return err
		}
		if err := p.seekBack(reading); err != nil {
			return err
		}
	}
	return nil
}

// ahead is a fetch that goes on while the one before it is applied. There is
// one at most: it holds what comes next in memory, and what comes after that
// stays with the broker until the handler gets there.
type ahead struct {
	offset int64
	cancel context.CancelFunc
	done   chan struct{}
	f      Fetched
	err    error
}

func (p *partition) fetch(reading context.Context, offset int64) *ahead {
	ctx, cancel := context.WithCancel(reading)
	a := &ahead{offset: offset, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.f, a.err = p.gen.Fetch(ctx, p.assigned.Partition, offset, p.fetchBytes)
	}()
	return a
}

// wait tells whether the answer has come.
func (a *ahead) wait(d time.Duration) bool {
	select {
	case <-a.done:
		return true
	default:
		return !sleep(a.done, d)
	}
}

// drop gives the fetch up, and returns when nothing of it goes on: a
// generation must not be used behind its end.
func (a *ahead) drop() {
	if a != nil {
		a.cancel()
		<-a.done
	}
}

// consume applies what was fetched, a batch at a time.
func (p *partition) consume(reading context.Context, f Fetched) error {
	for at := 0; at < len(f.Records); at += p.cfg.BatchSize {
		recs := f.Records[at:min(at+p.cfg.BatchSize, len(f.Records))]
		c := chunk{deliveries: make([]Delivery, len(recs)), from: p.offset, next: recs[len(recs)-1].Offset + 1}
		for i, r := range recs {
			d := p.cfg.Mapping.Delivery(p.assigned.Partition, r)
			if errors.Is(d.Malformed, ErrMapping) {
				return &fatalError{d.Malformed} // every record would be quarantined for it
			}
			c.deliveries[i] = d
		}
		if at+len(recs) == len(f.Records) {
			c.next = f.Next // beyond control records behind the last record
		}
		if err := p.process(reading, c); err != nil {
			return err
		}
	}
	if len(f.Records) == 0 && f.Next > p.offset {
		// Control records, or an aborted transaction, and nothing else.
		return p.process(reading, chunk{from: p.offset, next: f.Next})
	}
	return nil
}

// reached notes that the database has committed everything below next. Kafka is
// told no more than got allows: what did not fit must be read again, by whoever
// has the partition then.
func (p *partition) reached(next int64, got Progress) {
	p.offset, p.assigned.Committed = next, got.Committable
	p.commits.reached(p.assigned.Partition, got.Committable)
	p.overflows.note(p.assigned.Partition, got.Overflow)
	p.overflowed(got.Overflow)
}

// backoff is a pause that grows and never gives up: what it waits for is an
// outage, which must not use anything up. (The library's default gives up
// after 15 minutes.)
func (r *runner) backoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = r.cfg.RetryMin, r.cfg.RetryMax
	b.MaxElapsedTime = 0
	b.Reset()
	return b
}

// outage logs and waits. It gives an error back that waiting can't cure.
func (p *partition) outage(reading context.Context, pause *backoff.ExponentialBackOff, what string, err error) error {
	if reading.Err() != nil {
		return nil
	}
	var fatal *fatalError
	if errors.As(err, &fatal) {
		return err
	}
	if refused := refusedLogin(err); refused != nil {
		return &fatalError{refused}
	}
	p.observeFailure(Failure{Partition: p.assigned.Partition, Err: err, Passing: true})
	p.log.Warn(what, "err", err)
	p.waits(err)
	sleep(reading.Done(), pause.NextBackOff())
	return nil
}

// locate finds where to read from.
func (p *partition) locate(ctx context.Context) error {
	part := p.assigned.Partition
	// In a transaction that may write: what a standby knows is old.
	var s stored
	err := p.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) (err error) {
		s, err = p.offsets.read(ctx, tx, part)
		return err
	})
	if err != nil {
		return err
	}
	in := placement{partition: part, stored: s, committed: p.assigned.Committed, latest: p.cfg.Begin == Latest,
		origin: p.cfg.any(func(s StreamConfig) bool { return s.Policy == Strict && s.Start == FromOrigin })}
	if in.start, in.end, err = p.gen.Bounds(ctx, part); err != nil {
		return err
	}
	if in.replaced, err = p.replaced(ctx, in); err != nil {
		return err
	}
	p.over, p.again = s.overflow, rereading{moves: p.overflows.moving()}
	p.overflows.note(part, s.overflow) // what the poller knows may be of before
	if s.overflow != NoOffset {
		p.again.to = s.next
	}
	return p.place(locate(in))
}

// replaced tells whether the log has another event than the one that was last
// read of it.
func (p *partition) replaced(ctx context.Context, in placement) (bool, error) {
	last := in.stored.next - 1
	if in.stored.last == (uuid.UUID{}) || last < in.start || last >= in.end {
		return false, nil // nothing to compare, or locate knows without
	}
	f, err := p.gen.Fetch(ctx, in.partition, last, 1)
	var gone *OffsetError
	var bad *BatchError
	switch {
	case errors.As(err, &gone): // retention has passed it since: look again where the log begins
		return false, fmt.Errorf("consumer: comparing what was read last: %w", err)
	case errors.As(err, &bad):
		// It was read once, so this says nothing of what lies there: the limit is
		// another, or the broker's copy is damaged. Reading from the beginning would
		// end at the same batch.
		p.unreadable(&BatchError{bad.Partition, bad.Offset, fmt.Sprintf("%s; it has been read before, and reading goes on behind it, but whether the topic is still the same can't be told by it", bad.Reason)})
		return false, nil
	case err != nil:
		return false, err
	case len(f.Records) == 0 && f.Next <= last:
		return false, fmt.Errorf("consumer: %s: no answer for the record at offset %d", in.partition, last)
	}
	for _, r := range f.Records {
		if r.Offset == last {
			// By the relay's format too: it may have been read so before there was a mapping.
			return !slices.ContainsFunc([]Mapping{p.cfg.Mapping, Wire}, func(m Mapping) bool {
				d := m.Delivery(in.partition, r)
				return d.Malformed == nil && d.ID == in.stored.last
			}), nil
		}
	}
	return true, nil
}

// place sets the offset, and raises the alarms once the database has it.
func (p *partition) place(at place) error {
	// Where every stream takes the newest, nothing waits for what is gone.
	at.flag = at.flag && p.cfg.any(func(s StreamConfig) bool { return s.Policy == Strict })
	if at.begin || at.restart {
		err := p.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) error {
			return p.offsets.begin(ctx, tx, p.assigned.Partition, at)
		})
		if err != nil {
			return fmt.Errorf("consumer: recording where %s begins: %w", p.assigned.Partition, err)
		}
	}
	for _, a := range at.alarms {
		p.alarm(a)
	}
	// What Kafka said at the assignment is used once: from here on it is what
	// this goroutine reached, which may be behind the database on a rereading.
	p.offset, p.assigned.Committed = at.offset, at.offset
	return nil
}
