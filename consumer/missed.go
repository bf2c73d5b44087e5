package consumer

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Range is a range of seqs, both ends included.
type Range struct{ From, To int64 }

// Missed is a set of seqs of one epoch that are never to be applied: skipped,
// discarded, passed over, or before a point that an operator adopted. Its
// ranges are in ascending order, neither overlap nor touch, and are never
// changed in place: [Missed.Add] returns another set.
//
// It tells "this event was given up" from "this event was applied", which the
// highest decided seq alone can't.
type Missed []Range

// maxMissed is how many ranges a guard remembers on each side of its seq.
const maxMissed = 128

// find returns the index of the first range that ends at or after seq.
func (m Missed) find(seq int64) int {
	return sort.Search(len(m), func(i int) bool { return m[i].To >= seq })
}

// Contains tells whether seq is in the set.
func (m Missed) Contains(seq int64) bool {
	i := m.find(seq)
	return i < len(m) && m[i].From <= seq
}

// ContainsRange tells whether all of from..to is in the set. An empty range is.
func (m Missed) ContainsRange(from, to int64) bool {
	if from > to {
		return true
	}
	i := m.find(from)
	return i < len(m) && m[i].From <= from && m[i].To >= to
}

// Add returns the set with from..to in it.
func (m Missed) Add(from, to int64) Missed {
	if from > to {
		return m
	}
	i := m.find(from - 1) // the first range that overlaps or touches from the left
	j := i
	for j < len(m) && m[j].From <= to+1 {
		from, to = min(from, m[j].From), max(to, m[j].To)
		j++
	}
	out := make(Missed, 0, len(m)-(j-i)+1)
	out = append(out, m[:i]...)
	out = append(out, Range{from, to})
	return append(out, m[j:]...)
}

// above is the number of ranges that end above seq.
func (m Missed) above(seq int64) int { return len(m) - m.find(seq+1) }

// bound merges the lowest ranges until at most limit lie at or below seq,
// where everything is decided. An applied event between two merged ranges is
// then called stale instead of duplicate when a copy of it arrives. It is
// never the other way round, and above seq nothing is merged: an event in a
// hole there is still expected.
//
// The topmost range at or below seq stays as it is (limit must be at least 2),
// so that the last applied seq can still be read off the set.
func (m Missed) bound(seq int64, limit int) Missed {
	below := len(m) - m.above(seq)
	if below <= limit {
		return m
	}
	drop := below - limit
	out := slices.Clone(m[drop:])
	out[0].From = m[0].From
	return out
}

// next returns the end of the range that begins right after seq, or seq.
func (m Missed) next(seq int64) int64 {
	if i := m.find(seq + 1); i < len(m) && m[i].From <= seq+1 {
		return m[i].To
	}
	return seq
}

// last returns the highest seq at or below seq that is not in the set, 0 if
// there is none.
func (m Missed) last(seq int64) int64 {
	if i := m.find(seq); i < len(m) && m[i].From <= seq {
		return m[i].From - 1
	}
	return seq
}

// String is the set as PostgreSQL writes an int8multirange: {[1,4),[7,8)}.
func (m Missed) String() string {
	b := make([]byte, 0, 2+len(m)*16)
	b = append(b, '{')
	for i, r := range m {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		b = strconv.AppendInt(b, r.From, 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, r.To+1, 10)
		b = append(b, ')')
	}
	return string(append(b, '}'))
}

// parseMissed reads what PostgreSQL writes. PostgreSQL keeps ranges of
// integers as [from,to) and multiranges sorted and merged.
func parseMissed(s string) (Missed, error) {
	inner, ok := strings.CutPrefix(s, "{")
	inner, ok2 := strings.CutSuffix(inner, "}")
	if !ok || !ok2 {
		return nil, fmt.Errorf("consumer: missed is %.60q, want an int8multirange", s)
	}
	var m Missed
	for inner != "" {
		var one string
		one, inner, ok = strings.Cut(inner, ")")
		inner = strings.TrimPrefix(inner, ",")
		one, ok2 = strings.CutPrefix(one, "[")
		a, b, _ := strings.Cut(one, ",")
		from, err1 := strconv.ParseInt(a, 10, 64)
		to, err2 := strconv.ParseInt(b, 10, 64)
		if !ok || !ok2 || err1 != nil || err2 != nil || from >= to {
			return nil, fmt.Errorf("consumer: missed is %.60q, which has a range without finite bounds", s)
		}
		m = append(m, Range{from, to - 1})
	}
	return m, nil
}
