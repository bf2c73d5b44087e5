package verify_test

import (
	"slices"
	"testing"
)

// A held stream keeps its partition, and retention takes those behind it.
func TestNothingIsSaidOfAPartitionThatIsGoneBehindOneThatIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	step := func(want, sql string, args ...any) {
		t.Helper()
		var got string
		if err := w.pool.QueryRow(t.Context(), sql, args...).Scan(&got); err != nil || got != want {
			t.Fatalf("%s: %q, %v, want %q", sql, got, err, want)
		}
	}
	rotate := func() {
		t.Helper()
		for _, want := range []string{"created", "switched"} {
			step(want, `select fenceline.outbox_rotate('0', 1, '10 s')`)
		}
	}
	w.append("held", "1", "2")
	w.append("a", "1", "2", "3")
	w.append("b", "1")
	w.append("c", "1")
	rotate()
	w.append("a", "4", "5")
	w.append("b", "2")
	w.append("gone", "1", "2")
	w.append("c", "2")
	if _, err := w.leases["c"].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	delete(w.leases, "c")
	if _, err := w.fences.Open(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	w.append("c", "3")
	rotate()
	w.append("a", "6")
	w.append("c", "4")
	w.tamper(`update fenceline.outbox set created_at = created_at - interval '1 hour' * (2 - (pos >> 40)) where pos >> 40 < 2`)
	w.publish()
	p, i := w.log.find(t, "held", 2)
	w.log.topics[topic][p] = slices.Delete(slices.Clone(w.log.topics[topic][p]), i, i+1)
	w.consume()
	w.exec(`insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail) select topic, key, pos, epoch, seq, 'r', 'd' from fenceline.outbox where key = 'held' and seq = 2`)
	step("held", `select fenceline.outbox_drop(0, '0', '10 s')`)
	step("dropped", `select fenceline.outbox_drop(1, '0', '10 s')`)

	report, all := w.verify()
	for _, f := range all {
		t.Error(f)
	}
	if report.Uncovered == 0 {
		t.Error("nothing counts as past its retention")
	}

	// What is missing within a partition is missing.
	w.tamper(`delete from fenceline.outbox where key = 'a' and seq = 2`)
	if _, all = w.verify(); kinds(all) != "gap phantom" {
		t.Errorf("of a row that somebody has deleted it says %q", kinds(all))
	}
}

// The same row by row, of a plain table.
func TestNothingIsSaidOfRowsThatAreGoneWhileAHeldStreamsAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, sql := range []string{
		"create table fenceline.flat (like fenceline.outbox including all)",
		"alter table fenceline.outbox rename to was_partitioned",
		"alter table fenceline.flat rename to outbox",
		"alter table fenceline.outbox owner to fenceline_owner",
	} {
		w.exec(sql)
	}
	w.append("held", "1", "2")
	w.append("gone", "1", "2")
	w.tamper(`update fenceline.outbox set created_at = created_at - interval '1 hour' * (5 - pos)`)
	w.publish()
	p, i := w.log.find(t, "held", 2)
	w.log.topics[topic][p] = slices.Delete(slices.Clone(w.log.topics[topic][p]), i, i+1)
	w.consume()
	w.exec(`insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail) select topic, key, pos, epoch, seq, 'r', 'd' from fenceline.outbox where key = 'held' and seq = 2`)
	var deleted int
	if err := w.pool.QueryRow(t.Context(), `select deleted from fenceline.outbox_delete('0', 0, 100)`).Scan(&deleted); err != nil || deleted != 3 {
		t.Fatalf("%d rows are deleted, %v", deleted, err)
	}
	_, all := w.verify()
	for _, f := range all {
		t.Error(f)
	}
}
