package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// protect protects a table of the superuser's.
func (w *world) protect(column string, table ...string) {
	w.Helper()
	if len(table) == 1 {
		table = []string{"public", table[0]}
	}
	w.ok(fencing.Protect(ctx, w.admin, "", table, column))
}

// stranger is a login that is in no group: it may write the user's tables, and
// has no right on the schema.
func (w *world) stranger() *pgx.Conn {
	w.Helper()
	return w.session(pgmigrated.Login(w.TB, w.dsn))
}

// refusedWrite says that a statement was refused for want of a pass, and gives
// the error.
func (w *world) refusedWrite(conn *pgx.Conn, sql string) pgconn.PgError {
	w.Helper()
	_, err := conn.Exec(ctx, sql)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "FL007" {
		w.Errorf("%s: %v, want FL007", sql, err)
		return pgconn.PgError{}
	}
	return *pg
}

// behindGate runs statements in a transaction that has passed the gate of key.
func (w *world) behindGate(k *worker, key string, statements ...string) error {
	w.Helper()
	pos := k.acquire(key).Position()
	_, err := k.Commit(ctx, pos, content(fmt.Sprint(time.Now().UnixNano()), key), func(ctx context.Context, tx fencing.Tx) error {
		for _, sql := range statements {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err := k.release(key); err != nil {
		w.Fatal(err)
	}
	return err
}

func (k *worker) release(key string) error {
	_, err := k.w.admin.Exec(ctx, "update fenceline.lease set expires_at = '-infinity' where key = $1", key)
	return err
}

func (w *world) rows(table string) string {
	w.Helper()
	return value[string](w, "select coalesce(string_agg(key || '=' || note, ' ' order by key, note), '') from "+table)
}

func TestAProtectedTableRefusesPlainWritesWhoeverWrites(t *testing.T) {
	t.Parallel()
	plainWritesAreRefused(newWorld(t))
}

func plainWritesAreRefused(w *world) {
	w.exec("insert into public.result values ('k', 'before'), ('l', 'before')")
	w.protect("key", "result")
	for who, conn := range map[string]*pgx.Conn{
		"superuser": w.session(w.dsn), "producer": w.session(w.producer), "stranger": w.stranger(),
	} {
		for _, sql := range []string{
			"insert into public.result values ('k', 'x')", "insert into public.result values ('new', 'x')",
			"insert into public.result select 'k', n::text from generate_series(1, 3) n",
			"update public.result set note = 'x' where key = 'k'", "update public.result set key = 'm' where key = 'k'",
			"delete from public.result where key = 'k'", "delete from public.result", "truncate public.result",
			"with gone as (delete from public.result returning key) select count(*) from gone",
			"merge into public.result r using (values ('k')) v(key) on r.key = v.key when matched then update set note = 'x'",
			"copy public.result (key) from program 'echo k'",
		} {
			if who != "superuser" && strings.Contains(sql, "program") {
				continue
			}
			if pg := w.refusedWrite(conn, sql); pg.TableName != "result" || pg.SchemaName != "public" || pg.Hint == "" || !strings.Contains(pg.Message, "public.result is protected") {
				w.Errorf("%s: %s: the error does not say which table and what to do: %+v", who, sql, pg)
			}
		}
		if _, err := conn.CopyFrom(ctx, pgx.Identifier{"public", "result"}, []string{"key", "note"}, pgx.CopyFromRows([][]any{{"k", "x"}})); sqlstate(err) != "FL007" {
			w.Errorf("%s: COPY: %v", who, err)
		}
		if got := sqlstateOf(conn, "update public.result set note = 'x' where key = 'nothing'"); got != "ok" { // touches no row
			w.Errorf("%s: an update of no row: %s", who, got)
		}
	}
	if got := w.rows("public.result"); got != "k=before l=before" {
		w.Errorf("the table has %s", got)
	}
}

func TestAWriteUnderItsOwnGatePassesAndUnderAnotherKeysIsRefused(t *testing.T) {
	t.Parallel()
	ownGateOnly(newWorld(t))
}

func ownGateOnly(w *world) {
	w.exec("insert into public.result values ('k', 'before'), ('l', 'before')")
	w.protect("key", "result")
	a := w.worker("a")
	w.ok(w.behindGate(a, "k", "insert into public.result values ('k', 'mine')", "update public.result set note = 'changed' where key = 'k' and note = 'before'",
		"delete from public.result where note = 'changed'"))
	if got := w.rows("public.result"); got != "k=mine l=before" {
		w.Errorf("the table has %s", got)
	}
	for _, sql := range []string{
		"insert into public.result values ('l', 'x')", "update public.result set note = 'x' where key = 'l'", "delete from public.result where key = 'l'",
		"insert into public.result values ('k', 'x'), ('l', 'x')", // all or nothing
		"update public.result set key = 'l' where key = 'k'",      // moves away
		"update public.result set key = 'k' where key = 'l'",      // moves here
		"insert into public.result values ('K', 'x')", "insert into public.result values ('k ', 'x')", "insert into public.result values ('', 'x')",
		"insert into public.result values (null, 'x')", "update public.result set key = null where key = 'k'", "truncate public.result",
	} {
		if err := w.behindGate(a, "k", sql); sqlstate(err) != "FL007" {
			w.Errorf("%s: %v, want FL007", sql, err)
		}
	}
	if got := w.rows("public.result"); got != "k=mine l=before" {
		w.Errorf("the table has %s", got)
	}
}

func TestARowMovesBetweenKeysOnlyUnderTheGatesOfBoth(t *testing.T) {
	t.Parallel()
	movesUnderBothGates(newWorld(t))
}

func movesUnderBothGates(w *world) {
	w.exec("insert into public.result values ('k', 'a row')")
	w.protect("key", "result")
	a, b := w.worker("a"), w.worker("b")
	k, l := a.acquire("k").Position(), b.acquire("l").Position()
	for name, c := range map[string]struct {
		gates []fencing.Position
		want  string
	}{"the old one's": {[]fencing.Position{k}, "FL007"}, "the new one's": {[]fencing.Position{l}, "FL007"}, "both": {[]fencing.Position{k, l}, "ok"}} {
		tx, err := w.session(w.producer).Begin(ctx)
		w.ok(err)
		for _, g := range c.gates {
			_, err = a.Enter(ctx, tx, g, content(name, "x"))
			w.ok(err)
		}
		_, err = tx.Exec(ctx, "update public.result set key = 'l' where key = 'k'")
		if got := sqlstate(err); got != c.want {
			w.Errorf("under the gate of %s: %s, want %s", name, got, c.want)
		}
		var pg *pgconn.PgError
		if errors.As(err, &pg) && (!strings.Contains(pg.Message, "'k'") || !strings.Contains(pg.Message, "'l'")) {
			w.Errorf("the error does not name both keys: %s", pg.Message)
		}
		w.ok(tx.Rollback(ctx))
	}
}

func TestAnEarlierTransactionsOrAnEarlierClustersPassOpensNoTable(t *testing.T) {
	t.Parallel()
	earlierPassOpensNothing(newWorld(t))
}

func earlierPassOpensNothing(w *world) {
	w.protect("key", "result")
	a := w.worker("a")
	w.ok(w.behindGate(a, "k", "insert into public.result values ('k', 'x')"))
	conn := w.stranger()
	w.refusedWrite(conn, "insert into public.result values ('k', 'y')") // of an earlier transaction
	tx, err := conn.Begin(ctx)
	w.ok(err)
	defer func() { _ = tx.Rollback(ctx) }()
	var xid string
	w.ok(tx.QueryRow(ctx, "select pg_current_xact_id()::text").Scan(&xid))
	w.exec("update fenceline.receipt set xid = $1::text::xid8", xid) // xids that have come round
	w.refusedWrite(conn, "insert into public.result values ('k', 'y')")
}

func TestAPassThatASavepointTookBackOpensNoTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.protect("key", "result")
	a := w.worker("a")
	pos := a.acquire("k").Position()
	const insert = "insert into public.result values ('k', 'x')"
	tx, err := w.session(w.producer).Begin(ctx)
	w.ok(err)
	defer func() { _ = tx.Rollback(ctx) }()
	sp, err := tx.Begin(ctx)
	w.ok(err)
	_, err = a.Enter(ctx, sp, pos, content("s1", "x"))
	w.ok(err)
	_, err = sp.Exec(ctx, insert)
	w.ok(err)
	w.ok(sp.Rollback(ctx))
	sp, err = tx.Begin(ctx)
	w.ok(err)
	w.refusedWrite(sp.Conn(), insert)
	w.ok(sp.Rollback(ctx))
	sp, err = tx.Begin(ctx)
	w.ok(err)
	_, err = a.Enter(ctx, sp, pos, content("s2", "x"))
	w.ok(err)
	w.ok(sp.Commit(ctx))
	sp, err = tx.Begin(ctx) // the pass is the whole transaction's, a subtransaction's writes included
	w.ok(err)
	_, err = sp.Exec(ctx, insert)
	w.ok(err)
	w.ok(sp.Commit(ctx))
	w.ok(tx.Commit(ctx))
	if got := w.rows("public.result"); got != "k=x" {
		t.Errorf("the table has %s", got)
	}
}

// whatOtherTriggersWrite: an AFTER trigger sees the key as it is stored.
func TestTheKeyThatCountsIsTheOneThatIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`create function public.rename() returns trigger language plpgsql as $$ begin new.key := 'l'; return new; end $$`)
	w.exec(`create trigger zz before insert on public.result for each row execute function public.rename()`)
	w.protect("key", "result")
	if err := w.behindGate(w.worker("a"), "k", "insert into public.result values ('k', 'x')"); sqlstate(err) != "FL007" {
		t.Errorf("a row that another trigger moved to another key: %v", err)
	}
	w.ok(w.behindGate(w.worker("b"), "l", "insert into public.result values ('k', 'x')"))
}

func TestWritesThatComeThroughViewsAndForeignKeysAreRefusedToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.parent (id text primary key)")
	w.exec("create table public.child (key text, id text references public.parent on delete cascade on update cascade)")
	w.exec("create view public.seen as select * from public.child; grant all on public.seen, public.parent, public.child to public")
	w.exec("insert into public.parent values ('p'); insert into public.child values ('k', 'p')")
	w.protect("key", "child")
	conn := w.stranger()
	for _, sql := range []string{
		"delete from public.parent", "update public.parent set id = 'q'", "insert into public.seen values ('k', 'p')", "delete from public.seen",
		"create temp table t as select 1; with x as (insert into public.child values ('k', 'p') returning 1) select * from x",
	} {
		w.refusedWrite(conn, sql)
	}
	w.ok(w.behindGate(w.worker("a"), "k", "delete from public.parent"))
}

func TestKeysOfEveryTextTypeAndCollationAreComparedByteByByte(t *testing.T) {
	t.Parallel()
	keysByteByByte(newWorld(t))
}

func keysByteByByte(w *world) {
	w.exec("create domain public.code as varchar(20); create domain public.code2 as public.code")
	types := []string{"text", "varchar(40)", "char(5)", "public.code", "public.code2", `text collate "POSIX"`}
	if value[bool](w, "select exists (select from pg_collation where collname = 'und-x-icu')") {
		w.exec("create collation public.blind (provider = icu, locale = 'und-u-ks-level1', deterministic = false)")
		types = append(types, "text collate public.blind") // 'k' = 'K' to it
	}
	for i, typ := range types {
		table := fmt.Sprintf("kinds_%d", i)
		w.exec(fmt.Sprintf(`create table public.%s ("The Key" %s, note text)`, table, typ))
		w.exec("grant all on public." + table + " to public")
		w.protect("The Key", table)
		a := w.worker(typ)
		w.ok(w.behindGate(a, "k", "insert into public."+table+" values ('k', 'x')", "update public."+table+" set note = 'y'"))
		if got := sqlstate(w.behindGate(a, "k", "update public."+table+` set "The Key" = 'K'`)); got != "FL007" {
			w.Errorf("%s: a move to K: %s", typ, got)
		}
		if got := sqlstate(w.behindGate(a, "K", "update public."+table+` set "The Key" = 'K'`)); got != "FL007" {
			w.Errorf("%s: a move from k: %s", typ, got)
		}
		if got := sqlstate(w.behindGate(a, "K", "delete from public."+table)); got != "FL007" {
			w.Errorf("%s: K deletes k: %s", typ, got)
		}
	}
}

func TestOneCheckLooksAtTheReceiptsOfItsTransactionAndNotOfItsKey(t *testing.T) {
	t.Parallel()
	checksReadFewReceipts(newWorld(t))
}

func checksReadFewReceipts(w *world) {
	w.protect("key", "result")
	a := w.worker("a")
	lease := a.acquire("k")
	step := 0
	write := func(rows int) (read int64) {
		w.Helper()
		step++
		_, err := lease.Commit(ctx, content(fmt.Sprint(step), "x"), func(ctx context.Context, tx fencing.Tx) error {
			if _, err := tx.Exec(ctx, "insert into public.result select 'k', n::text from generate_series(1, $1::int) n", rows); err != nil {
				return err
			}
			return tx.QueryRow(ctx, "select seq_tup_read + idx_tup_fetch from pg_stat_xact_all_tables where relid = 'fenceline.receipt'::regclass").Scan(&read)
		})
		w.ok(err)
		return read
	}
	write(20) // the session keeps a plan of when there were few receipts
	for _, receipts := range []string{"none", "many", "many, with statistics"} {
		switch receipts {
		case "many":
			w.exec(`insert into fenceline.receipt (key, epoch, token, step, algo, digest, shard, xid)
				select 'k', 1, 1, n::text, 'sha256/raw/1', '\x00112233445566778899aabbccddeeff', 0, n::text::xid8 from generate_series(1, 5000) n`)
		case "many, with statistics":
			w.exec("analyze fenceline.receipt")
		}
		if read := write(50); read > 500 {
			w.Errorf("%s: 50 checks have read %d receipts", receipts, read)
		}
	}
}
