package consumer_test

import (
	"testing"

	"github.com/fenceline/fenceline/consumer"
)

// A consumer that was changed, with what the older one has parked.
func TestAChangedMappingEndsNoConsumerAndHoldsUpOneKeyAlone(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "k", 1), event("t", "k", 3), event("t", "other", 1))
	stop := b.run(log.source(), b.config(), b.apply("x"))
	b.eventually("all is read", func() bool { return log.offset() == 3 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	m := changedMapping{"k/3": refusing}
	cfg := b.config()
	cfg.Mapping = m.read
	log.publish(event("t", "k", 2), event("t", "other", 2), event("t", "k", 4))
	stop = b.run(log.source(), cfg, b.apply("x"))
	b.eventually("the rest flows", func() bool { return log.offset() == 6 })
	if err := stop(); err != nil {
		t.Fatalf("Run: %v", err)
	}
	b.want("k", "k/1", "k/2")
	b.want("other", "other/1", "other/2")
	if !logged(b, "consumer: a stored record can't be read any more: t[k]") {
		t.Error("nothing is said of it in the log")
	}
	if got := b.one("select blocked || ' ' || parked_rows from fenceline.guard where key = 'k'"); got != "failing 2" {
		t.Errorf("k stands: %s", got)
	}

	// Under the mapping of before it goes on.
	op, err := consumer.NewOperator(t.Context(), b.pool, consumer.OperatorConfig{Consumer: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ok(t, op.Retry(t.Context(), consumer.StreamKey{Stream: "t", Key: "k"}, note))
	b.run(log.source(), b.config(), b.apply("x"))
	b.eventually("k goes on", func() bool { return len(b.applied("k")) == 4 })
	b.want("k", effects("k", 1, 4)...)
}
