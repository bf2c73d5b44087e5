package relay

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/fenceline/fenceline/outbox"
)

// LeasePrefix is what the keys of the relay's leases begin with: one for each
// of the outbox.Shards parts of the work, fenceline:relay/00 to /63.
const LeasePrefix = "fenceline:relay/"

// ShardKey is the key of a shard's lease.
func ShardKey(shard int) string { return fmt.Sprintf("%s%02d", LeasePrefix, shard) }

// shardOf is the shard of a lease.
func shardOf(key string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimPrefix(key, LeasePrefix))
	return n, err == nil && n >= 0 && n < outbox.Shards && key == ShardKey(n)
}

// shardSet is a set of shards, a bit for each: there are as many as bits.
type shardSet uint64

const allShards = ^shardSet(0)

func shardsOf(list []int) (s shardSet) {
	for _, n := range list {
		s = s.with(n)
	}
	return s
}

func (s shardSet) with(n int) shardSet { return s | 1<<n }
func (s shardSet) has(n int) bool      { return s>>n&1 == 1 }
func (s shardSet) len() int            { return bits.OnesCount64(uint64(s)) }

// list gives the shards in order.
func (s shardSet) list() []int {
	list := make([]int, 0, s.len())
	for s != 0 {
		list = append(list, bits.TrailingZeros64(uint64(s)))
		s &= s - 1
	}
	return list
}

// mask is the set as a bigint of PostgreSQL, bit by bit the same.
func (s shardSet) mask() int64 { return int64(s) }
