package fencing_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// Nobody who writes a protected table needs a right on the schema: in_gate was
// looked up by the table's owner. So PUBLIC has usage of nothing, which would
// open more than it seems: a column of one of our row types keeps a migration
// from changing the table.
func TestTheWholeWorldMayExecuteInGateAndNothingElseOfTheSchema(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	public, err := w.admin.Query(ctx, `
		select p.proname from pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where p.pronamespace = 'fenceline'::regnamespace and a.grantee = 0
		union all select c.relname || ': ' || a.privilege_type from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'fenceline'::regnamespace and a.grantee = 0
		union all select c.relname || '.' || t.attname from pg_class c join pg_attribute t on t.attrelid = c.oid, aclexplode(t.attacl) a where c.relnamespace = 'fenceline'::regnamespace and a.grantee = 0
		union all select n.nspname || ': ' || a.privilege_type from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'fenceline' and a.grantee = 0`)
	w.ok(err)
	granted, err := pgx.CollectRows(public, pgx.RowTo[string])
	w.ok(err)
	if !slices.Equal(granted, []string{"in_gate"}) {
		t.Errorf("PUBLIC has rights on %v", granted)
	}
	w.protect("key", "result")
	conn := w.session(pgmigrated.Login(t, w.dsn))
	for _, sql := range []string{
		"select fenceline.in_gate('k')", "select * from fenceline.fence", "select fenceline.protected()", "create table public.x (f fenceline.fence)",
		"create table public.x (k text); create trigger t after insert on public.x for each row execute function fenceline._refuse_write()",
		"select fenceline.unprotect('public.result')", "drop trigger fenceline_gate_insert on public.result", "alter table public.result disable trigger all",
		"set session_replication_role = replica",
	} {
		if got := sqlstateOf(conn, sql); got != "42501" {
			t.Errorf("%s: %s, want 42501", sql, got)
		}
	}
	w.refusedWrite(conn, "insert into public.result values ('k', 'x')")
}

func TestInGateTellsOnlyOfTheCallersOwnTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.session(w.producer)
	pos := a.acquire("k").Position()
	in := func(q pgx.Tx, key any) (in bool) {
		t.Helper()
		w.ok(q.QueryRow(ctx, "select fenceline.in_gate($1)", key).Scan(&in)) // a bool: never null
		return in
	}
	paused := a.pauseBehindGate(pos, content("s", "x"))
	other, err := b.Begin(ctx)
	w.ok(err)
	if in(other, "k") {
		t.Error("it tells of somebody else's gate")
	}
	if _, err := other.Exec(ctx, "create temp table mine ()"); err != nil || in(other, "k") || in(other, nil) || in(other, "") {
		t.Error("it is open for a transaction that has passed no gate", err)
	}
	paused.goOn()
	w.ok((<-paused.done).err)
	if in(other, "k") {
		t.Error("it tells of a commit that has happened")
	}
	w.ok(other.Rollback(ctx))

	mine, err := b.Begin(ctx)
	w.ok(err)
	defer func() { _ = mine.Rollback(ctx) }()
	_, err = a.Enter(ctx, mine, pos, content("s2", "x"))
	w.ok(err)
	if !in(mine, "k") || in(mine, "K") || in(mine, "k ") || in(mine, nil) {
		t.Error("it is wrong about its own gate")
	}
}

func TestNoObjectOfTheCallersOpensAProtectedTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.protect("key", "result")
	a := w.worker("a")
	w.ok(w.behindGate(a, "k", "insert into public.result values ('k', 'x')"))
	for name, pretend := range map[string]string{
		"a setting":                   "select set_config('fenceline.gate', 'k', true)",
		"a temporary receipt":         "create temp table receipt as select 'k'::text as key, pg_current_xact_id() as xid, clock_timestamp() + interval '1 h' as committed_at; set local search_path = pg_temp, public",
		"a function of the same name": "create function pg_temp.in_gate(text) returns boolean language sql as 'select true'; set local search_path = pg_temp, public",
		"operators":                   "create function public.yes(text, text) returns boolean language sql immutable as 'select true'; create operator public.= (leftarg = text, rightarg = text, function = public.yes); set local search_path = public, pg_catalog",
		"clock and xid":               "create function public.pg_current_xact_id_if_assigned() returns xid8 language sql as $$ select '3'::xid8 $$; create function public.transaction_timestamp() returns timestamptz language sql as $$ select '-infinity'::timestamptz $$; set local search_path = public, pg_catalog",
		"deferral":                    "set constraints all deferred",
	} {
		conn := w.stranger()
		tx, err := conn.Begin(ctx)
		w.ok(err)
		_, err = tx.Exec(ctx, pretend)
		w.ok(err)
		if pg := w.refusedWrite(conn, "insert into public.result values ('k', 'forged')"); !strings.Contains(pg.Message, "protected") {
			t.Errorf("%s: %+v", name, pg)
		}
		w.ok(tx.Rollback(ctx))
	}
}
