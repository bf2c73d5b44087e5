package consumer

import (
	"slices"
	"strings"

	"github.com/fenceline/fenceline/outbox"
)

// The consumer.

func (w *world) input(r *outbox.Record) Input {
	return Input{Row: w.row, Forgotten: w.forgotten, Truncated: w.truncated && w.policy == Strict, Policy: w.policy, Start: w.start,
		Record: r, Discarded: w.policy == State && w.discarded[r.Pos]}
}

// decider is the decision about a record, and about one whose handler fails for
// good.
type decider func(in Input, failed bool) Decision

func theDecision(in Input, failed bool) Decision { return decide(in, failed) }

// place notices what went unread.
func (w *world) place() {
	if w.offset < w.logStart {
		w.offset = w.logStart
		if w.policy == Strict && (w.start == FromOrigin || w.row != nil) {
			w.truncated = true
			w.note("truncated")
			if w.peer != nil {
				w.peer.truncated()
			}
		}
	}
	if w.overflow.cut(w.logStart) && w.peer != nil {
		w.peer.cut()
	}
}

func (w *world) read() {
	w.place()
	if w.offset < len(w.log) {
		r := w.log[w.offset]
		w.offset++
		w.reached = max(w.reached, w.offset)
		w.processAt(r, w.offset-1)
		w.overflow.read(w.offset-1, w.offset)
		w.settle()
		if w.peer != nil {
			w.peer.read(r, int64(w.offset-1))
		}
	}
}

// process is for a record that comes from nowhere in the log.
func (w *world) process(r *outbox.Record) { w.processAt(r, -1) }

func (w *world) processAt(r *outbox.Record, offset int) {
	d := w.decide(w.input(r), false)
	if d.Outcome == Applied && w.bad[r.Pos] {
		d = w.decide(w.input(r), true)
	} else if d.Outcome == Applied && w.row != nil && w.row.Blocked == Failing {
		if p := w.find(r); p != nil && p.failing {
			w.note("read %s: waits already", name(r))
			return
		}
	}
	w.note("read %s: %s %s %s", name(r), d.Rule, d.Outcome, d.Reason)
	if w.row == nil && w.start == FromFirstSeen && w.logStart > 0 {
		w.join()
	}
	w.carryOut(r, offset, d)
	if d.Moved && w.row.Blocked != "" {
		w.resume(false)
	}
}

func (w *world) find(r *outbox.Record) *modelParked {
	for _, p := range w.park {
		if p.rec.Epoch == r.Epoch && p.rec.Seq == r.Seq && p.rec.Kind == r.Kind {
			return p
		}
	}
	return nil
}

func (w *world) carryOut(r *outbox.Record, offset int, d Decision) {
	w.classify(r, d)
	if d.Outcome == Applied {
		w.apply(r, d.Row)
		delete(w.dead, r.Pos)
	}
	w.row = d.Row
	switch d.Outcome {
	case Parked:
		if p := w.find(r); p != nil {
			p.failing = p.failing || d.Reason == Failing
		} else if w.room(r, offset) {
			w.park = append(w.park, &modelParked{rec: r, offset: offset, failing: d.Reason == Failing})
			slices.SortFunc(w.park, func(a, b *modelParked) int { return order(a.rec, b.rec) })
		}
	case DeadLettered:
		if w.dead[r.Pos] == nil && w.limit > 0 && w.letters() >= w.limit {
			w.refuse(r, offset)
		} else {
			w.dead[r.Pos] = r
		}
	}
	if w.row != nil && w.row.Reached() {
		w.findWaiting()
	}
}

// findWaiting finds the lowest later life of which something waits, stored or
// not.
func (w *world) findWaiting() {
	row := *w.row
	w.row = &row
	row.WaitingEpoch = 0
	if w.unstored && w.overflow.any() {
		for epoch := range w.epochs {
			row.wait(epoch)
		}
	}
	for _, p := range w.park {
		row.wait(p.rec.Epoch)
	}
}

// order is the one in which parked records are decided: a skip before what it
// gives up.
func order(a, b *outbox.Record) int {
	if c := cmpInts(a.Epoch, b.Epoch, a.First(), b.First()); c != 0 {
		return c
	}
	if c := strings.Compare(string(b.Kind), string(a.Kind)); c != 0 {
		return c
	}
	return cmpInts(a.Seq, b.Seq)
}

func cmpInts(ab ...int64) int {
	for i := 0; i < len(ab); i += 2 {
		if ab[i] != ab[i+1] {
			if ab[i] < ab[i+1] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// resume decides what waits, in order, as long as that leads on; also what
// fails, if an operator says so.
func (w *world) resume(failing bool) {
	for progress := true; progress && w.wrong == ""; {
		progress = false
		for _, p := range slices.Clone(w.park) {
			d := w.decide(w.input(p.rec), false)
			if d.Outcome == Applied && (p.failing && !failing || w.bad[p.rec.Pos]) {
				p.failing = true
				continue
			}
			if d.Outcome == Parked {
				w.row = d.Row
				continue
			}
			w.park = slices.DeleteFunc(w.park, func(q *modelParked) bool { return q == p })
			w.note("resume %s: %s %s", name(p.rec), d.Rule, d.Outcome)
			w.carryOut(p.rec, p.offset, d)
			progress = true
		}
	}
	if w.row == nil || w.row.Blocked == InConflict {
		return
	}
	row := *w.row
	row.Blocked = ""
	if len(w.park) > 0 {
		row.Blocked = Gap
		if w.park[0].failing {
			row.Blocked = Failing
		}
	}
	w.row = &row
}

// Operators.

func (w *world) discard(p *modelParked) {
	if p.rec.Epoch != w.row.Epoch || p.rec.Kind != outbox.KindData {
		return
	}
	w.discarded[p.rec.Pos] = true
	w.park = slices.DeleteFunc(w.park, func(q *modelParked) bool { return q == p })
	row := *w.row
	row.Missed, row.Settled = row.Missed.Add(p.rec.Seq, p.rec.Seq), true
	row.advance()
	w.row = &row
	w.note("discard %s", name(p.rec))
	w.resume(false)
	if w.peer != nil {
		w.peer.discard(p.rec)
	}
}

// adopt takes the lowest parked record as what comes next.
func (w *world) adopt() {
	p := w.park[0].rec
	for _, r := range w.events {
		if w.owed(r) && before(&outbox.Record{Epoch: w.row.Epoch, Seq: w.row.Seq}, r) && before(r, p) {
			w.fail("adopting %s gives %s up", name(p), name(r))
		}
	}
	row := *w.row
	if p.Epoch != row.Epoch {
		row.enter(p.Epoch)
	}
	row.Missed, row.Settled = row.Missed.Add(row.Seq+1, p.First()-1), true
	row.advance()
	w.row = &row
	if row.Reached() {
		w.findWaiting()
	}
	w.adopts++
	w.note("adopt %s", name(p))
	w.resume(true)
	if w.peer != nil {
		w.peer.adopt(p)
	}
}

// retry is an operator's: also what fails is decided again.
func (w *world) retry() {
	w.note("retry")
	stands := w.row.Blocked != ""
	w.resume(true)
	if w.peer != nil && stands {
		w.peer.retry()
	}
}

// forget removes the guard of a closed life.
func (w *world) forget() {
	if w.row != nil && w.row.Ended() && len(w.park) == 0 && !w.truncated && !w.overflow.any() && w.letters() == 0 && w.row.WaitingEpoch == 0 {
		w.forgotten, w.row = max(w.forgotten, w.row.Epoch), nil
		w.note("forget up to e%d", w.forgotten)
		if w.peer != nil {
			w.peer.forget()
		}
	}
}
