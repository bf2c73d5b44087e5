package relay

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestAStreamHeldForItsSizeIsRetriedOnceWhenTheTopicTakesMore(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	var limit atomic.Int64
	limit.Store(4)
	kafka.answer(func(_ context.Context, b *Batch) error {
		for i := range b.Records {
			if len(b.Records[i].Payload) > int(limit.Load()) {
				e := &RefusedError{Reason: "too large", TooLarge: true}
				if len(b.Records) == 1 {
					e.Indexes = []int{0}
				}
				return e
			}
		}
		return nil
	})
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "large", "3")
	r := startRelay(t, pool, kafka, steady())
	isHeld(t, pool, "a", "k")
	audit := func() string {
		return query[string](t, pool, "select coalesce(string_agg(who || ': ' || action, ', ' order by n), '') from fenceline.relay_audit")
	}
	grow := func(to int) {
		kafka.set(Topic{Name: "a", Partitions: 3, CleanupPolicy: "delete", MaxMessageBytes: to})
	}
	grow(2_000_000) // not enough yet: once, and then it waits
	patiently(t, "it was tried once", func() bool {
		return audit() == "the relay: held retry, the relay: held again" && heldState(t, pool, "a", "k") == "held"
	})
	r.passed(50)
	if got := audit(); got != "the relay: held retry, the relay: held again" {
		t.Errorf("tried more than once: %s", got)
	}
	limit.Store(5)
	grow(3_000_000)
	isGone(t, pool, "a", "k")
	r.end()
	if got := said(kafka.log("a")); !slices.Equal(got, []string{"1", "large", "3"}) {
		t.Errorf("published %q", got)
	}
}

// The limit was lowered between two looks at the topic, and is set as before while no
// relay runs: the record is too large for neither that is known without asking.
func TestAStreamHeldForItsSizeIsHeldWithTheLimitThatHasRefusedIt(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	large := &poison{}
	kafka.answer(func(_ context.Context, b *Batch) error {
		for i := range b.Records {
			if large.refuses(string(b.Records[i].Payload)) {
				e := &RefusedError{Reason: "no", TooLarge: true}
				if len(b.Records) == 1 {
					e.Indexes = []int{0}
				}
				return e
			}
		}
		return nil
	})
	limit := func(bytes int) {
		kafka.set(Topic{Name: "a", Partitions: 3, CleanupPolicy: "delete", MaxMessageBytes: bytes})
	}
	limit(2_000_000)
	cfg := steady()
	cfg.TopicCheck = time.Hour
	p := newProducer(t, pool, "k")
	p.publish("a", "1")
	r := startRelay(t, pool, kafka, cfg)
	patiently(t, "it publishes", func() bool { return kafka.has("a", "1") })
	limit(1_500_000)
	large.set("large")
	p.publish("a", "large", "3")
	isHeld(t, pool, "a", "k")
	r.end()
	if got := query[string](t, pool, "select reason from fenceline.relay_held"); got != "no (the topic's max.message.bytes was 1500000)" {
		t.Errorf("the reason is %s", got)
	}
	limit(2_000_000)
	large.set()
	r = startRelay(t, pool, kafka, cfg)
	isGone(t, pool, "a", "k")
	r.end()
	if got := said(kafka.log("a")); !slices.Equal(got, []string{"1", "large", "3"}) {
		t.Errorf("published %q", got)
	}
}

// What is known of the refusal is stored with the hold, so a relay that was
// restarted knows it, and so does one that gets the shard.
func TestAStreamHeldForItsSizeIsRetriedAfterARestartToo(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	tooLarge, other := &poison{}, &poison{}
	tooLarge.set("large")
	other.set("bad")
	kafka.answer(func(_ context.Context, b *Batch) error {
		for i := range b.Records {
			large, bad := tooLarge.refuses(string(b.Records[i].Payload)), other.refuses(string(b.Records[i].Payload))
			if !large && !bad {
				continue
			}
			e := &RefusedError{Reason: "no", TooLarge: large}
			if len(b.Records) == 1 {
				e.Indexes = []int{0}
			}
			return e
		}
		return nil
	})
	p, q := newProducer(t, pool, "k"), newProducer(t, pool, "q")
	p.publish("a", "1", "large", "3")
	q.publish("a", "bad")
	r := startRelay(t, pool, kafka, steady())
	isHeld(t, pool, "a", "k")
	isHeld(t, pool, "a", "q")
	r.end()
	if got := query[string](t, pool, "select string_agg(reason, ', ' order by key) from fenceline.relay_held"); got != "no (the topic's max.message.bytes was 1048588), no" {
		t.Errorf("the reasons are %s", got)
	}
	asked := func() int {
		return query[int](t, pool, "select count(*) from fenceline.relay_audit where action = 'held retry'")
	}
	// Nothing has changed: nothing is tried.
	r = startRelay(t, pool, kafka, steady())
	q.publish("b", "other")
	patiently(t, "it works", func() bool { return kafka.has("b", "other") })
	r.passed(50)
	r.end()
	if n := asked(); n != 0 {
		t.Errorf("tried %d times though the topic takes no more than before", n)
	}
	// It grows while no relay runs; not enough, so it is held again, at the new limit.
	grow := func(to int) {
		kafka.set(Topic{Name: "a", Partitions: 3, CleanupPolicy: "delete", MaxMessageBytes: to})
	}
	grow(2_000_000)
	r = startRelay(t, pool, kafka, steady())
	patiently(t, "it was tried and is held again", func() bool {
		return strings.Contains(query[string](t, pool, "select reason from fenceline.relay_held where key = 'k'"), "was 2000000") && heldState(t, pool, "a", "k") == "held"
	})
	r.end()
	r = startRelay(t, pool, kafka, steady())
	q.publish("b", "another")
	patiently(t, "it works", func() bool { return kafka.has("b", "another") })
	r.passed(50)
	r.end()
	if n := asked(); n != 1 {
		t.Errorf("tried %d times, want once for the one change", n)
	}
	tooLarge.set()
	grow(3_000_000)
	r = startRelay(t, pool, kafka, steady())
	isGone(t, pool, "a", "k")
	r.end()
	if got := said(kafka.log("a")); !slices.Equal(got, []string{"1", "large", "3"}) {
		t.Errorf("published %q", got)
	}
	if got := heldState(t, pool, "a", "q"); got != "held" || asked() != 2 {
		t.Errorf("what is not too large is %q, tried %d times in all", got, asked())
	}
}
