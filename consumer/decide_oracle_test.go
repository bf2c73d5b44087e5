package consumer

import (
	"fmt"

	"github.com/fenceline/fenceline/outbox"
)

// The oracle is the decision table once more, written as a table: rows in
// order, a condition and a consequence in each of the two columns. It shares
// no code with Decide. Sets of seqs are bit masks (bit s is seq s), so it
// works for seqs up to 60 only.
type oracleRow struct {
	has               bool
	epoch, seq, token int64
	missed            uint64
	end               int64
	startEpoch, start int64
	settled           bool
	waiting           int64
	blocked           Reason
	visited3a         bool
}

type oracle struct {
	row                          oracleRow
	forgotten                    int64
	truncated, discarded, strict bool
	origin                       bool // FromOrigin
	malformed, absurd, failed    bool
	epoch, token, seq, lo        int64
	data, skip, endRecord        bool
	history, prevEpoch, prevSeq  int64
	hadRow, wasSettled           bool
	original                     oracleRow
}

type verdict struct {
	rule    string
	outcome Outcome
	reason  Reason
	alarm   bool
	row     oracleRow
	goOn    bool
}

type cell struct {
	when func(*oracle) bool
	do   func(*oracle) verdict
}

type tableRow struct {
	name          string
	strict, state *cell
}

func span(from, to int64) (m uint64) {
	for s := from; s <= to; s++ {
		m |= 1 << uint(s)
	}
	return m
}

func (o *oracle) in(s int64) bool { return o.row.missed>>uint(s)&1 == 1 }
func (o *oracle) same() bool      { return o.row.has && o.epoch == o.row.epoch }
func (o *oracle) larger() bool    { return o.row.has && o.epoch > o.row.epoch }
func (o *oracle) older() bool     { return o.row.has && o.epoch < o.row.epoch }

func (o *oracle) lastApplied() int64 {
	for s := o.row.seq; s > 0; s-- {
		if !o.in(s) {
			return s
		}
	}
	return 0
}

func (o *oracle) loop(r *oracleRow) {
	for r.missed>>uint(r.seq+1)&1 == 1 {
		r.seq++
	}
}

// Consequences.

func plain(out Outcome) func(*oracle) verdict {
	return func(o *oracle) verdict { return verdict{outcome: out, row: o.original} }
}

func quarantine(why Reason) func(*oracle) verdict {
	return func(o *oracle) verdict {
		return verdict{outcome: Quarantined, reason: why, alarm: why != Malformed, row: o.original}
	}
}

func park(why Reason) func(*oracle) verdict {
	return func(o *oracle) verdict {
		r := o.row
		if o.epoch > r.epoch && (r.waiting == 0 || r.waiting > o.epoch) {
			r.waiting = o.epoch
		}
		if why == Failing && r.blocked != InConflict || why == InConflict || r.blocked == "" {
			r.blocked = why
		}
		return verdict{outcome: Parked, reason: why, row: r}
	}
}

// intoEpoch gives the row in the record's epoch.
func (o *oracle) intoEpoch() oracleRow {
	r := o.row
	if !r.has || r.epoch != o.epoch {
		r = oracleRow{has: true, epoch: o.epoch, startEpoch: r.startEpoch, start: r.start, settled: r.settled,
			waiting: r.waiting, blocked: r.blocked}
	}
	return r
}

func apply(o *oracle) verdict {
	switch {
	case !o.strict && o.discarded:
		return plain(Stale)(o)
	case !o.strict && o.failed:
		return plain(DeadLettered)(o)
	case o.strict && o.row.blocked == InConflict:
		return park(InConflict)(o)
	}
	r := o.intoEpoch()
	if o.failed {
		if r.start == 0 {
			r.startEpoch, r.start, r.seq, r.settled = o.epoch, o.seq, o.seq-1, true
		}
		o.row = r
		return park(Failing)(o)
	}
	if r.start == 0 {
		r.startEpoch, r.start = o.epoch, o.seq
	} else if !o.strict {
		r.missed |= span(r.seq+1, o.seq-1)
	}
	r.seq, r.token, r.settled = o.seq, o.token, true
	o.loop(&r)
	return verdict{outcome: Applied, row: r}
}

func absorb(o *oracle) verdict {
	r := o.intoEpoch()
	if r.start == 0 {
		r.startEpoch = o.epoch
	}
	for s := o.lo; s <= o.seq; s++ {
		if s > r.seq {
			r.missed |= 1 << uint(s)
		}
	}
	if o.endRecord {
		r.end = o.seq
	}
	r.settled = true
	o.loop(&r)
	return verdict{outcome: Absorbed, row: r}
}

func applyOrAbsorb(o *oracle) verdict {
	if o.data {
		return apply(o)
	}
	return absorb(o)
}

func applyOrIgnore(o *oracle) verdict {
	if o.data {
		return apply(o)
	}
	return plain(Ignored)(o)
}

func goOn(change func(*oracle)) func(*oracle) verdict {
	return func(o *oracle) verdict { change(o); return verdict{goOn: true} }
}

func originStart(o *oracle) {
	o.row = oracleRow{has: true, epoch: o.epoch, startEpoch: o.epoch, start: 1}
}

func rebase(epoch int64, o *oracle) {
	w := o.row.epoch
	if o.row.waiting != 0 && o.row.waiting < w {
		w = o.row.waiting
	}
	o.row = oracleRow{has: true, epoch: epoch, startEpoch: epoch, start: 1, waiting: w, blocked: o.row.blocked}
}

// Conditions.

func (o *oracle) decidedMarker() bool {
	if !o.same() || o.data {
		return false
	}
	if o.endRecord {
		return o.in(o.seq)
	}
	for s := o.lo; s <= o.seq; s++ {
		if s > o.row.seq && !o.in(s) {
			return false
		}
	}
	return true
}

func (o *oracle) contradicts() bool {
	if !o.same() || o.row.token == 0 {
		return false
	}
	if o.seq > o.row.seq {
		return o.token < o.row.token
	}
	return o.token > o.row.token || o.seq == o.lastApplied() && o.token != o.row.token
}

func (o *oracle) proven() bool {
	switch {
	case o.truncated, o.row.waiting != 0 && o.row.waiting < o.epoch:
		return false
	case o.prevEpoch != 0:
		return o.prevEpoch == o.row.epoch && o.prevSeq == o.row.seq
	}
	return o.row.end != 0 && o.row.end == o.row.seq && o.row.epoch >= o.history
}

func both(when func(*oracle) bool, do func(*oracle) verdict) (a, b *cell) {
	c := &cell{when, do}
	return c, c
}

func row(name string, strict, state *cell) tableRow { return tableRow{name, strict, state} }

var theTable = func() []tableRow {
	var t []tableRow
	add := func(name string, strict, state *cell) { t = append(t, row(name, strict, state)) }
	same := func(name string, when func(*oracle) bool, do func(*oracle) verdict) {
		a, b := both(when, do)
		add(name, a, b)
	}
	same("0", func(o *oracle) bool { return o.malformed }, quarantine(Malformed))
	same("0", func(o *oracle) bool { return o.absurd }, quarantine(Absurd))
	same("1", func(o *oracle) bool { return !o.row.has && o.epoch <= o.forgotten }, quarantine(BeforeMemory))
	add("1", &cell{func(o *oracle) bool { return o.older() && !o.row.settled && o.epoch <= o.forgotten }, quarantine(BeforeMemory)}, nil)
	add("2", &cell{func(o *oracle) bool { return !o.row.has && !o.origin }, applyOrAbsorb},
		&cell{func(o *oracle) bool { return !o.row.has }, applyOrIgnore})
	add("2", &cell{func(o *oracle) bool { return !o.row.has && o.origin }, goOn(originStart)}, nil)
	add("3a", &cell{func(o *oracle) bool { return o.older() && !o.row.settled },
		goOn(func(o *oracle) { rebase(o.epoch, o); o.row.visited3a = true })}, nil)
	before := func(o *oracle) bool { return o.older() && o.epoch < o.row.startEpoch && o.epoch > o.forgotten }
	add("3b", &cell{func(o *oracle) bool { return before(o) && o.origin }, quarantine(BeforeOrigin)}, nil)
	same("3b", before, plain(BeforeStart))
	same("3c", (*oracle).older, plain(Stale))
	add("3d", &cell{func(o *oracle) bool { return o.same() && o.origin && !o.row.settled && o.truncated }, park(Gap)}, nil)
	add("3e", &cell{func(o *oracle) bool {
		return o.origin && (!o.hadRow || !o.wasSettled) && o.lo == 1 && o.prevEpoch > o.forgotten && o.prevEpoch != 0
	}, func(o *oracle) verdict {
		if o.prevEpoch < o.row.epoch {
			rebase(o.prevEpoch, o)
			if o.epoch < o.row.waiting {
				o.row.waiting = o.epoch
			}
		}
		return park(Life)(o)
	}}, nil)
	same("4a", func(o *oracle) bool { return o.same() && o.data && o.in(o.seq) }, plain(Stale))
	same("4a", (*oracle).decidedMarker, plain(Duplicate))
	add("4b", &cell{(*oracle).contradicts, func(o *oracle) verdict {
		v := quarantine(InConflict)(o)
		v.row.blocked = InConflict
		return v
	}}, &cell{(*oracle).contradicts, quarantine(InConflict)})
	same("4c", func(o *oracle) bool {
		return o.same() && o.seq <= o.row.seq && o.epoch == o.row.startEpoch && o.seq < o.row.start
	}, plain(BeforeStart))
	same("4c", func(o *oracle) bool { return o.same() && o.seq <= o.row.seq }, plain(Duplicate))
	add("4d", &cell{func(o *oracle) bool { return o.same() && !o.data && o.origin && !o.row.settled && o.lo > 1 }, park(Gap)}, nil)
	same("4d", func(o *oracle) bool { return o.same() && !o.data }, absorb)
	same("4e", func(o *oracle) bool { return o.same() && (o.seq == o.row.seq+1 || o.row.start == 0) }, apply)
	add("4f", &cell{(*oracle).same, park(Gap)}, &cell{(*oracle).same, apply})
	add("5a", nil, &cell{(*oracle).larger, applyOrIgnore})
	add("5b", &cell{func(o *oracle) bool { return o.larger() && o.row.start == 0 }, applyOrAbsorb}, nil)
	add("5c", &cell{func(o *oracle) bool { return o.larger() && o.lo != 1 }, park(Gap)}, nil)
	add("5d", &cell{func(o *oracle) bool { return o.larger() && o.proven() }, applyOrAbsorb}, nil)
	add("5e", &cell{(*oracle).larger, park(Life)}, nil)
	return t
}()

// ask walks the table.
func (o *oracle) ask() verdict {
	o.original, o.hadRow, o.wasSettled = o.row, o.row.has, o.row.settled
	passed3a := false
	for _, r := range theTable {
		c := r.state
		if o.strict {
			c = r.strict
		}
		if c == nil || !c.when(o) {
			continue
		}
		v := c.do(o)
		if v.goOn {
			passed3a = passed3a || o.row.visited3a
			continue
		}
		v.rule = r.name
		v.row.visited3a = passed3a
		return v
	}
	panic(fmt.Sprintf("no row of the table matches %+v", o))
}

func newOracle(in Input, failed bool) *oracle {
	r := in.Record
	o := &oracle{
		forgotten: in.Forgotten, truncated: in.Truncated, discarded: in.Discarded,
		strict: in.Policy == Strict, origin: in.Policy == Strict && in.Start == FromOrigin,
		malformed: in.Malformed != nil, failed: failed,
		epoch: r.Epoch, token: r.Token, seq: r.Seq, lo: r.Seq,
		data: r.Kind == outbox.KindData, skip: r.Kind == outbox.KindSkip, endRecord: r.Kind == outbox.KindEnd,
		history: r.History,
	}
	if o.skip {
		o.lo = r.From
	}
	if r.Prev != nil {
		o.prevEpoch, o.prevSeq = r.Prev.Epoch, r.Prev.Seq
	}
	if in.Row != nil {
		o.row = toOracle(in.Row)
	}
	return o
}

func toOracle(r *Row) oracleRow {
	if r == nil {
		return oracleRow{}
	}
	o := oracleRow{has: true, epoch: r.Epoch, seq: r.Seq, token: r.Token, end: r.EndSeq, startEpoch: r.StartEpoch,
		start: r.StartSeq, settled: r.Settled, waiting: r.WaitingEpoch, blocked: r.Blocked}
	for _, x := range r.Missed {
		o.missed |= span(x.From, x.To)
	}
	return o
}
