package relay

import (
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
)

// A figure of what is overdue would stay for ever where it was told last, and an
// alarm with it.
func TestAnInstanceLearnsThatTheRetentionIsAnothersNow(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	instance := func(name string) *fencing.Fences {
		f, err := fencing.New(bg, pool, fencing.Config{Holder: name, System: true, AllowUnsafeDatabase: true, Logger: quick().Logger})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	lost := 0
	cfg := quick()
	cfg.Hooks.RetentionLost = func() { lost++ }
	k := &keeper{pool: pool, fences: instance("one"), cfg: cfg.withDefaults(), retention: RetentionConfig{}.withDefaults()}
	turns := func(n int) (ours int) {
		for range n {
			if k.ours(bg) {
				k.pass(bg)
				ours++
			}
		}
		return ours
	}
	if turns(2) != 2 || lost != 0 {
		t.Fatalf("alone, it does not take care of it; told %d times that another one does", lost)
	}
	if err := k.lease.Release(bg); err != nil { // as it ends when the instance was away
		t.Fatal(err)
	}
	other, err := instance("two").Acquire(bg, RetentionKey, fencing.LeaseConfig{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if turns(2) != 0 || lost != 1 {
		t.Errorf("the other has it: told %d times, want once", lost)
	}
	if err := other.Release(bg); err != nil {
		t.Fatal(err)
	}
	if turns(1) != 1 || lost != 1 {
		t.Errorf("it has it again: told %d times", lost)
	}
}
