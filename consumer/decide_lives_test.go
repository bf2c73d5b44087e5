package consumer

import (
	"fmt"
	"testing"

	"github.com/fenceline/fenceline/outbox"
)

// A. An accepted truncation gives up what was unread, whole lives too: of one
// that nothing names there is no word afterwards. That is why accepting is a
// discard, and is audited as one.
func TestCaseAAcceptingATruncationGivesUpWholeLivesThatNothingNames(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrEnd(1, 2), "absorbed 4d")
	s.w.truncated = true // 2/1 and its end are gone, also from the outbox
	s.reads(nr(3, 1), "parked 5e life")
	s.has("1/1")
	s.w.truncated = false
	s.w.resume(true)
	s.has("1/1 3/1")
}

// B. The key's events move to another partition, and its tombstone is swept, so
// that the later life doesn't name the one that is still unread in the old
// partition: no table can see that. It is why a changed number of partitions is
// refused until somebody says that nothing was swept. With the tombstone it is seen.
func TestCaseBOnlyATombstoneTellsOfALifeInTheOldPartition(t *testing.T) {
	for _, c := range []struct {
		swept bool
		third *outbox.Record
		want  string
	}{{true, nr(3, 1), "applied 5d"}, {false, nrPrev(nr(3, 1), 2, 2), "parked 5e life"}} {
		t.Run(fmt.Sprintf("swept %v", c.swept), func(t *testing.T) {
			s := newTale(t, Strict, FromFirstSeen)
			s.reads(nr(1, 1), "applied 2")
			s.reads(nrEnd(1, 2), "absorbed 4d")
			s.reads(c.third, c.want)
		})
	}
}

// C. The first record that is seen begins a later life, and names the one before
// it, which is unread somewhere else.
func TestCaseCUnderFromOriginTheLifeBeforeTheFirstSeenIsWaitedFor(t *testing.T) {
	s := newTale(t, Strict, FromOrigin)
	s.reads(nrPrev(nr(2, 1), 1, 2), "parked 3e life")
	s.reads(nr(1, 1), "applied 4e")
	s.reads(nrEnd(1, 2), "absorbed 4d")
	s.has("1/1 2/1")
}

// D. The price of a new history: a stream that was closed and swept before it
// waits with its next life, though nothing was lost, since nothing on the wire
// tells. The operator's adopt lets it go on.
func TestCaseDAfterANewHistoryASweptStreamWaitsForAnOperator(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrEnd(1, 2), "absorbed 4d")
	s.reads(nrHistory(nr(17, 1), 10), "parked 5e life")
	s.has("1/1")
	s.w.adopt()
	s.has("1/1 17/1")
}

// A too: it gives up what was unread, not what waits.
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
