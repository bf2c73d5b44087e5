package relay

// bound is a low bound: whoever has a transaction id from young on has positions
// above low only. Where young is not known, of one that was loaded, it is 0.
type bound struct {
	low   int64
	young uint64
}

// better gives the one that leaves less to be read.
func (b bound) better(o bound) bound {
	if o.low > b.low || o.low == b.low && b.young == 0 {
		return o
	}
	return b
}

// bounds finds low bounds by what each poll reads beside its rows: the sequence's
// value, and which transaction id is the next to be given out. Read in this order,
// and in two statements, they are a bound: whoever gets that id or a larger one does
// so after the value was read, and draws its positions after it has the id.
//
// Such a bound holds for a window that starts at a snapshot whose xmax is not below
// the id. Below it, somebody has an id from xmax on, in no list of running
// transactions, and may have had a position already when the value was read. A
// transaction that ends lifts the xmax of later snapshots; so a bound that doesn't
// hold yet is kept until it does.
//
// It is of one session with the database, like everything that is known of
// transaction ids.
type bounds struct {
	high int64 // the sequence's value, as an earlier statement has read it
	soon bound // holds once a snapshot's xmax has come up to its young
}

// at takes what a poll has read, and gives the newest bound that holds for its
// snapshot; the zero bound if it is none that was not given before.
func (b *bounds) at(s2 snapshot, next uint64, high int64) (now bound) {
	is := bound{b.high, next}
	b.high = high
	if b.soon.young != 0 && s2.xmax >= b.soon.young {
		now, b.soon = b.soon, bound{}
	}
	switch {
	case s2.xmax >= is.young:
		now, b.soon = is, bound{}
	case b.soon.young == 0 || is.young < b.soon.young: // ids only grow; what age() says once in four billion is too large
		b.soon = is
	}
	return now
}
