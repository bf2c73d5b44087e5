package relay

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

	s2   snapshot // the end of the window; zero at a boundary
	high int64    // no row that is visible in s2 has a pos above it
	low2 int64    // low, for the window that will start at s2
	last int64    // how far inside the window, by pos
}

// start is the cursor of a relay that has never published.
func start() cursor {
	s, _ := parseSnapshot(nothingSeen) // a constant
	return cursor{s1: s}
}

func (c cursor) boundary() bool { return c.s2.zero() }

// open begins the window that ends at s2. low is the bound that came with a
// pair committed before s2 was taken; see doc.go.
func (c cursor) open(s2 snapshot, high, low int64) cursor {
	c.s2, c.high, c.last = s2, high, 0
	// Both are bounds for s2: an id from s2.xmax on is also one from s1.xmax on.
	c.low2 = max(c.low, low)
	return c
}

// at is the same window with everything up to pos behind it.
func (c cursor) at(pos int64) cursor {
	c.last = pos
	return c
}

// finish ends the window.
func (c cursor) finish() cursor {
	return cursor{s1: c.s2, low: c.low2}
}

// spot says where a cursor stands. Cursors at the same place may differ in
// their bounds, all of which hold.
type spot struct {
	s1, s2 string
	last   int64
}

func (c cursor) spot() spot { return spot{c.s1.text, c.s2.text, c.last} }

// merge takes the best of the bounds of a cursor that stands at the same place.
func (c cursor) merge(o cursor) cursor {
	c.low, c.low2 = max(c.low, o.low), max(c.low2, o.low2)
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
