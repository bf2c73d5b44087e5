package consumer

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

func mask(m Missed) (b uint64) {
	for _, r := range m {
		b |= span(r.From, r.To)
	}
	return b
}

func TestASetOfMissedSeqsIsTheUnionOfWhatWasAdded(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var m Missed
		var want uint64
		for range 1 + rnd.IntN(9) {
			from := 1 + rnd.Int64N(40)
			to := from + rnd.Int64N(6) - 1 // also empty ones
			before, was := m, mask(m)
			m, want = m.Add(from, to), want|span(from, to)
			if mask(before) != was {
				t.Fatalf("Add changed the set it was called on")
			}
		}
		if mask(m) != want {
			t.Fatalf("got %v, want %b", m, want)
		}
		for i := 1; i < len(m); i++ {
			if m[i].From <= m[i-1].To+1 {
				t.Fatalf("%v: ranges overlap, touch, or are out of order", m)
			}
		}
		back, err := parseMissed(m.String())
		if err != nil || mask(back) != want {
			t.Fatalf("%s: read back as %v, %v", m, back, err)
		}
		for s := int64(1); s < 50; s++ {
			if m.Contains(s) != (want>>uint(s)&1 == 1) {
				t.Fatalf("%v: Contains(%d) is wrong", m, s)
			}
			next, last, above := s, s, 0
			for want>>uint(next+1)&1 == 1 {
				next++
			}
			for last > 0 && want>>uint(last)&1 == 1 {
				last--
			}
			for _, r := range m {
				if r.To > s {
					above++
				}
			}
			if m.next(s) != next || m.last(s) != last || m.above(s) != above {
				t.Fatalf("%v at %d: next %d, last %d, above %d, want %d, %d, %d", m, s, m.next(s), m.last(s), m.above(s), next, last, above)
			}
			to := s + rnd.Int64N(5)
			if m.ContainsRange(s, to) != (want&span(s, to) == span(s, to)) {
				t.Fatalf("%v: ContainsRange(%d, %d) is wrong", m, s, to)
			}
		}
	}
}

// A merge may call an applied event stale; it must neither forget one that was
// given up, nor give up one that is still expected, nor lose sight of the last
// applied one.
func TestABoundedSetForgetsNothingAndGivesUpNothingAboveTheGuard(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		var m Missed
		for range 12 {
			s := 1 + rnd.Int64N(50)
			m = m.Add(s, s)
		}
		seq := m.next(rnd.Int64N(50))
		limit := 2 + rnd.IntN(4)
		b := m.bound(seq, limit)
		if mask(m)&^mask(b) != 0 {
			t.Fatalf("%v → %v: something was forgotten", m, b)
		}
		if grown := mask(b) &^ mask(m); grown != 0 && int64(bits.Len64(grown)-1) > m.last(seq)-1 {
			t.Fatalf("%v → %v at %d: something that is expected, or the last applied, was given up", m, b, seq)
		}
		if b.last(seq) != m.last(seq) || b.above(seq) != m.above(seq) {
			t.Fatalf("%v → %v at %d: last %d → %d, above %d → %d", m, b, seq, m.last(seq), b.last(seq), m.above(seq), b.above(seq))
		}
		if below := len(b) - b.above(seq); below > limit {
			t.Fatalf("%v → %v at %d: %d ranges below, limit %d", m, b, seq, below, limit)
		}
	}
}

func TestAMultirangeThatIsNotOursIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "[1,2)", "{[1,2}", "{[,2)}", "{(,)}", "{[3,3)}", "{[4,2)}", "{empty}"} {
		if m, err := parseMissed(s); err == nil {
			t.Errorf("%q was read as %v", s, m)
		}
	}
}
