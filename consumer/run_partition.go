package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

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
	log      *slog.Logger

	offset int64 // to fetch next
	end    int64 // the high watermark of the last fetch
	unread int64 // where a batch can't be read, or NoOffset
	failed fails // parked events that failed when their turn came
}

// run works until reading ends, and returns nil then. An error ends Run.
func (p *partition) run(reading context.Context) error {
	pause := p.backoff()
	located := false
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
		f, err := p.gen.Fetch(reading, p.assigned.Partition, p.offset, p.cfg.FetchBytes)
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
		p.end = f.HighWatermark
		if err := p.consume(reading, f); err != nil {
			if errors.Is(err, errStopped) {
				return nil
			}
			return err
		}
	}
	return nil
}

// consume applies what was fetched, a batch at a time.
func (p *partition) consume(reading context.Context, f Fetched) error {
	for at := 0; at < len(f.Records); at += p.cfg.BatchSize {
		recs := f.Records[at:min(at+p.cfg.BatchSize, len(f.Records))]
		c := chunk{deliveries: make([]Delivery, len(recs)), next: recs[len(recs)-1].Offset + 1}
		for i, r := range recs {
			c.deliveries[i] = NewDelivery(p.assigned.Partition, r)
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
		return p.process(reading, chunk{next: f.Next})
	}
	return nil
}

// reached notes that the database has committed everything below next.
func (p *partition) reached(next int64) {
	p.offset, p.assigned.Committed = next, next
	p.commits.reached(p.assigned.Partition, next)
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
	p.observeFailure(Failure{Partition: p.assigned.Partition, Err: err, Passing: true})
	p.log.Warn(what, "err", err)
	sleep(reading.Done(), pause.NextBackOff())
	return nil
}

// unreadable raises the alarm for a batch that reading again won't change.
func (p *partition) unreadable(err error) {
	var b *BatchError
	if errors.As(err, &b) && b.Offset != p.unread {
		p.unread = b.Offset // once is enough, the tries go on
		p.alarm(Alarm{Partition: p.assigned.Partition, Kind: Unreadable, From: b.Offset, To: b.Offset + 1, Text: b.Reason})
	}
}

func (p *partition) alarm(a Alarm) {
	p.log.Error("alarm: "+string(a.Kind), "from", a.From, "to", a.To, "text", a.Text)
	if p.cfg.Observer != nil {
		p.cfg.Observer.Alarm(a)
	}
}

func (p *partition) observeFailure(f Failure) {
	if p.cfg.Observer != nil {
		p.cfg.Observer.Failing(f)
	}
}

// locate finds where to read from.
func (p *partition) locate(ctx context.Context) error {
	part := p.assigned.Partition
	s, err := p.offsets.read(ctx, p.pool, part)
	if err != nil {
		return err
	}
	in := placement{partition: part, stored: s, committed: p.assigned.Committed,
		origin: p.cfg.any(func(s StreamConfig) bool { return s.Policy == Strict && s.Start == FromOrigin })}
	if in.start, in.end, err = p.gen.Bounds(ctx, part); err != nil {
		return err
	}
	if in.replaced, err = p.replaced(ctx, in); err != nil {
		return err
	}
	return p.place(ctx, locate(in))
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
	case errors.As(err, &gone), errors.As(err, &bad):
		return true, nil
	case err != nil:
		return false, err
	case len(f.Records) == 0 && f.Next <= last:
		return false, fmt.Errorf("consumer: %s: no answer for the record at offset %d", in.partition, last)
	}
	for _, r := range f.Records {
		if r.Offset == last {
			d := NewDelivery(in.partition, r)
			return d.Malformed != nil || d.ID != in.stored.last, nil
		}
	}
	return true, nil
}

// place sets the offset, and raises the alarms once the database has it.
func (p *partition) place(ctx context.Context, at place) error {
	sql, args := p.offsets.store, []any{p.offsets.consumer, p.assigned.Topic, p.assigned.ID, at.offset, nil}
	if at.restart {
		// Where every stream takes the newest, nothing waits for what is gone.
		flag := at.flag && p.cfg.any(func(s StreamConfig) bool { return s.Policy == Strict })
		sql, args[4] = p.offsets.restart, flag
	}
	if at.begin || at.restart {
		err := pgx.BeginTxFunc(ctx, p.pool, txOptions, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, durableSQL); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sql, args...)
			return err
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
