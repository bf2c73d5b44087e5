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

// place notices what went unread.
func (w *world) place() {
	if w.offset < w.logStart {
		w.offset = w.logStart
		if w.policy == Strict && (w.start == FromOrigin || w.row != nil) {
			w.truncated = true
			w.note("truncated")
		}
	}
}

func (w *world) read() {
	w.place()
	if w.offset < len(w.log) {
		r := w.log[w.offset]
		w.offset++
		w.reached = max(w.reached, w.offset)
		w.process(r)
	}
}

func (w *world) process(r *outbox.Record) {
	d := Decide(w.input(r))
	if d.Outcome == Applied && w.bad[r.Pos] {
		d = DecideFailed(w.input(r))
	} else if d.Outcome == Applied && w.row != nil && w.row.Blocked == Failing {
		if p := w.find(r); p != nil && p.failing {
			w.note("read %s: waits already", name(r))
			return
		}
	}
	w.note("read %s: %s %s %s", name(r), d.Rule, d.Outcome, d.Reason)
	w.carryOut(r, d)
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

func (w *world) carryOut(r *outbox.Record, d Decision) {
	w.classify(r, d)
	if d.Outcome == Applied {
		w.apply(r, d.Row)
		delete(w.dead, r.Pos)
	}
	w.row = d.Row
	switch d.Outcome {
	case Parked:
		p := w.find(r)
		if p == nil {
			p = &modelParked{rec: r}
			w.park = append(w.park, p)
			slices.SortFunc(w.park, func(a, b *modelParked) int {
				if c := cmpInts(a.rec.Epoch, b.rec.Epoch, a.rec.First(), b.rec.First()); c != 0 {
					return c
				}
				return strings.Compare(string(b.rec.Kind), string(a.rec.Kind)) // a skip before what it gives up
			})
		}
		p.failing = p.failing || d.Reason == Failing
	case DeadLettered:
		w.dead[r.Pos] = r
	}
	if w.row != nil && w.row.Reached() {
		row := *w.row
		row.WaitingEpoch = 0
		w.row = &row
		for _, p := range w.park {
			w.row.wait(p.rec.Epoch)
		}
	}
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
			d := Decide(w.input(p.rec))
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
			w.carryOut(p.rec, d)
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
	row.WaitingEpoch = 0
	for _, q := range w.park {
		row.wait(q.rec.Epoch)
	}
	w.row = &row
	w.adopts++
	w.note("adopt %s", name(p))
	w.resume(true)
}

// forget removes the guard of a closed life.
func (w *world) forget() {
	if w.row != nil && w.row.Ended() && len(w.park) == 0 && !w.truncated {
		w.forgotten, w.row = max(w.forgotten, w.row.Epoch), nil
		w.note("forget up to e%d", w.forgotten)
	}
}
