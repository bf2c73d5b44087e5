package relay_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

func publisher(t *testing.T, addr string) *kafkapub.Publisher {
	t.Helper()
	p, err := kafkapub.New(kafkapub.Config{Brokers: []string{addr}, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// read parses what a topic has.
func read(t *testing.T, addr, topic string) ([]*kgo.Record, []outbox.Record) {
	t.Helper()
	records := kafkatest.Records(t, addr, topic)
	var parsed []outbox.Record
	for _, r := range records {
		var headers []outbox.WireHeader
		for _, h := range r.Headers {
			headers = append(headers, outbox.WireHeader{Key: h.Key, Value: h.Value})
		}
		p, err := outbox.ParseWire(r.Topic, r.Key, r.Value, r.Timestamp, headers)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, p)
	}
	return records, parsed
}

// inOrder checks first copies, and counts events and further copies.
func inOrder(t *testing.T, records []outbox.Record) (events, again int) {
	t.Helper()
	next := map[string]int64{}
	for _, r := range records {
		switch k := r.Stream + "/" + r.Key; {
		case r.Seq == next[k]+1:
			next[k]++
			events++
		case r.Seq <= next[k]:
			again++
		default:
			t.Errorf("%s: seq %d comes where %d is due", k, r.Seq, next[k]+1)
		}
	}
	return events, again
}

// produce gives rounds events to each of keys.
func produce(t *testing.T, pool *pgxpool.Pool, topic string, keys, rounds int) {
	t.Helper()
	for k := range keys {
		p := relay.Producer(t, pool, fmt.Sprint("key ", k))
		for n := range rounds {
			p.Publish(topic, fmt.Sprint("event ", n), "and another")
		}
	}
}

func waitEvents(t *testing.T, addr, topic string, want int) {
	t.Helper()
	relay.Eventually(t, fmt.Sprint(want, " events are in Kafka"), func() bool {
		_, records := read(t, addr, topic)
		events, _ := inOrder(t, records)
		return events >= want
	})
}

// describe is everything of a record that a consumer can see, but its offset.
func describe(r *kgo.Record) string {
	return fmt.Sprintf("%d %q %q %v %d", r.Partition, r.Key, r.Value, r.Headers, r.Timestamp.UnixMilli())
}

func TestAnEventThatIsPublishedAgainAfterADeathIsTheSameInEveryByte(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 4)
	pool := pgmigrated.Pool(t)
	produce(t, pool, topic, 6, 3)
	cfg := relay.Quick()
	var deaths atomic.Int32
	relay.CrashAt(&cfg, func(point string) bool { // Kafka has it, we don't know yet
		return point == "acknowledged" && deaths.Add(1) <= 3
	})
	r := relay.Start(t, pool, publisher(t, addr), cfg)
	relay.Eventually(t, "it dies three times and goes on", func() bool { return deaths.Load() > 3 })
	waitEvents(t, addr, topic, 36)
	r.End()

	records, parsed := read(t, addr, topic)
	events, again := inOrder(t, parsed)
	if events != 36 || again == 0 {
		t.Fatalf("%d events, %d copies", events, again)
	}
	first := map[string]string{}
	for i, r := range records {
		id := parsed[i].ID.String()
		if first[id] == "" {
			first[id] = describe(r)
		}
		if got := describe(r); got != first[id] {
			t.Errorf("a copy differs:\n%s\n%s", first[id], got)
		}
	}
	t.Logf("%d copies", again)
}

func TestALostAcknowledgementLosesNothingAndKeepsTheOrder(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 3)
	proxy := kafkatest.NewProxy(t, addr)
	lost := proxy.Inject(&kafkatest.Fault{When: kafkatest.ToTopic(topic), Do: kafkatest.LoseAnswer, Count: 5})
	pool := pgmigrated.Pool(t)
	cfg := relay.Quick()
	cfg.BatchRecords = 5
	produce(t, pool, topic, 5, 4)
	r := relay.Start(t, pool, publisher(t, proxy.Addr()), cfg)
	lost.Wait(t, 5)
	waitEvents(t, addr, topic, 40)
	r.End()
	_, parsed := read(t, addr, topic)
	events, again := inOrder(t, parsed)
	if events != 40 || again != 0 {
		t.Errorf("%d events, %d copies, though the producer is idempotent", events, again)
	}
}

func TestAnOutageOfAllBrokersIsWaitedOut(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 3)
	proxy := kafkatest.NewProxy(t, addr)
	pool := pgmigrated.Pool(t)
	cfg := relay.Quick()
	var began, ended atomic.Int32
	cfg.Hooks.OutageBegan = func(error) { began.Add(1) }
	cfg.Hooks.OutageEnded = func(time.Duration) { ended.Add(1) }
	produce(t, pool, topic, 2, 2)
	r := relay.Start(t, pool, publisher(t, proxy.Addr()), cfg)
	waitEvents(t, addr, topic, 8)
	proxy.Down()
	for k := range 4 {
		relay.Producer(t, pool, fmt.Sprint("during ", k)).Publish(topic, "1", "2")
	}
	relay.Eventually(t, "the outage is noticed", func() bool { return began.Load() == 1 })
	proxy.Up()
	waitEvents(t, addr, topic, 16)
	relay.Eventually(t, "the outage is over", func() bool { return ended.Load() == 1 })
	r.End()
	for _, table := range []string{"relay_held", "relay_fork"} {
		var n int
		if err := pool.QueryRow(t.Context(), "select count(*) from fenceline."+table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows in %s after an outage (%v)", n, table, err)
		}
	}
}

func TestARecordThatTheBrokerFindsTooLargeHoldsItsStreamOnly(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1, "max.message.bytes=20000")
	pool := pgmigrated.Pool(t)
	good, bad := relay.Producer(t, pool, "good"), relay.Producer(t, pool, "bad")
	bad.Publish(topic, "before")
	good.Publish(topic, "1")
	bad.Publish(topic, strings.Repeat("x", 50000), "behind")
	good.Publish(topic, "2")
	bad.Publish(topic, "far behind")
	good.Publish(topic, "3")
	cfg := relay.Quick()
	cfg.MaxRecordBytes = 10000 // or the topic as a whole would be refused
	held := make(chan relay.HeldStream, 10)
	cfg.Hooks.Held = func(s relay.HeldStream) { held <- s }
	r := relay.Start(t, pool, publisher(t, addr), cfg)
	waitEvents(t, addr, topic, 4)
	if s := relay.Receive(t, "the stream is held", held); s.Key != "bad" || s.Seq != 2 || s.Topic != topic || s.Reason == "" {
		t.Errorf("held: %+v", s)
	}
	r.End()
	_, parsed := read(t, addr, topic)
	var got []string
	for _, p := range parsed {
		got = append(got, string(p.Payload))
	}
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, []string{"1", "2", "3", "before"}) {
		t.Errorf("published %q", got)
	}
}

func TestATopicThatIsCreatedLateGetsEverythingInOrder(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic, late := kafkatest.Topic(t, addr, 2), kafkatest.Name(t)
	pool := pgmigrated.Pool(t)
	produce(t, pool, late, 3, 4)
	cfg := relay.Quick()
	reasons := make(chan string, 100)
	cfg.Hooks.Forked = func(_, reason string) { reasons <- reason }
	r := relay.Start(t, pool, publisher(t, addr), cfg)
	if reason := relay.Receive(t, "the topic is refused", reasons); !strings.Contains(reason, "create it") {
		t.Errorf("the reason is %q", reason)
	}
	relay.Producer(t, pool, "other").Publish(topic, "1", "2")
	waitEvents(t, addr, topic, 2)
	relay.Producer(t, pool, "later").Publish(late, "1", "2")
	kafkatest.CreateTopic(t, addr, late, 3)
	waitEvents(t, addr, late, 26)
	r.End()
}

func TestACompactedTopicIsRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic, compacted := kafkatest.Topic(t, addr, 1), kafkatest.Topic(t, addr, 1, "cleanup.policy=compact")
	pool := pgmigrated.Pool(t)
	p := relay.Producer(t, pool, "k")
	p.Publish(compacted, "1")
	p.Publish(topic, "1")
	cfg := relay.Quick()
	reasons := make(chan string, 100)
	cfg.Hooks.Forked = func(_, reason string) { reasons <- reason }
	r := relay.Start(t, pool, publisher(t, addr), cfg)
	if reason := relay.Receive(t, "the topic is refused", reasons); !strings.Contains(reason, "set cleanup.policy=delete") {
		t.Errorf("the reason is %q", reason)
	}
	waitEvents(t, addr, topic, 1)
	r.End()
	if records, _ := read(t, addr, compacted); len(records) != 0 {
		t.Errorf("%d records were published", len(records))
	}
}
