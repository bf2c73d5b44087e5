package fencing_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/schema"
)

// granted is what each role may do with the objects of the producer's part.
// Whatever is not here must be refused with 42501.
var granted = map[string]struct{ execute, read, readSome, sequences []string }{
	schema.KindProducer: {execute: []string{"acquire", "renew", "release", "hand_over", "rotate", "history_follow", "enter", "enter_many", "enter_group", "set_result", "append", "append_one", "append_group", "protect", "unprotect", "_refuse_write", "_refuse_truncate", "protected", "_with_partitions"}},
	schema.KindAdvancer: {execute: []string{"advance", "history_follow"}},
	schema.KindRelay: {
		execute:   []string{"relay_acquire", "relay_renew", "relay_release", "relay_hand_over", "history_follow", "relay_checkpoint", "relay_meet", "relay_leave", "outbox_partitions", "outbox_rotate", "outbox_drop", "outbox_delete", "relay_held_auto", "relay_held_settle", "relay_topic_pin", "relay_topic_judge", "relay_republished"},
		read:      []string{"outbox", "relay_checkpoint", "relay_held", "relay_fork", "relay_pause", "lease", "relay_instance", "relay_topic", "history", "head"},
		sequences: []string{"outbox_pos"},
	},
	schema.KindOperator: {
		execute:   []string{"history_bump", "history_confirm", "history_on_new", "history_restamp", "expire_lease", "set_owner", "protect", "unprotect", "_refuse_write", "_refuse_truncate", "protected", "_with_partitions", "outbox_partitions", "outbox_rotate", "outbox_drop", "outbox_delete", "relay_set_pause", "relay_held_retry", "relay_held_skip", "relay_topic_retire", "relay_topic_accept"},
		read:      []string{"history", "history_change", "fence", "lease", "turn", "head", "relay_checkpoint", "relay_held", "relay_fork", "relay_instance", "relay_pause", "relay_topic", "relay_audit"},
		readSome:  []string{"receipt", "outbox"}, // all but results and payloads
		sequences: []string{"outbox_pos"},
	},
	schema.KindConsumer: {},
	schema.KindMonitor: {
		execute:   []string{"protected", "_with_partitions", "outbox_partitions"},
		read:      []string{"history", "history_change", "fence", "lease", "turn", "head", "relay_checkpoint", "relay_held", "relay_fork", "relay_instance", "relay_pause", "relay_topic", "relay_audit"},
		readSome:  []string{"receipt", "outbox"},
		sequences: []string{"outbox_pos"},
	},
}

// everybody may execute it, members of no group as well.
const everybody = "in_gate"

// producerObjects are the names that the producer's migrations create.
func producerObjects(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("../migrations/producer/*.up.sql")
	if err != nil || len(files) == 0 {
		t.Fatal("no migrations found", err)
	}
	created := regexp.MustCompile(`create (?:table|function|sequence) @schema@\.(\w+)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range created.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

func TestEachRoleMayDoWhatItIsGrantedAndNothingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ours := producerObjects(t)
	type object struct{ name, kind, args string }
	rows, err := w.admin.Query(ctx, `
		select c.relname, c.relkind::text, '' from pg_class c where c.relnamespace = 'fenceline'::regnamespace and c.relkind in ('r', 'p', 'S')
		union all
		select p.proname, 'f', coalesce((select string_agg('null::' || format_type(a, null), ', ' order by o) from unnest(p.proargtypes) with ordinality as u(a, o)), '')
		from pg_proc p where p.pronamespace = 'fenceline'::regnamespace order by 1`)
	w.ok(err)
	objects, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (o object, err error) { return o, r.Scan(&o.name, &o.kind, &o.args) })
	w.ok(err)
	if len(objects) < len(ours) {
		t.Fatalf("%d objects in the schema, %d in the migrations", len(objects), len(ours))
	}
	for kind, may := range granted {
		t.Run(kind, func(t *testing.T) {
			conn := w.session(pgmigrated.Login(t, w.dsn, kind))
			refused := func(sql string) {
				t.Helper()
				if _, err := conn.Exec(ctx, sql); sqlstate(err) != "42501" {
					t.Errorf("%s: %s, want 42501", sql, sqlstate(err))
				}
			}
			allowed := func(sql string) {
				t.Helper()
				if _, err := conn.Exec(ctx, sql); sqlstate(err) == "42501" {
					t.Errorf("%s: %v", sql, err)
				}
			}
			for _, o := range objects {
				if !slices.Contains(ours, strings.TrimSuffix(o.name, "_n_seq")) { // the identity's sequence
					continue
				}
				switch o.kind {
				case "f":
					call := fmt.Sprintf("select fenceline.%s(%s)", o.name, o.args)
					if slices.Contains(may.execute, o.name) || o.name == everybody {
						allowed("begin; " + call + "; rollback")
						_, _ = conn.Exec(ctx, "rollback")
					} else {
						refused(call)
					}
				case "S":
					refused(fmt.Sprintf("select nextval('fenceline.%s')", o.name))
					refused(fmt.Sprintf("select setval('fenceline.%s', 1)", o.name))
					if !slices.Contains(may.sequences, o.name) {
						refused(fmt.Sprintf("select last_value from fenceline.%s", o.name))
					}
				default:
					table := "fenceline." + o.name
					if slices.Contains(may.read, o.name) {
						allowed("select * from " + table)
					} else {
						refused("select * from " + table)
						refused("copy " + table + " to stdout")
					}
					if !slices.Contains(may.read, o.name) && !slices.Contains(may.readSome, o.name) {
						refused("select 1 from " + table)
					}
					refused("insert into " + table + " default values")
					refused("delete from " + table)
					refused("truncate " + table)
					refused("do $$ begin lock table " + table + " in exclusive mode; end $$")
					refused("select 1 from " + table + " for update")
					refused("alter table " + table + " owner to current_user")
					refused("alter table " + table + " disable trigger all")
				}
			}
			for _, sql := range []string{
				"update fenceline.fence set max_issued_token = 0", "update fenceline.lease set expires_at = now() + interval '1 year'",
				"update fenceline.history set epoch_floor = 0", "update fenceline.receipt set digest = ''", "update fenceline.outbox set payload = null",
				"insert into fenceline.outbox_0 default values", "select payload from fenceline.outbox_0",
				"create table fenceline.mine ()", "create function fenceline.append(text) returns bigint language sql as 'select 1'",
				"set role fenceline_owner", "set session authorization postgres", "set session_replication_role = replica",
				"grant fenceline_operator to current_user", "drop schema fenceline cascade",
			} {
				if sql == "select payload from fenceline.outbox_0" && kind == schema.KindRelay {
					continue // refused as well, but the parent is the relay's to read
				}
				if slices.Contains([]string{"operator"}, kind) && strings.HasPrefix(sql, "grant fenceline_operator") {
					continue
				}
				if got := sqlstateOf(conn, sql); got != "42501" && got != "0LP01" {
					t.Errorf("%s: %s, want 42501", sql, got)
				}
			}
			if slices.Contains(may.readSome, "outbox") {
				refused("select payload from fenceline.outbox")
				refused("select headers from fenceline.outbox")
				refused("select result from fenceline.receipt")
				allowed("select topic, key, epoch, token, seq, pos from fenceline.outbox")
			}
		})
	}
}

func sqlstateOf(conn *pgx.Conn, sql string, args ...any) string {
	_, err := conn.Exec(ctx, sql, args...)
	return sqlstate(err)
}

// A plan that is switched off but the only one there is counts as so dear that
// it would be compiled, which takes seconds.
func TestAFunctionThatSwitchesPlansOffSwitchesCompilationOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const with = `select coalesce(string_agg(proname, ', '), '') from pg_proc where pronamespace = 'fenceline'::regnamespace and array_to_string(proconfig, ' ') ~ 'enable_' and `
	if bad := value[string](w, with+"not proconfig @> array['jit=off']"); bad != "" {
		t.Errorf("these may be compiled: %s", bad)
	}
	if value[string](w, with+"true") == "" {
		t.Error("there is none: the test would prove nothing")
	}
}

func TestADefinerFunctionPinsItsSearchPathAndTakesBaseTypes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if bad := value[string](w, `select coalesce(string_agg(proname, ', '), '') from pg_proc where pronamespace = 'fenceline'::regnamespace
		and not coalesce(proconfig, '{}') @> array['search_path=pg_catalog, pg_temp']`); bad != "" {
		t.Errorf("without a pinned search_path: %s", bad)
	}
	if bad := value[string](w, `select coalesce(string_agg(distinct proname, ', '), '') from pg_proc p, unnest(p.proargtypes) a join pg_type y on y.oid = a
		where pronamespace = 'fenceline'::regnamespace and prosecdef and y.typnamespace <> 'pg_catalog'::regnamespace`); bad != "" {
		t.Errorf("with a type that a caller could own: %s", bad)
	}
	if bad := value[string](w, `select coalesce(string_agg(proname, ', '), '') from pg_proc where pronamespace = 'fenceline'::regnamespace and prosecdef and provolatile <> 'v'`); bad != "" {
		t.Errorf("not volatile, so blind to what commits during a lock wait: %s", bad)
	}
}

// The calls of the outbox for one event: as one of several, and as the only one.
const appendOne = `select fenceline.append($1, $2, $3, $4, 'results', array[gen_random_uuid()], array['t'], array['t'], array[null]::text[], array['s'], array[null]::text[], array[null]::text[], array[null]::bytea[])`
const appendGrouped = `select fenceline.append_group(array[$1]::text[], array[$2]::bigint[], array[$3]::bigint[], array[$4]::text[], array['results'], array[gen_random_uuid()], array['t'], array['t'], array[null]::text[], array['s'], array[null]::text[], array[null]::text[], array[null]::bytea[], array[true])`
const appendSingle = `select fenceline.append_one($1, $2, $3, $4, 'results', gen_random_uuid(), 't', 't', null, 's', null, null, null)`

func TestAnAppendWithoutTheGateIsRefusedWhateverThePretence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	_, err := a.commit(pos, content("committed", "x"))
	w.ok(err)
	for name, pretend := range map[string]string{
		"nothing at all":                "select 1",
		"a setting":                     "select set_config('fenceline.gate', 'k', true), set_config('fenceline.key', 'k', true)",
		"a temporary receipt":           "create temp table receipt (key text, epoch bigint, token bigint, step text, xid xid8, shard smallint, committed_at timestamptz); insert into receipt select 'k', $epoch, 1, 'committed', pg_current_xact_id(), 1, now() + interval '1 h'; set local search_path = pg_temp, public",
		"a schema of the same name":     "create temp table fenceline (key text); set local search_path = pg_temp, public",
		"an operator first in path":     "create function public.always(text, text) returns boolean language sql immutable as 'select true'; create operator public.= (leftarg = text, rightarg = text, function = public.always); set local search_path = public, pg_catalog",
		"an xid operator":               "create function public.alwaysx(xid8, xid8) returns boolean language sql immutable as 'select true'; create operator public.= (leftarg = xid8, rightarg = xid8, function = public.alwaysx); set local search_path = public, pg_catalog",
		"a clock and xid first in path": "create function public.pg_current_xact_id_if_assigned() returns xid8 language sql as $$ select '3'::xid8 $$; create function public.transaction_timestamp() returns timestamptz language sql as $$ select '-infinity'::timestamptz $$; set local search_path = public, pg_catalog",
		"a type first in path":          "create domain public.bigint as text; set local search_path = public, pg_catalog",
	} {
		t.Run(name, func(t *testing.T) {
			conn := w.session(w.producer)
			tx, err := conn.Begin(ctx)
			w.ok(err)
			defer func() { _ = tx.Rollback(ctx) }()
			_, err = tx.Exec(ctx, strings.ReplaceAll(pretend, "$epoch", fmt.Sprint(pos.Epoch)))
			if err != nil {
				t.Fatalf("the attack itself failed: %v", err)
			}
			for _, call := range []string{appendOne, appendSingle, appendGrouped} {
				if got := sqlstateIn(w, tx, call, "k", pos.Epoch, pos.Token, "committed"); got != "FL007" {
					t.Errorf("%s: %s, want FL007", call, got)
				}
			}
		})
		t.Run(name+", result", func(t *testing.T) {
			conn := w.session(w.producer)
			tx, err := conn.Begin(ctx)
			w.ok(err)
			defer func() { _ = tx.Rollback(ctx) }()
			_, err = tx.Exec(ctx, strings.ReplaceAll(pretend, "$epoch", fmt.Sprint(pos.Epoch)))
			w.ok(err)
			if got := sqlstateOf(tx.Conn(), "select fenceline.set_result('k', $1, $2, 'committed', 'forged')", pos.Epoch, pos.Token); got != "FL007" {
				t.Errorf("set_result: %s, want FL007", got)
			}
		})
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestThePassOfAnotherTransactionOrAnotherKeyDoesNotCount(t *testing.T) {
	t.Parallel()
	passOfAnother(newWorld(t))
}

func passOfAnother(w *world) {
	a, b := w.worker("a"), w.worker("b")
	pos, other := a.acquire("k").Position(), b.acquire("l").Position()
	_, err := a.commit(pos, content("committed", "x"))
	w.ok(err)
	conn := w.session(w.producer)
	tx, err := conn.Begin(ctx)
	w.ok(err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = b.Enter(ctx, tx, other, content("s", "x"))
	w.ok(err)
	for _, claim := range [][]any{
		{"k", pos.Epoch, pos.Token, "committed"},        // an earlier transaction's
		{"k", pos.Epoch, pos.Token, "s"},                // this one's, for another key
		{"l", other.Epoch, other.Token + 1, "s"},        // this one's, under another token
		{"l", other.Epoch + 1, other.Token, "s"},        // of another life
		{"l", other.Epoch, other.Token, "another step"}, // of another step
		{"fenceline:l", other.Epoch, other.Token, "s"},  // of ours
		{"", other.Epoch, other.Token, "s"},             // of none
		{nil, other.Epoch, other.Token, "s"},            // of null
		{"L", other.Epoch, other.Token, "s"},            // spelt otherwise
	} {
		for _, call := range []string{appendOne, appendSingle, appendGrouped} {
			if got := sqlstateIn(w, tx, call, claim...); got != "FL007" {
				w.Errorf("%s for %v: %s, want FL007", call, claim, got)
			}
		}
	}
	_, err = tx.Exec(ctx, appendOne, "l", other.Epoch, other.Token, "s")
	w.ok(err)
}

// In a younger cluster, into which the tables were restored, transaction ids
// come round again.
func TestTheReceiptOfAnEarlierClusterWithTheSameTransactionIdIsNoPass(t *testing.T) {
	t.Parallel()
	xidComesRoundAgain(newWorld(t))
}

func xidComesRoundAgain(w *world) {
	a := w.worker("a")
	pos := a.acquire("k").Position()
	_, err := a.commit(pos, content("committed", "x"))
	w.ok(err)
	tx, err := w.session(w.producer).Begin(ctx)
	w.ok(err)
	defer func() { _ = tx.Rollback(ctx) }()
	var xid string
	w.ok(tx.QueryRow(ctx, "select pg_current_xact_id()::text").Scan(&xid))
	w.exec("update fenceline.receipt set xid = $1::text::xid8", xid)
	for _, call := range []string{appendOne, appendSingle, appendGrouped} {
		if got := sqlstateIn(w, tx, call, "k", pos.Epoch, pos.Token, "committed"); got != "FL007" {
			w.Errorf("%s: %s, want FL007", call, got)
		}
	}
}

// sqlstateIn runs a statement and takes back what it has done.
func sqlstateIn(w *world, tx pgx.Tx, sql string, args ...any) string {
	w.Helper()
	inner, err := tx.Begin(ctx)
	w.ok(err)
	_, err = inner.Exec(ctx, sql, args...)
	w.ok(inner.Rollback(ctx))
	return sqlstate(err)
}

func TestAPassGoesWithTheSavepointInWhichItWasGiven(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	tx, err := w.session(w.producer).Begin(ctx)
	w.ok(err)
	defer func() { _ = tx.Rollback(ctx) }()
	// Released: it is the transaction's.
	sp, err := tx.Begin(ctx)
	w.ok(err)
	_, err = a.Enter(ctx, sp, pos, content("s1", "x"))
	w.ok(err)
	w.ok(sp.Commit(ctx))
	_, err = tx.Exec(ctx, appendOne, "k", pos.Epoch, pos.Token, "s1")
	w.ok(err)
	// Rolled back: it is gone, and what was appended with it.
	sp, err = tx.Begin(ctx)
	w.ok(err)
	_, err = a.Enter(ctx, sp, pos, content("s2", "x"))
	w.ok(err)
	_, err = sp.Exec(ctx, appendOne, "k", pos.Epoch, pos.Token, "s2")
	w.ok(err)
	w.ok(sp.Rollback(ctx))
	if got := sqlstateOf(tx.Conn(), appendOne, "k", pos.Epoch, pos.Token, "s2"); got != "FL007" {
		t.Errorf("append: %s, want FL007", got)
	}
}

func TestAProducersClockDecidesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	a.acquire("k")
	conn := w.session(w.producer)
	_, err := conn.Exec(ctx, "create function public.clock_timestamp() returns timestamptz language sql as $$ select 'infinity'::timestamptz $$; set search_path = public, pg_catalog")
	w.ok(err)
	var won bool
	w.ok(conn.QueryRow(ctx, "select won from fenceline.acquire('k', 'b', '1 min', gen_random_uuid(), '1 s')").Scan(&won))
	if won {
		t.Error("a lease was won with a clock of the caller's own")
	}
}
