package consumer

import (
	"math/rand/v2"

	"github.com/fenceline/fenceline/outbox"
)

// What must hold.

// owed says that a committed event must still be applied.
func (w *world) owed(r *outbox.Record) bool {
	return r.Kind == outbox.KindData && !w.skipped[r.Pos] && !w.discarded[r.Pos] && !w.given[r.Pos] && !w.applied[r.Pos] && r.Epoch > w.forgotten &&
		(w.row == nil || !before(r, &outbox.Record{Epoch: w.row.StartEpoch, Seq: w.row.StartSeq}))
}

func (w *world) apply(r *outbox.Record, row *Row) {
	if w.applied[r.Pos] {
		w.fail("%s is applied twice", name(r))
	}
	if w.discarded[r.Pos] {
		w.fail("%s is applied although it was discarded", name(r))
	}
	if n := len(w.order); n > 0 && !before(w.order[n-1], r) {
		w.fail("%s is applied after %s", name(r), name(w.order[n-1]))
	}
	w.applied[r.Pos] = true
	w.order = append(w.order, r)
	if w.policy == State {
		return
	}
	was := w.row
	w.row = row
	for _, x := range w.events {
		if before(x, r) && w.owed(x) {
			w.fail("%s is applied over %s, which is missing", name(r), name(x))
		}
	}
	w.row = was
	for _, x := range w.order {
		if l, ok := w.lost[x.Pos]; ok && w.lost[r.Pos] == (lostEvent{}) && x.Epoch < r.Epoch && w.adopts == l.adopts && x.Epoch > w.forgotten {
			if _, gone := w.lost[r.Pos]; !gone {
				w.fail("%s is applied over %s, which was lost, and nobody was asked", name(r), name(x))
			}
		}
	}
}

// classify compares a refusal with what happened.
func (w *world) classify(r *outbox.Record, d Decision) {
	data := r.Kind == outbox.KindData
	switch {
	case d.Outcome == Quarantined && d.Reason == InConflict:
		w.fail("honest %s is taken for a contradiction", name(r))
	case data && d.Outcome == Duplicate && !w.applied[r.Pos]:
		w.fail("%s is called a duplicate, but was never applied", name(r))
	case data && d.Outcome == Stale && d.Rule == "4a" && w.applied[r.Pos]:
		w.fail("%s is called stale, but was applied", name(r))
	case data && d.Outcome == BeforeStart && w.applied[r.Pos]:
		w.fail("%s is called before start, but was applied", name(r))
	}
}

// close is the end: nothing fails any more, and operators do what they can.
func (w *world) close() {
	w.note("-- closing")
	clear(w.bad)
	for w.next < len(w.events) {
		w.publish()
	}
	w.drain()
	for round := 0; round < 4+3*w.restores && w.wrong == ""; round++ {
		for _, r := range w.events {
			w.send(w.wire(r)) // relay republish
		}
		w.drain()
		if w.truncated {
			w.accept()
			if w.row != nil {
				w.retry()
			}
			w.pass()
		}
		if len(w.park) == 0 && !w.overflow.any() {
			break
		}
		if len(w.park) == 0 {
			continue
		}
		if w.restores == 0 {
			w.fail("%s waits, although nothing is missing", name(w.park[0].rec))
		}
		if round > 0 {
			w.adopt()
		}
	}
	if w.wrong == "" && len(w.park) > 0 {
		w.fail("%s still waits", name(w.park[0].rec))
	}
	if w.wrong == "" && w.overflow.any() {
		w.fail("what was not stored from %d on is never read again", w.low)
	}
	w.fold()
}

func (w *world) drain() {
	for w.wrong == "" && w.offset < len(w.log) {
		w.read()
	}
	w.pass()
	if w.row != nil && w.row.Blocked != "" {
		w.retry()
	}
	for _, r := range w.dead {
		if w.wrong == "" && !w.discarded[r.Pos] {
			w.redrive(r)
		}
	}
	w.pass()
}

// redrive decides a dead letter again.
func (w *world) redrive(r *outbox.Record) {
	w.note("redrive %s", name(r))
	w.process(r)
	if !w.bad[r.Pos] || w.decide(w.input(r), false).Outcome != Applied {
		delete(w.dead, r.Pos)
	}
	if w.peer != nil {
		w.peer.redrive(r)
	}
}

// fold compares with what the committed events give by themselves.
func (w *world) fold() {
	var newest *outbox.Record
	for _, r := range w.events {
		if w.policy == Strict && w.owed(r) {
			w.fail("%s was committed and is not applied", name(r))
		}
		if r.Kind == outbox.KindData && !w.skipped[r.Pos] && !w.discarded[r.Pos] && r.Epoch > w.forgotten {
			newest = r
		}
	}
	if w.policy == State && newest != nil && (len(w.order) == 0 || before(w.order[len(w.order)-1], newest)) {
		w.fail("%s is the newest, but the last one applied is another", name(newest))
	}
}

// step does one thing at random.
func (w *world) step(rnd *rand.Rand, faults bool) {
	switch rnd.IntN(27) {
	case 0, 1, 2, 3:
		if w.open || rnd.IntN(2) == 0 {
			w.commit(outbox.KindData)
		}
	case 4:
		w.takeover()
	case 5:
		w.closeKey()
	case 6:
		w.reopen()
	case 7:
		if rnd.IntN(2) == 0 {
			w.sweep()
		}
	case 8, 9, 10, 11:
		w.publish()
	case 12:
		if len(w.attempted) > 0 {
			w.send(w.attempted[rnd.IntN(len(w.attempted))]) // a late copy
		}
	case 13:
		if len(w.events) > 0 && w.next > 0 {
			w.send(w.wire(w.events[rnd.IntN(w.next)])) // republished
		}
	case 14:
		if faults {
			w.skip(1+rnd.IntN(3), rnd.IntN(2) == 0)
		}
	case 15:
		if faults && len(w.log) > w.logStart && rnd.IntN(3) == 0 {
			w.retain(w.logStart + 1 + rnd.IntN(len(w.log)-w.logStart))
		}
	case 16:
		if faults && len(w.saves) > 0 && rnd.IntN(4) == 0 {
			w.restore(max(0, len(w.saves)-rnd.IntN(4)))
		}
	case 17:
		if w.reached > w.logStart {
			w.offset = w.logStart + rnd.IntN(w.reached-w.logStart) // another member, or a rewind
			w.note("read from %d", w.offset)
		}
	case 18:
		if n := len(w.events); n > 0 && faults {
			if r := w.events[rnd.IntN(n)]; r.Kind == outbox.KindData && !w.applied[r.Pos] {
				w.bad[r.Pos] = true
				w.note("%s will fail", name(r))
			}
		}
	case 19:
		if faults && rnd.IntN(3) == 0 {
			if ps := w.discardable(); len(ps) > 0 {
				w.discard(ps[rnd.IntN(len(ps))])
			}
			if r := w.letter(rnd.IntN(4)); r != nil {
				w.discarded[r.Pos] = true
				w.note("discard %s", name(r))
				if w.peer != nil {
					w.peer.discardDead(r)
				}
			}
		}
	case 20:
		if faults && rnd.IntN(3) == 0 {
			w.forget()
		}
	case 21:
		w.seekBack()
	case 22:
		if faults && w.row != nil && w.row.Blocked != "" {
			w.retry()
		}
		if r := w.letter(rnd.IntN(4)); r != nil {
			w.redrive(r)
		}
	case 23:
		if faults && rnd.IntN(6) == 0 && len(w.park) > 0 && !order0(w.park[0].rec, w.row) {
			w.giveUp()
			w.adopt()
		}
	case 24:
		if faults && rnd.IntN(3) == 0 && w.truncated {
			w.accept()
		}
	default:
		for range 1 + rnd.IntN(4) {
			w.read()
		}
	}
}
