package consumer

import (
	"math/rand/v2"
	"os"
	"testing"
)

// Whatever happens to producers, relay, log and consumer, in the end the
// consumer has what a plain fold over the committed events gives: under strict
// all of them in order, under state the newest. On the way nothing is applied
// twice, after something newer or over a hole, and every refusal says the truth.
//
// FENCELINE_LONG=1 walks for some minutes.
func TestRandomHistoriesEndAsAPlainFoldOverWhatWasCommitted(t *testing.T) {
	t.Parallel()
	walks, steps := 12_000, 45
	switch {
	case os.Getenv("FENCELINE_LONG") == "1":
		walks = 600_000
	case raceEnabled || testing.Short():
		walks = 1_500
	}
	for _, c := range []struct {
		name   string
		policy Policy
		start  Start
	}{
		{"strict from first seen", Strict, FromFirstSeen},
		{"strict from origin", Strict, FromOrigin},
		{"state", State, FromFirstSeen},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			hits := map[string]int{}
			for seed := range walks {
				rnd := rand.New(rand.NewPCG(uint64(seed), 11))
				w := newWorld(c.policy, c.start)
				w.limit = rnd.IntN(4) // 0: none
				faults := seed%4 != 0
				for range 5 + rnd.IntN(steps) {
					if w.step(rnd, faults); w.wrong != "" {
						break
					}
				}
				if w.wrong == "" {
					w.close()
				}
				if w.wrong != "" {
					t.Fatalf("seed %d: %s", seed, w.wrong)
				}
				hits["applied"] += len(w.order)
				hits["adopts"] += w.adopts
				hits["restores"] += w.restores
				hits["passes"] += w.passes
			}
			t.Logf("%d walks: %v", walks, hits)
		})
	}
}
