package relay

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// A stream has a record that the broker refuses and, behind it, a row that nobody
// can publish. What is recorded is where the first of them stands: with the second,
// a relay that begins anew would pass over what is between.
func TestAStreamIsHeldAtTheFirstRecordThatCannotBePublishedWhicheverIsFoundFirst(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("a", "too large", "behind it", "by hand")
	if _, err := pool.Exec(bg, `update fenceline.outbox set headers = '{"a": "b"}' where seq = 3`); err != nil {
		t.Fatal(err)
	}
	stored := make(chan struct{}, 100)
	kafka.answer(func(_ context.Context, b *Batch) error {
		if string(b.Records[0].Payload) == "too large" {
			receive(t, "something of what was read is stored", stored)
			return &RefusedError{Indexes: []int{0}, Reason: "too large"}
		}
		return nil
	})
	held := make(chan HeldStream, 10)
	cfg := quick()
	cfg.Hooks.Checkpointed = func(int, time.Duration) { signal(stored) }
	cfg.Hooks.Held = func(s HeldStream) { held <- s }
	r := startRelay(t, pool, kafka, cfg)
	for receive(t, "the stream is held at its first record", held).Seq != 1 {
	}
	r.end()
	if seq := query[int64](t, pool, "select seq from fenceline.relay_held"); seq != 1 {
		t.Errorf("the stream is recorded as held at seq %d", seq)
	}
	operator, err := NewOperator(bg, pool, "")
	if err != nil {
		t.Fatal(err)
	}
	// The limit is raised, and the stream asked for once more.
	kafka.answer(nil)
	if _, err := operator.Retry(bg, "a", "k", By{Who: "me"}); err != nil {
		t.Fatal(err)
	}
	r = startRelay(t, pool, kafka, cfg)
	eventually(t, "all is published up to the row that nobody can publish", func() bool { return kafka.has("a", "behind it") })
	for receive(t, "the stream is held there", held).Seq != 3 {
	}
	r.end()
	if distinct, _, _ := firsts(t, kafka.logs["a"]); distinct != 2 {
		t.Errorf("%d events are published, want 2: %q", distinct, kafka.payloads("a"))
	}
}

// append() can be called by hand, and takes any list of headers. A header of the
// record's own twice would have every consumer put the record aside.
func TestAHeaderThatIsNamedAsOneOfTheRecordsOwnHoldsTheStream(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	for _, name := range []string{"content-type", "Content-Type", "ce_id", "CE_fenceseq"} {
		w := newProducer(t, pool, name).begin().enter()
		w.exec("select fenceline.append($1, $2, $3, $4, 'a', array[gen_random_uuid()], '{t}', '{t}', '{null}', '{t}', '{null}', array[jsonb_build_array($5::text, 'x')::text], '{x}')", w.p.key, w.p.epoch, w.p.token, w.step, name)
		w.commit()
	}
	newProducer(t, pool, "k").publish("a", "fine")
	r := startRelay(t, pool, kafka, quick())
	eventually(t, "the others are held", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_held") == 4 })
	eventually(t, "what is fine is published", func() bool { return kafka.has("a", "fine") })
	r.end()
	if reason := query[string](t, pool, "select reason from fenceline.relay_held where key = 'content-type'"); !strings.Contains(reason, `a header "content-type"`) {
		t.Errorf("the reason is %q", reason)
	}
	for _, rec := range kafka.logs["a"] {
		if _, err := outbox.ParseWire("a", []byte(rec.Key), outbox.WireValue(&rec), rec.CreatedAt, outbox.AppendWireHeaders(nil, &rec)); err != nil {
			t.Errorf("published, and nobody can read it: %v", err)
		}
	}
}
