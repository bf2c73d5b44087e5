package consumer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/outbox"
)

// Histories that simpler contracts got wrong have a number, X1 to X20, and what
// the corrected one still owed a letter, A to G. Most need nothing but the
// decision, and are here or in decide_lives_test.go, by that name. The others:
//
//	X5   a restored outbox, and nothing follows      verify: TestEachDisagreementIsFound (unfollowed)
//	X12  the last events are lost unread             TestX12TheLossOfAStreamsLastEventsIsNeverSilent
//	X13  the same event in another topic             TestTheSameEventInAnotherTopicIsADuplicate, TestOverKafkaMirroredCopies…
//	X14  a topic that is chosen while publishing     relay: TestAnEventComesOutAsItWasAppended
//	B    a topic that grows                          TestAChangedNumberOfPartitionsIsRefused…
//	E    ends of streams without an event            fencing: TestCloseEndsEveryStreamThatTheKeyRemembers
//	F    an end that is to be skipped                relay: TestWhatCannotBeSkippedIsRefusedWithTheRemedy
//	G    a restore that nobody was told of           verify: TestEachDisagreementIsFound (phantom)

// tale tells a history record by record, as short as it can be.
type tale struct {
	*testing.T
	w *world
}

func newTale(t *testing.T, policy Policy, start Start) *tale {
	t.Parallel()
	return &tale{t, newWorld(policy, start)}
}

// nr makes up a record; its Pos tells events apart.
func nr(epoch, seq int64) *outbox.Record {
	r := &outbox.Record{Pos: epoch*1000 + seq, Topic: "s", Stream: "s", Key: "k", Kind: outbox.KindData, Epoch: epoch, Token: 1, Seq: seq}
	if seq == 1 {
		r.History = 1
	}
	return r
}

func nrSkip(epoch, from, to int64) *outbox.Record {
	r := nr(epoch, to)
	r.Kind, r.From, r.History = outbox.KindSkip, from, 0
	if from == 1 {
		r.History = 1
	}
	return r
}

func nrEnd(epoch, seq int64) *outbox.Record {
	r := nr(epoch, seq)
	r.Kind = outbox.KindEnd
	return r
}

func nrPrev(r *outbox.Record, epoch, seq int64) *outbox.Record {
	r.Prev = &Prev{Epoch: epoch, Seq: seq}
	return r
}

func nrToken(r *outbox.Record, token int64) *outbox.Record { r.Token = token; return r }

func nrHistory(r *outbox.Record, history int64) *outbox.Record { r.History = history; return r }

// reads hands a record to the consumer and asserts what becomes of it, as in
// "parked 5e life".
func (s *tale) reads(r *outbox.Record, want string) {
	s.Helper()
	d := Decide(s.w.input(r))
	if d.Outcome == Applied && s.w.bad[r.Pos] {
		d = DecideFailed(s.w.input(r))
	}
	if got := strings.TrimSpace(fmt.Sprintf("%s %s %s", d.Outcome, d.Rule, d.Reason)); got != want {
		s.Fatalf("%s: got %s, want %s; guard %+v", name(r), got, want, s.w.row)
	}
	s.w.process(r)
	if s.w.wrong != "" {
		s.Fatal(s.w.wrong)
	}
}

// has asserts what was applied, in order, as in "1/1 1/2".
func (s *tale) has(want string) {
	s.Helper()
	var got []string
	for _, r := range s.w.order {
		got = append(got, fmt.Sprintf("%d/%d", r.Epoch, r.Seq))
	}
	if strings.Join(got, " ") != want {
		s.Fatalf("applied %q, want %q", strings.Join(got, " "), want)
	}
}

func TestX1ANewLifeDoesNotHideTheOldOnesTail(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nr(2, 1), "parked 5e life") // 1/2 was removed before it was read
	s.reads(nr(1, 2), "applied 4e")     // republished
	s.reads(nrEnd(1, 3), "absorbed 4d")
	s.has("1/1 1/2 2/1")
}

func TestX1AConsumerWithoutAGuardDoesNotTakeALaterLifeForTheOrigin(t *testing.T) {
	s := newTale(t, Strict, FromOrigin)
	s.w.truncated = true
	s.reads(nr(2, 1), "parked 3d gap")
	s.reads(nr(1, 1), "parked 3d gap")
	s.reads(nrEnd(1, 2), "parked 3d gap")
	s.w.truncated = false
	s.w.resume(true)
	s.has("1/1 2/1")
}

func TestX2AHoleInANewLifeIsNotTheNextEvent(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nr(2, 2), "parked 5c gap")
	s.has("1/1")
}

func TestX3ALifeThatOvertakesAHeldTailWaits(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrPrev(nr(2, 1), 1, 2), "parked 5e life")
	s.reads(nr(1, 2), "applied 4e")
	s.has("1/1 1/2 2/1")
}

func TestX4AfterARestoreNothingIsAppliedOverWhatWasLost(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nr(1, 2), "applied 4e") // lost by the restore
	s.reads(nrPrev(nrHistory(nr(17, 1), 10), 1, 1), "parked 5e life")
	s.reads(nr(17, 2), "parked 5c gap")
	s.has("1/1 1/2")
}

func TestX6AnEndThatWasLostProvesNothing(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrEnd(1, 2), "absorbed 4d")
	s.reads(nrHistory(nr(17, 1), 10), "parked 5e life")
	s.has("1/1")
}

func TestX7ARewindIsDuplicatesAndOnlyWhatWasNeverAppliedIsStale(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrToken(nr(1, 2), 2), "applied 4e")
	s.reads(nr(1, 1), "duplicate 4c")
	s.reads(nrPrev(nr(2, 1), 1, 2), "applied 5d")
	s.reads(nrToken(nr(1, 2), 2), "stale 3c")
}

func TestX7UnderStateALateEventIsNoDuplicate(t *testing.T) {
	s := newTale(t, State, FromFirstSeen)
	s.reads(nr(1, 2), "applied 2")
	s.reads(nr(1, 1), "before_start 4c")
	s.reads(nr(1, 4), "applied 4f")
	s.reads(nr(1, 3), "stale 4a")
	s.reads(nr(1, 2), "duplicate 4c")
}

func TestX8ASkippedEventThatLandsLateIsStale(t *testing.T) {
	for _, policy := range []Policy{Strict, State} {
		t.Run(string(policy), func(t *testing.T) {
			s := newTale(t, policy, FromFirstSeen)
			s.reads(nr(1, 1), "applied 2")
			s.reads(nrSkip(1, 2, 3), "absorbed 4d")
			s.reads(nr(1, 2), "stale 4a")
			s.reads(nr(1, 4), "applied 4e")
			s.has("1/1 1/4")
		})
	}
}

func TestX8ADiscardedEventThatComesAgainIsStale(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.w.bad[nr(1, 2).Pos] = true
	s.reads(nr(1, 2), "parked 4e failing")
	s.w.discard(s.w.park[0])
	s.w.bad = map[int64]bool{}
	s.reads(nr(1, 2), "stale 4a")
	s.reads(nr(1, 3), "applied 4e")
	s.has("1/1 1/3")
}

func TestX9AMarkerNeverMovesAStateGuardPastAnEvent(t *testing.T) {
	s := newTale(t, State, FromFirstSeen)
	s.w.bad[nr(1, 1).Pos] = true
	s.reads(nr(1, 1), "dead_lettered 2")
	s.reads(nrSkip(1, 2, 2), "ignored 2")
	s.w.bad = map[int64]bool{}
	s.reads(nr(1, 1), "applied 2") // the redrive
	s.reads(nrSkip(2, 1, 1), "ignored 5a")
	s.reads(nr(1, 2), "applied 4e")
	s.has("1/1 1/2")
}

func TestX10AFirstEventThatFailsIsNotReplacedByTheSecond(t *testing.T) {
	for _, start := range []Start{FromFirstSeen, FromOrigin} {
		t.Run(string(start), func(t *testing.T) {
			s := newTale(t, Strict, start)
			s.w.bad[nr(1, 1).Pos] = true
			rule := map[Start]string{FromFirstSeen: "2", FromOrigin: "4e"}[start]
			s.reads(nr(1, 1), "parked "+rule+" failing")
			s.reads(nr(1, 2), "parked 4f gap")
			s.reads(nr(2, 1), "parked 5e life")
			s.w.bad = map[int64]bool{}
			s.w.resume(true)
			s.has("1/1 1/2")
		})
	}
}

// The park is full: 1/4 is decided, but not stored. The guard has its row all
// the same, and reading goes on to the one that fills the hole.
func TestX11TheFillerArrivesBehindWhatAFullParkDidNotStore(t *testing.T) {
	s := newTale(t, Strict, FromOrigin)
	s.reads(nr(1, 2), "parked 4f gap")
	s.reads(nr(1, 3), "parked 4f gap")
	s.w.row = Decide(s.w.input(nr(1, 4))).Row
	s.reads(nr(1, 1), "applied 4e")
	s.has("1/1 1/2 1/3")
	s.reads(nr(1, 4), "applied 4e") // read again from the overflow's offset
}

func TestX15AForgottenLifeIsNotAppliedAgain(t *testing.T) {
	for _, policy := range []Policy{Strict, State} {
		t.Run(string(policy), func(t *testing.T) {
			s := newTale(t, policy, FromFirstSeen)
			s.reads(nr(1, 1), "applied 2")
			s.reads(nrEnd(1, 2), "absorbed 4d")
			s.w.forget()
			s.reads(nr(1, 1), "quarantined 1 before_memory")
			s.reads(nr(2, 1), "applied 2")
		})
	}
}

func TestX16AZombiesCopyCanBeTheBaselineAndNothingAfterItIsLost(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 3), "applied 2") // late
	s.reads(nr(1, 6), "parked 4f gap")
	s.reads(nr(1, 4), "applied 4e") // republished
	s.reads(nr(1, 5), "applied 4e")
	s.reads(nr(1, 2), "before_start 4c")
	s.has("1/3 1/4 1/5 1/6")
}

func TestX17ALifeOlderThanTheOriginRaisesAnAlarm(t *testing.T) {
	s := newTale(t, Strict, FromOrigin)
	s.reads(nr(2, 1), "applied 4e") // its predecessor is unread in another partition, and swept
	if d := Decide(s.w.input(nr(1, 1))); d.Outcome != Quarantined || d.Reason != BeforeOrigin || !d.Alarm {
		t.Fatalf("got %+v", d)
	}
}

func TestX17ALifeThatNamesItsPredecessorWaitsForIt(t *testing.T) {
	s := newTale(t, Strict, FromOrigin)
	s.reads(nrPrev(nr(2, 1), 1, 2), "parked 3e life")
	s.reads(nr(1, 1), "applied 4e")
	s.reads(nr(1, 2), "applied 4e")
	s.has("1/1 1/2 2/1")
}

// The row of an unread life only ever goes down: otherwise the second of these
// would hide that something of the first waits.
func TestX17TwoLivesThatNameTheirPredecessorsAreAppliedInOrder(t *testing.T) {
	for name, first := range map[string]bool{"the earlier one first": true, "the later one first": false} {
		t.Run(name, func(t *testing.T) {
			s := newTale(t, Strict, FromOrigin)
			two, three := nrPrev(nr(2, 1), 1, 1), nrPrev(nr(3, 1), 2, 1)
			if first {
				s.reads(two, "parked 3e life")
				s.reads(three, "parked 3e life")
			} else {
				s.reads(three, "parked 3e life")
				s.reads(two, "parked 3e life")
			}
			s.reads(nr(5, 1), "parked 5e life")
			s.reads(nr(1, 1), "applied 4e")
			s.has("1/1 2/1 3/1")
		})
	}
}

// The row that was made for a hole in an earlier life must not follow a later
// life's word up: the life in between, swept and so without a predecessor, would
// be taken for the first.
func TestX17ARowThatWaitsForAnEarlierLifeStaysThere(t *testing.T) {
	s := newTale(t, Strict, FromOrigin)
	s.reads(nr(1, 2), "parked 4f gap")
	s.reads(nrPrev(nr(3, 1), 2, 1), "parked 3e life")
	s.reads(nr(2, 1), "parked 5e life")
	s.reads(nr(1, 1), "applied 4e")
	s.reads(nrEnd(1, 3), "absorbed 4d")
	s.has("1/1 1/2 2/1 3/1")
}

func TestX18ADiscardedDeadLetterIsStaleWhereverTheGuardIs(t *testing.T) {
	s := newTale(t, State, FromFirstSeen)
	s.w.discarded[nr(1, 1).Pos] = true
	s.reads(nr(1, 1), "stale 2")
	s.w.discarded[nr(2, 1).Pos] = true
	s.reads(nr(1, 2), "applied 2")
	s.reads(nr(2, 1), "stale 5a")
	s.w.discarded[nr(1, 4).Pos] = true
	s.reads(nr(1, 4), "stale 4f")
	s.reads(nr(1, 3), "applied 4e")
	s.has("1/2 1/3")
}

func TestX19AnEndProvesOnlyItsOwnLife(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrEnd(1, 2), "absorbed 4d")
	s.reads(nr(3, 2), "parked 5c gap") // 3/1 was lost
	s.reads(nr(4, 1), "parked 5e life")
	s.reads(nr(3, 1), "applied 5d")
	s.reads(nrEnd(3, 3), "absorbed 4d")
	s.has("1/1 3/1 3/2 4/1")
}

func TestX19WhilePartOfThePartitionIsUnreadNoLifeIsProven(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrEnd(1, 2), "absorbed 4d")
	s.w.truncated = true
	s.reads(nr(4, 1), "parked 5e life")
	s.reads(nrPrev(nr(5, 1), 1, 2), "parked 5e life")
	s.reads(nrPrev(nr(3, 1), 1, 2), "parked 5e life") // republished
	s.reads(nrEnd(3, 2), "parked 5c gap")
	s.w.truncated = false
	s.w.resume(true)
	s.has("1/1 3/1 4/1")
}

// A record that doesn't fit into the park is remembered in the guard: a later
// life is not proven over it.
func TestX20WhatAFullParkDidNotStoreStillWaits(t *testing.T) {
	s := newTale(t, Strict, FromFirstSeen)
	s.reads(nr(1, 1), "applied 2")
	s.reads(nrEnd(1, 2), "absorbed 4d")
	s.w.row = Decide(s.w.input(nr(17, 2))).Row // not stored
	s.reads(nr(20, 1), "parked 5e life")
	s.has("1/1")
}
