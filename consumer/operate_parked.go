package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/fenceline/fenceline/outbox"
)

// Retry lets a stream go on that stands at an event that fails, or that a
// contradiction has blocked: what is parked is decided again, by the consumer.
func (o *Operator) Retry(ctx context.Context, key StreamKey, note Note) error {
	return o.act(ctx, "retry", key, note, func(b *batch, e *entry) ([]AuditEntry, error) {
		if e.row == nil {
			return nil, &RefusedError{"retry", key.String(), "nothing was read of it"}
		}
		if e.row.Blocked == "" {
			return nil, &RefusedError{"retry", key.String(), "it does not stand"}
		}
		unblock(e)
		b.queue.Queue(o.sql.unfail, o.guard.cfg.Consumer, key.Stream, key.Key)
		if err := b.goOn(e); err != nil {
			return nil, err
		}
		return []AuditEntry{{StreamKey: key, Epoch: e.row.Epoch, FromSeq: e.row.Seq + 1, ToSeq: e.row.Seq}}, nil
	})
}

// unblock: an operator has looked at the contradiction.
func unblock(e *entry) {
	if e.row.Blocked == InConflict {
		row := *e.row
		row.Blocked = Gap // until it is found out
		e.row, e.changed = &row, true
	}
}

// goOn decides what is parked on the guard as it is now, as far as no handler is
// needed, and leaves the rest to the consumer.
func (b *batch) goOn(e *entry) error {
	if err := b.resume(e); err != nil {
		return err
	}
	e.recheck, e.changed = true, true
	return nil
}

// Discard gives up the events from..to (both included) of a strict stream, in
// the epoch in which its guard is: none of them is ever applied, wherever it
// comes from. The stream goes on behind them when it is their turn. Of a later
// life the first event can be given up when it is its turn (the life is proven,
// and its handler fails); otherwise see [Operator.Adopt].
//
// What nobody has seen yet is not given up in passing: behind the highest seq
// that is known of the epoch it is refused, with an [*UnseenError].
func (o *Operator) Discard(ctx context.Context, key StreamKey, epoch, from, to int64, note Note) error {
	return o.discard(ctx, key, epoch, from, to, note, false)
}

// DiscardUnseen is [Operator.Discard] also for events that were not seen yet:
// should they come after all, they are stale. It can't be taken back; publish
// again what is missing first (relay republish), wherever the outbox still has
// it. A seq that is more than 2^30 behind the highest known one is refused: with
// it the key's whole future would be given up.
func (o *Operator) DiscardUnseen(ctx context.Context, key StreamKey, epoch, from, to int64, note Note) error {
	return o.discard(ctx, key, epoch, from, to, note, true)
}

// UnseenError refuses to discard what nobody has seen. Nothing was changed.
type UnseenError struct {
	StreamKey
	Epoch int64
	// Highest is the highest seq that is known of the epoch: decided, parked,
	// given up or the end of the life. To is how far the discard was to go.
	Highest, To int64
}

// Error implements error.
func (e *UnseenError) Error() string {
	return fmt.Sprintf("consumer: discard of %s %d up to %d is refused: the highest seq that is known of that epoch is %d, and what lies behind it may still come; Operator.DiscardUnseen gives that up as well", e.StreamKey, e.Epoch, e.To, e.Highest)
}

// Is makes errors.Is(err, ErrRefused) true.
func (e *UnseenError) Is(target error) bool { return target == ErrRefused }

func (o *Operator) discard(ctx context.Context, key StreamKey, epoch, from, to int64, note Note, unseen bool) error {
	return o.act(ctx, "discard", key, note, func(b *batch, e *entry) ([]AuditEntry, error) {
		refuse := func(format string, args ...any) ([]AuditEntry, error) {
			return nil, &RefusedError{"discard", fmt.Sprintf("%s %d/%d to %d", key, epoch, from, to), fmt.Sprintf(format, args...)}
		}
		if e.row == nil {
			return refuse("nothing was read of the stream")
		}
		row, err := b.turn(e, epoch)
		if err != nil {
			return nil, err
		}
		switch {
		case b.stream(key.Stream).Policy == State:
			return refuse("a state stream parks nothing: discard the dead letter")
		case from < 1 || from > to || to > maxNumber:
			return refuse("want 1 ≤ from ≤ to")
		case epoch != row.Epoch:
			return refuse("the guard is in epoch %d: what is of another one is decided, or its turn has not come", row.Epoch)
		case to <= row.Seq:
			return refuse("the guard has passed that: it is at seq %d", row.Seq)
		case row.EndSeq != 0 && to >= row.EndSeq:
			return refuse("the life ends with seq %d, and its end can't be given up", row.EndSeq)
		}
		var end bool
		if err := b.tx.QueryRow(ctx, o.sql.parkedEnd, o.guard.cfg.Consumer, key.Stream, key.Key, epoch, from, to).Scan(&end); err != nil {
			return nil, fmt.Errorf("consumer: looking for the end of %s: %w", key, err)
		}
		if end {
			return refuse("the life's end record is parked in that range, and can't be given up")
		}
		_, highest, err := b.seen(o.sql.parkedOf, e, row, epoch)
		switch {
		case err != nil:
			return nil, err
		case to > highest+farAhead:
			return refuse("the highest seq that is known of that epoch is %d, and nothing speaks for one so far behind it", highest)
		case to > highest && !unseen:
			return nil, &UnseenError{key, epoch, highest, to}
		}
		from = max(from, row.Seq+1)
		after := *row
		after.Missed, after.Settled = after.Missed.Add(from, to), true
		after.advance()
		if after.Missed.above(after.Seq) > maxMissed {
			return refuse("the guard remembers at most %d ranges above a hole: fill or give up the hole first", maxMissed)
		}
		e.row, e.changed = &after, true
		if after.Reached() {
			if err := b.findWaiting(e); err != nil {
				return nil, err
			}
		}
		if err := b.goOn(e); err != nil {
			return nil, err
		}
		return []AuditEntry{{StreamKey: key, Epoch: epoch, FromSeq: from, ToSeq: to}}, nil
	})
}

// turn is the guard of a stream in an epoch: as it is, or where a parked record
// is what begins the epoch and would be applied now, as it was before that.
func (b *batch) turn(e *entry, epoch int64) (*Row, error) {
	if epoch <= e.row.Epoch {
		return e.row, nil
	}
	lowest, err := b.fetch(e, b.g.sql.lowest, b.g.cfg.Consumer, e.Stream, e.Key)
	if err != nil || len(lowest) == 0 || lowest[0].Epoch != epoch {
		return e.row, err
	}
	switch p := &lowest[0]; {
	case p.unreadable == nil:
		if dec := Decide(b.input(e, &p.Record, p.Partition)); dec.Outcome != Applied {
			return e.row, nil
		}
	case p.reason != Failing || e.row.Blocked != Failing:
		// Else the consumer, who could read it, has called its handler at this turn.
		return nil, &RefusedError{"discard", p.unreadable.Position.String(), "it begins a life and can't be read here, so that whether its turn has come isn't known: set OperatorConfig.Mapping to the consumer's, or adopt the position behind it; " + clean(p.unreadable)}
	}
	entered := *e.row
	entered.enter(epoch)
	return &entered, nil
}

// Adopted is what was given up by adopting a position.
type Adopted struct {
	// From is the guard's position before: everything behind it and before the
	// adopted one is given up, also whole lives in between.
	From Position
	To   Position
}

// Adopt makes (epoch, seq) the next event of a strict stream, and gives up
// everything between it and the guard. It only goes forwards, and can't be
// taken back: publish again what is missing first (relay republish), wherever
// the outbox still has it.
//
// A position that nothing speaks for is refused, since a guard that is too far
// ahead refuses every honest event of the key from then on:
//
//   - an epoch that lies further ahead of the consumer's database clock than
//     OperatorConfig.MaxAhead, unless a record of it is parked;
//   - where records of the epoch are parked, and all that came of it did fit, a
//     seq that is more than one behind the highest of them;
//   - else a seq that is more than 2^30 behind the highest known one.
func (o *Operator) Adopt(ctx context.Context, key StreamKey, epoch, seq int64, note Note) (Adopted, error) {
	return o.adopt(ctx, key, epoch, seq, note, false)
}

// CanAdopt says what [Operator.Adopt] would give up, or why it refuses. It
// changes nothing, but needs the same role.
func (o *Operator) CanAdopt(ctx context.Context, key StreamKey, epoch, seq int64) (Adopted, error) {
	out, err := o.adopt(ctx, key, epoch, seq, Note{"nobody", "only looked at"}, true)
	if errors.Is(err, errLooked) {
		err = nil
	}
	return out, err
}

// farAhead is how far behind what is known of an epoch a seq may lie that no
// record speaks for.
const farAhead = 1 << 30

// seen is the highest seq that is known of an epoch, whose guard row is or
// would be, and whether records of it are parked.
func (b *batch) seen(parkedOf string, e *entry, row *Row, epoch int64) (parked bool, seq int64, err error) {
	if err := b.tx.QueryRow(b.ctx, parkedOf, b.g.cfg.Consumer, e.Stream, e.Key, epoch).Scan(&parked, &seq); err != nil {
		return false, 0, fmt.Errorf("consumer: looking for what is parked of %s: %w", e.StreamKey, err)
	}
	if epoch == row.Epoch {
		seq = max(seq, row.Seq)
		if n := len(row.Missed); n > 0 {
			seq = max(seq, row.Missed[n-1].To)
		}
	}
	return parked, seq, nil
}

// plausible says why (epoch, seq) can't be believed to come; "" if it can.
func (b *batch) plausible(parkedOf string, e *entry, epoch, seq int64) (why string, err error) {
	is, highest, err := b.seen(parkedOf, e, e.row, epoch)
	if err != nil {
		return "", err
	}
	if !is && absurd(Input{Record: &outbox.Record{Epoch: epoch}, Now: b.now, MaxAhead: b.g.cfg.MaxAhead}) {
		return fmt.Sprintf("the epoch is more than %v ahead of the database's clock (%d), and nothing of it is parked: every honest event of the key would be refused from then on", b.g.cfg.MaxAhead, b.now.UnixMicro()), nil
	}
	switch {
	case is && !e.epochs.Contains(epoch) && seq > highest+1:
		return fmt.Sprintf("the highest seq that was seen of that epoch is %d: adopt %d at most", highest, highest+1), nil
	case seq > highest+farAhead:
		return fmt.Sprintf("the highest seq that is known of that epoch is %d, and nothing speaks for one so far behind it", highest), nil
	}
	return "", nil
}

func (o *Operator) adopt(ctx context.Context, key StreamKey, epoch, seq int64, note Note, look bool) (out Adopted, err error) {
	err = o.act(ctx, "adopt", key, note, func(b *batch, e *entry) ([]AuditEntry, error) {
		refuse := func(format string, args ...any) ([]AuditEntry, error) {
			return nil, &RefusedError{"adopt", fmt.Sprintf("%s %d/%d", key, epoch, seq), fmt.Sprintf(format, args...)}
		}
		row := e.row
		switch {
		case row == nil:
			return refuse("nothing was read of the stream: there is nothing to give up")
		case b.stream(key.Stream).Policy == State:
			return refuse("a state stream passes over what is missing by itself")
		case epoch < 1 || epoch > maxNumber || seq < 1 || seq > maxNumber:
			return refuse("want an epoch and a seq from 1 to 2^62")
		case epoch < row.Epoch || epoch == row.Epoch && seq <= row.Seq+1:
			return refuse("the guard is at %d/%d, and only goes forwards", row.Epoch, row.Seq)
		case epoch == row.Epoch && row.EndSeq != 0 && seq > row.EndSeq:
			return refuse("the life ends with seq %d", row.EndSeq)
		}
		if why, err := b.plausible(o.sql.parkedOf, e, epoch, seq); err != nil {
			return nil, err
		} else if why != "" {
			return refuse("%s", why)
		}
		out = Adopted{
			From: Position{key, row.Epoch, row.Seq, outbox.KindData},
			To:   Position{key, epoch, seq, outbox.KindData},
		}
		if look {
			return nil, errLooked
		}
		after := adopt(row, epoch, seq)
		e.row, e.changed = after, true
		if after.Reached() {
			if err := b.findWaiting(e); err != nil {
				return nil, err
			}
		}
		unblock(e)
		if err := b.goOn(e); err != nil {
			return nil, err
		}
		from := int64(1)
		if epoch == row.Epoch {
			from = row.Seq + 1
		}
		return []AuditEntry{{StreamKey: key, Epoch: epoch, FromSeq: from, ToSeq: seq - 1,
			Detail: fmt.Sprintf(`{"from_epoch": %d, "from_seq": %d, "to_epoch": %d, "to_seq": %d}`, row.Epoch, row.Seq, epoch, seq)}}, nil
	})
	return out, err
}

// adopt is the guard that has (epoch, seq) before it. Its token is no longer
// known in a new life, and nothing is compared with it.
func adopt(row *Row, epoch, seq int64) *Row {
	after := *row
	if epoch != row.Epoch {
		after.enter(epoch)
	}
	if after.StartSeq == 0 { // only markers were seen, and any event would be taken for the next
		after.StartEpoch, after.StartSeq = epoch, seq
	}
	after.Missed, after.Settled = after.Missed.Add(after.Seq+1, seq-1), true
	after.advance()
	return &after
}

// EraseParked erases what a parked record says: its value, its headers but for
// those that say where it stands, and its handler's error. The row stays, and
// so does its place in the stream: it can't be applied any more, so the stream
// stands at it until somebody discards it.
func (o *Operator) EraseParked(ctx context.Context, key StreamKey, epoch, seq int64, note Note) error {
	return o.act(ctx, "erase", key, note, func(b *batch, e *entry) ([]AuditEntry, error) {
		n, err := o.erase(b, e, o.sql.parkedAt, o.sql.eraseParked, epoch, seq)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, &RefusedError{"erase", fmt.Sprintf("%s %d/%d", key, epoch, seq), "nothing is parked there"}
		}
		if e.row != nil && e.row.Blocked != "" {
			if err := b.resume(e); err != nil {
				return nil, err
			}
		}
		return []AuditEntry{{StreamKey: key, Epoch: epoch, FromSeq: seq, ToSeq: seq, Detail: `{"of": "parked"}`}}, nil
	})
}
