package relay

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fenceline/fenceline/outbox"
)

// It is what the picking is for.
func TestAllOfAShardIsInOnePartitionWhereTheirNumberIsAPowerOfTwo(t *testing.T) {
	t.Parallel()
	for n := range 10_000 {
		key := fmt.Sprint("key ", n)
		for partitions := 1; partitions <= outbox.Shards; partitions *= 2 {
			if got, want := outbox.Partition([]byte(key), partitions), outbox.Shard(key)%partitions; got != want {
				t.Fatalf("key %q is in partition %d of %d and not in %d", key, got, partitions, want)
			}
		}
	}
}

// busiest is how many shards of s are for one partition, of so many, at most.
func (s shardSet) busiest(partitions int) int {
	of := make([]int, partitions)
	for _, shard := range s.list() {
		of[shard%partitions]++
	}
	return slices.Max(of)
}

// crew are instances that share the shards out, without a database: each step of
// theirs is a look, a release of what is above their share, or one try to take a
// shard, of which a look has said, maybe long ago, that it is free.
type crew struct {
	t      *testing.T
	random *rand.Rand
	there  []*mate
}

type mate struct {
	id        uuid.UUID
	owns      shardSet
	taking    []int
	satisfied bool
}

func (c *crew) join() {
	m := &mate{}
	binary.BigEndian.PutUint64(m.id[:], c.random.Uint64()) // the same in each run of the test
	c.there = append(c.there, m)
}

func (c *crew) leave() {
	n := c.random.IntN(len(c.there))
	c.there = slices.Delete(c.there, n, n+1)
}

func (c *crew) free() shardSet {
	free := allShards
	for _, m := range c.there {
		free &^= m.owns
	}
	return free
}

func (c *crew) step(m *mate) {
	if len(m.taking) > 0 {
		if c.free().has(m.taking[0]) {
			m.owns = m.owns.with(m.taking[0])
		}
		m.taking = m.taking[1:]
		return
	}
	var ids []uuid.UUID
	for _, o := range c.there {
		ids = append(ids, o.id)
	}
	at, want, ok := fairShare(ids, m.id)
	if !ok {
		c.t.Fatal("who is there has no share")
	}
	for m.owns.len() > want {
		m.owns &^= shardSet(0).with(m.owns.spare(at))
	}
	m.taking = m.owns.pick(c.free(), at, want-m.owns.len())
	m.satisfied = m.owns.len() == want
}

// settle lets them step in whatever order until each has its share.
func (c *crew) settle() {
	for _, m := range c.there {
		m.satisfied = false
	}
	for steps := 0; slices.ContainsFunc(c.there, func(m *mate) bool { return !m.satisfied || len(m.taking) > 0 }); steps++ {
		if steps > 100_000 {
			c.t.Fatalf("%d instances come to no end", len(c.there))
		}
		c.step(c.there[c.random.IntN(len(c.there))])
	}
	if free := c.free(); free != 0 {
		c.t.Fatalf("%d shards are nobody's", free.len())
	}
}

// What an instance has for its busiest partition, at most, above an even share of
// what it has. Each decides by what is free and what it has, and never by which
// shards the others have; whoever takes last takes what is left.
func TestHoweverInstancesComeAndGoEachServesAllPartitionsAlike(t *testing.T) {
	t.Parallel()
	var all, uneven float64
	for seed := range uint64(300) {
		c := &crew{t: t, random: rand.New(rand.NewPCG(1, seed))}
		var told []int
		for range 12 {
			// Some come and go while those before are still sharing out.
			for again := true; again; again = c.random.IntN(3) == 0 {
				if len(c.there) < 2 || len(c.there) < 8 && c.random.IntN(2) == 0 {
					c.join()
				} else {
					c.leave()
				}
			}
			c.settle()
			told = append(told, len(c.there))
			for _, m := range c.there {
				for partitions := 2; partitions <= 8; partitions *= 2 {
					n, instances := m.owns.busiest(partitions), len(c.there)
					above, most := n-(m.owns.len()+partitions-1)/partitions, 2
					if instances <= 4 && partitions <= 4 {
						most = 0
					}
					if above > most {
						t.Errorf("seed %d, after %v instances: one has the shards %v, %d of them for one of %d partitions", seed, told, m.owns.list(), n, partitions)
					}
					all++
					if above > 0 {
						uneven++
					}
				}
			}
		}
	}
	if uneven > all/20 {
		t.Errorf("%.0f of %.0f times an instance had more than its even share for a partition", uneven, all)
	}
}

func TestNoMoreShardsChangeHandsThanMust(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		c := &crew{t: t, random: rand.New(rand.NewPCG(2, seed))}
		for range 12 {
			if len(c.there) < 2 || len(c.there) < 8 && c.random.IntN(2) == 0 {
				c.join()
			} else {
				c.leave()
			}
			had := map[*mate]shardSet{}
			for _, m := range c.there {
				had[m] = m.owns
			}
			c.settle()
			for _, m := range c.there {
				if must := max(0, had[m].len()-m.owns.len()); (had[m] &^ m.owns).len() != must {
					t.Errorf("seed %d: one of %d instances had the shards %v and has %v, of which %d had to change", seed, len(c.there), had[m].list(), m.owns.list(), must)
				}
			}
		}
	}
}

func TestInstancesThatStartTogetherLookForDifferentShards(t *testing.T) {
	t.Parallel()
	for n := 1; n <= outbox.Shards; n++ {
		var ids []uuid.UUID
		for range n {
			ids = append(ids, uuid.New())
		}
		wanted := map[int]bool{}
		for _, id := range ids {
			at, want, _ := fairShare(ids, id)
			for _, shard := range shardSet(0).pick(allShards, at, want) {
				wanted[shard] = true
			}
		}
		if len(wanted) != outbox.Shards {
			t.Errorf("%d instances look for %d shards, and %d by two or more", n, len(wanted), outbox.Shards-len(wanted))
		}
	}
}

func TestFourInstancesHaveAsManyShardsForEachOfFourPartitions(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	m := &team{t, pool, kafka, quick()}
	m.cfg.LeaseTTL = time.Minute // who is slow is not dead
	alike := func() {
		t.Helper()
		st, err := ReadStatus(bg, pool, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range st.Instances {
			if n := shardsOf(i.Shards).busiest(4); n != (len(i.Shards)+3)/4 {
				t.Errorf("one has the shards %v, %d of them for one partition", i.Shards, n)
			}
		}
	}
	var all []*running
	for n := 1; n <= 4; n++ {
		all = append(all, m.join("one of four"))
		m.shares([][]int{{64}, {32, 32}, {21, 21, 22}, {16, 16, 16, 16}}[n-1]...)
		alike()
	}
	all[1].end()
	m.shares(21, 21, 22)
	alike()
	all[1] = m.join("another")
	m.shares(16, 16, 16, 16)
	alike()
	for _, r := range all {
		r.end()
	}
}
