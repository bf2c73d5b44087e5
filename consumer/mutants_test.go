package consumer_test

import (
	"os"
	"testing"

	mutation "github.com/fenceline/fenceline/internal/mutants"
)

// mutant is this package with one rule taken out, and the test that must fail
// then: what no test misses is not known to be needed.
type mutant struct {
	name     string
	file     string
	old, new string
	test     string
}

var mutants = []mutant{
	{"a guard on epoch and token alone", "decide.go",
		"case rec.Seq <= row.Seq:", "case rec.Seq <= row.Seq || rec.Token == row.Token:", "TestAThousandEventsOfOneTokenAreAllApplied"},
	{"< for <=", "decide.go",
		"case rec.Seq <= row.Seq:", "case rec.Seq < row.Seq:", "TestSkippedEventsArePassedAndNeverAppliedAfterwards"},
	{"a guard in a transaction of its own", "guard.go",
		"		err = b.explainStale(results)\n", "		_, err = b.tx.Exec(b.ctx, \"commit and chain\")\n", "TestACrashBeforeCommitLeavesNothing"},
	{"a park without order", "guard_sql.go",
		" order by epoch, from_seq, kind desc, seq\n limit $7::int8`", " order by parked_at, kind limit $7::int8`", "TestAParkedSkipIsDecidedBeforeTheEventThatItGivesUp"},
	{"a guard for each topic", "mapping.go",
		"rec.Topic = p.Topic", "rec.Topic, rec.Stream = p.Topic, p.Topic", "TestTheSameEventInAnotherTopicIsADuplicate"},
	{"a new life without proof", "decide.go",
		"case !t.proven():", "case false:", "TestX1ANewLifeDoesNotHideTheOldOnesTail"},
	{"a hole in a new life taken for the next event", "decide.go",
		"case rec.First() != 1:", "case rec.First() != 1 && rec.First() != row.Seq+1:", "TestX2AHoleInANewLifeIsNotTheNextEvent"},
	{"a proof while part of the log is unread", "decide.go",
		"if t.in.Truncated || ", "if ", "TestX19WhilePartOfThePartitionIsUnreadNoLifeIsProven"},
	{"a proof over a life that waits", "decide.go",
		"|| row.WaitingEpoch != 0 && row.WaitingEpoch < rec.Epoch", "", "TestX19AnEndProvesOnlyItsOwnLife"},
	{"an end that was seen taken for reached", "decide_row.go",
		"return r.EndSeq != 0 && r.Seq == r.EndSeq", "return r.EndSeq != 0", "TestAnEndThatWasSeenBehindAHoleProvesNothingYet"},
	{"an end of before a restore as a proof", "decide.go",
		"row.Ended() && rec.History != 0 && row.Epoch >= rec.History", "row.Ended()", "TestX6AnEndThatWasLostProvesNothing"},
	{"no memory of what was given up", "decide.go",
		"case data && row.Missed.Contains(rec.Seq):", "case false:", "TestX8ASkippedEventThatLandsLateIsStale"},
	{"a marker that moves a state guard", "decide.go",
		"	case !strict:\n		return t.ignore(\"5a\")", "	case !strict:\n		return t.absorb(\"5a\", &entered)", "TestX9AMarkerNeverMovesAStateGuardPastAnEvent"},
	{"a first event that fails and makes no guard", "guard_apply.go",
		"if dec.Changed {", "if dec.Changed && dec.Reason != Failing {", "TestAFirstEventThatFailsIsWhereTheStreamBegins"},
	{"no forgotten", "guard.go",
		"forgotten := b.forgotten[rec.Stream]", "forgotten := int64(0)", "TestAForgottenLifeIsNotLetInAgain"},
	{"a discarded dead letter that is not consulted", "decide.go",
		"case t.in.Policy == State && t.in.Discarded:", "case false:", "TestX18ADiscardedDeadLetterIsStaleWhereverTheGuardIs"},
	{"a head that a full park does not store", "guard_limits.go",
		"!full || next(row, d)", "!full", "TestTheNextEventOfAStreamIsStoredHoweverFullTheParkIs"},
	{"a full park that keeps what is highest", "guard_limits.go",
		"high == nil || !lower(d, high)", "true", "TestALowerRecordTakesThePlaceOfTheHighest"},
	{"an overflow that is not remembered", "offsets_read.go",
		"if !res.Unstored {", "if true {", "TestWhatAFullParkCantStoreIsReadAgainWhenTheHoleIsFilled"},
	{"what is not stored does not wait", "guard_apply.go",
		"if b.holds(e) {", "if false {", "TestALaterLifeWaitsForOneThatIsNotStored"},
	{"a guard that is not locked", "guard_sql.go",
		" for no key update) g`", ") g`", "TestAMemberInsideItsHandlerIsWaitedFor"},
	{"a guard of an event alone that is not locked", "guard_sql.go",
		"\n   for no key update`", "`", "TestAMemberInsideItsHandlerIsWaitedFor"},
	{"a flag that is read without its row being held", "guard_sql.go",
		"\n                        for key share)", ")", "TestAcceptingWaitsForThoseWhoDecideWhileTheFlagStands"},
	{"a retry of what was erased", "parked.go",
		"(p.reason == Failing || p.erased):", "p.reason == Failing && !p.erased:", "TestAnErasedRecordIsGoneAndItsPlaceIsNot"},
	{"an adoption that goes backwards", "operate_parked.go",
		"epoch < row.Epoch || epoch == row.Epoch && seq <= row.Seq+1", "epoch < row.Epoch", "TestAnAdoptedPositionIsTheNextAndTheRestIsGivenUp"},
	{"an end that is discarded", "operate_parked.go",
		"case row.EndSeq != 0 && to >= row.EndSeq:", "case false:", "TestADiscardGivesUpNothingThatIsNotItsOwnToGiveUp"},
	{"guards that are not where they were locked", "guard_apply.go",
		"if tag.RowsAffected() != int64(n) {", "if false {", "TestAHandlerThatWritesToAGuardCommitsNothing"},
	{"guards that are not where they were locked, in front of a COMMIT", "run_end.go",
		"(select count(*) from moved) = $6::int8", "(select count(*) from moved) <= $6::int8", "TestAHandlerThatWritesToItsGuardCommitsNothingAndItsEventIsParked"},
	{"another transaction's COMMIT", "run_end.go",
		"select ` + markSQL + `,", "select 1 / (coalesce($1, '') = $1)::int,", "TestATransactionThatAHandlerEndsIsNoticedAtTheEndOfALargeBatch"},
	{"another transaction's COMMIT behind a small batch", "run_end.go",
		"select ` + numberedFrom(5, markSQL) + `,", "select 1 / (coalesce($5, '') = $5)::int,", "TestATransactionThatAHandlerEndsIsNoticedHoweverItDoesIt"},
	{"a rollback behind each commit", "run_tx.go",
		"if t.Tx != nil && !t.ended {", "if t.Tx != nil {", "TestAnEventThatComesAloneTakesTwoRoundTripsAndItsHandlers"},
	{"a statement that fails behind each commit", "run_tx.go",
		"	if t.kept {\n", "	if true {\n", "TestATracerOfThePoolsIsToldOfNoFailureWhereThereIsNone"},
	{"a transaction that is kept and goes on", "run_lent.go",
		"if l.own != nil && l.own.over.Load() {", "if false {", "TestATransactionThatAHandlerHasKeptIsOver"},
	{"a deferred trigger's right that is an event's fault", "run_tx.go",
		"case committing && refusedStatement(err) == nil:", "case committing:", "TestARightThatADeferredTriggerLacksEndsRunAndIsBlamedOnNoEvent"},
	{"a passing failure that keeps other keys", "run_resume.go",
		"more = !p.inTurn", "more = true", "TestAParkedEventThatFailsForAPassingReasonKeepsNoOtherKeys"},
	{"a dead letter that is refused and keeps the others", "run_letters.go",
		"		h.aside.add(h.handed[0].Position)\n", "", "TestADeadLetterThatItsSinkRefusesForEverKeepsNoOther"},
	{"a commit whose time begins with its batch", "run_tx.go",
		"	end := last{whole: p.whole}\n", "	ctx, giveUp := context.WithTimeout(ctx, p.cfg.CommitTimeout)\n	defer giveUp()\n	end := last{whole: p.whole}\n", "TestTheHandlersOfABatchMayTakeLongerThanACommit"},
	{"a severity in the server's language", "../internal/pgsession/session.go",
		"s := pg.SeverityUnlocalized", "s := pg.Severity", "TestALoginThatIsRefusedInAnotherLanguageEndsRunAsWell"},
	{"an answer that is waited for without a bound", "run_bound.go",
		"return context.WithTimeout(ctx, t.patience)", "return context.WithCancel(ctx)", "TestADatabaseThatVanishesWithoutAWordIsLeftAndTold"},
	{"a batch that is never cut", "guard.go",
		"return b.last != nil && b.last.whole.Err() != nil", "return false", "TestABatchThatTakesLongIsCutAtTheStopAndNothingOfItIsDoneTwice"},
	{"results that miss what an answer adds", "guard_apply.go",
		"if b.queued > 0 || b.tells {", "if b.queued > 0 {", "TestRunTellsOfAParkedRecordThatCantBeReadAnyMore"},
	{"what fails at COMMIT blamed on what arrived", "run_batch.go",
		"case !c.alone && handled > 1:", "case false:", "TestAnEventOutOfTheParkThatFailsAtCommitIsBlamedAndNotTheOneThatMadeItsTurn"},
	{"a guard that is known taken for one that is there", "guard_load.go",
		"if len(b.entries) == len(keys) {", "if true {", "TestAGuardThatIsGoneAlthoughItWasSeenIsMadeAnew"},
	{"a short move that leaves the missed out", "guard_move.go",
		" && slices.Equal(r.Missed, was.Missed)", " && (true || slices.Equal(r.Missed, was.Missed))", "TestTheShortStatementIsTakenOnlyWhereNothingButThePositionHasChanged"},
	{"a reading of what did not fit before what is new", "run_again.go",
		"if at == r.to && at < end && !r.began.IsZero() {", "if false {", "TestReadingAgainLeavesTimeForWhatIsNew"},
	{"a reading of what did not fit right behind another", "run_again.go",
		"now.Sub(r.ended) >= pause && ", "now.Sub(r.ended) >= min(pause, 0) && ", "TestReadingAgainLeavesTimeForWhatIsNew"},
	{"a reading of what did not fit that goes forwards", "run_again.go",
		" || p.over >= p.offset", "", "TestWhatDidNotFitInATopicThatIsGoneHidesNothingOfTheNewOne"},
	{"a park that is full again and keeps what is next from being read", "run_batch.go",
		"		if r.Unread {", "		if false {", "TestWhatDidNotFitIsReadAgainAlsoWhereTheParkIsFullAgain"},
	{"a copy out of the quarantine of which no dead letter is looked for", "guard_retry.go",
		"	if dead {\n		if err := b.findDead(records); err != nil {", "	if false {\n		if err := b.findDead(records); err != nil {", "TestADeadLetterHoldsForACopyOutOfTheQuarantine"},
	{"an erased record that gives way", "guard_limits.go",
		"if top.erased && ", "if false && ", "TestWhatAnOperatorErasedIsNotDisplaced"},
	{"an unreadable record that ends the batch", "parked.go",
		"			p.setUnreadable(at, from, topic, cause)\n", "			return p, cause\n", "TestAParkedRecordThatCantBeReadAnyMoreStandsAndEverythingElseGoesOn"},
	{"an unreadable record that an unsettled guard has passed", "unreadable.go",
		"return r.Settled && (", "return (", "TestOnlyASettledGuardHasPassedARecord"},
	{"an operator who marks what he can't read", "unreadable.go",
		"case b.operator || row.passed", "case row.passed", "TestAnOperatorDecidesAboutParkedRecordsThatHeCantRead"},
	{"a redrive that forgets that the letter is dead", "guard_retry.go",
		"	b.unbury(e, d)\n", "", "TestADeadLetterIsTriedAgainByTheConsumer"},
}

func asMutations() []mutation.Mutant {
	var all []mutation.Mutant
	for _, m := range mutants {
		all = append(all, mutation.Mutant{Name: m.name, Test: m.test, Edits: []mutation.Edit{{File: m.file, Old: m.old, New: m.new}}})
	}
	return all
}

// A mutant that has become the package itself, or whose test is gone, catches
// nothing.
func TestEveryMutantStillChangesThePackageAndHasItsTest(t *testing.T) {
	t.Parallel()
	mutation.Check(t, asMutations())
}

// FENCELINE_LONG=1 builds the package once for each mutant.
func TestEachMutantIsCaughtByItsTest(t *testing.T) {
	if os.Getenv("FENCELINE_LONG") != "1" {
		t.Skip("builds the package anew for each mutant: set FENCELINE_LONG=1")
	}
	mutation.Run(t, asMutations())
}
