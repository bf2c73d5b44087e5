package relay

import (
	"sync/atomic"
	"testing"
	"time"
)

// A partition of the topic still waits, which keeps nobody from saying that the topic
// itself is as it should be.
func TestATopicThatIsUsableAgainIsNotRefusedForAPartitionThatWaits(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	var dead atomic.Bool
	var asked atomic.Int64
	dead.Store(true)
	kafka.answer(headless(&dead, "a", 1, &asked))
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
