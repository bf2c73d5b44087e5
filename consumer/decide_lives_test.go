package consumer

import (
	"testing"

	"github.com/fenceline/fenceline/outbox"
)

// An accepted truncation gives up what was unread, not what waits.
func TestAcceptingATruncationDoesNotGiveUpALifeThatWaits(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrEnd(1, 2), "absorbed 4d")
	s.w.truncated = true
	s.reads(nr(2, 2), "parked 5c gap")
	s.reads(nrEnd(2, 3), "parked 5c gap")
	s.w.truncated = false
	s.w.resume(true)
	s.reads(nr(3, 1), "parked 5e life")
	s.has("1/1")
}

func TestAnEndThatWasSeenBehindAHoleProvesNothingYet(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrEnd(1, 4), "absorbed 4d")
	s.reads(nr(2, 1), "parked 5e life")
	s.reads(nr(1, 2), "applied 4e")
	s.has("1/1 1/2")
	s.reads(nr(1, 3), "applied 4e")
	s.has("1/1 1/2 1/3 2/1")
}

func TestUnderFromOriginALaterLifeIsNotAppliedOverAWaitingFirstOne(t *testing.T) {
	for name, first := range map[string]*outbox.Record{"that has a hole": nr(1, 2), "that fails": nr(1, 1)} {
		t.Run(name, func(t *testing.T) {
			s := newTale(t, Strict, FromOrigin)
			s.w.bad[nr(1, 1).Pos] = true
			d := DecideFailed(s.w.input(first))
			if d.Outcome != Parked {
				t.Fatalf("got %+v", d)
			}
			s.w.process(first)
			s.reads(nr(2, 1), "parked 5e life")
			s.has("")
		})
	}
}

func TestAForgottenLifeIsNotLetInByAnUnsettledGuard(t *testing.T) {
	s := newTale(t, Strict, FromOrigin)
	s.reads(nr(1, 1), "applied 4e")
	s.reads(nrEnd(1, 2), "absorbed 4d")
	s.w.forget()
	s.reads(nr(3, 2), "parked 4f gap")
	s.reads(nr(1, 1), "quarantined 1 before_memory")
	s.reads(nr(3, 1), "applied 4e")
	s.has("1/1 3/1 3/2")
}

// Beyond its bound a guard remembers no more ranges above a hole: the marker
// waits, under strict, until the hole is filled.
func TestMoreSkipsThanAGuardRemembersWaitForTheHole(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	for i := range int64(maxMissed) {
		s.reads(nrSkip(1, 3+2*i, 3+2*i), "absorbed 4d")
	}
	over := int64(3 + 2*maxMissed)
	s.reads(nrSkip(1, over, over), "parked 4d gap")
	s.reads(nr(1, over), "parked 4f gap") // the original: it waits as well, and is stale then
	for seq := int64(2); seq < over; seq += 2 {
		s.reads(nr(1, seq), "applied 4e")
	}
	s.reads(nr(1, over), "stale 4a")
	if s.w.row.Seq != over || len(s.w.park) > 0 || len(s.w.row.Missed) > 2*maxMissed {
		t.Fatalf("guard at %d with %d ranges, %d wait", s.w.row.Seq, len(s.w.row.Missed), len(s.w.park))
	}
}
