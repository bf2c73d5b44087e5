package consumer

import (
	"fmt"
	"runtime/debug"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/jackc/pgx/v5"
)

// decide decides one delivery and does what follows from it, but for the move
// of its guard, which is written with those of the whole batch.
func (b *batch) decide(d *Delivery) (Result, error) {
	if d.Malformed == nil {
		d.Malformed = b.g.check(d)
	}
	if d.Malformed != nil {
		dec := Decide(Input{Malformed: d.Malformed})
		return b.result(d, dec), b.quarantine(nil, d, dec)
	}
	e := b.entries[StreamKey{d.Stream, d.Key}]
	in := b.input(e, &d.Record, d.Partition)
	dec := Decide(in)
	if dec.Outcome == Applied && d.Failed != nil {
		dec = DecideFailed(in)
	} else if dec.Outcome == Applied && e.row != nil && e.row.Blocked == Failing {
		// A copy of the event that fails: it waits for an operator, not for
		// another copy.
		waits, err := b.waitsFailing(d)
		if err != nil {
			return Result{}, err
		}
		if waits {
			return b.result(d, Decision{Outcome: Parked, Rule: dec.Rule, Reason: Failing}), nil
		}
	}
	stored, err := b.carryOut(e, d, dec)
	if err != nil {
		return Result{}, err
	}
	if dec.Moved && e.row.Blocked != "" {
		if err := b.resume(e); err != nil {
			return Result{}, err
		}
	}
	r := b.result(d, dec)
	r.Unstored = !stored
	return r, nil
}

// carryOut does what a decision says, and makes its row the guard's. That the
// record is not stored changes nothing of that: the guard must know of it.
func (b *batch) carryOut(e *entry, d *Delivery, dec Decision) (stored bool, err error) {
	stored = true
	switch dec.Outcome {
	case Applied:
		b.noteHandled(d)
		if err := b.handle(*d); err != nil {
			return false, &HandlerError{Index: b.index, Delivery: *d, Err: err}
		}
		b.unbury(e, d)
	case Parked:
		if d.origin != fromPark {
			stored, err = b.park(e, d, dec)
		}
	case DeadLettered:
		stored, err = b.bury(e, d)
	case Quarantined:
		err = b.quarantine(e.row, d, dec)
	}
	if err != nil {
		return false, err
	}
	if dec.Changed {
		e.row, e.changed = dec.Row, true
	}
	if e.row != nil && e.row.Reached() {
		err = b.findWaiting(e)
	}
	return stored, err
}

// noteHandled tells the caller how many events its transaction has.
func (b *batch) noteHandled(d *Delivery) {
	if b.last == nil {
		return
	}
	b.last.sole = nil
	if b.last.handled++; b.last.handled == 1 {
		b.last.sole = d
	}
}

// unbury takes the dead letter of an event away.
func (b *batch) unbury(e *entry, d *Delivery) {
	if b.dead[d.Position()] == deadLetter {
		b.queue.Queue(b.g.sql.unbury, b.g.cfg.Consumer, d.Stream, d.Key, d.Epoch, d.Seq).Query(b.removing(e))
		delete(b.dead, d.Position())
	}
}

// handle calls the handler. A panic is a failure of the event like another.
func (b *batch) handle(d Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	err = b.h.Handle(b.ctx, b.tx, d)
	// Looked at here and not where the next statement fails: that one is of
	// another event, or of the guard.
	if c := b.tx.Conn(); connBusy(err) || err == nil && c != nil && !c.IsClosed() && c.PgConn().IsBusy() {
		return Reject(&rowsOpenError{err})
	}
	// By SQL a handler can still end the transaction. What it has committed then
	// is no longer one with the guard, so trying again would only repeat it.
	if c := b.tx.Conn(); c != nil && !c.IsClosed() && c.PgConn().TxStatus() == 'I' {
		return Reject(fmt.Errorf("%w; it has ended it by a statement, and what it wrote before that may be committed", ErrNotYours))
	}
	return err
}

// findWaiting finds the lowest later epoch of which something waits, when the
// guard has come to the one it knew: of what is parked, and of what could not be
// stored and was not read again.
func (b *batch) findWaiting(e *entry) error {
	if err := b.flush(); err != nil {
		return err
	}
	row := *e.row
	err := b.tx.QueryRow(b.ctx, b.g.sql.waiting, b.g.cfg.Consumer, e.Stream, e.Key, row.Epoch).Scan(&row.WaitingEpoch)
	if err != nil {
		return fmt.Errorf("consumer: looking for what waits of %s: %w", e.StreamKey, err)
	}
	if b.holds(e) {
		if i := e.epochs.find(row.Epoch + 1); i < len(e.epochs) {
			row.wait(max(e.epochs[i].From, row.Epoch+1))
		}
	}
	e.row, e.changed = &row, true
	return nil
}

func (b *batch) waitsFailing(d *Delivery) (waits bool, err error) {
	if err := b.flush(); err != nil {
		return false, err
	}
	err = b.tx.QueryRow(b.ctx, b.g.sql.failing, b.g.cfg.Consumer, d.Stream, d.Key, d.Epoch, d.Seq).Scan(&waits)
	if err != nil {
		return false, fmt.Errorf("consumer: looking for %s in the park: %w", d.Position(), err)
	}
	return waits, nil
}

// flush writes what is queued, in one round trip.
func (b *batch) flush() error {
	if b.queue.Len() == 0 {
		return nil
	}
	q := b.queue
	b.queue = pgx.Batch{}
	if err := b.tx.SendBatch(b.ctx, &q).Close(); err != nil {
		return fmt.Errorf("consumer: storing records: %w", err)
	}
	return nil
}

// finish writes what is left and moves the guards that changed.
func (b *batch) finish() error {
	if b.queued > 0 || b.tells { // what is stored is counted first, and what an answer adds to the results is there
		if err := b.flush(); err != nil {
			return err
		}
	}
	var next advances
	var other moves
	for _, k := range b.order {
		e := b.entries[k]
		switch {
		case !e.changed:
		case e.advanced():
			next.add(e)
		default:
			other.add(e)
		}
	}
	look := false
	switch n := len(next.tid); {
	case n == 0:
	case n > sureMost || b.last == nil || b.anyFlagged(): // what is flagged has moved then
		look = true
		b.queue.Queue(b.g.sql.advance, next.tid, next.epoch, next.token, next.seq).Exec(allOf(n))
	default:
		b.last.moved = next
	}
	if m, n := &other, len(other.tid); n > 0 {
		look = true
		b.queue.Queue(b.g.sql.move, m.tid, m.epoch, m.token, m.seq, m.missed, m.end, m.startEpoch, m.startSeq, m.settled, m.waiting, m.blocked,
			m.parked, m.bytes, m.recheck).Exec(allOf(n))
	}
	b.flag() // by key: the rows lie elsewhere now
	if b.last != nil {
		b.last.look = b.last.look || look
		b.last.QueuedQueries = append(b.last.QueuedQueries, b.queue.QueuedQueries...)
		b.queue = pgx.Batch{}
		return nil
	}
	if err := b.flush(); err != nil {
		return fmt.Errorf("consumer: moving the guards: %w", err)
	}
	return nil
}

// allOf refuses a statement that has found fewer guards than it should: what a
// handler has applied would be committed, and its guard would not have moved.
func allOf(n int) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != int64(n) {
			return fmt.Errorf("%w (%d of %d are)", errMoved, tag.RowsAffected(), n)
		}
		return nil
	}
}

// sureMost is how many guards the statement moves that looks at their number by
// itself, so that COMMIT can be sent with it. For more of them it costs more than
// the round trip that it saves.
const sureMost = 32

func (b *batch) result(d *Delivery, dec Decision) Result {
	return Result{
		Position: d.Position(), Outcome: dec.Outcome, Rule: dec.Rule, Reason: dec.Reason, Alarm: dec.Alarm,
		Topic: d.Topic, Partition: d.Partition, Offset: d.Offset, Resumed: d.Resumed,
	}
}
