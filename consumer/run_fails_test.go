package consumer

import (
	"log/slog"
	"testing"
	"time"
)

// What is remembered of a parked event that has failed ends with its decision: a
// consumer that runs for months would keep an entry of each.
func TestTheTriesOfAParkedEventAreForgottenWhenItIsDecided(t *testing.T) {
	t.Parallel()
	done := Position{StreamKey: StreamKey{"s", "done"}, Epoch: 1, Seq: 2}
	other := Position{StreamKey: StreamKey{"s", "other"}, Epoch: 1, Seq: 2}
	p := &partition{runner: &runner{log: slog.New(slog.DiscardHandler)}, failed: fails{done: 1, other: 1}, lost: fails{done: 2, other: 2}}
	p.committed([]Result{{Position: done, Outcome: Applied, Resumed: true}, {Position: other, Outcome: Duplicate}}, time.Now())
	for name, tries := range map[string]fails{"failed": p.failed, "lost": p.lost} {
		if _, is := tries[done]; is || len(tries) != 1 {
			t.Errorf("%s has %v, want the other one alone", name, tries)
		}
	}
}
