package consumer

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// A plan that is made once for all batches must find guards and parked records
// by index, however many there are, with and without statistics. Fails where an
// index no longer fits its statement.
func TestEveryStatementOfABatchFindsItsRowsByIndexAlsoInAGenericPlan(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, pgmigrated.Migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec(`alter table fenceline.guard set (autovacuum_enabled = off); alter table fenceline.parked set (autovacuum_enabled = off);
	      alter table fenceline.dead set (autovacuum_enabled = off)`)
	exec(`insert into fenceline.guard (consumer, stream, key, epoch, seq, settled, parked_rows, parked_bytes)
	      select 'c', 's' || n % 3, 'key ' || n, 1, 1, true, case when n % 100 = 0 then 1 else 0 end, case when n % 100 = 0 then 10 else 0 end
	        from generate_series(1, 20000) n`)
	exec(`insert into fenceline.parked (consumer, stream, key, epoch, seq, kind, from_seq, topic, partition, kafka_offset, event_id, headers, timestamp_ms, reason)
	      select 'c', 's' || n % 3, 'key ' || n % 20, 1, n, 'data', n, 't', 0, n, gen_random_uuid(), '{}', 0, 'gap' from generate_series(1, 10000) n`)
	exec(`insert into fenceline.dead (consumer, stream, key, epoch, seq, kind, topic, partition, kafka_offset, event_id, headers, timestamp_ms, error)
	      select 'c', 's' || n % 3, 'key ' || n, 1, 1, 'data', 't', 0, n, gen_random_uuid(), '{}', 0, '' from generate_series(1, 10000) n`)
	exec("set plan_cache_mode = force_generic_plan")

	s := newStatements("fenceline")
	names := []string{"'c'", "array['s1', 's2']", "array['key 1', 'key 2']"}
	row := []string{"array['(0,1)', '(0,2)']::tid[]", "array[1, 1]", "array[1, 1]", "array[1, 1]", "array['{}', '{}']", "array[0, 0]", "array[1, 1]", "array[1, 1]", "array[true, true]",
		"array[0, 0]", "array['', '']", "array[0, 0]", "array[0, 0]", "array[false, false]"}
	one := []string{"'c'", "'s1'", "'key 1'"}
	type statement struct {
		sql   string
		args  []string
		index string
	}
	statements := map[string]statement{
		"lock":       {s.lock, names, "guard_pkey"},
		"create":     {s.create, names, "guard_pkey"},
		"advance":    {s.advance, row[:4], "Tid Scan"},
		"move":       {s.move, row, "Tid Scan"},
		"dead":       {s.dead, append(names[:3:3], "array[1, 1]", "array[1, 1]"), "dead_pkey"},
		"candidates": {s.candidates, append(one[:3:3], "1", "1", "'{}'", "32"), "parked_order"},
		"lowest":     {s.lowest, one, "parked_order"},
		"highest":    {s.highest, append(one[:3:3], "1", "1", "'data'"), "parked_order"},
		"waiting":    {s.waiting, append(one[:3:3], "1"), "parked_order"},
		"total":      {s.total, one[:1], "guard_parked"},
		"pending":    {s.pending, []string{"'c'", "100"}, "guard_recheck"},
		"room":       {s.room, []string{"'c'", "'t/0'", "1", "1", "1", "1"}, "guard_unstored"},
		"truncated":  {s.truncated, one[:1], "consumer_offset"},
	}
	plan := func(name string, s statement) string {
		exec(fmt.Sprintf("prepare %q as %s", name, s.sql))
		defer exec(fmt.Sprintf("deallocate %q", name))
		rows, err := conn.Query(ctx, fmt.Sprintf("explain (costs off) execute %q (%s)", name, strings.Join(s.args, ", ")), pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return strings.Join(lines, "\n")
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			exec("analyze fenceline.guard; analyze fenceline.parked; analyze fenceline.dead")
		}
		for name, st := range statements {
			p := plan(name, st)
			if !strings.Contains(p, st.index) || strings.Contains(p, "Seq Scan on guard") || strings.Contains(p, "Seq Scan on parked") {
				t.Errorf("%s (analyzed: %v) does not use %s:\n%s", name, analyzed, st.index, p)
			}
		}
		// One statement locks all guards of a batch, in the order in which they are
		// given: the keys are the outer side (the planner knows that their numbers
		// ascend), and each guard is locked as it is found.
		if p := plan("lock", statements["lock"]); !strings.HasPrefix(p, "Nested Loop\n  ->  Function Scan on u\n  ->  Subquery Scan on g\n        ->  LockRows") {
			t.Errorf("guards are not locked in key order:\n%s", p)
		}
	}
}

// What an event changes of its guard is in no index: else each event would write
// every index of the table anew, and leave as many dead entries behind.
func TestAnEventsUpdateOfItsGuardTouchesNoIndex(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, pgmigrated.Migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var columns []string
	err = conn.QueryRow(ctx, `
select array_agg(distinct a.attname::text)
  from pg_index i
  join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = i.indexrelid and d.refobjid = i.indrelid and d.refobjsubid > 0
  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = d.refobjsubid
 where i.indrelid = 'fenceline.guard'::regclass and not i.indisprimary`).Scan(&columns)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range columns {
		switch c {
		case "epoch", "token", "seq", "missed", "end_seq", "settled", "waiting_epoch", "blocked_since", "updated_at":
			t.Errorf("column %s, which events change, is in an index", c)
		}
	}
	if len(columns) == 0 {
		t.Error("no index was looked at")
	}
}
