package consumer

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// The small world: the guard is in epoch 2 or 3, records are of epochs 1 to 4
// and have seqs 1 to 3; to 4 with FENCELINE_LONG=1, which takes a minute.
var worldSeq = func() int64 {
	if os.Getenv("FENCELINE_LONG") == "1" {
		return 4
	}
	return 3
}()

// worldRows are all guard rows of the small world that decisions and operators
// can bring about, and then some.
func worldRows() []*Row {
	rows := []*Row{nil}
	blocks := []Reason{"", Gap, InConflict, Failing, Life}
	for _, epoch := range []int64{2, 3} {
		for _, waiting := range []int64{0, epoch + 1} {
			for _, blocked := range []Reason{"", Gap, Failing} {
				// Nothing is decided: a first record waits, or fails.
				rows = append(rows, &Row{Epoch: epoch, StartEpoch: epoch, StartSeq: 1, WaitingEpoch: waiting, Blocked: blocked})
			}
			for seq := int64(0); seq < worldSeq; seq++ {
				for _, missed := range worldSets() {
					for _, start := range [][2]int64{{epoch, 1}, {epoch, 2}, {epoch, 0}, {1, 1}, {1, 3}} {
						for _, end := range []int64{0, worldSeq - 1, worldSeq} {
							for token := int64(0); token <= 2; token++ {
								if missed.Contains(seq+1) || // the guard would have moved on
									start[1] == 0 && !missed.ContainsRange(1, seq) || // no start: only markers were seen
									start[0] == epoch && start[1] > seq+1 || // the start is behind the guard
									end != 0 && !missed.Contains(end) || // an end record's seq is missed
									token != 0 && (start[1] == 0 || missed.last(seq) == 0) { // nothing was applied
									continue
								}
								rows = append(rows, &Row{
									Epoch: epoch, Seq: seq, Token: token, Missed: missed, EndSeq: end,
									StartEpoch: start[0], StartSeq: start[1], Settled: true,
									WaitingEpoch: waiting, Blocked: blocks[len(rows)%len(blocks)],
								})
							}
						}
					}
				}
			}
		}
	}
	return rows
}

// Prev of the producer's is handy for any pair.
type Prev = outbox.Prev

func worldSets() (sets []Missed) {
	for bits := range 1 << worldSeq {
		var m Missed
		for s := int64(1); s <= worldSeq; s++ {
			if bits>>uint(s-1)&1 == 1 {
				m = m.Add(s, s)
			}
		}
		sets = append(sets, m)
	}
	return sets
}

func worldRecords() []*outbox.Record {
	var out []*outbox.Record
	add := func(r outbox.Record) {
		r.Stream, r.Key, r.Topic = "s", "k", "s"
		if r.First() != 1 {
			out = append(out, &r)
			return
		}
		for _, history := range []int64{1, r.Epoch} {
			for _, prev := range []*Prev{nil, {Epoch: 1, Seq: 2}, {Epoch: 2, Seq: 1}, {Epoch: 2, Seq: 2}, {Epoch: 3, Seq: 2}} {
				if prev != nil && prev.Epoch >= r.Epoch {
					continue
				}
				x := r
				x.History, x.Prev = history, prev
				out = append(out, &x)
			}
		}
	}
	for epoch := int64(1); epoch <= 4; epoch++ {
		for token := int64(1); token <= 2; token++ {
			for seq := int64(1); seq <= worldSeq; seq++ {
				add(outbox.Record{Epoch: epoch, Token: token, Seq: seq, Kind: outbox.KindData})
				add(outbox.Record{Epoch: epoch, Token: token, Seq: seq, Kind: outbox.KindEnd})
				for from := int64(1); from <= seq; from++ {
					add(outbox.Record{Epoch: epoch, Token: token, Seq: seq, From: from, Kind: outbox.KindSkip})
				}
			}
		}
	}
	return out
}

func TestEveryDecisionOfTheSmallWorldIsTheTables(t *testing.T) {
	t.Parallel()
	hits := map[[2]string]int{}
	rows, records := worldRows(), worldRecords()
	if raceEnabled || testing.Short() {
		rows = sample(rows, 7) // the race detector has nothing to find here
	}
	checked := 0
	for _, p := range []struct {
		policy Policy
		start  Start
	}{{Strict, FromFirstSeen}, {Strict, FromOrigin}, {State, FromFirstSeen}} {
		name := string(p.policy) + "/" + string(p.start)
		for _, row := range rows {
			if (p.policy == State || p.start == FromOrigin) && row != nil && row.StartSeq == 0 {
				continue // only a first-seen stream can begin with a marker
			}
			for _, rec := range records {
				for variant := range 4 {
					in := Input{Row: row, Record: rec, Policy: p.policy, Start: p.start, Forgotten: int64(variant & 1 * 2)}
					flag := variant&2 != 0
					in.Truncated, in.Discarded = flag && p.policy == Strict, flag && p.policy == State
					if compare(t, in, false, hits, name) == Applied {
						compare(t, in, true, hits, name)
					}
					if checked++; t.Failed() {
						return
					}
				}
			}
		}
		for _, in := range []Input{
			{Malformed: &outbox.MalformedError{Header: "ce_fenceseq", Reason: "is missing"}, Record: records[0], Policy: p.policy, Start: p.start},
			{Row: rows[9], Malformed: &outbox.MalformedError{Header: "ce_fenceseq", Reason: "is missing"}, Record: records[0], Policy: p.policy, Start: p.start},
		} {
			compare(t, in, false, hits, name)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d decisions over %d guards and %d records", checked, len(rows), len(records))

	// Every row of the table was the one that decided, under each policy that
	// has it. (3a only leads on to others.)
	want := map[string][]string{
		"strict/first-seen": {"0", "2", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "4f", "5b", "5c", "5d", "5e", "1", "3a"},
		"strict/origin":     {"0", "1", "3a", "3b", "3c", "3d", "3e", "4a", "4b", "4c", "4d", "4e", "4f", "5c", "5d", "5e"},
		"state/first-seen":  {"0", "1", "2", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "4f", "5a"},
	}
	for policy, names := range want {
		for _, rule := range names {
			if hits[[2]string{policy, rule}] == 0 {
				t.Errorf("row %s of the table was never reached under %s", rule, policy)
			}
		}
	}
	for hit := range hits {
		if !slices.Contains(want[hit[0]], hit[1]) {
			t.Errorf("row %s decided under %s, which doesn't have it", hit[1], hit[0])
		}
	}
}

func sample[T any](all []T, every int) []T {
	out := make([]T, 0, len(all)/every+1)
	for i := 0; i < len(all); i += every {
		out = append(out, all[i])
	}
	return out
}

func compare(t *testing.T, in Input, failed bool, hits map[[2]string]int, policy string) Outcome {
	t.Helper()
	var before Row
	if in.Row != nil {
		before = *in.Row
		before.Missed = slices.Clone(in.Row.Missed)
	}
	got := Decide(in)
	if failed {
		got = DecideFailed(in)
	}
	want := newOracle(in, failed).ask()
	row := toOracle(got.Row)
	row.visited3a = want.row.visited3a
	if got.Rule != want.rule || got.Outcome != want.outcome || got.Reason != want.reason || got.Alarm != want.alarm || row != want.row {
		t.Errorf("%s, failed=%v, %s\n got %s %s %s alarm=%v %+v\nwant %s %s %s alarm=%v %+v", policy, failed, show(in),
			got.Rule, got.Outcome, got.Reason, got.Alarm, row, want.rule, want.outcome, want.reason, want.alarm, want.row)
	}
	hits[[2]string{policy, got.Rule}]++
	if want.row.visited3a {
		hits[[2]string{policy, "3a"}]++
	}
	if in.Row != nil && !in.Row.equal(&before) {
		t.Errorf("%s: the decision changed its input", show(in))
	}
	invariants(t, in, got)
	return got.Outcome
}

// invariants hold whatever the table says.
func invariants(t *testing.T, in Input, d Decision) {
	t.Helper()
	was, rec := in.Row, in.Record
	bad := func(why string) { t.Errorf("%s → %s %s %+v: %s", show(in), d.Rule, d.Outcome, d.Row, why) }
	if was != nil {
		if d.Row == nil {
			bad("the guard is gone")
			return
		}
		if was.Settled {
			if d.Row.Epoch < was.Epoch || d.Row.Epoch == was.Epoch && d.Row.Seq < was.Seq {
				bad("the guard moved backwards")
			}
			if !d.Row.Settled {
				bad("what was settled isn't any more")
			}
		}
		if d.Row.Epoch == was.Epoch {
			for _, r := range was.Missed {
				if !d.Row.Missed.ContainsRange(r.From, r.To) {
					bad("missed has shrunk")
				}
			}
			if was.EndSeq != 0 && d.Row.EndSeq == 0 {
				bad("the end was forgotten")
			}
		}
		if was.WaitingEpoch != 0 && !d.Row.Reached() && (d.Row.WaitingEpoch == 0 || d.Row.WaitingEpoch > was.WaitingEpoch) {
			bad("something that waits was forgotten")
		}
	}
	if d.Row != nil && d.Row.Missed.Contains(d.Row.Seq+1) {
		bad("the guard stands before something it will never apply")
	}
	if d.Changed != (was == nil && d.Row != nil || was != nil && !was.equal(d.Row)) {
		bad("Changed is wrong")
	}
	switch d.Outcome {
	case Applied:
		if rec.Kind != outbox.KindData {
			bad("a marker reached the handler")
		}
		if was != nil && (rec.Epoch < was.Epoch && was.Settled || rec.Epoch == was.Epoch && (rec.Seq <= was.Seq || was.Missed.Contains(rec.Seq))) {
			bad("applied twice, or after something newer")
		}
		if in.Policy == Strict && was != nil && was.StartSeq != 0 && rec.Epoch == was.Epoch && rec.Seq != was.Seq+1 {
			bad("applied over a hole")
		}
		again := in
		again.Row = d.Row
		if x := Decide(again); x.Outcome != Duplicate {
			bad("a copy right behind it is " + string(x.Outcome))
		}
	case Absorbed:
		again := in
		again.Row = d.Row
		if x := Decide(again); x.Outcome != Duplicate {
			bad("a copy right behind it is " + string(x.Outcome))
		}
	case Parked:
		if in.Policy != Strict {
			bad("parked under state")
		}
		if d.Row.Blocked == "" || d.Reason == "" {
			bad("parked without a reason")
		}
		if rec.Epoch > d.Row.Epoch && (d.Row.WaitingEpoch == 0 || d.Row.WaitingEpoch > rec.Epoch) {
			bad("nobody remembers that it waits")
		}
	default:
		if was != nil && !was.Settled && d.Row.Settled {
			bad("settled by nothing")
		}
	}
}

func show(in Input) string {
	s := fmt.Sprintf("guard %+v, record %s %d/%d/%d", in.Row, in.Record.Kind, in.Record.Epoch, in.Record.Token, in.Record.Seq)
	if in.Record.Kind == outbox.KindSkip {
		s += fmt.Sprintf(" from %d", in.Record.From)
	}
	if in.Record.Prev != nil {
		s += fmt.Sprintf(" prev %d/%d", in.Record.Prev.Epoch, in.Record.Prev.Seq)
	}
	return s + fmt.Sprintf(" history %d, forgotten %d, truncated %v, discarded %v", in.Record.History, in.Forgotten, in.Truncated, in.Discarded)
}

func TestARecordThatNoGuardCouldStoreIsMalformed(t *testing.T) {
	t.Parallel()
	good := outbox.Record{Stream: "s", Key: "k", Epoch: 5, Token: 1, Seq: 2, Kind: outbox.KindData}
	for name, breakIt := range map[string]func(*outbox.Record){
		"no key":               func(r *outbox.Record) { r.Key = "" },
		"key with NUL":         func(r *outbox.Record) { r.Key = "a\x00b" },
		"key not UTF-8":        func(r *outbox.Record) { r.Key = "\xff" },
		"key too long":         func(r *outbox.Record) { r.Key = string(make([]byte, maxKeyBytes+1)) },
		"stream with NUL":      func(r *outbox.Record) { r.Stream = "a\x00b" },
		"no stream":            func(r *outbox.Record) { r.Stream = "" },
		"epoch 0":              func(r *outbox.Record) { r.Epoch = 0 },
		"epoch without end":    func(r *outbox.Record) { r.Epoch = 1<<63 - 1 },
		"token 0":              func(r *outbox.Record) { r.Token = 0 },
		"seq negative":         func(r *outbox.Record) { r.Seq = -1 },
		"seq without a range":  func(r *outbox.Record) { r.Seq = 1<<63 - 1 },
		"unknown kind":         func(r *outbox.Record) { r.Kind = "resume" },
		"skip without from":    func(r *outbox.Record) { r.Kind = outbox.KindSkip },
		"skip from beyond":     func(r *outbox.Record) { r.Kind, r.From = outbox.KindSkip, 3 },
		"skip too large":       func(r *outbox.Record) { r.Kind, r.From, r.Seq = outbox.KindSkip, 2, 2+outbox.MaxSkip },
		"from on data":         func(r *outbox.Record) { r.From = 1 },
		"history after epoch":  func(r *outbox.Record) { r.Seq, r.History = 1, 6 },
		"prev on a later seq":  func(r *outbox.Record) { r.Prev = &Prev{Epoch: 1, Seq: 1} },
		"prev not before":      func(r *outbox.Record) { r.Seq, r.Prev = 1, &Prev{Epoch: 5, Seq: 1} },
		"prev without its seq": func(r *outbox.Record) { r.Seq, r.Prev = 1, &Prev{Epoch: 4} },
	} {
		r := good
		breakIt(&r)
		if d := Decide(Input{Record: &r, Policy: Strict}); d.Outcome != Quarantined || d.Reason != Malformed || d.Rule != "0" {
			t.Errorf("%s: got %s %s, want quarantined malformed", name, d.Outcome, d.Reason)
		}
	}
	if d := Decide(Input{Record: &good, Policy: Strict}); d.Outcome != Applied {
		t.Errorf("the good one: got %s", d.Outcome)
	}
}

func TestAnEpochTooFarAheadOfTheClockIsNotBelieved(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rec := func(ahead time.Duration) *outbox.Record {
		return &outbox.Record{Stream: "s", Key: "k", Epoch: now.Add(ahead).UnixMicro(), Token: 1, Seq: 1, History: 1, Kind: outbox.KindData}
	}
	for _, c := range []struct {
		ahead, limit time.Duration
		want         Outcome
	}{
		{24 * time.Hour, 0, Applied},
		{24*time.Hour + time.Microsecond, 0, Quarantined},
		{time.Hour, time.Hour, Applied},
		{time.Hour + time.Microsecond, time.Hour, Quarantined},
	} {
		d := Decide(Input{Record: rec(c.ahead), Policy: Strict, Now: now, MaxAhead: c.limit})
		if d.Outcome != c.want || d.Outcome == Quarantined && (d.Reason != Absurd || !d.Alarm) {
			t.Errorf("%v ahead, limit %v: got %s %s, want %s", c.ahead, c.limit, d.Outcome, d.Reason, c.want)
		}
	}
}

// The zero values of Policy and Start are the careful ones.
func TestTheZeroPolicyIsStrictFromFirstSeen(t *testing.T) {
	t.Parallel()
	row := &Row{Epoch: 2, Seq: 1, Token: 1, StartEpoch: 2, StartSeq: 1, Settled: true}
	for _, rec := range worldRecords() {
		for _, r := range []*Row{nil, row} {
			a := Decide(Input{Row: r, Record: rec})
			b := Decide(Input{Row: r, Record: rec, Policy: Strict, Start: FromFirstSeen})
			if a.Rule != b.Rule || a.Outcome != b.Outcome {
				t.Fatalf("%s: %s %s, want %s %s", show(Input{Row: r, Record: rec}), a.Rule, a.Outcome, b.Rule, b.Outcome)
			}
		}
	}
}
