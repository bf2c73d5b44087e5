package relay

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// What an operator has decided is no error of anybody's, and what is given up is
// not called published.
func TestTheLogOfARetiredTopicSaysWhatHappensToIt(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	o := operator(t, pool)
	var log safeBuffer
	cfg := steady()
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	var forked, joined atomic.Int32
	cfg.Hooks.Forked = func(string, string) { forked.Add(1) }
	cfg.Hooks.Joined = func(string) { joined.Add(1) }
	p := newProducer(t, pool, "k")
	p.publish("t", "1")
	r := startRelay(t, pool, kafka, cfg)
	patiently(t, "it is published", func() bool { return kafka.has("t", "1") })
	kafka.remove("t")
	p.publish("t", "lost")
	patiently(t, "it is refused", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 1 })
	st, err := ReadStatus(bg, pool, "")
	if err != nil || len(st.Forks) != 1 || st.Forks[0].Retired {
		t.Errorf("%+v, %v", st.Forks, err)
	}
	if _, err := o.RetireTopic(bg, "t", me); err != nil {
		t.Fatal(err)
	}
	patiently(t, "all that waited has its verdict", func() bool {
		return strings.Contains(log.String(), "all that waited for a retired topic has its verdict")
	})
	if strings.Contains(log.String(), "published again") {
		t.Errorf("what was given up is called published:\n%s", log.String())
	}

	// From here on everything is as an operator wants it.
	errors := strings.Count(log.String(), "level=ERROR")
	kafka.create("t", 3)
	if err := o.AcceptTopic(bg, "t", 3, true, me); err != nil {
		t.Fatal(err)
	}
	patiently(t, "it is in use again", func() bool {
		p.publish("t", "new")
		return kafka.has("t", "new")
	})
	patiently(t, "the log says that it is", func() bool { return strings.Contains(log.String(), "topic is published again and has caught up") })
	r.end()
	if n := strings.Count(log.String(), "level=ERROR"); n != errors || !strings.Contains(log.String(), `msg="an operator has decided about a topic; it is looked at anew"`) {
		t.Errorf("%d errors for what an operator has decided:\n%s", n-errors, log.String())
	}
	if forked.Load() != 1 || joined.Load() != 2 {
		t.Errorf("told of %d refusals and %d joins, want the broker's one, and both joins", forked.Load(), joined.Load())
	}
}

// An attempt that waits for its answer for a long time is part of the outage that
// it meets.
func TestAnOutageIsAsOldAsTheAttemptThatMetIt(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	const wait = 300 * time.Millisecond
	var attempts atomic.Int32
	kafka.answer(func(ctx context.Context, _ *Batch) error {
		if attempts.Add(1) > 1 {
			return nil
		}
		select {
		case <-time.After(wait): // the answer that doesn't come
		case <-ctx.Done():
		}
		return errAway
	})
	ended := make(chan time.Duration, 10)
	cfg := steady()
	cfg.Hooks.OutageEnded = func(lasted time.Duration) { ended <- lasted }
	r := startRelay(t, pool, kafka, cfg)
	newProducer(t, pool, "k").publish("a", "1")
	if lasted := receive(t, "the end of the outage", ended); lasted < wait {
		t.Errorf("it lasted %v, and the attempt alone took %v", lasted, wait)
	}
	r.end()
}
