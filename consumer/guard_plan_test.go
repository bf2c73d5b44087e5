package consumer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// planned is a database with guards and parked records, and a connection to it.
type planned struct {
	*testing.T
	conn *pgx.Conn
}

func newPlanned(t *testing.T) planned {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgmigrated.Migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	p := planned{t, conn}
	p.exec(`alter table fenceline.guard set (autovacuum_enabled = off); alter table fenceline.parked set (autovacuum_enabled = off);
	        alter table fenceline.dead set (autovacuum_enabled = off)`)
	p.exec(`insert into fenceline.guard (consumer, stream, key, epoch, seq, settled, parked_rows, parked_bytes)
	        select 'c', 's' || n % 3, 'key ' || n, 1, 1, true, case when n % 100 = 0 then 1 else 0 end, case when n % 100 = 0 then 10 else 0 end
	          from generate_series(1, 20000) n`)
	p.exec(`insert into fenceline.parked (consumer, stream, key, epoch, seq, kind, from_seq, topic, partition, kafka_offset, event_id, headers, timestamp_ms, reason)
	        select 'c', 's' || n % 3, 'key ' || n % 20, 1, n, 'data', n, 't', 0, n, gen_random_uuid(), '{}', 0, 'gap' from generate_series(1, 10000) n`)
	p.exec(`insert into fenceline.dead (consumer, stream, key, epoch, seq, kind, topic, partition, kafka_offset, event_id, headers, timestamp_ms, error)
	        select 'c', 's' || n % 3, 'key ' || n, 1, 1, 'data', 't', 0, n, gen_random_uuid(), '{}', 0, '' from generate_series(1, 10000) n`)
	return p
}

func (p planned) exec(sql string) {
	p.Helper()
	if _, err := p.conn.Exec(p.Context(), sql); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

func (p planned) analyze() {
	p.exec("analyze fenceline.guard; analyze fenceline.parked; analyze fenceline.dead")
}

// tried is a statement with arguments, and what its plan must have.
type tried struct {
	sql   string
	args  []string
	index string
}

// samples are a batch's statements.
func samples() map[string]tried {
	s := newStatements("fenceline")
	names := []string{"'c'", "array['s1']", "array['key 1']"}
	row := []string{"array['(0,1)']::tid[]", "array[1]", "array[1]", "array[1]", "array['{}']", "array[0]", "array[1]", "array[1]", "array[true]",
		"array[0]", "array['']", "array[0]", "array[0]", "array[false]"}
	one := []string{"'c'", "'s1'", "'key 1'"}
	read := []string{"'17'", "1", "'c'", "'t'", "1", "1", "2", "null", "null", "null"}
	o := newOffsets("fenceline", "c")
	return map[string]tried{
		"lock":       {s.lock, names, "guard_pkey"},
		"create":     {s.create, names, "guard_pkey"},
		"advance":    {s.advance, row[:4], "Tid Scan"},
		"move":       {s.move, row, "Tid Scan"},
		"dead":       {s.dead, append(names[:3:3], "array[1]", "array[1]"), "dead_pkey"},
		"audited":    {s.audited, append(names[:3:3], "array[1]", "array[1]"), "consumer_audit"},
		"candidates": {s.candidates, append(one[:3:3], "1", "1", "'{}'", "32"), "parked_order"},
		"lowest":     {s.lowest, one, "parked_order"},
		"highest":    {s.highest, append(one[:3:3], "1", "1", "'data'"), "parked_order"},
		"waiting":    {s.waiting, append(one[:3:3], "1"), "parked_order"},
		"total":      {s.total, one[:1], "guard_parked"},
		"pending":    {s.pending, []string{"'c'", "100", "'s1'", "'key 1'"}, "guard_recheck"},
		"room":       {s.room, []string{"'c'", "'t/0'", "1", "1", "1", "1"}, "guard_unstored"},
		"lock one":   {s.lockOne, one, "guard_pkey"},
		"end":        {o.end, append(row[:4:4], read...), "Tid Scan"},
		"end one":    {o.endOne, append([]string{"'(0,1)'", "1", "1", "1"}, read...), "Tid Scan"},
		"offset":     {o.advance, read[2:], "consumer_offset"},
		"facts":      {s.facts, names[:2], "consumer_offset"},
		"streams":    {s.streams, names[:2], "consumer_stream"},
	}
}

// explain plans a prepared statement some times, and gives the last plan.
func (p planned) explain(name string, s tried, times int) string {
	p.Helper()
	p.exec(fmt.Sprintf("prepare %q as %s", name, s.sql))
	var lines []string
	for range times {
		rows, err := p.conn.Query(p.Context(), fmt.Sprintf("explain (costs off) execute %q (%s)", name, strings.Join(s.args, ", ")), pgx.QueryExecModeSimpleProtocol)
		if err == nil {
			lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err != nil {
			p.Fatalf("%s: %v", name, err)
		}
	}
	return strings.Join(lines, "\n")
}

// A plan that is made once for all batches must find guards and parked records
// by index, however many there are, with and without statistics. Fails where an
// index no longer fits its statement.
func TestEveryStatementOfABatchFindsItsRowsByIndexAlsoInAGenericPlan(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	p.exec("set plan_cache_mode = force_generic_plan")
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			p.analyze()
		}
		for name, s := range samples() {
			plan := p.explain(name, s, 1)
			p.exec(fmt.Sprintf("deallocate %q", name))
			if !strings.Contains(plan, s.index) || strings.Contains(plan, "Seq Scan on guard") || strings.Contains(plan, "Seq Scan on parked") {
				t.Errorf("%s (analyzed: %v) does not use %s:\n%s", name, analyzed, s.index, plan)
			}
			// One statement locks all guards of a batch, in the order in which they are
			// given: the keys are the outer side (the planner knows that their numbers
			// ascend), and each guard is locked as it is found.
			if name == "lock" && (strings.Contains(plan, "Sort") ||
				!strings.HasPrefix(plan, "Nested Loop\n  ->  Function Scan on u\n") || !strings.Contains(plan, "\n  ->  Subquery Scan on g\n        ->  LockRows")) {
				t.Errorf("guards are not locked in key order:\n%s", plan)
			}
		}
	}
}

// PostgreSQL plans a prepared statement anew for each execution where it thinks
// that its plan for any arguments is worse than one for these. For a transaction
// of one event that takes longer than anything else in it.
func TestNoStatementOfASmallBatchIsPlannedAnewForEach(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	p.analyze()
	all := samples()
	for name, s := range all {
		p.explain(name, s, 8)
	}
	rows, err := p.conn.Query(t.Context(), "select name, custom_plans from pg_prepared_statements where name = any($1) and custom_plans > 5", slices.Collect(maps.Keys(all)))
	if err != nil {
		t.Fatal(err)
	}
	again, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[struct {
		Name    string
		Planned int
	}])
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range again {
		t.Errorf("%s was planned %d times of 8, want 5, and then one plan for all", s.Name, s.Planned)
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
