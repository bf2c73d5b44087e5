package relay

import (
	"slices"
	"testing"

	"github.com/fenceline/fenceline/outbox"
)

// In an outage the rows of a page stay as long as one of them waits. Those that it
// leaves to others are in no budget: of a busy stream that is held, say, there can be
// any number between two that wait.
func TestWhatAPageLeavesToOthersIsNotKept(t *testing.T) {
	t.Parallel()
	s := &session{cfg: quick().withDefaults(), shards: allShards, topics: map[string]*topic{}, held: map[streamKey]*hold{}, ending: true}
	s.log = s.cfg.Logger
	s.main.shards = allShards
	s.held[streamKey{"a", "held"}] = &hold{HeldStream: HeldStream{Topic: "a", Key: "held", Pos: 1}}
	aside := outbox.Partition([]byte("aside"), 3)
	s.forks = []*fork{{topic: "a", partition: aside, partitions: 3, flow: flow{shards: allShards}}}
	waits := "waits"
	for outbox.Partition([]byte(waits), 3) == aside {
		waits += "."
	}
	var ch chunk
	for i, key := range []string{"held", "aside", "given up", waits} {
		r := row{weight: 1000, shard: outbox.Shard(key), void: key == "given up"}
		r.Topic, r.Key, r.Pos = "a", key, int64(i+1)
		r.Payload, r.Headers = []byte("payload"), []outbox.Header{{Name: "h", Value: "v"}}
		if outbox.Partition([]byte(key), 3) == aside && key != "aside" {
			t.Fatalf("key %q is in the partition of another", key)
		}
		ch.rows = append(ch.rows, r)
	}
	ch.during, ch.after = start(), start()
	s.dispatch(&s.main, ch)
	var kept []string
	for _, r := range ch.rows {
		if r.Payload != nil || r.Headers != nil {
			kept = append(kept, r.Key)
		}
	}
	if !slices.Equal(kept, []string{waits}) || s.inFlight != 1000 {
		t.Errorf("kept are the payloads of %q, with %d bytes in the budget; want %q alone", kept, s.inFlight, waits)
	}
}
