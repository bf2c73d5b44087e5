package relay_test

import (
	"fmt"
	"maps"
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
	began := time.Now()
	lap := func(what string) {
		t.Helper()
		t.Logf("%6.1f s: %s", time.Since(began).Seconds(), what)
	}
	cluster := kafkatest.ApacheCluster(t, apachekafka.Config{})
	lap("three brokers serve")
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

	// Every stream goes on, whichever partition it is in.
	goesOn := func(what string) {
		t.Helper()
		from := acked.seqs()
		acked.wait(t, what, func(now map[string]int64) bool {
			for k := range counts {
				if key := fmt.Sprint("key ", k); now[key] < from[key]+6 {
					return false
				}
			}
			return true
		})
		lap(what)
	}
	goesOn("events are published")
	if s := relay.Receive(t, "the poisoned stream is held", held); s.Key != "poison" || s.Seq != 2 {
		t.Errorf("held: %+v", s)
	}

	// A broker that leads a partition is killed; not the one that we ask.
	admin := kafkatest.Admin(t, addr)
	leads := func() (by []int32, preferred bool) {
		listed, err := admin.ListTopics(ctx, topic)
		if err != nil {
			return nil, false // asked again
		}
		preferred = len(listed[topic].Partitions) == partitions
		for _, p := range listed[topic].Partitions.Sorted() {
			by = append(by, p.Leader)
			preferred = preferred && p.Leader == p.Replicas[0]
		}
		return by, preferred
	}
	victim := cluster.Brokers[1]
	by, _ := leads()
	for _, id := range by {
		if id > 1 {
			victim = cluster.Brokers[id-1]
		}
	}
	if err := victim.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	goesOn("two brokers go on without the third")

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
	lap("all brokers were away and serve again")
	goesOn("all is back")

	// Leaders go back to where they were, under the producers' hands.
	all := kadm.TopicsSet{}
	all.Add(topic, 0, 1, 2)
	acked.wait(t, "leaders are moved", func(map[string]int64) bool {
		_, _ = admin.ElectLeaders(ctx, kadm.ElectPreferredReplica, all) // refused until the one to be elected is in sync
		_, preferred := leads()
		return preferred
	})
	goesOn("they go on under other leaders")
	close(stop)
	writers.Wait()
	total := 1 // of the poisoned stream
	for _, c := range counts {
		total += 2 * c
	}
	acked.wait(t, "everything is published", func(now map[string]int64) bool {
		n := int64(0)
		for _, seq := range now {
			n += seq
		}
		return n >= int64(total)
	})
	lap("everything is published")
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

// seqs is the highest seq of each key.
func (p *progress) seqs() map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.streams)
}

// wait waits until it has come to something, for as long as brokers need on a
// machine that does much else.
func (p *progress) wait(t *testing.T, what string, so func(now map[string]int64) bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !so(p.seqs()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 3 minutes: %s; acknowledged: %v", what, p.seqs())
		}
	}
}
