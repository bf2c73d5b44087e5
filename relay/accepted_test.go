package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// A partition of the topic still waits, which keeps nobody from saying that the topic
// itself is as it should be.
func TestATopicThatIsUsableAgainIsNotRefusedForAPartitionThatWaits(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	dead, _ := headless(kafka, "a", 1)
	cfg := steady()
	cfg.PartitionGrace, cfg.BatchRecords = 20*time.Millisecond, 1 // a try doesn't come to the end of what waits
	one, other := newProducer(t, pool, keysOf(1, 1)[0]), newProducer(t, pool, keysOf(2, 1)[0])
	one.publish("a", "waits", "too", "and this")
	r := startRelay(t, pool, kafka, cfg)
	forks := func(condition string) int {
		return query[int](t, pool, "select count(*) from fenceline.relay_fork where partition is "+condition)
	}
	patiently(t, "the partition is set aside", func() bool { return forks("not null") == 1 })
	kafka.remove("a")
	patiently(t, "the topic is refused", func() bool { return forks("null") == 1 })
	other.publish("a", "1")
	kafka.create("a", 3)
	patiently(t, "the other partitions flow", func() bool { return kafka.has("a", "1") })
	patiently(t, "the topic is refused no more", func() bool { return forks("null") == 0 })
	if n := forks("not null"); n != 1 || kafka.has("a", "waits") {
		t.Errorf("%d partitions are set aside, published: %q", n, kafka.payloads("a"))
	}
	dead.Store(false)
	patiently(t, "what waited is published", func() bool { return kafka.has("a", "and this") })
	r.end()
}

// partitioned is a fork of one partition by some number of them.
func partitioned(shards shardSet, partition, partitions int, at cursor) *fork {
	return &fork{topic: "a", partition: partition, partitions: partitions, flow: flow{shards: shards, read: at, acked: at}, reason: "test", dirty: true}
}

// leased gives the lease of a shard.
func leased(t *testing.T, pool *pgxpool.Pool, shard int) fencing.Position {
	t.Helper()
	own := fencing.Position{Key: ShardKey(shard)}
	err := pool.QueryRow(bg, "select epoch, token from fenceline.relay_acquire($1, 'test', interval '1 hour', gen_random_uuid(), interval '5 s')", own.Key).Scan(&own.Epoch, &own.Token)
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// opened gives a session of one shard in which nothing goes on.
func opened(t *testing.T, pool *pgxpool.Pool, kafka Publisher, own fencing.Position) *session {
	t.Helper()
	sql := newStatements("fenceline")
	s, err := openSession(bg, pool, kafka, quick().withDefaults(), &sql, []fencing.Position{own})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// The topic had three partitions, and one was set aside; it has four now, which were
// accepted, and the one of the same number is set aside as well. The database tells
// the two apart by nothing but the number that both have.
func TestAPartitionsForkIsKeptWhenOneOfTheSameNumberIsStoredOrOver(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	s := opened(t, pool, kafka, leased(t, pool, 5))
	store := func(want ...int64) {
		t.Helper()
		if err := s.checkpoint(bg, false); err != nil {
			t.Fatal(err)
		}
		got := query[[]int64](t, pool, "select coalesce(array_agg(partitions order by id), '{}') from fenceline.relay_fork")
		if !slices.Equal(got, want) {
			t.Errorf("stored are those of %v partitions, want %v", got, want)
		}
	}
	before, now := partitioned(s.shards, 1, 3, start()), partitioned(s.shards, 1, 4, start())
	s.forks = append(s.forks, before)
	store(3)
	s.forks = append(s.forks, now)
	store(3, 4)
	before.dirty = true
	store(3, 4)
	now.dirty = true
	store(3, 4)
	before.joined = true
	store(4)
	now.joined = true
	store()
}

// Two of now, in shards that stand apart, and one of before that has both of theirs: to
// store one of now stores the one of before, which takes the row of the other one away.
func TestAllForksOfAPartitionAreKeptWhereOneIsStored(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	s := opened(t, pool, kafka, leased(t, pool, 5))
	s.own = append(s.own, leased(t, pool, 6))
	s.shards = s.shards.with(6)
	five, six := shardSet(0).with(5), shardSet(0).with(6)
	s.forks = append(s.forks, partitioned(five|six, 1, 3, start()), partitioned(five, 1, 4, start()), partitioned(six, 1, 4, start()))
	for i := -1; i < len(s.forks); i++ {
		if i >= 0 {
			s.forks[i].dirty = true
		}
		if err := s.checkpoint(bg, false); err != nil {
			t.Fatal(err)
		}
		got := query[[]string](t, pool, "select array_agg(partitions || ' ' || shards::text order by partitions, shards) from fenceline.relay_fork")
		if want := []string{"3 {5,6}", "4 {5}", "4 {6}"}; !slices.Equal(got, want) {
			t.Errorf("stored are %q, want %q", got, want)
		}
	}
}

// An event of both is the first one's, and the other passes it. Who loads them must
// not have it the other way round.
func TestOfTwoForksThatHaveAnEventTheOneThatStandsBehindPublishesIt(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	both := row{}
	both.Topic = "a"
	for i := 0; both.Key == ""; i++ {
		if k := fmt.Sprint("key ", i); outbox.Partition([]byte(k), 3) == 2 && outbox.Partition([]byte(k), 4) == 1 {
			both.Key, both.shard = k, outbox.Shard(k)
		}
	}
	p := newProducer(t, pool, both.Key)
	older, _ := parseSnapshot(query[string](t, pool, "select pg_current_snapshot()::text"))
	p.publish("a", "1")
	newer, _ := parseSnapshot(query[string](t, pool, "select pg_current_snapshot()::text"))
	p.publish("a", "2")
	newest, _ := parseSnapshot(query[string](t, pool, "select pg_current_snapshot()::text"))
	own := leased(t, pool, both.shard)
	for name, at := range map[string][2]cursor{ // of partition 2 of 3, and of partition 1 of 4
		"the one of before":                    {{s1: older}, {s1: newer}},
		"the one of now":                       {{s1: newer}, {s1: older}},
		"the one whose window begins earlier":  {cursor{s1: older}.open(newest, 100, bound{}).at(50), {s1: newer}},
		"the one of now, with the other ahead": {cursor{s1: newer}.open(newest, 100, bound{}).at(50), cursor{s1: older}.open(newest, 100, bound{}).at(70)},
	} {
		s := opened(t, pool, kafka, own)
		s.forks = []*fork{partitioned(s.shards, 2, 3, at[0]), partitioned(s.shards, 1, 4, at[1])}
		if err := s.checkpoint(bg, false); err != nil {
			t.Fatal(err)
		}
		loaded := opened(t, pool, kafka, own)
		owner := loaded.owner(&both)
		if owner.acked.spot() != (cursor{s1: older}).spot() {
			t.Errorf("%s: the owner stands at %+v, want the older of the two boundaries", name, owner.acked.spot())
		}
		for _, f := range loaded.forks {
			f.joined = true
		}
		if err := loaded.checkpoint(bg, false); err != nil {
			t.Fatal(err)
		}
	}
}

// The whole of it: events of before, of both and of now, and a restart in between.
func TestWhatWaitsForAPartitionIsPublishedWhateverPartitionsTheTopicHasThen(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	dead, asked := headless(kafka, "a", 1)
	var waits, later string // in partition 1 of both, and in that of four alone
	for i := 0; waits == "" || later == ""; i++ {
		k := fmt.Sprint("key ", i)
		three, four := outbox.Partition([]byte(k), 3), outbox.Partition([]byte(k), 4)
		switch {
		case three == 1 && four == 1:
			waits = k
		case three != 1 && four == 1:
			later = k
		}
	}
	cfg := steady()
	cfg.PartitionGrace = 20 * time.Millisecond
	p, q := newProducer(t, pool, waits), newProducer(t, pool, later)
	p.publish("a", "p1", "p2")
	r := startRelay(t, pool, kafka, cfg)
	aside := func(partitions int) bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_fork where partition = 1 and partitions = $1", partitions) == 1
	}
	patiently(t, "the partition is set aside", func() bool { return aside(3) })
	kafka.create("a", 4)
	patiently(t, "the topic is refused", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_fork where partition is null") == 1
	})
	if err := operator(t, pool).AcceptTopic(bg, "a", 4, true, me); err != nil {
		t.Fatal(err)
	}
	q.publish("a", "q1", "q2")
	patiently(t, "the partition of now is set aside, too", func() bool { return aside(4) })
	for range 3 {
		r.end()
		if !aside(3) || !aside(4) {
			t.Error("one of the two is not stored")
		}
		p.publish("a", "p")
		q.publish("a", "q")
		r = startRelay(t, pool, kafka, cfg)
		n := asked.Load()
		patiently(t, "it is tried again", func() bool { return asked.Load() > n+2 })
	}
	dead.Store(false)
	patiently(t, "all is published", func() bool { return kafka.distinct("a") == 10 })
	patiently(t, "nothing is set aside any more", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 0 })
	r.end()
	complete(t, kafka.log("a"))
}

// One of them has come to the end of what there is, and the other, which has some of
// its rows, stands still: it is not worth a look at once.
func TestAForkThatMayNotJoinYetIsNotReadWithoutAPause(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t)
	newProducer(t, pool, "k").publish("a", "1")
	s := opened(t, pool, kafka, leased(t, pool, outbox.Shard("k")))
	s.ending = true // nothing is asked, and nothing sent
	s.soft = bg
	stands, reads := partitioned(s.shards, 1, 4, start()), partitioned(s.shards, 2, 3, start())
	reads.proven = true
	s.forks = []*fork{stands, reads}
	if _, more, err := s.readMain(); err != nil || more {
		t.Fatalf("the main flow: more %t, %v", more, err)
	}
	if _, more, err := s.readFork(reads); err != nil || more || reads.joined || reads.flow.read.s1.text != s.main.read.s1.text {
		t.Errorf("at the newest boundary: more %t, joined %t, at %v of %v, %v", more, reads.joined, reads.flow.read.s1.text, s.main.read.s1.text, err)
	}
}
