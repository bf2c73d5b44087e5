package relay

import (
	"slices"
	"testing"
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
