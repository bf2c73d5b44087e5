package fencing_test

import "testing"

// Each rule of the protection, taken away, and the scenario that must then
// fail.
func TestEachRuleOfTheProtectionIsNeededByAScenario(t *testing.T) {
	t.Parallel()
	const update = "(not @schema@.in_gate(new.%3$I::text) or (old.%3$I::text collate \"C\" is distinct from new.%3$I::text collate \"C\" and not @schema@.in_gate(old.%3$I::text)))"
	for name, m := range map[string]struct {
		function, piece, with string
		scenario              func(*world)
	}{
		"a pass of any transaction":         {"in_gate", "r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp()", "true", earlierPassOpensNothing},
		"a pass by transaction id alone":    {"in_gate", "and r.committed_at >= transaction_timestamp()", "", earlierPassOpensNothing},
		"a pass for any key":                {"in_gate", `where mine.key = p_key collate "C"`, "", ownGateOnly},
		"null for a row without a key":      {"in_gate", `p_key collate "C")`, `p_key collate "C") or case when p_key is null then null else false end`, ownGateOnly},
		"the column's own collation":        {"in_gate", `p_key collate "C"`, "p_key", keysByteByByte},
		"receipts found by their key":       {"in_gate", "offset 0", "", checksReadFewReceipts},
		"an update by its new key alone":    {"protect", update, "(not @schema@.in_gate(new.%3$I::text))", movesUnderBothGates},
		"an update by its old key alone":    {"protect", update, "(not @schema@.in_gate(old.%3$I::text))", movesUnderBothGates},
		"keys that differ by the collation": {"protect", "(old.%3$I::text collate \"C\" is distinct from new.%3$I::text collate \"C\" and", "(old.%3$I is distinct from new.%3$I and", keysByteByByte},
		"triggers of statements":            {"protect", "'create or replace trigger %I after insert on %s for each row when (not @schema@.in_gate(new.%I::text)) execute function @schema@._refuse_write()',", "'create or replace trigger %I after insert on %s execute function @schema@._refuse_truncate() /* %s */',", leavesAreProtected},
		"no trigger for deletes":            {"protect", "after delete on %s for each row when (not @schema@.in_gate(old.%I::text))", "after delete on %s for each row when (old.%I = '')", plainWritesAreRefused},
		"truncate of the whole alone":       {"protect", "select @schema@._with_partitions(p_table)", "select p_table", leavesAreProtected},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.mutate(m.function, m.piece, m.with)
			if !fails(w, m.scenario) {
				t.Error("the scenario passes without the rule")
			}
		})
	}
}
