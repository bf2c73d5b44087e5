package consumer_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// unread collects what an observer is told of stored records that can't be read.
type unread struct {
	recorder
	mu  sync.Mutex
	got []string
}

func (u *unread) Committed(c consumer.Committed) {
	u.recorder.Committed(c)
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range c.Results {
		if errors.Is(r.Err, consumer.ErrUnreadable) {
			u.got = append(u.got, r.Position.String())
		}
	}
}

func (u *unread) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.got)
}

// That it can't be read is found out behind the decision, where the guard's
// stream is looked at for why it stands.
func TestRunTellsOfAParkedRecordThatCantBeReadAnyMore(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "a", 3))
	b.upTo(log, b.config(), 2)
	cfg := b.config()
	seen := &unread{}
	cfg.Observer = seen
	cfg.Mapping = func(p consumer.Partition, r consumer.KafkaRecord) (outbox.Record, error) {
		if string(r.Value) == "a/3" {
			return outbox.Record{}, errUnknownShape
		}
		return consumer.Wire(p, r)
	}
	b.run(log.source(), cfg, b.apply("x"))
	log.publish(event("t", "a", 2))
	b.eventually("the observer is told", func() bool { return seen.count() > 0 })
	if !logged(b, "a stored record can't be read any more, and stays") {
		t.Error("the log does not say so")
	}
	b.want("", "a/1", "a/2")
}
