package fencing_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/schema"
)

func TestUnprotectOpensTheTableAndProtectedListsWhatIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`create schema "Odd.One"; create table "Odd.One"."the table;" (a int, "the ""key" text, primary key ("the ""key"))`)
	w.protect("key", "result")
	w.protect(`the "key`, "Odd.One", "the table;")
	list := func() string {
		t.Helper()
		tables, err := fencing.Protected(ctx, w.admin, "")
		w.ok(err)
		var s []string
		for _, p := range tables {
			s = append(s, fmt.Sprintf("%s by %s, open: %v", p.Table.Sanitize(), p.KeyColumn, p.Gaps))
		}
		return strings.Join(s, "; ")
	}
	if got := list(); got != `"Odd.One"."the table;" by the "key, open: []; "public"."result" by key, open: []` {
		t.Error(got)
	}
	conn := w.session(w.dsn)
	if pg := w.refusedWrite(conn, `insert into "Odd.One"."the table;" values (1, 'it''s')`); !strings.Contains(pg.Message, `'it''s'`) || pg.ColumnName != `the "key` {
		t.Errorf("%+v", pg)
	}
	w.exec(`alter table "Odd.One"."the table;" rename column "the ""key" to k`)
	w.refusedWrite(conn, `insert into "Odd.One"."the table;" values (1, 'x')`)
	w.exec("alter table public.result disable trigger fenceline_gate_update")
	w.exec("drop trigger fenceline_gate_truncate on public.result")
	if got := list(); got != `"Odd.One"."the table;" by k, open: []; "public"."result" by key, open: [update of public.result truncate of public.result]` {
		t.Error(got)
	}
	w.protect("note", "result") // mends it, and changes the column
	if got := list(); !strings.Contains(got, `"public"."result" by note, open: []`) {
		t.Error(got)
	}
	for _, want := range []bool{true, false} {
		was, err := fencing.Unprotect(ctx, w.admin, "fenceline", pgx.Identifier{"Odd.One", "the table;"})
		w.ok(err)
		if was != want {
			t.Errorf("unprotect says %v, want %v", was, want)
		}
	}
	if got := sqlstateOf(conn, `insert into "Odd.One"."the table;" values (1, 'x'); truncate "Odd.One"."the table;"`); got != "ok" {
		t.Error(got)
	}
	was, err := fencing.Unprotect(ctx, w.admin, "", pgx.Identifier{"result"})
	w.ok(err)
	if got := list(); !was || got != "" {
		t.Error(was, got)
	}
	if n := value[int](w, "select count(*) from pg_trigger where tgname like 'fenceline%'"); n != 0 {
		t.Errorf("%d triggers are left", n)
	}
}

func TestProtectSaysWhatIsWrongWithItsArguments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create view public.v as select * from public.result; create materialized view public.m as select * from public.result; create sequence public.s")
	w.exec("create extension if not exists postgres_fdw; create server elsewhere foreign data wrapper postgres_fdw; create foreign table public.far (key text) server elsewhere")
	w.exec("create table public.p (key text) partition by list (key); create foreign table public.p1 partition of public.p for values in ('a') server elsewhere")
	w.exec("create table public.typed (id bigint, u uuid, b bytea, t text[], j json); create table public.heir () inherits (public.result)")
	for name, c := range map[string]struct {
		table  pgx.Identifier
		column string
		text   string
	}{
		"no table":           {pgx.Identifier{"public", "nothing"}, "key", `"public.nothing" does not exist`},
		"no schema":          {pgx.Identifier{"nowhere", "result"}, "key", `"nowhere" does not exist`},
		"no column":          {pgx.Identifier{"typed"}, "key", "It has id, u, b, t, j."},
		"a system column":    {pgx.Identifier{"typed"}, "ctid", "has no column ctid"},
		"a number":           {pgx.Identifier{"typed"}, "id", "is of type bigint, and a key is text: Protect by a text column"},
		"a uuid":             {pgx.Identifier{"typed"}, "u", "uuid"},
		"bytes":              {pgx.Identifier{"typed"}, "b", "bytea"},
		"an array":           {pgx.Identifier{"typed"}, "t", "text[]"},
		"a view":             {pgx.Identifier{"v"}, "key", "is a view, and only tables can be protected: Protect the tables"},
		"a snapshot":         {pgx.Identifier{"m"}, "key", "materialized view"},
		"a sequence":         {pgx.Identifier{"s"}, "key", "sequence"},
		"a foreign table":    {pgx.Identifier{"far"}, "key", "foreign table"},
		"a foreign leaf":     {pgx.Identifier{"p"}, "key", "partition public.p1 of public.p is a foreign table"},
		"inheritance":        {pgx.Identifier{"result"}, "key", "inherit"},
		"ours":               {pgx.Identifier{"fenceline", "fence"}, "key", "toolkit's own"},
		"no name":            {nil, "key", "has 0 parts"},
		"three names":        {pgx.Identifier{"a", "b", "c"}, "key", "has 3 parts"},
		"an empty name":      {pgx.Identifier{"public", ""}, "key", "empty"},
		"a long name":        {pgx.Identifier{strings.Repeat("x", 64)}, "key", "63 bytes"},
		"a name with NUL":    {pgx.Identifier{"a\x00b"}, "key", "NUL"},
		"an empty column":    {pgx.Identifier{"typed"}, "", "empty"},
		"SQL for a name":     {pgx.Identifier{`result"; drop table public.result; --`}, "key", "does not exist"},
		"SQL for a column":   {pgx.Identifier{"typed"}, `id) or true; --`, "has no column"},
		"dots inside a name": {pgx.Identifier{"public.result"}, "key", "does not exist"},
	} {
		err := fencing.Protect(ctx, w.admin, "", c.table, c.column)
		if !errors.Is(err, fencing.ErrInvalid) || !strings.Contains(err.Error(), c.text) || !strings.HasPrefix(err.Error(), "fencing: ") {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
	if err := fencing.Protect(ctx, w.admin, `x";`, pgx.Identifier{"result"}, "key"); err == nil {
		t.Error("a schema name that is none is accepted")
	}
	if tables, err := fencing.Protected(ctx, w.admin, ""); err != nil || len(tables) != 0 {
		t.Errorf("%v %v", tables, err)
	}
}

func TestOnlyTheOwnerProtectsAndUnprotectsATable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner, other := w.session(pgmigrated.Login(t, w.dsn, schema.KindProducer)), w.session(w.producer)
	_, err := owner.Exec(ctx, "create table public.mine (key text); grant all on public.mine to public")
	w.ok(err)
	mine := pgx.Identifier{"public", "mine"}
	if err := fencing.Protect(ctx, other, "", mine, "key"); sqlstate(err) != "42501" || !strings.Contains(err.Error(), "only the owner of public.mine") || !strings.Contains(err.Error(), "Connect as") {
		t.Errorf("somebody else protects: %v", err)
	}
	w.ok(fencing.Protect(ctx, owner, "", mine, "key"))
	if _, err := fencing.Unprotect(ctx, other, "", mine); sqlstate(err) != "42501" || !strings.Contains(err.Error(), "only the owner") {
		t.Errorf("somebody else unprotects: %v", err)
	}
	// An owner without a role of the schema is told which it needs.
	stranger := w.stranger()
	_, err = stranger.Exec(ctx, "create table public.theirs (key text)")
	w.ok(err)
	err = fencing.Protect(ctx, stranger, "", pgx.Identifier{"theirs"}, "key")
	if err == nil || !strings.Contains(err.Error(), "grant") || !strings.Contains(err.Error(), "fenceline_producer") {
		t.Errorf("an owner without a role: %v", err)
	}
	list, err := fencing.Protected(ctx, other, "")
	w.ok(err)
	if len(list) != 1 || !slices.Equal(list[0].Table, mine) {
		t.Errorf("listed: %+v", list)
	}
	if _, err := owner.Exec(ctx, "drop table public.mine"); err != nil {
		t.Error(err)
	}
}

func TestProtectIsPartOfTheCallersTransactionAndWaitsForWriters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx, err := w.session(w.dsn).Begin(ctx)
	w.ok(err)
	w.ok(fencing.Protect(ctx, tx, "", pgx.Identifier{"result"}, "key"))
	w.ok(tx.Rollback(ctx))
	w.exec("insert into public.result values ('k', 'x')")
	writer, err := w.session(w.producer).Begin(ctx)
	w.ok(err)
	_, err = writer.Exec(ctx, "insert into public.result values ('k', 'y')")
	w.ok(err)
	impatient := w.session(w.dsn)
	_, err = impatient.Exec(ctx, "set lock_timeout = '20 ms'")
	w.ok(err)
	if err := fencing.Protect(ctx, impatient, "", pgx.Identifier{"result"}, "key"); sqlstate(err) != "55P03" || !strings.Contains(err.Error(), "try again when its writers are done") {
		t.Errorf("behind a writer: %v", err)
	}
	w.ok(writer.Commit(ctx))
	w.ok(fencing.Protect(ctx, impatient, "", pgx.Identifier{"result"}, "key"))
	w.refusedWrite(impatient, "insert into public.result values ('k', 'z')")
}
