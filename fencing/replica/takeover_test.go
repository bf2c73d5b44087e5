package replica_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing/replica"
)

// The replica has received all and replayed nothing: whoever looked at what it
// has received would read the old generation.
func TestAReadAfterATakeoverNeverGivesTheOldGenerationAsNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	reader := w.reader(standby)
	first := w.takeOver("k")
	w.report(first, "old")
	w.ok(standby.CatchUp(ctx))
	w.ok(standby.PauseReplay(ctx))
	second := w.takeOver("k")
	position := w.report(second, "new")
	generation := replica.Generation(second.Position())

	for name, point := range map[string]replica.Point{"position": position, "generation": generation} {
		t.Run(name, func(t *testing.T) {
			text, result, err := body(reader, "k", point, replica.Primary())
			if err != nil || text != "new" || !result.FromPrimary() || !result.Proven || result.Stale {
				t.Errorf("primary: %q, %+v, %v", text, result, err)
			}
			text, result, err = body(reader, "k", point, replica.WaitThenPrimary(100*time.Millisecond))
			if err != nil || text != "new" || !result.FromPrimary() || !result.Proven || len(result.Refusals) != 1 || !errors.Is(result.Refusals[0], replica.ErrBehind) {
				t.Errorf("wait then primary: %q, %+v, %v", text, result, err)
			}
			if result.Waited < 100*time.Millisecond {
				t.Errorf("it waited for %v only", result.Waited)
			}
			text, result, err = body(reader, "k", point, replica.WaitThenPending(100*time.Millisecond))
			if !errors.Is(err, replica.ErrPending) || !errors.Is(err, replica.ErrBehind) || !result.Pending || text != "" {
				t.Errorf("wait then pending: %q, %+v, %v", text, result, err)
			}
			text, result, err = body(reader, "k", point, replica.MarkedStale(0))
			if err != nil || text != "old" || !result.Stale || result.Proven || result.FromPrimary() || result.Lag <= 0 {
				t.Errorf("marked stale: %q, %+v, %v", text, result, err)
			}
		})
	}

	// As soon as it has replayed, it serves: nobody waits for the whole time.
	type answer struct {
		text   string
		result replica.Result
		err    error
	}
	answers := make(chan answer, 2)
	for _, point := range []replica.Point{position, generation} {
		go func() {
			text, result, err := body(reader, "k", point, replica.WaitThenPending(15*time.Second))
			answers <- answer{text, result, err}
		}()
	}
	w.waits(standby.Postgres)
	w.ok(standby.ResumeReplay(ctx))
	for range 2 {
		a := <-answers
		if a.err != nil || a.text != "new" || a.result.FromPrimary() || !a.result.Proven || a.result.Stale {
			t.Errorf("after the replay: %q, %+v, %v", a.text, a.result, a.err)
		}
		if a.result.Waited > 10*time.Second {
			t.Errorf("it waited for %v", a.result.Waited)
		}
	}
}

func TestAGenerationWithoutAResultIsPendingAndNotTheEarlierOnesResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	reader := w.reader(standby)
	first := w.takeOver("k")
	w.report(first, "old")
	asked := replica.Generation(first.Position())
	if text, _, err := body(reader, "k", asked, replica.WaitThenPending(10*time.Second)); err != nil || text != "old" {
		t.Fatalf("%q, %v", text, err)
	}
	second := w.takeOver("k") // which commits nothing yet
	w.ok(standby.CatchUp(ctx))
	for _, policy := range []replica.Policy{replica.Primary(), replica.WaitThenPrimary(10 * time.Millisecond), replica.WaitThenPending(10 * time.Millisecond)} {
		text, result, err := body(reader, "k", asked, policy)
		if !errors.Is(err, replica.ErrPending) || !result.Pending || text != "" || result.Shown != replica.Generation(second.Position()) {
			t.Errorf("%v: %q, %+v, %v", policy, text, result, err)
		}
	}
	text, result, err := body(reader, "k", asked, replica.MarkedStale(0))
	if err != nil || text != "old" || !result.Stale || !result.Pending {
		t.Errorf("marked stale: %q, %+v, %v", text, result, err)
	}
	w.ok(standby.Stop(ctx))
	text, result, err = body(reader, "k", asked, replica.MarkedStale(0))
	if err != nil || text != "old" || !result.Stale || !result.Pending || !result.FromPrimary() {
		t.Errorf("marked stale, from the primary: %q, %+v, %v", text, result, err)
	}
	w.report(second, "new")
	if text, _, err := body(reader, "k", asked, replica.Primary()); err != nil || text != "new" {
		t.Errorf("after the result: %q, %v", text, err)
	}
}

func TestAClosedLifeIsNotPendingForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := w.reader()
	lease := w.takeOver("k")
	w.exec("update fenceline.fence set closed_at = now() where key = 'k'")
	_, result, err := body(reader, "k", replica.Generation(lease.Position()), replica.Primary())
	if err != nil || !result.Closed || result.Pending {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestAPrimaryThatHasLostWhatWasAskedForSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := w.reader()
	lease := w.takeOver("k")
	position := w.report(lease, "x")
	position.LSN += 1 << 30
	generation := replica.Generation(lease.Position())
	generation.Token++
	for _, point := range []replica.Point{position, generation, replica.Generation{Key: "never", Epoch: 1, Token: 1}} {
		for _, policy := range []replica.Policy{replica.Primary(), replica.WaitThenPrimary(0), replica.MarkedStale(0)} {
			if _, _, err := body(reader, "k", point, policy); !errors.Is(err, replica.ErrAhead) {
				t.Errorf("%v, %v: %v, want ErrAhead", point, policy, err)
			}
		}
	}
}

// One of two replicas doesn't replay: the other's progress is not missed.
func TestAReplicaThatLagsDoesNotKeepAReadFromOneThatCatchesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lagging, quick := w.replica(nil), w.replica(nil)
	reader := w.reader(lagging, quick)
	w.ok(lagging.PauseReplay(ctx))
	position := w.report(w.takeOver("k"), "new")
	for range 4 { // whichever is looked at first
		text, result, err := body(reader, "k", position, replica.WaitThenPending(18*time.Second))
		if err != nil || text != "new" || result.Replica != 1 || result.Waited > 12*time.Second {
			t.Errorf("%q, %+v, %v", text, result, err)
		}
	}
}
