package relay

import (
	"context"
	"fmt"
	"testing"
)

// While a partition's request is on its way, nothing else of the partition is
// sent: not a further batch of the stream, and none of another.
func TestALaneHasOneRequestInFlight(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.create("a", 1)
	type call struct {
		first string
		let   chan struct{}
	}
	calls := make(chan call, 100)
	kafka.answer(func(ctx context.Context, b *Batch) error {
		c := call{string(b.Records[0].Payload), make(chan struct{})}
		calls <- c
		select {
		case <-c.let:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	cfg := steady()
	cfg.BatchRecords = 1
	r := startRelay(t, pool, kafka, cfg)
	p, q := newProducer(t, pool, "k"), newProducer(t, pool, "q")
	for n := range 3 {
		p.publish("a", fmt.Sprint("k", n))
		q.publish("a", fmt.Sprint("q", n))
	}
	for _, want := range []string{"k0", "q0", "k1", "q1", "k2", "q2"} {
		c := receive(t, "a request", calls)
		if c.first != want {
			t.Errorf("%q is sent, want %q", c.first, want)
		}
		// What waits has been read by now, or is, and could be sent.
		r.passed(5)
		if len(calls) > 0 {
			t.Fatalf("%d requests are in flight besides that of %q", len(calls), want)
		}
		close(c.let)
	}
	eventually(t, "all is published", func() bool { return kafka.has("a", "q2") })
	r.end()
}
