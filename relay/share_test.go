package relay

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/outbox"
)

// team are instances that share the work, each with a way to the broker of its
// own.
type team struct {
	t     *testing.T
	pool  *pgxpool.Pool
	kafka *memory
	cfg   Config
}

func (m *team) join(name string) *running {
	m.t.Helper()
	cfg := m.cfg
	cfg.Name = name
	return startRelay(m.t, m.pool, &member{m.kafka, uuid.NewString()}, cfg)
}

// shares waits until the instances that are alive have these numbers of shards,
// in any order, and together all.
func (m *team) shares(want ...int) {
	m.t.Helper()
	slices.Sort(want)
	eventually(m.t, fmt.Sprint("the shares are ", want), func() bool {
		st, err := ReadStatus(bg, m.pool, "")
		if err != nil {
			m.t.Fatal(err)
		}
		var got []int
		for _, i := range st.Instances {
			got = append(got, len(i.Shards))
		}
		slices.Sort(got)
		return slices.Equal(got, want) && len(st.Unowned) == 0
	})
}

// writing has keys written to, one transaction of each at every pace, until end
// is called, which gives the number of events.
func writing(t *testing.T, pool *pgxpool.Pool, topic string, keys int, pace time.Duration) (end func() int) {
	stop := make(chan struct{})
	var writers sync.WaitGroup
	var total atomic.Int64
	for i := range keys {
		w := newProducer(t, pool, fmt.Sprint("key ", i)).begin()
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				w.enter().append(topic, "x", "y").again()
				total.Add(2)
				time.Sleep(pace) // not a matter of order: the machine has other things to do
			}
		})
	}
	var once sync.Once
	end = func() int {
		once.Do(func() { close(stop) })
		writers.Wait()
		return int(total.Load())
	}
	t.Cleanup(func() { end() })
	return end
}

// distinct is how many of a topic's events are in the log.
func (m *memory) distinct(topic string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := map[int64]bool{}
	for _, r := range m.logs[topic] {
		seen[r.Pos] = true
	}
	return len(seen)
}

func TestInstancesComeAndGoAndNothingIsPublishedTwice(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	m := &team{t, pool, kafka, quick()}
	m.cfg.LeaseTTL = time.Minute // who is slow is not dead
	end := writing(t, pool, "a", 6, 5*time.Millisecond)

	first := m.join("first")
	m.shares(64)
	second := m.join("same name")
	m.shares(32, 32)
	third := m.join("same name")
	m.shares(21, 21, 22)
	first.end()
	m.shares(32, 32)
	third.end()
	m.shares(64)
	fourth := m.join("fourth")
	m.shares(32, 32)

	total := end()
	eventually(t, "everything is published", func() bool { return kafka.distinct("a") == total })
	second.end()
	fourth.end()
	if st, err := ReadStatus(bg, pool, ""); err != nil || len(st.Instances) != 0 || len(st.Unowned) != outbox.Shards {
		t.Errorf("when all have stopped: %+v, %v", st, err)
	}
	if n, again, _ := firsts(t, kafka.logs["a"]); n != total || again != 0 {
		t.Errorf("%d of %d events published, %d of them twice", n, total, again)
	}
}

// The request that an instance has in flight when its shards are wanted by
// another is waited for, and only then are they given away.
func TestAShardIsGivenAwayWithNothingInFlight(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	gate := make(chan struct{})
	m := &team{t, pool, kafka, quick()}
	m.cfg.LeaseTTL, m.cfg.Grace = time.Minute, time.Minute
	r := m.join("first")
	m.shares(64)
	kafka.answer(blockUntil(gate))
	total := 0
	for i := range 12 {
		newProducer(t, pool, fmt.Sprint("k", i)).publish("a", "1", "2")
		total += 2
	}
	eventually(t, "requests are in flight", func() bool {
		kafka.mu.Lock()
		defer kafka.mu.Unlock()
		for _, busy := range kafka.busy {
			if busy {
				return true
			}
		}
		return false
	})
	second := m.join("second")
	eventually(t, "the second is there", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_instance") == 2
	})
	// Long enough for both to have seen each other a few times.
	began := time.Now()
	eventually(t, "time passes", func() bool { return time.Since(began) > 4*meetEvery })
	if n := query[int](t, pool, "select count(*) from fenceline.lease where starts_with(holder, 'second ') and expires_at > now()"); n != 0 {
		t.Errorf("%d shards were given away while requests were in flight", n)
	}
	close(gate)
	m.shares(32, 32)
	eventually(t, "everything is published", func() bool { return kafka.distinct("a") == total })
	r.end()
	second.end()
	if n, again, _ := firsts(t, kafka.logs["a"]); n != total || again != 0 {
		t.Errorf("%d of %d events published, %d of them twice", n, total, again)
	}
}

func TestTwoInstancesOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	m := &team{t, pool, kafka, quick()}
	one, other := m.join("twin"), m.join("twin")
	m.shares(32, 32)
	st, err := ReadStatus(bg, pool, "")
	if err != nil || len(st.Instances) != 2 {
		t.Fatalf("%+v, %v", st, err)
	}
	a, b := st.Instances[0], st.Instances[1]
	if a.ID == b.ID || a.Name != "twin" || b.Name != "twin" || a.Started.IsZero() || !a.Expires.After(st.Now) {
		t.Errorf("%+v and %+v", a, b)
	}
	if all := shardsOf(a.Shards) | shardsOf(b.Shards); all != allShards {
		t.Errorf("together they have %v", all.list())
	}
	if strings.Count(st.Holder, "twin ") != 2 {
		t.Errorf("holders %q", st.Holder)
	}
	one.end()
	other.end()
}

// What an instance that died had is taken over by the others, and published by
// them from where it stored its cursor.
func TestTheShardsOfADeadInstanceGoToTheOthers(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	m := &team{t, pool, kafka, quick()}
	r := m.join("alive")
	m.shares(64)
	// The other joins, is given its share, takes it, and is not heard of again.
	dead := uuid.New()
	meet := func() []int {
		return query[[]int](t, pool, "select free from fenceline.relay_meet($1, 'dead', 'dead', interval '3 s')", dead)
	}
	eventually(t, "it is given its share", func() bool { return len(meet()) == 32 })
	if n := query[int](t, pool, `select count(*) from unnest($1::int[]) s,
		lateral fenceline.relay_acquire('fenceline:relay/' || lpad(s::text, 2, '0'), 'dead', interval '3 s', gen_random_uuid(), interval '5 s') a where a.won`, meet()); n != 32 {
		t.Fatalf("the dead one had %d shards", n)
	}
	total := 0
	for i := range 12 {
		newProducer(t, pool, fmt.Sprint("k", i)).publish("a", "1", "2")
		total += 2
	}
	eventually(t, "everything is published", func() bool { return kafka.distinct("a") == total })
	m.shares(64)
	r.end()
	if n, again, _ := firsts(t, kafka.logs["a"]); n != total || again != 0 {
		t.Errorf("%d of %d events published, %d of them twice", n, total, again)
	}
}

func TestTheFairSharesOfAllInstancesAreAllShards(t *testing.T) {
	t.Parallel()
	var ids []uuid.UUID
	for n := 1; n <= 130; n++ {
		ids = append(ids, uuid.New())
		sum, least, most := 0, outbox.Shards, 0
		for _, id := range ids {
			at, k, ok := fairShare(ids, id)
			if !ok {
				t.Fatalf("instance %v is not among %v", id, ids)
			}
			if at != sum%outbox.Shards {
				t.Errorf("of %d instances one looks for its %d shards at %d first, and those before it end at %d", n, k, at, sum)
			}
			sum, least, most = sum+k, min(least, k), max(most, k)
		}
		if sum != outbox.Shards || most-least > 1 {
			t.Errorf("%d instances have %d shards, the poorest %d, the richest %d", n, sum, least, most)
		}
	}
	if _, _, ok := fairShare(ids, uuid.New()); ok {
		t.Error("who isn't among the instances has a share")
	}
}
