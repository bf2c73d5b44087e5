package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// chunk is what one transaction applies: consecutive records, and the offset
// to read next once it has committed.
type chunk struct {
	deliveries []Delivery
	from, next int64       // what it covers of the log
	more       []StreamKey // whose parked events go on, after the commit
	alone      bool        // none of them goes on before
}

// split cuts the chunk in front of its i-th record.
func (c chunk) split(i int) (chunk, chunk) {
	at := c.deliveries[i].Offset
	return chunk{deliveries: c.deliveries[:i], from: c.from, next: at}, chunk{deliveries: c.deliveries[i:], from: at, next: c.next}
}

// isolate cuts the i-th record out. The parts are given last first, without
// those that are empty.
func (c chunk) isolate(i int) (parts []chunk) {
	if i+1 < len(c.deliveries) {
		var rest chunk
		c, rest = c.split(i + 1)
		parts = append(parts, rest)
	}
	if i == 0 {
		return append(parts, c)
	}
	before, one := c.split(i)
	return append(parts, one, before)
}

// process applies a chunk, whatever it takes. An error is errStopped or ends
// Run.
//
// A record that fails is isolated by cutting the chunk, never by a savepoint
// for each event: those cost more than the events, on the way that is taken
// when nothing fails. The handler's error says at which record to cut; where it
// doesn't, the chunk is halved until it does.
func (p *partition) process(reading context.Context, c chunk) error {
	pause := p.backoff()
	todo := []chunk{c} // the next one is the last
	var took losses
	for len(todo) > 0 {
		if reading.Err() != nil {
			return errStopped
		}
		c := &todo[len(todo)-1]
		err := p.transact(c)
		if err == nil {
			more := c.more
			todo = todo[:len(todo)-1]
			took.all = 0
			pause.Reset()
			p.recovered()
			if err := p.resume(reading, more); err != nil {
				return err
			}
			continue
		}
		if p.applying.Err() != nil {
			return errStopped
		}
		var fatal *fatalError
		if errors.As(err, &fatal) {
			return err
		}
		var culprit *HandlerError
		known := errors.As(err, &culprit) && !blurred(err)
		at := 0
		if known {
			at = culprit.Index
		}
		handled, sole := whole(err)
		switch n := len(c.deliveries); {
		case isPassing(err):
			if n > 0 && tookConnection(err) {
				// What comes before the event need not wait with it; where it isn't
				// known which one it is, or another one each time, the halves tell.
				switch lost := took.count(c.deliveries[at].Offset, known); {
				case n == 1 && !c.alone && (handled > 1 || sole != nil && sole.Resumed):
					c.alone = true // it may be all of them that take too long
				case n == 1 && lost >= p.cfg.LossLimit && c.deliveries[0].Failed == nil:
					p.lossesBlamed(&c.deliveries[0], lost, err)
					continue
				case n > 1 && known && lost > 1:
					todo = append(todo[:len(todo)-1], c.isolate(at)...)
				case n > 1 && took.all > lossesBeforeSplit:
					a, b := c.split(n / 2)
					todo = append(todo[:len(todo)-1], b, a)
				}
			} else if n > 1 && known && at > 0 {
				// The same for one that, say, always waits for the same lock.
				todo = append(todo[:len(todo)-1], c.isolate(at)...)
			}
			if err := p.outage(reading, pause, "the batch failed for a passing reason, trying again", err); err != nil {
				return err
			}
		case known && !culprit.Delivery.Resumed:
			wait := pause
			if n > 1 {
				wait = nil // what comes before it can go on at once
			}
			p.eventFailed(reading, &c.deliveries[at], err, wait)
			if n > 1 && c.deliveries[at].Failed == nil {
				todo = append(todo[:len(todo)-1], c.isolate(at)...)
			}
		case n > 1 && known:
			todo = append(todo[:len(todo)-1], c.isolate(at)...)
		case n > 1:
			a, b := c.split(n / 2)
			todo = append(todo[:len(todo)-1], b, a)
		case known:
			p.resumedFailed(reading, culprit, pause)
		case n == 0: // nothing but an offset: there is no event to blame
			if err := p.outage(reading, pause, "the offset was not stored, trying again", err); err != nil {
				return err
			}
		case !c.alone && handled > 1:
			c.alone = true // it may be one of those that went on behind it
		case sole != nil && sole.Resumed:
			p.resumedFailed(reading, &HandlerError{Delivery: *sole, Err: err}, pause)
		default:
			p.eventFailed(reading, &c.deliveries[0], err, pause)
		}
	}
	return nil
}

// eventFailed counts a try, and makes the failure a lasting one when the event
// has had enough of them.
func (p *partition) eventFailed(reading context.Context, d *Delivery, err error, pause *backoff.ExponentialBackOff) {
	switch lasting := p.tried(d, err, d.Attempt); {
	case d.Failed != nil:
		// The handler isn't called for it any more: what fails now is something
		// else, and is tried until it works.
	case lasting:
		d.Failed = reason(err)
		return
	}
	d.Attempt++
	if pause != nil {
		sleep(reading.Done(), pause.NextBackOff())
	}
}

// tried reports a failed try, and tells whether it was the last one.
func (p *partition) tried(d *Delivery, err error, attempts int) (lasting bool) {
	lasting = IsRejected(err) || errors.Is(err, ErrNotYours) || attempts >= p.cfg.Attempts
	p.observeFailure(Failure{Partition: p.assigned.Partition, Err: err, Attempt: attempts})
	p.log.Warn("the handler failed", "event", d.Position().String(), "offset", d.Offset, "attempt", attempts, "lasting", lasting, "err", err)
	return lasting
}

// reason is what is kept of a failure.
func reason(err error) error {
	var h *HandlerError
	if errors.As(err, &h) {
		return h.Err
	}
	return err
}

// transact applies the chunk in one transaction: guards, effects and offset
// commit together. Were the guard in another transaction than the effect, a
// crash between the two would lose the effect or repeat it.
func (p *partition) transact(c *chunk) error {
	var results []Result
	var got Progress
	done := *c
	began := time.Now()
	err := p.inBatch(func(ctx context.Context, tx pgx.Tx, last *last) (err error) {
		last.alone = c.alone
		if len(c.deliveries) > 0 {
			if results, err = p.guard.apply(ctx, tx, c.deliveries, p.handler, last); err != nil {
				return err
			}
		}
		if done = *c; last.applied < len(c.deliveries) {
			done, _ = c.split(last.applied)
		}
		last.read = &toStore{Read{Partition: p.assigned.Partition, From: done.from, Next: done.next, LastID: lastID(&done)}, results, &got}
		return nil
	})
	if err != nil {
		return err
	}
	*c = done // the rest, if there is one, is for who reads next
	p.reached(c.next, got)
	for i := range c.deliveries {
		if d := &c.deliveries[i]; results[i].Reason == Malformed {
			cause := d.Malformed
			if cause == nil { // the mapping could read it, and no guard can have it
				cause = p.guard.check(d)
			}
			p.log.Error("a record can't be read and was quarantined", "offset", d.Offset, "err", cause)
		}
	}
	p.committed(results, began)
	c.more = More(results)
	return nil
}

// committed reports a transaction that has committed.
func (p *partition) committed(results []Result, began time.Time) {
	for i := range results {
		r := &results[i]
		switch {
		case r.Displaced:
		case r.Err != nil:
			p.log.Error("a stored record can't be read any more, and stays", "event", r.Position.String(), "offset", r.Offset, "outcome", r.Outcome, "err", r.Err)
		case r.Reason == Malformed: // transact has said so, with the error
		case r.Alarm || r.Outcome == DeadLettered || r.Outcome == Quarantined:
			p.log.Error("the event was not applied", "event", r.Position.String(), "offset", r.Offset, "outcome", r.Outcome, "reason", r.Reason, "rule", r.Rule)
		case r.Outcome == Parked:
			p.log.Warn("the event waits", "event", r.Position.String(), "offset", r.Offset, "reason", r.Reason, "rule", r.Rule, "stored", !r.Unstored)
		}
		if r.Resumed { // it was decided: its tries are over
			delete(p.failed, r.Position)
			delete(p.lost, r.Position)
		}
		if r.Unread {
			p.overflows.moved()
		}
		switch r.Outcome {
		case DeadLettered:
			p.pokeLetters()
		case Applied:
			p.again.applied(r)
		}
	}
	if p.cfg.Observer != nil {
		p.cfg.Observer.Committed(Committed{Partition: p.assigned.Partition, Results: results,
			Next: p.offset, HighWatermark: max(p.end, p.offset), Took: time.Since(began)})
	}
}

// lastID is the id of the event at the offset right below the one to read
// next; nil if there is none, or it has none.
func lastID(c *chunk) *uuid.UUID {
	if len(c.deliveries) == 0 {
		return nil
	}
	d := &c.deliveries[len(c.deliveries)-1]
	if d.Malformed != nil || d.Offset != c.next-1 {
		return nil
	}
	return &d.ID
}
