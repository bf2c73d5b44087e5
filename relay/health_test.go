package relay

import (
	"strings"
	"testing"
	"time"
)

func TestALookThatHangsIsNoticedAndWaitingIsNot(t *testing.T) {
	t.Parallel()
	var none *Health
	none.start()
	none.look()
	none.rest()
	var h Health
	if h.Started() || h.Stuck(0) != nil {
		t.Error("before the start")
	}
	h.start()
	h.look()
	if !h.Started() || h.Stuck(time.Hour) != nil {
		t.Error("a look that has begun just now")
	}
	h.set(func() { h.reading = h.reading.Add(-time.Hour) })
	if err := h.Stuck(time.Minute); err == nil || !strings.Contains(err.Error(), "under way for 1h") {
		t.Errorf("a look of an hour: %v", err)
	}
	h.rest()
	if err := h.Stuck(0); err != nil {
		t.Errorf("at rest: %v", err)
	}
	h.end()
	if h.Started() {
		t.Error("after the end")
	}
}

func TestARunningRelayIsHealthyAndOneThatHangsIsNot(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	var h Health
	cfg := quick()
	cfg.Health = &h
	r := startRelay(t, pool, kafka, cfg)
	r.passed(3)
	if !h.Started() || h.Stuck(time.Minute) != nil || len(h.Notes()) != 0 {
		t.Errorf("started %v, %v, notes %q", h.Started(), h.Stuck(time.Minute), h.Notes())
	}
	if _, err := SetPause(bg, pool, "", true, "alice", "lunch"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the note of the pause", func() bool { n := h.Notes(); return len(n) == 1 && strings.Contains(n[0], `paused by "alice"`) })
	eventually(t, "it rests", func() bool { return h.Stuck(0) == nil })
	if _, err := SetPause(bg, pool, "", false, "alice", ""); err != nil {
		t.Fatal(err)
	}
	r.passed(1)
	// A statement that does not come back: the outbox is locked.
	tx, err := pool.Begin(bg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(bg, "lock table fenceline.outbox in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is noticed", func() bool { return h.Stuck(200*time.Millisecond) != nil })
	if err := tx.Rollback(bg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it goes on", func() bool { return h.Stuck(0) == nil })
	r.end()
	if h.Started() {
		t.Error("it has ended")
	}
}
