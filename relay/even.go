package relay

import (
	"math/bits"

	"github.com/fenceline/fenceline/outbox"
)

// A key's shard and its partition are remainders of one hash. So all of a shard's
// events are in one partition where a topic has a power of two of them, shard mod
// n; and where another power of two divides n, in those partitions that have the
// shard's last bits. An instance with three of its sixteen shards for one of four
// partitions and six for another would have a lane for each, and where the
// broker's latency is the bound it takes as long as the lane with six. So which of
// the free shards an instance takes, and which of its own it gives away, keeps it
// even for each power of two; how many it takes or gives is not touched by that,
// so none changes hands for it.

// halves are the shards with a 0 in their last bit, in the bit before, and so on.
var halves = [...]shardSet{0x5555555555555555, 0x3333333333333333, 0x0f0f0f0f0f0f0f0f, 0x00ff00ff00ff00ff, 0x0000ffff0000ffff, 0x00000000ffffffff}

// pick gives n of the free shards, or as many as there are, that make s even: each
// is in the half of which s has less, and in that half's half of which it has less,
// and so on, as far as some are free. Where both are alike it looks behind at
// first: so several that find all of them free take what stands together, each
// from its own at on, and don't meet.
func (s shardSet) pick(free shardSet, at, n int) (picked []int) {
	for free &^= s; n > 0 && free != 0; n-- {
		have, of := s.behind(at), free.behind(at)
		for _, half := range halves {
			if of&half == 0 || of&^half != 0 && (have&half).len() > (have&^half).len() {
				half = ^half
			}
			have, of = have&half, of&half
		}
		next := (of.list()[0] + at) % outbox.Shards
		picked = append(picked, next)
		s, free = s.with(next), free&^shardSet(0).with(next)
	}
	return picked
}

// spare gives the shard without which s, which is not empty, is the most even: the
// other way round, so that what is kept stands behind at where that is all the same.
func (s shardSet) spare(at int) int {
	s = s.behind(at)
	for _, half := range halves {
		if (s & half).len() <= (s &^ half).len() {
			half = ^half
		}
		s &= half
	}
	return (s.list()[0] + at) % outbox.Shards
}

// behind is s with the shard at as its first. Those of one remainder are of one
// remainder there too.
func (s shardSet) behind(at int) shardSet { return shardSet(bits.RotateLeft64(uint64(s), -at)) }
