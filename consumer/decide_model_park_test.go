package consumer

import (
	"slices"

	"github.com/fenceline/fenceline/outbox"
)

// A park that is full.

// overflow is what is remembered of records that were not stored: the offsets
// from low to high, without high; -1 if there are none.
type overflow struct {
	limit     int // of parked records, or of dead letters; 0: none
	unstored  bool
	epochs    map[int64]bool
	low, high int
	refused   []int // by the record in hand
	passes    int
}

func (o *overflow) any() bool { return o.low >= 0 || len(o.refused) > 0 }

// read notes that from..next was read: what was refused is added, and a reading
// that goes through the range from its beginning has decided about it again.
func (o *overflow) read(from, next int) {
	if o.low >= 0 && from <= o.low && next > o.low {
		if o.low = next; o.low >= o.high {
			o.low, o.high = -1, -1
		}
	}
	for _, at := range o.refused {
		if o.low < 0 || at < o.low {
			o.low = at
		}
		o.high = max(o.high, at+1)
	}
	o.refused = nil
}

// cut notes that the log begins later: what lay before can't be read again.
func (o *overflow) cut(start int) bool {
	if o.low < 0 || o.low >= start {
		return false
	}
	if o.low = start; o.low >= o.high {
		o.low, o.high = -1, -1
	}
	return true
}

// room tells whether a record is stored, and makes room for it where one that
// comes later can go.
func (w *world) room(r *outbox.Record, offset int) bool {
	if w.limit == 0 || len(w.park) < w.limit || r.Epoch == w.row.Epoch && r.First() <= w.row.Seq+1 {
		return true
	}
	displaced := false
	for len(w.park) >= w.limit {
		last := w.park[len(w.park)-1]
		if order(r, last.rec) > 0 {
			break
		}
		w.park = w.park[:len(w.park)-1]
		w.refuse(last.rec, last.offset)
		displaced = true
	}
	if displaced || len(w.park) < w.limit {
		return true
	}
	w.refuse(r, offset)
	return false
}

func (w *world) refuse(r *outbox.Record, offset int) {
	w.note("not stored: %s", name(r))
	w.unstored = true
	if w.epochs == nil {
		w.epochs = map[int64]bool{}
	}
	w.epochs[r.Epoch] = true
	w.refused = append(w.refused, offset)
}

// settle forgets that something was not stored, when all of it was read again.
func (w *world) settle() {
	if !w.unstored || w.overflow.any() {
		return
	}
	w.unstored = false
	clear(w.epochs)
	if w.row != nil && w.row.WaitingEpoch != 0 {
		w.findWaiting()
	}
	if w.row != nil && w.policy == Strict {
		w.resume(false)
	}
}

// hasRoom tells whether reading on from the overflow gets on.
func (w *world) hasRoom() bool {
	return w.low >= 0 && w.unstored && (w.policy == Strict && (w.row == nil || w.row.Blocked == "") || w.letters()+len(w.park) < w.limit)
}

// seekBack reads on from what was not stored.
func (w *world) seekBack() {
	if w.peer != nil && w.low >= 0 {
		w.peer.room(w.hasRoom())
	}
	if w.hasRoom() {
		w.offset = w.low
		w.passes++
		w.note("read on from %d, which was not stored", w.low)
	}
}

func (w *world) letters() (n int) {
	for pos := range w.dead {
		if !w.discarded[pos] {
			n++
		}
	}
	return n
}

// pass reads until nothing that was not stored is left, or can't be stored.
func (w *world) pass() {
	for n := 0; w.wrong == "" && w.hasRoom(); n++ {
		if n > 3*len(w.log)+10 {
			w.fail("reading on from what was not stored gets nowhere")
			return
		}
		w.seekBack()
		for w.wrong == "" && w.offset < len(w.log) {
			w.read()
		}
	}
}

// discardable are the parked records that an operator may give up now.
func (w *world) discardable() (ps []*modelParked) {
	for _, p := range w.park {
		if w.row != nil && p.rec.Epoch == w.row.Epoch && p.rec.Kind == outbox.KindData && p.rec.Seq > w.row.Seq &&
			(w.row.EndSeq == 0 || p.rec.Seq < w.row.EndSeq) {
			ps = append(ps, p)
		}
	}
	return slices.Clone(ps)
}

// letter is one of the dead letters that were not discarded, or nil.
func (w *world) letter(n int) *outbox.Record {
	var rs []*outbox.Record
	for pos, r := range w.dead {
		if !w.discarded[pos] {
			rs = append(rs, r)
		}
	}
	if len(rs) == 0 {
		return nil
	}
	slices.SortFunc(rs, order)
	return rs[n%len(rs)]
}

// order0 tells whether a record is the guard's next, or before it: there is
// nothing to adopt.
func order0(r *outbox.Record, row *Row) bool {
	return r.Epoch < row.Epoch || r.Epoch == row.Epoch && r.First() <= row.Seq+1
}

// giveUp is what adopting the lowest parked record means: what it passes over is
// discarded.
func (w *world) giveUp() {
	p := w.park[0].rec
	for _, r := range w.events {
		if before(&outbox.Record{Epoch: w.row.Epoch, Seq: w.row.Seq}, r) && r.Kind == outbox.KindData && !w.applied[r.Pos] &&
			(r.Epoch < p.Epoch || r.Epoch == p.Epoch && r.Seq < p.First()) {
			w.discarded[r.Pos] = true
		}
	}
}

// accept takes the flag down. What was published and is nowhere any more is not
// owed from then on.
func (w *world) accept() {
	here := map[int64]bool{}
	for _, r := range w.log[min(w.offset, len(w.log)):] {
		here[r.Pos] = true
	}
	for _, p := range w.park {
		here[p.rec.Pos] = true
	}
	for i, r := range w.events {
		if i < w.next && !here[r.Pos] && w.owed(r) {
			w.given[r.Pos] = true
		}
	}
	w.truncated = false
	w.note("accept")
	w.resume(false)
	if w.peer != nil {
		w.peer.accept()
	}
}

// join: a consumer that joins a log without its beginning takes what it sees
// first as its baseline. That may be a late copy of something old, and what came
// after that was removed with the beginning: nothing on the wire tells. It is
// not owed; the next event of its own life still shows that it is missing.
func (w *world) join() {
	here := map[int64]bool{}
	for _, r := range w.log[w.logStart:] {
		here[r.Pos] = true
	}
	for i, r := range w.events {
		if i < w.next && !here[r.Pos] {
			w.given[r.Pos] = true
		}
	}
}
