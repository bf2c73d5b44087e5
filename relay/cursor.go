package relay

import "slices"

// cursor says what has been read, or published. It is a value: a copy of it is
// a fork.
//
// Between windows (boundary) it is s1: everything visible in s1 is behind it.
// Inside a window, s2 is set, and behind it is also every row that is visible
// in s2, not visible in s1, and has a pos of at most last.
type cursor struct {
	s1 snapshot
	// low bounds where late rows can be: every transaction id from s1.xmax on
	// writes rows with a pos above it only. So a row that is not visible in s1
	// and has a pos of at most low was written by a transaction of s1.xip.
	low int64
	// young is from which transaction id on all rows have a pos above low: at most
	// s1.xmax, so those of s1.xip from it on are no stragglers. Not stored; 0 where it
	// isn't known.
	young uint64

	s2     snapshot // the end of the window; zero at a boundary
	high   int64    // no row that is visible in s2 has a pos above it
	low2   int64    // low and young, for the window that will start at s2
	young2 uint64
	last   int64 // how far inside the window, by pos
}

// start is the cursor of a relay that has never published.
func start() cursor {
	s, _ := parseSnapshot(nothingSeen) // a constant
	return cursor{s1: s}
}

func (c cursor) boundary() bool { return c.s2.zero() }

// open begins the window that ends at s2. b is a bound for that: its young is at
// most s2.xmax; see doc.go.
func (c cursor) open(s2 snapshot, high int64, b bound) cursor {
	c.s2, c.high, c.last = s2, high, 0
	// Both are bounds for s2: an id from s2.xmax on is also one from s1.xmax on.
	b = bound{c.low, c.young}.better(b)
	c.low2, c.young2 = b.low, b.young
	return c
}

// late gives those of the transactions that can have rows at or below low.
func (c cursor) late(xids []uint64) []uint64 {
	if c.young == 0 {
		return xids
	}
	n, _ := slices.BinarySearch(xids, c.young)
	return xids[:n]
}

// at is the same window with everything up to pos behind it.
func (c cursor) at(pos int64) cursor {
	c.last = pos
	return c
}

// finish ends the window.
func (c cursor) finish() cursor {
	return cursor{s1: c.s2, low: c.low2, young: c.young2}
}

// floor is the boundary at which the cursor's window starts. Everything that is behind
// it is behind the cursor.
func (c cursor) floor() cursor { return cursor{s1: c.s1, low: c.low, young: c.young} }

// spot says where a cursor stands. Cursors at the same place may differ in
// their bounds, all of which hold.
type spot struct {
	s1, s2 string
	last   int64
}

func (c cursor) spot() spot { return spot{c.s1.text, c.s2.text, c.last} }

// merge takes the best of the bounds of a cursor that stands at the same place.
func (c cursor) merge(o cursor) cursor {
	b, b2 := bound{c.low, c.young}.better(bound{o.low, o.young}), bound{c.low2, c.young2}.better(bound{o.low2, o.young2})
	c.low, c.young, c.low2, c.young2 = b.low, b.young, b2.low, b2.young
	if !c.boundary() {
		c.high = min(c.high, o.high)
	}
	return c
}

// older: everything that c counts as seen, o does too. Snapshots of one cluster
// are taken one after the other: the later one has the larger xmax, or with the
// same one fewer that still ran.
func (c cursor) older(o cursor) bool {
	switch {
	case c.s1.xmax != o.s1.xmax:
		return c.s1.xmax < o.s1.xmax
	case len(c.s1.xip) != len(o.s1.xip):
		return len(c.s1.xip) > len(o.s1.xip)
	}
	return c.last < o.last
}
