package consumer

import (
	"testing"
	"time"
)

// Each reading leaves at least as much time as it took, more if it was in vain,
// and something new is read between two if there is something.
func TestReadingAgainLeavesTimeForWhatIsNew(t *testing.T) {
	t.Parallel()
	const every = 100 * time.Millisecond
	now := time.UnixMilli(1_764_000_000_000)
	var r rereading
	pass := func(took time.Duration, applies bool) {
		t.Helper()
		r.asked = now
		r.begin(now, 50)
		if r.due(now, 30, 90, every) {
			t.Fatal("another one is due while one is under way")
		}
		if applies {
			r.applied(&Result{Offset: 40})
		}
		now = now.Add(took)
	}
	// waits is how long it takes until the next one is due, at offset 60.
	waits := func() time.Duration {
		t.Helper()
		began := now
		for !r.due(now, 60, 90, every) {
			if now = now.Add(every / 10); now.Sub(began) > time.Hour {
				t.Fatal("none is ever due again")
			}
		}
		return now.Sub(began)
	}
	if !r.due(now, 0, 90, every) {
		t.Error("the first one is not due")
	}
	pass(3*time.Second, true)
	if r.due(now, 50, 90, every) || r.due(now.Add(time.Hour), 50, 90, every) {
		t.Error("one is due although something new is there, and none of it was read")
	}
	if got := waits(); got != 3*time.Second {
		t.Errorf("after one of 3 s that has got on it waits %v", got)
	}
	for i, want := range []time.Duration{6, 12, 24, 48, 60, 60} {
		pass(3*time.Second, false)
		if got := waits(); got != want*time.Second {
			t.Errorf("after %d in vain it waits %v, want %v s", i+1, got, int(want))
		}
	}
	pass(100*time.Second, false)
	if got := waits(); got != 100*time.Second {
		t.Errorf("after one of 100 s it waits %v", got)
	}
	pass(3*time.Second, false)
	r.due(now, 60, 90, every)
	r.applied(&Result{Offset: 70, Resumed: true})
	if got := waits(); got != 3*time.Second {
		t.Errorf("when the park has got on it waits %v", got)
	}
	pass(3*time.Second, false)
	r.applied(&Result{Offset: 70}) // new, and nothing to the rest
	if got := waits(); got != 6*time.Second {
		t.Errorf("after an event that is new it waits %v", got)
	}
	pass(time.Second, false)
	if r.due(now, 50, 50, every); !r.due(now.Add(time.Hour), 50, 50, every) {
		t.Error("none is due although there is nothing new")
	}
}
