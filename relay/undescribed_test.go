package relay

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// away is a broker that answers nothing.
type away struct{ *memory }

func (away) Describe(context.Context, string) (Topic, error) { return Topic{}, errAway }
func (away) Produce(context.Context, *Batch) error           { return errAway }

// A topic that an instance had not got described when it stopped waits aside. Nobody
// has refused it, so a drain waits for the broker, as in any outage.
func TestADrainInAnOutageCallsNoTopicRefusedThatNobodyHasAskedAbout(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	asked := make(chan struct{}, 100)
	slow := &slowToDescribe{memory: kafka, topic: "b", asked: asked}
	p := newProducer(t, pool, "k")
	p.publish("b", "1")
	p.publish("a", "1", "2", "3")
	cfg := quick()
	cfg.LeaseTTL = time.Minute // who is slow has not lost it
	r := startRelay(t, pool, slow, cfg)
	eventually(t, "what stands behind it is published", func() bool { return kafka.distinct("a") == 3 })
	receive(t, "the other topic's description is asked for", asked)
	r.end()
	if n := query[int](t, pool, "select count(*) from fenceline.relay_fork"); n == 0 {
		t.Fatal("what waits has no fork")
	}
	if st, err := ReadStatus(bg, pool, ""); err != nil || len(st.Forks) != 1 || !st.Forks[0].Unasked {
		t.Errorf("status: %+v, %v; want one topic that nobody was asked about", st.Forks, err)
	}

	cfg.Grace = 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(bg, 3*time.Second)
	defer cancel()
	d, err := Drain(ctx, pool, away{kafka}, cfg)
	if !errors.Is(err, context.DeadlineExceeded) || len(d.Refused) != 0 {
		t.Errorf("in an outage: %+v, %v; want no topic refused, and the time over", d, err)
	}
	if d, err = Drain(bg, pool, kafka, cfg); err != nil || len(d.Refused) != 0 || kafka.distinct("b") != 1 {
		t.Errorf("behind it: %+v, %v, %d events of b", d, err, kafka.distinct("b"))
	}
	firsts(t, kafka.logs["a"])
	firsts(t, kafka.logs["b"])
}

// What the broker has said of a topic is not forgotten for a stop.
func TestAStopLeavesTheReasonOfARefusal(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	one, other := "k", "l"
	for outbox.Shard(other) == outbox.Shard(one) {
		other += "x"
	}
	p1, p2 := newProducer(t, pool, one), newProducer(t, pool, other)
	p1.publish("b", "1")
	cfg := quick()
	cfg.LeaseTTL = time.Minute
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "the topic is refused", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 1 })
	r.end()
	// As where the other shards were another instance's, which had met no event of it.
	if _, err := pool.Exec(bg, "update fenceline.relay_fork set shards = array[$1::smallint]", outbox.Shard(one)); err != nil {
		t.Fatal(err)
	}
	reason := query[string](t, pool, "select reason from fenceline.relay_fork")
	asked := make(chan struct{}, 100)
	slow := &slowToDescribe{memory: kafka, topic: "b", asked: asked}
	p2.publish("b", "2")
	p2.publish("a", "1", "2")
	r = startRelay(t, pool, slow, cfg)
	eventually(t, "what stands behind it is published", func() bool { return kafka.distinct("a") == 2 })
	receive(t, "the topic's description is asked for", asked)
	r.end()
	if all := query[string](t, pool, "select string_agg(reason, ', ' order by reason = $1) from fenceline.relay_fork", reason); all == reason || !strings.Contains(all, reason) {
		t.Errorf("the forks' reasons are %q, want %q and another one", all, reason)
	}
	if st, err := ReadStatus(bg, pool, ""); err != nil || len(st.Forks) != 1 || st.Forks[0].Unasked || st.Forks[0].Reason != reason {
		t.Errorf("status: %+v, %v; want one topic that is refused because %s", st.Forks, err, reason)
	}
	if _, err := operator(t, pool).RetireTopic(bg, "b", By{Who: "me"}); err != nil {
		t.Errorf("a topic that the broker has refused can't be retired: %v", err)
	}
}
