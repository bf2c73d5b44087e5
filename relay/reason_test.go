package relay

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// What a broker, or a rule that somebody has plugged into it, says of a record is
// any bytes. A text of the database can't have all of them.
func TestWhateverBytesABrokerExplainsItselfWithTheReasonIsStoredAndTheRestFlows(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "gone")
	const strange = "no\x00 \xff\xfe\ud7ff\u0001 way"
	kafka.answer(func(_ context.Context, b *Batch) error {
		for i := range b.Records {
			switch string(b.Records[i].Payload) {
			case "poison":
				return &RefusedError{Indexes: []int{i}, Reason: strange, Err: errors.New(strange)}
			case "of the topic":
				return &TopicError{Topic: b.Topic, Reason: strange, Err: errors.New(strange)}
			}
		}
		return nil
	})
	newProducer(t, pool, "k").publish("a", "poison", "behind it")
	newProducer(t, pool, "l").publish("gone", "of the topic")
	r := startRelay(t, pool, kafka, quick())
	eventually(t, "both are stored", func() bool {
		return query[bool](t, pool, "select exists (select from fenceline.relay_held) and exists (select from fenceline.relay_fork)")
	})
	newProducer(t, pool, "m").publish("a", "of the rest")
	eventually(t, "the rest flows", func() bool { return kafka.has("a", "of the rest") })
	operator, err := NewOperator(bg, pool, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := operator.Retry(bg, "a", "k", By{Who: "me"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is held again", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_audit where action = 'held again'") > 0
	})
	if n := r.loads.Load(); n != 1 {
		t.Errorf("%d sessions: the reason ended one", n)
	}
	r.end()
	for _, sql := range []string{"select reason from fenceline.relay_held", "select detail from fenceline.relay_held", "select detail from fenceline.relay_fork"} {
		if got := query[string](t, pool, sql); !strings.HasPrefix(got, "no") || !strings.Contains(got, " way") {
			t.Errorf("%s: %q", sql, got)
		}
	}
	if got := kafka.payloads("a"); len(got) != 1 {
		t.Errorf("published: %q", got)
	}
}
