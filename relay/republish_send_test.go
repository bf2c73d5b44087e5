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

// Each event that is appended meanwhile is behind the ones that were chosen, and would
// be read in its turn, and left alone, as long as some come.
func TestARepublishEndsWhileEventsAreAppended(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "2")
	published(t, pool, kafka, "a", "2")
	for name, cfg := range map[string]RepublishConfig{"by pos": {FromPos: 1}, "of a stream": {Key: "k", Topic: "a"}, "of a key": {Key: "k"}} {
		pages := 0
		cfg.Progress = func(RepublishReport) {
			if pages++; pages < 20 {
				p.publish("a", "new")
			}
		}
		_, report := again(t, pool, cfg, "a")
		if pages != 1 || report.Events < 2 {
			t.Errorf("%s: %d pages, %+v; want one page of what was there", name, pages, report)
		}
		last := fmt.Sprint("last, ", name)
		p.publish("a", last)
		published(t, pool, kafka, "a", last)
	}
}

// Also where a topic is met for the first time, which may be in the middle.
func TestARepublishWaitsOutAnOutageInWhichATopicIsMet(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	newProducer(t, pool, "k").publish("a", "1")
	published(t, pool, kafka, "a", "1")
	asked, away := 0, 3
	kafka.describe = func(name string) (Topic, error) {
		if asked++; asked <= away {
			return Topic{}, errAway
		}
		return kafka.topics[name], nil
	}
	cfg := RepublishConfig{Who: "test", Key: "k", Logger: quick().Logger}
	if report, err := Republish(bg, pool, kafka, cfg); err != nil || report.Events != 1 || asked != away+1 {
		t.Errorf("%+v, %v, asked %d times", report, err, asked)
	}
	// Whoever pauses the relays meanwhile, or ends it, is heeded.
	asked, away = 0, 1<<30
	cfg.lookEvery = time.Millisecond
	cfg.Progress = nil
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	ended := make(chan error, 2)
	go func() {
		_, err := Republish(ctx, pool, kafka, cfg)
		ended <- err
	}()
	tries := func() int { kafka.mu.Lock(); defer kafka.mu.Unlock(); return asked }
	patiently(t, "it asks again and again", func() bool { return tries() > 2 })
	cancel()
	if err := receive(t, "it ends", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("told to end it gives %v", err)
	}
	n := tries()
	go func() {
		_, err := Republish(bg, pool, kafka, cfg)
		ended <- err
	}()
	patiently(t, "the next one asks again and again", func() bool { return tries() > n+2 })
	if _, err := SetPause(bg, pool, "", true, "me", "the broker is upgraded"); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "it ends", ended); !errors.Is(err, ErrPaused) {
		t.Errorf("paused it gives %v", err)
	}
}
