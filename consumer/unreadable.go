package consumer

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/outbox"
)

// ErrUnreadable is matched by every [*UnreadableError].
var ErrUnreadable = errors.New("consumer: a stored record can't be read any more")

// UnreadableError says that a parked record or a dead letter can't be read by
// the mapping that is configured now: it answers an error, or makes another
// position of it than it was stored under. The record stays where it is, and its
// stream stands at it as at one whose handler fails; everything else goes on.
//
// Configure the mapping it was stored under, or one that reads both, and let it
// be tried again ([Operator.Retry], [Operator.RetryDead]); or publish the event
// again; or give it up ([Operator.Discard], [Operator.DiscardDead]).
type UnreadableError struct {
	// Position is the one it was stored under.
	Position
	// Topic, Partition and Offset say where it came from.
	Topic     string
	Partition int
	Offset    int64
	// Err is what the mapping says of it.
	Err error
}

// Error implements error.
func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%v: %s (%s/%d at offset %d): %v; configure the mapping it was stored under, or one that reads both, and retry it, or publish the event again, or discard it",
		ErrUnreadable, e.Position, e.Topic, e.Partition, e.Offset, e.Err)
}

// Unwrap returns what the mapping says.
func (e *UnreadableError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrUnreadable) true.
func (e *UnreadableError) Is(target error) bool { return target == ErrUnreadable }

// setUnreadable makes of a stored record what its row alone says. Its token and
// the life before it aren't known then, so the table can't decide it: a zero
// token would look like a contradiction, a missing history like no proof.
func (p *storedRecord) setUnreadable(at Position, from int64, topic string, cause error) {
	d := &p.Delivery
	d.Record = outbox.Record{Topic: topic, Stream: at.Stream, Key: at.Key, Epoch: at.Epoch, Seq: at.Seq, Kind: at.Kind}
	if at.Kind == outbox.KindSkip {
		d.From = from
	}
	d.Malformed = cause
	p.unreadable = &UnreadableError{Position: at, Topic: topic, Partition: d.Partition, Offset: d.Offset, Err: cause}
}

// passed tells, by its position alone, whether the guard has decided a record.
// An unsettled one has decided nothing: it may yet be re-based to an earlier life,
// and then what is parked is what it waits for.
func (r *Row) passed(rec *outbox.Record) bool {
	return r.Settled && (rec.Epoch < r.Epoch || rec.Epoch == r.Epoch && r.Missed.ContainsRange(max(rec.First(), r.Seq+1), rec.Seq))
}

// passing is what an unreadable record is that the guard has passed.
func (r *Row) passing(rec *outbox.Record) Decision {
	switch {
	case rec.Epoch < r.Epoch:
		return Decision{Outcome: Stale, Rule: "3c", Row: r}
	case kindOf(rec) == outbox.KindData && r.Missed.Contains(rec.Seq):
		return Decision{Outcome: Stale, Rule: "4a", Row: r}
	}
	return Decision{Outcome: Duplicate, Rule: "4c", Row: r}
}

// stands says why a stream whose guard is row stands at its lowest parked
// record; "" if it may go on there.
func (b *batch) stands(e *entry, row *Row, p *storedRecord) Reason {
	if p.unreadable != nil {
		return b.standsUnreadable(e, row, p)
	}
	dec := Decide(b.input(&entry{StreamKey: e.StreamKey, row: row}, &p.Record, p.Partition))
	switch {
	case dec.Outcome == Parked:
		return dec.Reason
	case p.reason == Failing || p.erased:
		return Failing
	}
	return ""
}

// standsUnreadable is stands for a record that can't be read. When it comes to
// its turn that is noted in its row, once. An operator's mapping may not be the
// consumer's, so an operator leaves it to the consumer to find out.
func (b *batch) standsUnreadable(e *entry, row *Row, p *storedRecord) Reason {
	switch first := p.First(); {
	case b.operator || row.passed(&p.Record):
		return ""
	case p.Epoch == row.Epoch && row.StartSeq != 0 && first > row.Seq+1, p.Epoch > row.Epoch && first != 1:
		return Gap
	}
	d, err := p.Delivery, p.unreadable
	b.tells = true
	b.queue.Queue(b.g.sql.unreadable, b.g.cfg.Consumer, e.Stream, e.Key, d.Epoch, d.Seq, string(d.kind()), clean(err)).Exec(func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() > 0 {
			r := b.result(&d, Decision{Outcome: Parked, Reason: Failing})
			r.Err = err
			b.resumed = append(b.resumed, r)
		}
		return nil
	})
	return Failing
}

// buryUnreadable notes that a dead letter that was to be tried can't be read.
func (b *batch) buryUnreadable(p *storedRecord) {
	d := &p.Delivery
	b.queue.Queue(b.g.sql.failDead, b.g.cfg.Consumer, d.Stream, d.Key, d.Epoch, d.Seq, clean(p.unreadable))
	r := b.result(d, Decision{Outcome: DeadLettered})
	r.Err = p.unreadable
	b.resumed = append(b.resumed, r)
}
