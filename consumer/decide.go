package consumer

import (
	"slices"

	"github.com/fenceline/fenceline/outbox"
)

// Decide is the decision table: what becomes of a record, given what the guard
// remembers. It is a pure function. The first row that matches wins:
//
//	    case                                    strict                          state
//	0   malformed, or an epoch in the future    quarantine                      quarantine
//	1   of a forgotten life, and no guard       quarantine                      quarantine
//	2   no guard: event                         apply, start here (a)           apply, start here
//	    no guard: marker                        absorb (a)                      ignore
//	3a  older epoch, guard unsettled            re-base to it, go on at 3d      –
//	3b  older epoch than the start              before start (b)                before start
//	3c  older epoch                             stale                           stale
//	3d  same epoch, unsettled, truncated (c)    park: gap                       –
//	3e  unsettled, names an unread life (c)     re-base to that, park: life     –
//	4a  same epoch, seq given up                event: stale, marker: duplicate
//	4b  same epoch, token contradicts           quarantine, block the key       quarantine
//	4c  same epoch, seq passed                  duplicate, or before start
//	4d  same epoch, marker beyond the guard     absorb (c: gap, if unsettled)   absorb
//	4e  same epoch, next event                  apply                           apply (d)
//	4f  same epoch, event beyond the next       park: gap                       apply (d), passing over
//	5a  larger epoch                            –                               event: apply (d), marker: ignore
//	5b  larger epoch, only markers seen so far  as 2                            –
//	5c  larger epoch, not its first record      park: gap                       –
//	5d  larger epoch, its first, proven         apply or absorb                 –
//	5e  larger epoch, its first, not proven     park: life                      –
//
//	(a) FromOrigin: a guard that has decided nothing, at seq 0 of the epoch; go on at 3d
//	(b) FromOrigin: quarantine, alarm
//	(c) FromOrigin only
//	(d) but a dead letter that was discarded is stale
//
// Under strict, what would be applied to a key that 4b has blocked is parked. A
// record that parks writes the guard too, also where there was none.
func Decide(in Input) Decision { return decide(in, false) }

// DecideFailed is the decision for an event whose handler fails for good: as
// Decide, but what would be applied is parked under Strict, with everything
// that follows, and dead-lettered under State, where the guard stays as it is
// so that trying again is the same decision again.
func DecideFailed(in Input) Decision { return decide(in, true) }

func decide(in Input, failed bool) Decision {
	t := table{in: in, rec: in.Record, failed: failed}

	// 0: can't be placed, or is not believed.
	if in.Malformed != nil || checkRecord(in.Record) != nil {
		return t.quarantine("0", Malformed)
	}
	if absurd(in) {
		return t.quarantine("0", Absurd)
	}

	var (
		rec    = in.Record
		data   = kindOf(rec) == outbox.KindData
		first  = rec.First()
		strict = in.Policy != State
		origin = strict && in.Start == FromOrigin
	)

	// 1: a guard of this life may have been there and been forgotten. An
	// unsettled row of a later life doesn't vouch for the earlier one either:
	// re-based to it, the row would let it in a second time.
	if rec.Epoch <= in.Forgotten && (in.Row == nil || strict && !in.Row.Settled && rec.Epoch < in.Row.Epoch) {
		return t.quarantine("1", BeforeMemory)
	}

	// 2: the stream is new to this consumer.
	if in.Row == nil {
		switch {
		case origin:
			t.row = originRow(rec.Epoch)
		case data:
			return t.apply("2", t.fresh())
		case strict:
			return t.absorb("2", t.fresh())
		default:
			return t.ignore("2")
		}
	} else {
		was := *in.Row
		t.row = &was
	}
	row := t.row

	if strict && rec.Epoch < row.Epoch && !row.Settled {
		row.rebase(rec.Epoch) // 3a: the life that was taken for the first one isn't
	}
	if rec.Epoch < row.Epoch {
		switch {
		case rec.Epoch >= row.StartEpoch || rec.Epoch <= in.Forgotten:
			return t.refuse("3c", Stale)
		case origin:
			return t.quarantine("3b", BeforeOrigin)
		default:
			return t.refuse("3b", BeforeStart)
		}
	}
	if origin && !row.Settled && rec.Epoch == row.Epoch && in.Truncated {
		return t.park("3d", Gap) // what went unread may be the life before this one
	}
	if origin && !row.Settled && first == 1 && rec.Prev != nil && rec.Prev.Epoch > in.Forgotten {
		// 3e: an earlier life is unread. The row only ever goes down here: an
		// earlier life that it stands for already stays the first.
		if rec.Prev.Epoch < row.Epoch {
			row.rebase(rec.Prev.Epoch)
		}
		return t.park("3e", Life)
	}

	if rec.Epoch == row.Epoch {
		return t.sameEpoch(data, strict, origin)
	}
	return t.largerEpoch(data, strict)
}

// sameEpoch has the rows 4a to 4f.
func (t *table) sameEpoch(data, strict, origin bool) Decision {
	rec, row := t.rec, t.row
	first := rec.First()
	switch {
	case data && row.Missed.Contains(rec.Seq):
		return t.refuse("4a", Stale)
	case rec.Kind == outbox.KindEnd && row.Missed.Contains(rec.Seq):
		return t.refuse("4a", Duplicate)
	case rec.Kind == outbox.KindSkip && row.Missed.ContainsRange(max(first, row.Seq+1), rec.Seq):
		return t.refuse("4a", Duplicate) // all of its range is given up, or decided
	}
	if contradicts(row, rec) {
		return t.conflict("4b", strict)
	}
	switch {
	case rec.Seq <= row.Seq && rec.Epoch == row.StartEpoch && rec.Seq < row.StartSeq:
		return t.refuse("4c", BeforeStart)
	case rec.Seq <= row.Seq:
		return t.refuse("4c", Duplicate)
	case !data && origin && !row.Settled && first > 1:
		return t.park("4d", Gap)
	case !data:
		return t.absorbBounded("4d", strict)
	case rec.Seq == row.Seq+1 || row.StartSeq == 0:
		return t.apply("4e", row)
	case strict:
		return t.park("4f", Gap)
	}
	after := *row
	after.pass(rec.Seq)
	return t.apply("4f", &after)
}

// largerEpoch has the rows 5a to 5e.
func (t *table) largerEpoch(data, strict bool) Decision {
	rec, row := t.rec, t.row
	entered := *row
	entered.enter(rec.Epoch)
	switch {
	case !strict && data:
		entered.pass(rec.Seq)
		return t.apply("5a", &entered)
	case !strict:
		return t.ignore("5a")
	case row.StartSeq == 0 && data:
		return t.apply("5b", &entered)
	case row.StartSeq == 0:
		return t.absorb("5b", &entered)
	case rec.First() != 1:
		return t.park("5c", Gap)
	case !t.proven():
		return t.park("5e", Life)
	case data:
		return t.apply("5d", &entered)
	}
	return t.absorb("5d", &entered)
}

// proven tells whether nothing of the life before can be missing: the record
// names the guard's position as the last one of it, or the guard stands on the
// end of it and no restore came between. Neither proves anything while part of
// the partition went unread, or while something of a life in between waits.
func (t *table) proven() bool {
	rec, row := t.rec, t.row
	if t.in.Truncated || row.WaitingEpoch != 0 && row.WaitingEpoch < rec.Epoch {
		return false
	}
	if rec.Prev != nil {
		return rec.Prev.Epoch == row.Epoch && rec.Prev.Seq == row.Seq
	}
	return row.Ended() && rec.History != 0 && row.Epoch >= rec.History
}

// contradicts tells whether the record's token can't be true beside what was
// applied: within an epoch the token never falls as seq rises.
func contradicts(row *Row, rec *outbox.Record) bool {
	if row.Token == 0 {
		return false
	}
	switch {
	case rec.Seq > row.Seq:
		return rec.Token < row.Token
	case rec.Seq == row.Missed.last(row.Seq):
		return rec.Token != row.Token
	}
	return rec.Token > row.Token
}

// table is one decision in the making. row is the guard as it will be; the
// input's own row is never changed.
type table struct {
	in     Input
	rec    *outbox.Record
	row    *Row
	failed bool
}

// fresh is a row for the record's epoch of which nothing is known.
func (t *table) fresh() *Row { return &Row{Epoch: t.rec.Epoch} }

func (t *table) done(rule string, o Outcome, row *Row) Decision {
	d := Decision{Outcome: o, Rule: rule, Row: row}
	d.Changed = row != nil && (t.in.Row == nil || !row.equal(t.in.Row))
	d.Moved = d.Changed && (o == Applied || o == Absorbed)
	return d
}

// refuse leaves the guard as it was.
func (t *table) refuse(rule string, o Outcome) Decision { return t.done(rule, o, t.in.Row) }

func (t *table) ignore(rule string) Decision { return t.refuse(rule, Ignored) }

func (t *table) quarantine(rule string, why Reason) Decision {
	d := t.refuse(rule, Quarantined)
	d.Reason = why
	d.Alarm = why != Malformed
	return d
}

// conflict: somebody forged headers, or a database was restored and nobody
// bumped its history. A strict stream stops until that is cleared up.
func (t *table) conflict(rule string, strict bool) Decision {
	row := *t.in.Row
	if strict {
		row.block(InConflict)
	}
	d := t.done(rule, Quarantined, &row)
	d.Reason, d.Alarm = InConflict, true
	return d
}

// park also writes the row of a stream that had none: else the next record
// would be taken for the first one seen.
func (t *table) park(rule string, why Reason) Decision {
	t.row.wait(t.rec.Epoch)
	t.row.block(why)
	d := t.done(rule, Parked, t.row)
	d.Reason = why
	return d
}

func (t *table) absorb(rule string, row *Row) Decision {
	row.absorb(t.rec)
	return t.done(rule, Absorbed, row)
}

// absorbBounded is absorb for a marker that may lie beyond a hole. If the
// guard can't remember another range there, a strict stream parks the marker
// until the hole is filled. A state stream does without it: should the event
// that was given up arrive after all, it is an event like others.
func (t *table) absorbBounded(rule string, strict bool) Decision {
	after := *t.row
	after.absorb(t.rec)
	switch {
	case after.Missed.above(after.Seq) <= maxMissed:
		return t.done(rule, Absorbed, &after)
	case strict:
		return t.park(rule, Gap)
	}
	return t.ignore(rule)
}

// apply is for an event whose turn it is. row is the guard in the event's
// epoch, before the event.
func (t *table) apply(rule string, row *Row) Decision {
	rec := t.rec
	switch {
	case t.in.Policy == State && t.in.Discarded:
		return t.refuse(rule, Stale)
	case t.in.Policy == State && t.failed:
		return t.refuse(rule, DeadLettered)
	case t.in.Policy != State && row.Blocked == InConflict:
		return t.park(rule, InConflict)
	case t.failed:
		t.row = row
		if row.StartSeq == 0 {
			// This event is where the stream begins, although it fails: the
			// next one must not take its place.
			row.StartEpoch, row.StartSeq = rec.Epoch, rec.Seq
			row.Seq, row.Settled = rec.Seq-1, true
		}
		return t.park(rule, Failing)
	}
	row.apply(rec)
	return t.done(rule, Applied, row)
}

func (r *Row) equal(o *Row) bool {
	return r.Epoch == o.Epoch && r.Seq == o.Seq && r.Token == o.Token && r.EndSeq == o.EndSeq &&
		r.StartEpoch == o.StartEpoch && r.StartSeq == o.StartSeq && r.Settled == o.Settled &&
		r.WaitingEpoch == o.WaitingEpoch && r.Blocked == o.Blocked && slices.Equal(r.Missed, o.Missed)
}
