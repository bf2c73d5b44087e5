package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// copies counts what is in the log for the second time.
func copies(log []outbox.Record, payload string) (n int) {
	for _, r := range log {
		if string(r.Payload) == payload {
			n++
		}
	}
	return n - 1
}

// A page goes out partition by partition, and a key's events topic by topic, not in
// the order of pos.
func TestWhoGoesOnBehindWhereARepublishEndedLeavesNothingOut(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	kafka.create("a", 2)
	keys := map[int]string{}
	for i := 0; len(keys) < 2; i++ {
		key := fmt.Sprint("k", i)
		if n := outbox.Partition([]byte(key), 2); keys[n] == "" {
			keys[n] = key
		}
	}
	p, q := newProducer(t, pool, keys[0]), newProducer(t, pool, keys[1])
	p.publish("b", "x")
	p.publish("a", "1")
	q.publish("a", "2")
	p.publish("a", "bad")
	q.publish("a", "4")
	r := startRelay(t, pool, kafka, steady())
	patiently(t, "all is published", func() bool { return kafka.has("b", "x") && kafka.has("a", "bad") && kafka.has("a", "4") })
	r.end()
	pos := func(payload string) int64 {
		return query[int64](t, pool, "select pos from fenceline.outbox where payload = $1", []byte(payload))
	}

	kafka.answer(refusing("bad"))
	cfg := RepublishConfig{Who: "test", Topic: "a", FromPos: 1, Rate: 1_000_000, lookEvery: time.Nanosecond}
	report, err := Republish(bg, pool, kafka, cfg)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint("-from-pos ", pos("bad")+1)) {
		t.Fatalf("%+v, %v", report, err)
	}
	if n := copies(kafka.log("a"), "2"); n != 1 || report.LastPos < pos("2") || report.LastPos >= pos("bad") {
		t.Errorf("in front of the refused event %d of 1 is done; %+v", n, report)
	}
	report, err = Republish(bg, pool, kafka, RepublishConfig{Who: "test", Key: keys[0], Rate: 1_000_000})
	if n := copies(kafka.log("b"), "x"); err == nil || n != 1 || report.LastPos >= pos("bad") {
		t.Errorf("of the other stream %d of 1 is done; %+v, %v", n, report, err)
	}

	kafka.answer(func(context.Context, *Batch) error {
		if _, err := SetPause(bg, pool, "", true, "me", "why"); err != nil {
			t.Error(err)
		}
		return nil
	})
	report, err = Republish(bg, pool, kafka, cfg)
	if !errors.Is(err, ErrPaused) || report.Events != 2 || report.LastPos != pos("1") {
		t.Errorf("%+v, %v; event 2 at pos %d is not done", report, err, pos("2"))
	}
}
