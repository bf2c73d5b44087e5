package consumer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fenceline/fenceline/outbox"
)

// world is a model of everything around the decision table, for one key in one
// topic: a producer with lives, takeovers, sweeps and restores; a relay that
// sends first copies in order and late copies of anything, and skips; a log
// with retention; a consumer with a guard and a park, that is rewound, fails,
// and whose operators discard. Every event is known by its Pos.
//
// Two members on one partition need no modelling of their own: the guard's lock
// makes their transactions follow each other, which is reading from any
// offset.
type world struct {
	policy Policy
	start  Start

	// producer
	producer
	clock    int64
	history  int64
	events   []*outbox.Record // committed and not lost, in commit order
	verdicts map[int64]*outbox.Record
	skipped  map[int64]bool // also if a restore has undone the verdict: its marker is out
	lost     map[int64]lostEvent
	saves    []save

	// relay and log
	next      int // index in events of the next first copy
	attempted []*outbox.Record
	log       []*outbox.Record
	logStart  int

	// consumer
	row       *Row
	park      []*modelParked
	dead      map[int64]*outbox.Record
	discarded map[int64]bool // strict: given up; state: dead letters given up
	bad       map[int64]bool
	given     map[int64]bool // not owed any more: unread, and that was accepted
	forgotten int64
	truncated bool
	offset    int
	reached   int // the highest offset: whoever reads anew does so from at or below it
	overflow
	decide decider
	peer   peer // does the same on the tables, and compares; or nil

	applied  map[int64]bool
	order    []*outbox.Record
	restores int
	adopts   int

	trace []string
	wrong string
}

type producer struct {
	epoch, token, seq int64
	open              bool
	remembered        *Prev // the stream's last position, unless swept
}

type save struct {
	producer
	events int
}

// lostEvent was committed, and then its database was restored.
type lostEvent struct{ adopts int }

type modelParked struct {
	rec     *outbox.Record
	offset  int
	failing bool
}

func newWorld(policy Policy, start Start) *world {
	return &world{policy: policy, start: start, clock: 1, history: 1, lost: map[int64]lostEvent{}, verdicts: map[int64]*outbox.Record{}, skipped: map[int64]bool{},
		dead: map[int64]*outbox.Record{}, discarded: map[int64]bool{}, bad: map[int64]bool{}, given: map[int64]bool{}, applied: map[int64]bool{},
		overflow: overflow{low: -1, high: -1}, decide: theDecision}
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...) + "\n" + strings.Join(w.trace, "\n") + fmt.Sprintf("\nguard %+v", w.row)
	}
}

func name(r *outbox.Record) string {
	s := fmt.Sprintf("e%d t%d #%d", r.Epoch, r.Token, r.Seq)
	if r.Kind == outbox.KindSkip {
		s = fmt.Sprintf("e%d #%d-%d", r.Epoch, r.From, r.Seq)
	}
	if r.Kind != outbox.KindData {
		s += " " + string(r.Kind)
	}
	if r.Prev != nil {
		s += fmt.Sprintf(" prev %d/%d", r.Prev.Epoch, r.Prev.Seq)
	}
	return s
}

func before(a, b *outbox.Record) bool {
	return a.Epoch < b.Epoch || a.Epoch == b.Epoch && a.Seq < b.Seq
}

// The producer.

func (w *world) tick() int64 { w.clock++; return w.clock }

func (w *world) commit(kind outbox.Kind) *outbox.Record {
	if !w.open {
		w.epoch, w.token, w.seq, w.open = w.tick(), 1, 0, true
	}
	w.seq++
	r := &outbox.Record{Pos: w.tick(), Topic: "s", Stream: "s", Key: "k", Kind: kind, Epoch: w.epoch, Token: w.token, Seq: w.seq}
	if w.seq == 1 {
		r.History, r.Prev = w.history, w.remembered
	}
	w.events = append(w.events, r)
	w.remembered = &Prev{Epoch: w.epoch, Seq: w.seq}
	w.saves = append(w.saves, save{w.producer, len(w.events)})
	w.note("commit %s", name(r))
	return r
}

// closeKey ends the life. A stream of which nothing is remembered gets no end.
func (w *world) closeKey() {
	if !w.open {
		return
	}
	if w.remembered != nil {
		w.commit(outbox.KindEnd)
	}
	w.open = false
	w.saves = append(w.saves, save{w.producer, len(w.events)})
	w.note("close")
}

func (w *world) reopen() {
	if !w.open {
		w.epoch, w.token, w.seq, w.open = w.tick(), 1, 0, true
		w.note("open e%d", w.epoch)
	}
}

func (w *world) takeover() { w.token++; w.note("takeover t%d", w.token) }

func (w *world) sweep() {
	if !w.open {
		w.remembered = nil
		w.saves = append(w.saves, save{w.producer, len(w.events)})
		w.note("sweep")
	}
}

// restore loses the commits after some moment. A new history begins: every key
// gets a new life, and the relay sends what is there once more.
func (w *world) restore(to int) {
	s := save{}
	if to > 0 {
		s = w.saves[to-1]
	}
	for _, r := range w.events[s.events:] {
		w.lost[r.Pos] = lostEvent{adopts: w.adopts}
		delete(w.verdicts, r.Pos)
	}
	w.events, w.saves, w.producer = w.events[:s.events:s.events], w.saves[:to:to], s.producer
	// A skip is a row like others: one that lost part of its range is lost.
	for pos, marker := range w.verdicts {
		if len(w.events) == 0 || w.events[len(w.events)-1].Pos < marker.Pos {
			delete(w.verdicts, pos)
		}
	}
	w.open, w.history, w.next = false, w.tick(), 0
	w.restores++
	w.note("restore to %d events, history %d", len(w.events), w.history)
}

// The relay.

// wire is what goes out for an event: itself, or the marker of its verdict.
func (w *world) wire(r *outbox.Record) *outbox.Record {
	if m := w.verdicts[r.Pos]; m != nil {
		return m
	}
	return r
}

func (w *world) send(r *outbox.Record) {
	w.log = append(w.log, r)
	if !slices.Contains(w.attempted, r) {
		w.attempted = append(w.attempted, r)
	}
	w.note("log[%d] = %s", len(w.log)-1, name(r))
}

func (w *world) publish() {
	if w.next < len(w.events) {
		w.send(w.wire(w.events[w.next]))
		w.next++
	}
}

// skip gives up to n unpublished events of one life up. The produce of the
// first may have been attempted, and can land at any time.
func (w *world) skip(n int, attempted bool) {
	i := w.next
	for i < len(w.events) && i < w.next+n && w.events[i].Kind == outbox.KindData && w.verdicts[w.events[i].Pos] == nil &&
		w.events[i].Epoch == w.events[w.next].Epoch {
		i++
	}
	if i == w.next {
		return
	}
	first, last := w.events[w.next], w.events[i-1]
	marker := *last
	marker.Kind, marker.From, marker.History, marker.Prev = outbox.KindSkip, first.Seq, first.History, first.Prev
	if attempted {
		w.attempted = append(w.attempted, first)
	}
	for _, r := range w.events[w.next:i] {
		w.verdicts[r.Pos], w.skipped[r.Pos] = &marker, true
	}
	w.note("skip %s", name(&marker))
	w.send(&marker)
	w.next = i
}

// retain cuts the log's beginning off.
func (w *world) retain(start int) {
	w.logStart = start
	w.note("retention: the log starts at %d", start)
}
