package relay

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// headless takes a partition's leader away, as long as dead says so, and counts how
// often it is asked meanwhile.
func headless(kafka *memory, topic string, partition int) (dead *atomic.Bool, asked *atomic.Int64) {
	dead, asked = new(atomic.Bool), new(atomic.Int64)
	dead.Store(true)
	kafka.answer(func(_ context.Context, b *Batch) error {
		if b.Topic == topic && b.Partition == partition && dead.Load() {
			asked.Add(1)
			return errAway
		}
		return nil
	})
	return dead, asked
}

// keysOf gives n keys of one of three partitions.
func keysOf(partition, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if k := fmt.Sprint("key ", i); outbox.Partition([]byte(k), 3) == partition {
			keys = append(keys, k)
		}
	}
	return keys
}

// The backlog of the dead partition is many times what may be in flight, and
// comes first.
func TestAPartitionWithoutALeaderHoldsNothingElseUp(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	dead, asked := headless(kafka, "a", 1)
	payload := string(make([]byte, 200<<10))
	total := 0
	for _, key := range keysOf(1, 3) {
		p := newProducer(t, pool, key)
		for range 10 {
			p.publish("a", payload)
			total++
		}
	}
	var others []*producer
	for _, key := range append(keysOf(0, 2), keysOf(2, 2)...) {
		others = append(others, newProducer(t, pool, key))
	}
	publish := func(what string) {
		for _, p := range others {
			p.publish("a", what+p.key)
			total++
		}
		for _, p := range others {
			eventually(t, "the others are published", func() bool { return kafka.has("a", what+p.key) })
		}
	}
	cfg := quick()
	cfg.MaxBytesInFlight, cfg.PageBytes, cfg.PartitionGrace = 4<<20, 1<<20, 20*time.Millisecond
	r := startRelay(t, pool, kafka, cfg)
	publish("1 ")
	eventually(t, "the fork is stored", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_fork where topic = 'a' and partition = 1 and partitions = 3") == 1
	})
	eventually(t, "the cursor has passed what waits", func() bool {
		return query[bool](t, pool, "select bool_or(pg_visible_in_snapshot((select max(xid) from fenceline.outbox), s1)) from fenceline.relay_checkpoint")
	})
	n := asked.Load()
	eventually(t, "the partition is tried again and again", func() bool { return asked.Load() > n+3 })
	st, err := ReadStatus(bg, pool, "")
	if err != nil || len(st.Forks) != 1 || st.Forks[0].Partition != 1 || st.Forks[0].Backlog != 30 || st.Backlog != 30 || st.Forks[0].Reason == "" {
		t.Errorf("backlog %d, forks %+v, %v", st.Backlog, st.Forks, err)
	}
	// It doesn't depend on the relay that has set it aside.
	r.end()
	r = startRelay(t, pool, kafka, cfg)
	publish("2 ")
	dead.Store(false)
	eventually(t, "what waited is published", func() bool { return kafka.distinct("a") == total })
	eventually(t, "the fork is gone", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 0 })
	publish("3 ")
	newProducer(t, pool, keysOf(1, 4)[3]).publish("a", "flows again")
	eventually(t, "the partition flows with the rest", func() bool { return kafka.has("a", "flows again") })
	r.end()
	kafka.mu.Lock()
	defer kafka.mu.Unlock()
	firsts(t, kafka.logs["a"])
}

// Each try of what was set aside would be an outage of its own, with its end: two
// lines in the log and one more in the count, every few seconds, for as long as the
// partition has no leader; and a metric that says nothing is wrong in between.
func TestAPartitionThatIsSetAsideIsOneOutageUntilItIsBack(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	var began, ended, shards atomic.Int64
	dead, asked := headless(kafka, "a", 1)
	var log lines
	cfg := quick()
	cfg.PartitionGrace, cfg.LeaseTTL = 20*time.Millisecond, time.Minute // who is slow keeps its session
	cfg.Logger = log.logger()
	cfg.Hooks.OutageBegan = func(error) { began.Add(1) }
	cfg.Hooks.OutageEnded = func(time.Duration) { ended.Add(1) }
	cfg.Hooks.Shards = func(all []int) { shards.Store(int64(len(all))) }
	gone, well := newProducer(t, pool, keysOf(1, 1)[0]), newProducer(t, pool, keysOf(0, 1)[0])
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "it has all shards", func() bool { return shards.Load() == outbox.Shards }) // or its session would end once more
	gone.publish("a", "1")
	eventually(t, "it is set aside", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_fork where partition = 1") > 0
	})
	well.publish("a", "the rest flows")
	eventually(t, "the rest flows", func() bool { return kafka.has("a", "the rest flows") })
	n := asked.Load()
	eventually(t, "it is tried again and again", func() bool { return asked.Load() > n+4 })
	if b, e := began.Load(), ended.Load(); b != 1 || e != 0 {
		t.Errorf("while the partition is away an outage began %d times and ended %d times, want 1 and 0", b, e)
	}
	if b, e := log.count("broker does not acknowledge"), log.count("broker acknowledges again"); b != 1 || e != 0 {
		t.Errorf("while the partition is away the log tells %d times that the broker does not acknowledge, and %d times that it does again, want 1 and 0", b, e)
	}
	dead.Store(false)
	eventually(t, "what waited is published", func() bool { return kafka.has("a", "1") })
	eventually(t, "the outage has ended", func() bool { return ended.Load() == 1 })
	r.end()
	if b, e := began.Load(), ended.Load(); b != 1 || e != 1 {
		t.Errorf("in all an outage began %d times and ended %d times, want once", b, e)
	}
}

// What a topic that is refused has set aside before is the refusal's from then on.
func TestARefusalEndsTheOutageOfAPartitionThatWasSetAside(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	var began, ended, shards atomic.Int64
	headless(kafka, "a", 1)
	cfg := quick()
	cfg.PartitionGrace, cfg.LeaseTTL = 20*time.Millisecond, time.Minute
	cfg.Hooks.OutageBegan = func(error) { began.Add(1) }
	cfg.Hooks.OutageEnded = func(time.Duration) { ended.Add(1) }
	cfg.Hooks.Shards = func(all []int) { shards.Store(int64(len(all))) }
	p := newProducer(t, pool, keysOf(1, 1)[0])
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "it has all shards", func() bool { return shards.Load() == outbox.Shards })
	p.publish("a", "1")
	eventually(t, "it is set aside", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_fork where partition = 1") > 0
	})
	kafka.mu.Lock()
	kafka.describe = func(name string) (Topic, error) {
		return Topic{}, &TopicError{Topic: name, Reason: "it is gone"}
	}
	kafka.mu.Unlock()
	eventually(t, "the topic is refused", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_fork where partition is null and reason = 'it is gone'") > 0
	})
	eventually(t, "the outage has ended", func() bool { return ended.Load() == 1 && began.Load() == 1 })
	r.end()
}

// A broker that is away altogether is an outage, and no partition's fault.
func TestAnOutageOfTheBrokerSetsNoPartitionAside(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	cfg := quick()
	cfg.PartitionGrace = time.Millisecond
	var tries atomic.Int64
	cfg.Hooks.Retried = func(string, int, int, error) { tries.Add(1) }
	r := startRelay(t, pool, kafka, cfg)
	p := newProducer(t, pool, "k")
	p.publish("a", "1")
	eventually(t, "it publishes", func() bool { return kafka.has("a", "1") })
	kafka.mu.Lock()
	kafka.before = func(context.Context, *Batch) error { return errAway }
	kafka.describe = func(string) (Topic, error) { return Topic{}, errAway }
	kafka.mu.Unlock()
	p.publish("a", "2")
	eventually(t, "it tries for a while", func() bool { return tries.Load() > 5 })
	if n := query[int](t, pool, "select count(*) from fenceline.relay_fork"); n != 0 {
		t.Errorf("%d forks in an outage", n)
	}
	kafka.mu.Lock()
	kafka.before, kafka.describe = nil, nil
	kafka.mu.Unlock()
	eventually(t, "it publishes again", func() bool { return kafka.has("a", "2") })
	r.end()
}

// The partition comes and goes while events flow and the relay is killed: at
// every join something could fall between the flows.
func TestNothingFallsBetweenAPartitionsForkAndTheMainFlow(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	var joins, crashes, calls atomic.Int64
	dead, asked := headless(kafka, "a", 1)
	dead.Store(false)
	cfg := quick()
	cfg.PageSize, cfg.PartitionGrace = 30, time.Millisecond
	cfg.Hooks.Joined = func(string) { joins.Add(1) }
	cfg.signals.crash = func(point string) bool {
		// A few times: the pause after each gets longer.
		return calls.Add(1)%300 == 0 && crashes.Add(1) <= 4
	}
	r := startRelay(t, pool, kafka, cfg)
	end := writing(t, pool, "a", 8, 8*time.Millisecond)
	for range 4 {
		// As long as the last join isn't recorded, a crash loads the fork of before
		// again.
		eventually(t, "no fork is recorded", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 0 })
		n, j := asked.Load(), joins.Load()
		dead.Store(true)
		eventually(t, "the partition is set aside", func() bool {
			return asked.Load() > n && query[int](t, pool, "select count(*) from fenceline.relay_fork where partition = 1") > 0
		})
		dead.Store(false)
		eventually(t, "it joins", func() bool { return joins.Load() > j })
	}
	total := end()
	eventually(t, "everything is published", func() bool { return kafka.distinct("a") == total })
	r.end()
	kafka.mu.Lock()
	defer kafka.mu.Unlock()
	firsts(t, kafka.logs["a"])
	t.Logf("%d events, %d joins, %d crashes", total, joins.Load(), crashes.Load())
}

// A fork goes on with the partition count that it was taken with: by another
// one, rows of it would be nobody's.
func TestAPartitionsForkKnowsItsRowsWhateverTheTopicHasNow(t *testing.T) {
	t.Parallel()
	f := fork{flow: flow{shards: allShards}, topic: "a", partition: 1, partitions: 3}
	var has []string
	for i := range 30 {
		r := row{shard: 5}
		r.Topic, r.Key = "a", fmt.Sprint("key ", i)
		if f.has(&r) {
			has = append(has, r.Key)
		}
	}
	if want := keysOf(1, len(has)); len(has) == 0 || !slices.Equal(has, want) {
		t.Errorf("it has %q, not %q", has, want)
	}
}
