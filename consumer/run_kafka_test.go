package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/kafkasource"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/outbox"
)

// cluster is a topic on the broker that the run is about, and a group.
type cluster struct {
	*bench
	addr, topic, group string
	addrs              []string // of all brokers
	partitions         int
	producer           *kgo.Client
}

func newCluster(t *testing.T, partitions int) *cluster {
	t.Helper()
	return clusterAt(t, kafkatest.Broker(t), partitions)
}

// newKfakeCluster is one of several brokers, whose faults the test chooses.
func newKfakeCluster(t *testing.T, brokers, partitions int) (*cluster, *kfake.Cluster) {
	t.Helper()
	k := kafkatest.Kfake(t, kfake.NumBrokers(brokers))
	return clusterAt(t, strings.Join(k.ListenAddrs(), ","), partitions), k
}

func clusterAt(t *testing.T, addrs string, partitions int) *cluster {
	t.Helper()
	addr, _, _ := strings.Cut(addrs, ",")
	// The events are of long ago, and a test that takes a while would lose them.
	c := &cluster{bench: newBench(t), addr: addr, topic: kafkatest.Topic(t, addr, partitions, "retention.ms=-1"), addrs: strings.Split(addrs, ","), group: kafkatest.Name(t), partitions: partitions}
	c.connect()
	return c
}

// connect gives the producer a client that knows of no topic yet.
func (c *cluster) connect() {
	c.t.Helper()
	var err error
	c.producer, err = kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(c.producer.Close)
}

// source is a member of the group, fast enough for tests.
func (c *cluster) source() *kafkasource.Source {
	c.t.Helper()
	s, err := kafkasource.New(kafkasource.Config{
		Brokers: c.addrs, Group: c.group, Topics: []string{c.topic},
		SessionTimeout: 6 * time.Second, HeartbeatInterval: 50 * time.Millisecond, RebalanceTimeout: 10 * time.Second,
		MaxWait: 100 * time.Millisecond, WatchInterval: 500 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&c.log, nil)),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// publish sends records as the relay does: by the key's partition.
func (c *cluster) publish(recs ...outbox.Record) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out := make([]*kgo.Record, len(recs))
	for i := range recs {
		r := &recs[i]
		out[i] = &kgo.Record{Topic: c.topic, Partition: int32(outbox.Partition([]byte(r.Key), c.partitions)), Key: []byte(r.Key), Value: outbox.WireValue(r), Timestamp: r.CreatedAt}
		for _, h := range outbox.AppendWireHeaders(nil, r) {
			out[i].Headers = append(out[i].Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	if err := c.producer.ProduceSync(ctx, out...).FirstErr(); err != nil {
		c.t.Fatal(err)
	}
}

// committed is the sum of the group's offsets.
func (c *cluster) committed() (sum int64) {
	c.t.Helper()
	offsets, err := kafkatest.Admin(c.t, c.addr).FetchOffsets(context.Background(), c.group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return 0
	}
	if err != nil {
		c.t.Fatal(err)
	}
	offsets.Each(func(o kadm.OffsetResponse) { sum += max(o.At, 0) })
	return sum
}

// rewind sets the group's offsets to the beginning. The group must be empty,
// and a member that has just left may still be counted.
func (c *cluster) rewind() {
	c.t.Helper()
	var zero kadm.Offsets
	for p := range c.partitions {
		zero.AddOffset(c.topic, int32(p), 0, -1)
	}
	admin := kafkatest.Admin(c.t, c.addr)
	c.eventually("the group is empty and rewound", func() bool {
		res, err := admin.CommitOffsets(context.Background(), c.group, zero)
		return err == nil && res.Ok()
	})
}

func TestOverKafkaEveryEventIsAppliedOnceInOrderWhateverTheGroupDoes(t *testing.T) {
	c := newCluster(t, 6)
	const keys, perKey = 12, 60
	cfg := c.config()
	cfg.BatchSize = 20
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // the producer, with copies of what was sent before
		defer close(done)
		for seq := int64(1); seq <= perKey; seq++ {
			var recs []outbox.Record
			for k := range keys {
				key := fmt.Sprint("k", k)
				recs = append(recs, event(c.topic, key, seq), event(c.topic, key, max(1, seq-int64(rand.IntN(5)))))
			}
			c.publish(recs...)
		}
	})
	// Members join and leave while it produces.
	stay := c.run(c.source(), cfg, c.apply("stays"))
	for producing := true; producing; {
		stop := c.run(c.source(), cfg, c.apply("comes and goes"))
		select {
		case <-done:
			producing = false
		case <-time.After(300 * time.Millisecond):
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	c.eventually("everything is committed", func() bool { return c.committed() == 2*keys*perKey })
	if err := stay(); err != nil {
		t.Fatal(err)
	}
	for k := range keys {
		key := fmt.Sprint("k", k)
		c.want(key, effects(key, 1, perKey)...)
	}
}

func TestOverKafkaAGroupResetToEarliestAppliesNothingAgain(t *testing.T) {
	c := newCluster(t, 3)
	n := int64(1000)
	if testing.Short() {
		n = 100
	}
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		c.publish(events(c.topic, key, 1, n)...)
	}
	for round := range 2 {
		stop := c.run(c.source(), c.config(), c.apply("x"))
		c.eventually("everything is read", func() bool {
			return c.seen.count(consumer.Applied)+c.seen.count(consumer.Duplicate) == (round+1)*5*int(n)
		})
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if got := c.committed(); got != 5*n {
			t.Errorf("the group's offsets after the stop: %d, want %d", got, 5*n)
		}
		c.rewind()
	}
	if got := len(c.applied("")); got != 5*int(n) || c.seen.count(consumer.Applied) != 5*int(n) {
		t.Errorf("%d effects, %d applied, want %d", got, c.seen.count(consumer.Applied), 5*n)
	}
}

// unsaid is a source whose offsets never reach Kafka: each stop is a crash
// between the two commits.
type unsaid struct{ consumer.Source }

func (u unsaid) Next(ctx context.Context) (consumer.Generation, error) {
	g, err := u.Source.Next(ctx)
	return unsaidGeneration{g}, err
}

type unsaidGeneration struct{ consumer.Generation }

func (unsaidGeneration) Commit(context.Context, map[consumer.Partition]int64) error {
	return fmt.Errorf("crashed")
}

func TestOverKafkaACrashBetweenDatabaseAndOffsetCommitIsHarmless(t *testing.T) {
	c := newCluster(t, 2)
	c.rewind() // so that the group, and not the database, says where to begin
	c.publish(append(events(c.topic, "a", 1, 30), events(c.topic, "b", 1, 30)...)...)
	stop := c.run(unsaid{c.source()}, c.config(), c.apply("x"))
	c.eventually("everything is applied", func() bool { return len(c.applied("")) == 60 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := c.committed(); got != 0 {
		t.Fatalf("the group's offsets are at %d", got)
	}
	c.publish(append(events(c.topic, "a", 31, 40), events(c.topic, "b", 31, 40)...)...)
	c.run(c.source(), c.config(), c.apply("x"))
	c.eventually("everything is read again", func() bool { return c.committed() == 80 })
	c.want("a", effects("a", 1, 40)...)
	c.want("b", effects("b", 1, 40)...)
	if got := c.seen.count(consumer.Duplicate); got != 60 {
		t.Errorf("%d duplicates, want 60", got)
	}
}

func TestOverKafkaAnOlderEventAfterANewerOneIsRefused(t *testing.T) {
	c := newCluster(t, 1)
	cfg := c.config()
	cfg.Policy = consumer.State
	c.publish(event(c.topic, "a", 1), event(c.topic, "a", 5), event(c.topic, "a", 3), event(c.topic, "a", 5), event(c.topic, "a", 6))
	c.run(c.source(), cfg, c.apply("x"))
	c.eventually("everything is read", func() bool { return c.committed() == 5 })
	c.want("", "a/1", "a/5", "a/6")
	if c.seen.count(consumer.Stale) != 1 || c.seen.count(consumer.Duplicate) != 1 {
		t.Errorf("%d stale, %d duplicate", c.seen.count(consumer.Stale), c.seen.count(consumer.Duplicate))
	}
}

func TestOverKafkaAnAbortedTransactionAtTheEndIsPassed(t *testing.T) {
	c := newCluster(t, 1)
	ctx := context.Background()
	txn, err := kgo.NewClient(kgo.SeedBrokers(c.addr), kgo.TransactionalID(kafkatest.Name(t)), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer txn.Close()
	c.publish(event(c.topic, "a", 1))
	if err := txn.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := txn.ProduceSync(ctx, &kgo.Record{Topic: c.topic, Key: []byte("a"), Value: []byte("aborted")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := txn.EndTransaction(ctx, kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	c.run(c.source(), c.config(), c.apply("x"))
	// One event, one aborted record, one control record.
	c.eventually("the offset is behind the control record", func() bool { return c.committed() == 3 })
	c.want("", "a/1")
	if c.seen.count(consumer.Quarantined) != 0 {
		t.Error("an aborted record was delivered")
	}
}

// The handler of the member that is about to lose its partitions is inside its
// transaction, and the group must wait for it or go on without it.
func TestOverKafkaARebalanceInTheMiddleOfAHandlerAppliesOnce(t *testing.T) {
	c := newCluster(t, 2)
	c.publish(append(events(c.topic, "a", 1, 20), events(c.topic, "b", 1, 20)...)...)
	inside, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	stop := c.run(c.source(), c.config(), consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if err := c.apply("old")(ctx, tx, d); err != nil {
			return err
		}
		if d.Seq == 10 {
			once.Do(func() { close(inside); wait(t, goOn) })
		}
		return nil
	}))
	<-inside
	c.run(c.source(), c.config(), c.apply("new"))
	c.eventually("the group rebalances", func() bool {
		groups, err := kafkatest.Admin(t, c.addr).DescribeGroups(context.Background(), c.group)
		return err == nil && groups[c.group].State == "PreparingRebalance"
	})
	close(goOn)
	c.eventually("everything is committed", func() bool { return c.committed() == 40 })
	c.publish(append(events(c.topic, "a", 21, 25), events(c.topic, "b", 21, 25)...)...)
	c.eventually("what follows, too", func() bool { return c.committed() == 50 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	c.want("a", effects("a", 1, 25)...)
	c.want("b", effects("b", 1, 25)...)
}
