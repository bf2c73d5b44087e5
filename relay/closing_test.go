package relay

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// A fork has joined, and what it has read still waits in the lane, in front of
// what the main flow has read of the same stream since. Of the main flow
// something was sent already, of the fork nothing: the stream's later rows must
// not go out without its earlier ones.
func TestASessionThatEndsSendsNothingOfAStreamInFrontOfWhatItLeavesBehind(t *testing.T) {
	t.Parallel()
	s := &session{closing: make(chan struct{})}
	joined := &fork{topic: "a", partition: -1, joined: true}
	s.forks = []*fork{joined}
	page := func(f *flow, keys ...string) *pending {
		ch := chunk{after: start()}
		for i, k := range keys {
			r := row{}
			r.Key, r.Pos = k, int64(i+1)
			ch.rows = append(ch.rows, r)
		}
		return f.add(ch)
	}
	of := func(p *pending, keys ...string) (items []item) {
		for i, k := range keys {
			r := &row{}
			r.Key = k
			items = append(items, item{row: r, page: p, i: i})
		}
		return items
	}
	early := page(&joined.flow, "k", "k")
	late := page(&s.main, "k", "other", "sent")
	late.done[2] = true
	l := &lane{queue: append(of(early, "k", "k"), of(late, "k", "other")...)}
	s.topics = map[string]*topic{"a": {lanes: []*lane{nil, l}}}
	s.closeLanes()
	var sent []string
	for _, it := range l.queue {
		sent = append(sent, it.Key)
	}
	if !slices.Equal(sent, []string{"other"}) {
		t.Errorf("sent at the end: %q, want what stands in front of a row that was sent, but of k nothing", sent)
	}
}

// What waits for the broker to describe its topic stands in no lane, and what was
// sent behind it must not be sent again for that.
func TestAStopBeforeATopicIsDescribedHasNothingBehindItPublishedTwice(t *testing.T) {
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
	if forks := query[int](t, pool, "select count(*) from fenceline.relay_fork where topic = 'b'"); forks == 0 {
		t.Error("what waits has no fork")
	}
	if _, err := operator(t, pool).RetireTopic(bg, "b", By{Who: "me"}); !errors.Is(err, ErrNotPossible) || !strings.Contains(err.Error(), "not refused") {
		t.Errorf("a topic that no broker has refused is retired: %v", err)
	}

	r = startRelay(t, pool, kafka, cfg)
	p.publish("b", "2")
	p.publish("a", "4")
	eventually(t, "everything is published", func() bool { return kafka.distinct("a") == 4 && kafka.distinct("b") == 2 })
	eventually(t, "the topic has caught up", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 0 })
	r.end()
	for _, topic := range []string{"a", "b"} {
		if _, again, _ := firsts(t, kafka.logs[topic]); again != 0 {
			t.Errorf("of topic %s %d events were published twice: %q", topic, again, kafka.payloads(topic))
		}
	}
}

// slowToDescribe answers nothing when it is asked for one of the topics.
type slowToDescribe struct {
	*memory
	topic string
	asked chan struct{}
}

func (m *slowToDescribe) Describe(ctx context.Context, name string) (Topic, error) {
	if name == m.topic {
		signal(m.asked)
		<-ctx.Done()
		return Topic{}, ctx.Err()
	}
	return m.memory.Describe(ctx, name)
}
