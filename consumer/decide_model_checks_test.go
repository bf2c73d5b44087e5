package consumer

import (
	"math/rand/v2"

	"github.com/fenceline/fenceline/outbox"
)

// What must hold.

// owed says that a committed event must still be applied.
func (w *world) owed(r *outbox.Record) bool {
	return r.Kind == outbox.KindData && !w.skipped[r.Pos] && !w.discarded[r.Pos] && !w.applied[r.Pos] && r.Epoch > w.forgotten &&
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
	for round := 0; round < 3+2*w.restores && w.wrong == ""; round++ {
		for _, r := range w.events {
			w.send(w.wire(r)) // relay republish
		}
		w.drain()
		if w.truncated {
			w.truncated = false
			w.note("accept")
			w.resume(true)
		}
		if len(w.park) == 0 {
			break
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
	w.fold()
}

func (w *world) drain() {
	for w.wrong == "" && w.offset < len(w.log) {
		w.read()
	}
	if w.row != nil && w.row.Blocked != "" {
		w.resume(true) // operators retry
	}
	for _, r := range w.dead {
		if w.wrong == "" && !w.discarded[r.Pos] {
			w.process(r) // and redrive
		}
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
	switch rnd.IntN(23) {
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
			for _, p := range w.park {
				if p.failing {
					w.discard(p)
					break
				}
			}
			if w.policy == State {
				for pos, r := range w.dead {
					w.discarded[pos] = true
					w.note("discard %s", name(r))
					break
				}
			}
		}
	case 20:
		if faults && rnd.IntN(3) == 0 {
			w.forget()
		}
	default:
		for range 1 + rnd.IntN(4) {
			w.read()
		}
	}
}
