package relay_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

// Three brokers, three replicas, two needed. While producers commit all along,
// the leader of a partition is killed, leaders are moved, and all brokers are
// away for a while and come back with the same data.
func TestNothingIsLostOrInvertedWhateverHappensToTheBrokers(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.ApacheCluster(t, apachekafka.Config{})
	ctx := t.Context()
	addr := cluster.Brokers[0].Addr()
	const partitions = 3
	topic := kafkatest.Topic(t, addr, partitions, "max.message.bytes=40000")
	pool := pgmigrated.Pool(t)
	pub, err := kafkapub.New(kafkapub.Config{Brokers: cluster.Addrs(), Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pub.Close() })
	cfg := relay.Quick()
	cfg.MaxRecordBytes = 20000 // or the topic as a whole would be refused
	held := make(chan relay.HeldStream, 10)
	cfg.Hooks.Held = func(s relay.HeldStream) { held <- s }
	var acked progress
	cfg.Hooks.Acknowledged = acked.note
	r := relay.Start(t, pool, pub, cfg)

	// Producers, each with a stream of its own, until they are told to end.
	var writers sync.WaitGroup
	stop := make(chan struct{})
	counts := make([]int, 4)
	for k := range counts {
		p := relay.Producer(t, pool, fmt.Sprint("key ", k))
		writers.Go(func() {
			for {
				p.Publish(topic, fmt.Sprint("event ", counts[k]), "and another")
				counts[k]++
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond): // a pace, not an order
				}
			}
		})
	}
	relay.Producer(t, pool, "poison").Publish(topic, "before", strings.Repeat("x", 60_000), "behind")

	published := func(what string, from int64) int64 {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); acked.events() < from; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d events are acknowledged, not %d", what, acked.events(), from)
			}
		}
		return acked.events()
	}
	n := published("events are published", 20)
	if s := relay.Receive(t, "the poisoned stream is held", held); s.Key != "poison" || s.Seq != 2 {
		t.Errorf("held: %+v", s)
	}

	// The broker that leads partition 0 is killed; not the one that we ask.
	admin := kafkatest.Admin(t, addr)
	leader := func(p int32) int {
		topics, err := admin.ListTopics(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		return int(topics[topic].Partitions[p].Leader)
	}
	victim := cluster.Brokers[1]
	for p := range int32(partitions) {
		if id := leader(p); id > 1 {
			victim = cluster.Brokers[id-1]
		}
	}
	if err := victim.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	n = published("two brokers go on", n+30)
	if err := victim.Restart(ctx); err != nil {
		t.Fatal(err)
	}

	// Leaders go back to where they were.
	relay.Eventually(t, "leaders are moved", func() bool {
		set := kadm.TopicsSet{}
		set.Add(topic, 0, 1, 2)
		results, err := admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, set)
		return err == nil && len(results) > 0
	})
	n = published("they go on under other leaders", n+30)

	if err := cluster.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	away := 2 * time.Second
	if os.Getenv("FENCELINE_LONG") != "" {
		away = time.Minute
	}
	time.Sleep(away) // the outage itself
	if err := cluster.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	published("all is back", n+30)
	close(stop)
	writers.Wait()
	total := 1 // of the poisoned stream
	for _, c := range counts {
		total += 2 * c
	}
	published("everything is published", int64(total))
	r.End()
	_, records := read(t, addr, topic)
	events, again := inOrder(t, records)
	if events != total {
		t.Errorf("%d events in Kafka, %d were committed", events, total)
	}
	t.Logf("%d events, %d second copies", events, again)
}

// progress counts the events that Kafka has acknowledged, each once: while
// brokers are away, nobody can be asked for what a topic holds.
type progress struct {
	mu      sync.Mutex
	streams map[string]int64 // key → highest seq
}

func (p *progress) note(b *relay.Batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams == nil {
		p.streams = map[string]int64{}
	}
	for i := range b.Records {
		p.streams[b.Records[i].Key] = max(p.streams[b.Records[i].Key], b.Records[i].Seq)
	}
}

func (p *progress) events() (n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seq := range p.streams {
		n += seq
	}
	return n
}
