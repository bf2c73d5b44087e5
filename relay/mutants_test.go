package relay

import (
	"os"
	"testing"

	"github.com/fenceline/fenceline/internal/mutants"
)

func in(file, old, new string) mutants.Edit { return mutants.Edit{File: file, Old: old, New: new} }

// The relay with one of its rules taken out, in the code; those that are rules of
// the database's functions are taken out there, by the tests of EachRule.
var goMutants = []mutants.Mutant{
	{Name: "a cursor by pos", Test: "TestNothingIsPassedOverWhenPositionsCommitInAnotherOrder", Edits: []mutants.Edit{
		in("cursor.go", "return cursor{s1: c.s2, low: c.low2, young: c.young2}", "return cursor{s1: c.s2, low: c.high}"),
		in("reader.go", "xids := c.late(c.s1.xip)", "xids := c.s1.xip[:0]"),
	}},
	{Name: "order by transaction", Test: "TestOrderIsByPositionAndNotByTransaction", Edits: []mutants.Edit{
		in("sql.go", "const lightRow = `pos, id,", "const lightRow = `xid::text::bigint * 1000000 + pos as pos, id,"),
	}},
	{Name: "no stragglers", Test: "TestAStragglerBelowTheLowBoundIsPublished", Edits: []mutants.Edit{
		in("reader.go", "xids := c.late(c.s1.xip)", "xids := c.s1.xip[:0]"),
	}},
	{Name: "a low bound without its pair", Test: "TestTheYoungestTransactionIsNotBelowTheLowBound", Edits: []mutants.Edit{
		in("cursor.go", "return cursor{s1: c.s2, low: c.low2, young: c.young2}", "return cursor{s1: c.s2, low: c.high}"),
	}},
	{Name: "a poll's bound while somebody has an id that it doesn't count", Test: "TestTheYoungestTransactionIsNotBelowTheLowBound", Edits: []mutants.Edit{
		in("bound.go", "	case s2.xmax >= is.young:\n", "	default:\n"),
	}},
	{Name: "an older bound that is not waited for", Test: "TestAPollsBoundHoldsOnceItsTransactionsAreInTheSnapshot", Edits: []mutants.Edit{
		in("bound.go", "b.soon.young != 0 && s2.xmax >= b.soon.young", "b.soon.young != 0"),
	}},
	{Name: "the young ones for stragglers", Test: "TestAStragglerBelowTheLowBoundIsPublished", Edits: []mutants.Edit{
		in("cursor.go", "	return xids[:n]\n", "	return xids[n:]\n"),
	}},
	{Name: "a low bound that is older than its snapshot", Test: "TestWhoeverIsYoungerThanThePairGetsAPositionAboveItsL", Edits: []mutants.Edit{
		in("../migrations/producer/013_clocks.up.sql", "  pair_xid := pg_current_xact_id();\n", ""),
		in("../migrations/producer/013_clocks.up.sql", "  perform @schema@._same_history();\n  mine :=", "  perform @schema@._same_history();\n  pair_low := pg_sequence_last_value('@schema_name@.outbox_pos');\n  pair_xid := (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 5)::text::xid8;\n  mine :="),
	}},
	{Name: "the reader's pair in the other order", Test: "TestWhoeverIsYoungerThanTheReadersPairGetsAPositionAboveItsL", Edits: []mutants.Edit{
		in("sql.go", "	\"select coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0)\",\n	\"select pg_current_xact_id()::text::bigint\",\n", "	\"select pg_current_xact_id()::text::bigint\",\n	\"select coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0)\",\n"),
	}},
	{Name: "a cursor that is kept across a lost connection", Test: "TestNothingIsPassedOverWhenACrashGivesTransactionIDsOutAgain", Edits: []mutants.Edit{
		in("session.go", "func (s *session) run(ctx context.Context, leases []*fencing.Lease) error {\n	defer s.close()\n", "var kept *cursor\n\nfunc (s *session) run(ctx context.Context, leases []*fencing.Lease) error {\n	defer func() {\n		at := s.main.acked\n		kept = &at\n		s.close()\n	}()\n"),
		in("load.go", "	rows, err := conn.Query(ctx, s.sql.loadHeld)\n", "	if kept != nil {\n		s.main.acked, s.main.read = *kept, *kept\n	}\n	rows, err := conn.Query(ctx, s.sql.loadHeld)\n"),
	}},
	{Name: "two requests in flight", Test: "TestALaneHasOneRequestInFlight", Edits: []mutants.Edit{
		in("lane.go", "			l.send(items)\n			l.done()\n			continue\n", "			go func() {\n				l.send(items)\n				l.done()\n			}()\n			continue\n"),
	}},
	{Name: "a fork that joins one window late", Test: "TestNothingFallsBetweenAForkAndTheMainFlow", Edits: []mutants.Edit{
		in("fork.go", "	turns          int      // counts", "	late           string\n	turns          int      // counts"),
		in("fork.go", "		case c.s1.text == w.s2.text:\n", "		case c.s1.text == w.s2.text || f.late != \"\":\n"),
		in("fork.go", "	if !at.boundary() || at.s1.text != f.flow.read.s1.text {\n		return\n	}\n", "	if !at.boundary() || f.late == at.s1.text || f.late == \"\" && at.s1.text != f.flow.read.s1.text {\n		return\n	}\n	if f.topic != \"\" && f.late == \"\" {\n		f.late = at.s1.text\n		return\n	}\n"),
	}},
	{Name: "a held stream that is given back one window late", Test: "TestARowThatIsCommittedWhileTheStreamIsGivenBackIsPublished", Edits: []mutants.Edit{
		in("resume.go", "	stopped bool    // a record was refused: the hold stands there now\n", "	stopped bool\n	late    bool\n"),
		in("resume.go", "	next, topic, key := sd.next, h.Topic, h.Key\n", "	next, topic, key := sd.next, h.Topic, h.Key\n	if sd.late {\n		sd.joined = true\n		s.mu.Unlock()\n		return 0, false, nil\n	}\n"),
		in("resume.go", "	if !full {\n		// Here, and", "	if !full {\n		sd.late = true\n		return len(page), true, nil\n	}\n	if false {\n		// Here, and"),
	}},
	{Name: "a side that reads beyond the boundary", Test: "TestTheSideReadsNothingBeyondTheBoundary", Edits: []mutants.Edit{
		in("sql.go", "   and pg_visible_in_snapshot(xid, $in::pg_snapshot)\n order by epoch, seq", "   and $in::text is not null\n order by epoch, seq"),
	}},
	{Name: "a hold that is stored behind the cursor", Test: "TestAHoldIsStoredBeforeTheCursorPassesTheRecord", Edits: []mutants.Edit{
		in("checkpoint.go", "			held = append(held, heldRow{", "			_ = append(held, heldRow{"),
	}},
	{Name: "another batch for one of which nothing is known", Test: "TestABatchOfUnknownOutcomeGoesOutAgainAsItWas", Edits: []mutants.Edit{
		in("lane.go", "		if l.void() {\n", "		b = &Batch{Topic: b.Topic, Partition: b.Partition, Records: b.Records}\n		if l.void() {\n"),
	}},
	{Name: "a verdict that is not looked at", Test: "TestASkippedRecordIsReplacedByAMarkerAndNeverSent", Edits: []mutants.Edit{
		in("skip.go", "	if from == 0 {", "	if true {"),
	}},
	{Name: "a marker with the event's own id", Test: "TestASkippedRecordIsReplacedByAMarkerAndNeverSent", Edits: []mutants.Edit{
		in("../outbox/skip.go", "uuid.NewSHA1(last.ID, appendPadded([]byte(\"skip/\"), from))", "func() uuid.UUID { _ = uuid.NewSHA1; return last.ID }()"),
	}},
	{Name: "a republish without pace", Test: "TestARepublishKeepsToItsRateAndEndsWhenItIsTold", Edits: []mutants.Edit{
		in("republish_run.go", "wait > 0; wait", "0*wait > 0; wait"),
	}},
	{Name: "shards taken in their order", Test: "TestHoweverInstancesComeAndGoEachServesAllPartitionsAlike", Edits: []mutants.Edit{
		in("even.go", "of&^half != 0 && (have&half).len() > (have&^half).len()", "false"),
	}},
	{Name: "shards given away in their order", Test: "TestHoweverInstancesComeAndGoEachServesAllPartitionsAlike", Edits: []mutants.Edit{
		in("even.go", "if (s & half).len() <= (s &^ half).len() {", "if s&^half != 0 {"),
	}},
	{Name: "a partition's fork that is stored without the other one of its number", Test: "TestAPartitionsForkIsKeptWhenOneOfTheSameNumberIsStoredOrOver", Edits: []mutants.Edit{
		in("checkpoint.go", "case slices.ContainsFunc(due, f.sameRow):", "case f.dirty && len(due) > 0:"),
	}},
	{Name: "a reader with a standby", Test: "TestASessionReadsFromTheServerThatItWritesToAndFromNoStandby", Edits: []mutants.Edit{
		in("session.go", "if err = oneServer(ctx, conn, s.writer); err != nil {", "if false {"),
	}},
	{Name: "room that is asked for once for all", Test: "TestManyHeldStreamsThatAreRetriedAreReadAsThereIsRoom", Edits: []mutants.Edit{
		in("resume.go", "|| !s.reads(h) || !s.room() {", "|| !s.reads(h) {"),
	}},
	{Name: "what was too large is forgotten with the session", Test: "TestAStreamHeldForItsSizeIsRetriedAfterARestartToo", Edits: []mutants.Edit{
		in("load.go", ", limit: limitIn(h.Reason)}", "}"),
	}},
	{Name: "what was too large is retried for ever", Test: "TestAStreamHeldForItsSizeIsRetriedAfterARestartToo", Edits: []mutants.Edit{
		in("hold.go", "		h.limit = t.maxMessageBytes\n", "		h.limit = 1048588\n"),
	}},
}

func TestEveryMutantStillChangesThePackageAndHasItsTest(t *testing.T) {
	t.Parallel()
	mutants.Check(t, goMutants)
}

// FENCELINE_LONG=1 builds the package once for each mutant.
func TestEachMutantIsCaughtByItsTest(t *testing.T) {
	if os.Getenv("FENCELINE_LONG") != "1" {
		t.Skip("builds the package anew for each mutant: set FENCELINE_LONG=1")
	}
	mutants.Run(t, goMutants)
}
