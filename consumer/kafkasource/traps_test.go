package kafkasource

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

func TestAGenerationThatIsOverCannotMoveTheGroupsOffset(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	cfg := config(t, addr, topic)
	old := open(t, cfg)
	g := next(t, old)
	p := g.Assigned()[0].Partition
	if err := g.Commit(within(t), map[consumer.Partition]int64{p: 10}); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil { // its generation is over, and it still has something to say
		t.Fatal(err)
	}
	g2 := next(t, open(t, cfg))
	if got := g2.Assigned(); len(got) != 1 || got[0].Committed != 10 {
		t.Fatalf("assigned %v", got)
	}
	if err := g2.Commit(within(t), map[consumer.Partition]int64{p: 20}); err != nil {
		t.Fatal(err)
	}
	if err := g.Commit(within(t), map[consumer.Partition]int64{p: 1}); err == nil {
		t.Error("a commit in a generation that is over succeeded")
	}
	offsets, err := kafkatest.Admin(t, addr).FetchOffsets(within(t), cfg.Group)
	if err != nil {
		t.Fatal(err)
	}
	if o, _ := offsets.Lookup(topic, 0); o.At != 20 {
		t.Errorf("the group's offset is %d, want 20", o.At)
	}
}

func TestCloseReturnsAlsoWhenNobodyAnswers(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	proxy := kafkatest.NewProxy(t, addr)
	cfg := config(t, proxy.Addr(), topic)
	cfg.RequestTimeout = time.Second
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	next(t, s)
	// The connections stay, and nothing comes back over them: worse than one that
	// is refused.
	for _, key := range []kmsg.Key{kmsg.LeaveGroup, kmsg.Heartbeat, kmsg.Metadata, kmsg.FindCoordinator} {
		defer proxy.Inject(&kafkatest.Fault{Key: key, Do: kafkatest.HoldAnswer, Count: -1}).Release()
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed: // with an error or without: it may have left before
		t.Logf("Close: %v", err)
	case <-within(t).Done():
		t.Fatal("Close hangs")
	}
}

func TestReadingGoesOnWhenTheBrokerWasAway(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	produce(t, addr, nil, records(topic, 0, "1", "2", "3")...)
	proxy := kafkatest.NewProxy(t, addr)
	s := open(t, config(t, proxy.Addr(), topic))
	g := next(t, s)
	p := g.Assigned()[0].Partition
	if got := read(t, g, p, 0); len(got) != 3 {
		t.Fatalf("read %v", got)
	}
	proxy.Down()
	if _, err := g.Fetch(within(t), p, 3, 1<<20); err == nil {
		t.Error("a fetch from a broker that is away gave no error")
	}
	proxy.Up()
	produce(t, addr, nil, records(topic, 0, "4", "5")...)
	// The generation may be over by now; what is read must not depend on that.
	ctx := within(t)
	var got []string
	for from := int64(3); len(got) < 2; {
		f, err := g.Fetch(ctx, p, from, 1<<20)
		if ctx.Err() != nil {
			t.Fatalf("not read again: %v", err)
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		for _, r := range f.Records {
			got = append(got, string(r.Value))
		}
		from = f.Next
	}
	if !slices.Equal(got, []string{"4", "5"}) {
		t.Errorf("read %v", got)
	}
}

// The coordinator's broker is killed: the group moves to another one, is joined
// there, and the topic's partitions are read on.
func TestTheGroupGoesOnWhenItsCoordinatorIsLost(t *testing.T) {
	cluster := kafkatest.Kfake(t, kfake.NumBrokers(3))
	addrs := cluster.ListenAddrs()
	topic := kafkatest.Topic(t, addrs[0], 6)
	cfg := config(t, addrs[0], topic)
	cfg.Brokers = addrs
	s := open(t, cfg)
	g := next(t, s)
	if err := g.Commit(within(t), map[consumer.Partition]int64{g.Assigned()[0].Partition: 0}); err != nil {
		t.Fatal(err)
	}
	if err := cluster.RemoveNode(cluster.CoordinatorFor(cfg.Group)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.Context().Done():
	case <-within(t).Done():
		t.Fatal("the generation outlives its coordinator")
	}
	g.Release()
	g2 := next(t, s)
	if n := len(g2.Assigned()); n != 6 {
		t.Fatalf("%d partitions assigned, want 6", n)
	}
	produce(t, cluster.ListenAddrs()[0], nil, records(topic, 3, "1")...)
	if got := read(t, g2, consumer.Partition{Topic: topic, ID: 3}, 0); !slices.Equal(got, []string{"1"}) {
		t.Errorf("read %v", got)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := g2.Commit(ctx, map[consumer.Partition]int64{{Topic: topic, ID: 3}: 1}); err != nil {
		t.Error(err)
	}
}
