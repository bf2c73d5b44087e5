package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

// Three brokers of Apache Kafka, three replicas. The one that coordinates the
// group, and leads a third of the partitions, is killed while two members are in
// the middle of their batches: what they have committed is not applied again by
// whoever reads it again, and the group goes on with another coordinator.
func TestOverThreeBrokersTheDeathOfTheCoordinatorAppliesEachEventOnce(t *testing.T) {
	t.Parallel()
	brokers := kafkatest.ApacheCluster(t, apachekafka.Config{})
	ctx := context.Background()
	coordinator := func(addr, group string) int32 {
		if found := kafkatest.Admin(t, addr).FindGroupCoordinators(ctx, group)[group]; found.Err == nil {
			return found.NodeID
		}
		return -1
	}
	// All groups have one coordinator here. It is asked of last, so that what looks
	// at the group survives it.
	var first int32
	within := time.Now().Add(2 * time.Minute)
	for first = coordinator(brokers.Addrs()[0], "any"); first < 1; first = coordinator(brokers.Addrs()[0], "any") {
		if time.Sleep(100 * time.Millisecond); time.Now().After(within) {
			t.Fatal("no group has a coordinator")
		}
	}
	dies := brokers.Brokers[first-1]
	addrs := append(slices.DeleteFunc(brokers.Addrs(), func(a string) bool { return a == dies.Addr() }), dies.Addr())
	c := clusterAt(t, strings.Join(addrs, ","), 6)

	const keys, half = 12, 40
	publish := func(from, to int64) {
		for seq := from; seq <= to; seq++ {
			for k := range keys {
				c.publish(event(c.topic, fmt.Sprint("k", k), seq))
			}
		}
	}
	cfg := c.config()
	cfg.BatchSize = 10
	for _, by := range []string{"one", "two"} {
		c.run(c.source(), cfg, c.apply(by))
	}
	offsets := func() (sum int64) {
		all, err := kafkatest.Admin(t, addrs[0]).FetchOffsets(ctx, c.group)
		if err != nil { // there is no coordinator for a while
			return -1
		}
		all.Each(func(o kadm.OffsetResponse) { sum += max(o.At, 0) })
		return sum
	}
	publish(1, half)
	c.eventually("the group has begun", func() bool { return offsets() > 0 })
	if err := dies.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	publish(half+1, 2*half)
	// Not by the clock of a test on one broker: the others must miss it first, then
	// the members.
	for what, done := range map[string]func() bool{
		"everything is applied":                           func() bool { return len(c.applied("")) >= 2*half*keys },
		"the group's offsets are at the end of all there": func() bool { return offsets() == 2*half*keys },
	} {
		for end := time.Now().Add(2 * time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within two minutes: %s (%d effects, offsets at %d)", what, len(c.applied("")), offsets())
			}
		}
	}
	for k := range keys {
		key := fmt.Sprint("k", k)
		c.want(key, effects(key, 1, 2*half)...)
	}
	if now := coordinator(addrs[0], c.group); now == first || now < 1 {
		t.Errorf("the group's coordinator is broker %d, and was %d, which is dead", now, first)
	}
}
