package consumer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

// Members join and leave all the time, some without a word to Kafka of what they
// have done, while the producer sends on and sends again. FENCELINE_LONG=1 keeps
// it up for a minute.
func TestOverKafkaAStormOfRebalancesAppliesEachEventOnceAndInOrder(t *testing.T) {
	c := newCluster(t, 8)
	lasts, between := 3*time.Second, 200*time.Millisecond
	if os.Getenv("FENCELINE_LONG") != "" {
		lasts, between = time.Minute, time.Second
	}
	cfg := c.config()
	cfg.BatchSize, cfg.DrainTimeout = 20, time.Second
	const keys = 16
	over := time.Now().Add(lasts)
	var wg sync.WaitGroup
	var sent, seqs int64
	var members atomic.Int64
	wg.Go(func() {
		for time.Now().Before(over) {
			seqs++
			for k := range keys {
				key := fmt.Sprint("k", k)
				c.publish(event(c.topic, key, seqs), event(c.topic, key, max(1, seqs-rand.Int64N(5))))
				sent += 2
			}
		}
	})
	for range 2 {
		wg.Go(func() {
			for n := 0; time.Now().Before(over); n++ {
				members.Add(1)
				var source consumer.Source = c.source()
				if n%2 == 1 {
					source = unsaid{source}
				}
				// By a signal, as processes are stopped; a deadline would reach the
				// network's own, whose errors are not about the stop.
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(between, cancel)
				if err := consumer.Run(ctx, c.pool, source, cfg, c.apply("comes and goes")); err != nil {
					t.Errorf("Run: %v", err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	stop := c.run(c.source(), cfg, c.apply("stays"))
	c.eventually("everything is committed", func() bool { return c.committed() == sent })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for k := range keys {
		key := fmt.Sprint("k", k)
		c.want(key, effects(key, 1, seqs)...)
	}
	if seqs < 2 {
		t.Errorf("only %d rounds were sent", seqs)
	}
	t.Logf("%d records, %d events, %d members came and went", sent, keys*seqs, members.Load())
}

// Deleted records, as by retention, while a strict consumer is away: the hole
// is an alarm and what follows waits; published again it goes on.
func TestOverKafkaRecordsThatRetentionRemovedAreAHoleAndNotPassedOver(t *testing.T) {
	c := newCluster(t, 1)
	c.publish(events(c.topic, "a", 1, 3)...)
	stop := c.run(c.source(), c.config(), c.apply("x"))
	c.eventually("the first are applied", func() bool { return c.committed() == 3 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	c.publish(events(c.topic, "a", 4, 8)...)
	var upTo kadm.Offsets
	upTo.AddOffset(c.topic, 0, 5, -1) // 4 and 5 go
	if _, err := kafkatest.Admin(t, c.addr).DeleteRecords(context.Background(), upTo); err != nil {
		t.Fatal(err)
	}
	c.run(c.source(), c.config(), c.apply("x"))
	c.eventually("the rest is read", func() bool { return c.committed() == 8 })
	c.want("", effects("a", 1, 3)...)
	if c.seen.alarmed(consumer.Truncated) != 1 || c.seen.count(consumer.Parked) != 3 {
		t.Errorf("%d alarms, %d parked", c.seen.alarmed(consumer.Truncated), c.seen.count(consumer.Parked))
	}
	c.publish(events(c.topic, "a", 4, 5)...)
	c.eventually("what was lost is read", func() bool { return c.committed() == 10 })
	c.want("", effects("a", 1, 8)...)
}

func TestOverKafkaATopicThatWasDeletedAndCreatedAnewIsReadFromItsBeginning(t *testing.T) {
	c := newCluster(t, 1)
	c.publish(events(c.topic, "a", 1, 5)...)
	stop := c.run(c.source(), c.config(), c.apply("x"))
	c.eventually("everything is applied", func() bool { return c.committed() == 5 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	admin := kafkatest.Admin(t, c.addr)
	if _, err := admin.DeleteTopics(context.Background(), c.topic); err != nil {
		t.Fatal(err)
	}
	kafkatest.CreateTopic(t, c.addr, c.topic, 1)
	c.connect()                                // the old topic's id is no topic's any more
	c.publish(events(c.topic, "new", 1, 9)...) // grown past the offset that was reached
	c.run(c.source(), c.config(), c.apply("y"))
	c.eventually("the new topic is read", func() bool { return len(c.applied("new")) == 9 })
	c.want("new", effects("new", 1, 9)...)
	if c.seen.alarmed(consumer.Truncated) != 1 {
		t.Errorf("%d alarms", c.seen.alarmed(consumer.Truncated))
	}
}

// A mirror copies records with their headers to another topic, at other
// offsets, and more than once.
func TestOverKafkaMirroredCopiesInAnotherTopicAreGuardedByTheirStream(t *testing.T) {
	c := newCluster(t, 1)
	c.publish(events(c.topic, "a", 1, 10)...)
	stop := c.run(c.source(), c.config(), c.apply("original"))
	c.eventually("the original is applied", func() bool { return c.committed() == 10 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	original := c.topic
	c.topic, c.group = kafkatest.Topic(t, c.addr, 1), c.group+".mirror"
	mirrored := append(events(original, "a", 6, 12), events(original, "a", 9, 14)...)
	for i := range mirrored {
		mirrored[i].Topic = c.topic
	}
	c.publish(mirrored...)
	c.run(c.source(), c.config(), c.apply("mirror"))
	c.eventually("the mirror is read", func() bool { return c.committed() == int64(len(mirrored)) })
	c.want("", effects("a", 1, 14)...)
}

// The coordinator's broker goes away in the middle; with it leaders of
// partitions.
func TestOverKafkaTheLossOfTheCoordinatorAppliesEachEventOnce(t *testing.T) {
	c, cluster := newKfakeCluster(t, 3, 6)
	const keys, perKey = 12, 30
	publish := func(from, to int64) {
		for seq := from; seq <= to; seq++ {
			for k := range keys {
				c.publish(event(c.topic, fmt.Sprint("k", k), seq))
			}
		}
	}
	publish(1, perKey/2)
	cfg := c.config()
	cfg.BatchSize = 10
	for _, by := range []string{"one", "two"} {
		c.run(c.source(), cfg, c.apply(by))
	}
	c.eventually("it has begun", func() bool { return len(c.applied("")) > 0 })
	if err := cluster.RemoveNode(cluster.CoordinatorFor(c.group)); err != nil {
		t.Fatal(err)
	}
	publish(perKey/2+1, perKey)
	c.eventually("everything is applied", func() bool { return len(c.applied("")) >= keys*perKey })
	for k := range keys {
		key := fmt.Sprint("k", k)
		c.want(key, effects(key, 1, perKey)...)
	}
}
