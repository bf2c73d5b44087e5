package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestProtectUnprotectAndTheListFromTheCommandLine(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	cmdtest.Exec(t, dsn, `create table public."My Result" (key text, note text) partition by list (key)`, `create table public.r (id int, key text)`)
	env := cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn}
	run := func(args ...string) cmdtest.Result { return cmdtest.Run(t, env, "relay", args...) }
	want(t, run("protected"), 0, "no table is protected")
	want(t, run("protect", "-table", `public."My Result"`, "-column", "key"), 0, `"public"."My Result" is protected`, `the key in "key"`)
	want(t, run("protect", "-table", "R", "-column", "key"), 0, `"r" is protected`) // folded, as SQL does
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), "insert into r values (1, 'k')"); err == nil {
		t.Error("a plain write went through")
	}
	want(t, run("protected"), 0, "TABLE", `"public"."My Result"  key         -`, `"public"."r"`)
	cmdtest.Exec(t, dsn, `create table public.later partition of public."My Result" for values in ('k')`)
	r := run("protected", "-json")
	want(t, r, 1, "something is open on 1 table", `run "relay protect"`)
	var list []protectedTable
	if err := json.Unmarshal([]byte(r.Stdout), &list); err != nil || len(list) != 2 || list[0].Table != `"public"."My Result"` || len(list[0].Open) != 1 || list[0].Open[0] != "truncate of public.later" || list[1].Open == nil {
		t.Errorf("%v: %+v", err, list)
	}
	// A login that may only look can list; one without a role is told which it needs.
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "monitor")}, "relay", "protected"), 1, "truncate of public.later")
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn)}, "relay", "protected"), 1, "fenceline_monitor", "grant")
	want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, "producer")}, "relay", "unprotect", "-table", "public.r"), 1, "only the owner of public.r")
	want(t, run("unprotect", "-table", "public.r"), 0, `"public"."r" is not protected any more`)
	want(t, run("unprotect", "-table", "public.r"), 0, "was not protected")

	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "insert into r values (1, 'k')")
	}
	if err != nil {
		t.Fatal(err)
	}
	want(t, run("protect", "-table", "r", "-column", "key", "-wait", "300ms"), 1, "no lock on the table within 300ms", "long transactions")
}

// What the owner's login has set is for other things: whoever protects a table writes,
// and waits for its writers as long as -wait says.
func TestATableIsProtectedWhateverItsOwnersLoginHasSet(t *testing.T) {
	admin := cmdtest.Migrated(t)
	owner := pgmigrated.Login(t, admin, "producer")
	cfg, err := pgx.ParseConfig(owner)
	if err != nil {
		t.Fatal(err)
	}
	login := pgx.Identifier{cfg.User}.Sanitize()
	cmdtest.Exec(t, admin, "create table public.r (id int, key text)", "alter table public.r owner to "+login, "grant create on schema public to "+login)
	for _, set := range []string{"default_transaction_read_only = on", "default_transaction_isolation = 'serializable'", "statement_timeout = '500ms'", "lock_timeout = '500ms'"} {
		cmdtest.Exec(t, admin, "alter role "+login+" set "+set)
	}
	conn := pgtest.Connect(t, admin)
	for _, c := range []struct{ command, done string }{{"protect -table r -column key", "is protected"}, {"unprotect -table r", "not protected any more"}} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "lock table public.r in row exclusive mode"); err != nil { // as a writer has it
			t.Fatal(err)
		}
		done := make(chan cmdtest.Result, 1)
		go func() {
			done <- cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + owner}, "relay", append(strings.Fields(c.command), "-wait", "1m")...)
		}()
		for waited := false; !waited && len(done) == 0; time.Sleep(5 * time.Millisecond) {
			if err := conn.QueryRow(t.Context(), "select exists (select from pg_stat_activity where usename = $1 and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '800 ms')", cfg.User).Scan(&waited); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		want(t, <-done, 0, c.done)
	}
}

func TestProtectRefusesWhatItCannotProtectAndSaysWhatIsRight(t *testing.T) {
	dsn := cmdtest.Migrated(t)
	cmdtest.Exec(t, dsn, "create table public.r (id int, key text)", "create view public.v as select 1 as key")
	for name, c := range map[string]struct {
		args  []string
		code  int
		texts []string
	}{
		"nothing said":     {nil, 2, []string{"-table is missing", "-column is missing"}},
		"no name":          {[]string{"-table", `a"b`, "-column", "key"}, 2, []string{`-table:`, "is not a name", "schema.table"}},
		"no table":         {[]string{"-table", "nothing", "-column", "key"}, 1, []string{`"nothing" does not exist`}},
		"no column":        {[]string{"-table", "r", "-column", "k"}, 1, []string{"has no column k: It has id, key."}},
		"a number":         {[]string{"-table", "r", "-column", "id"}, 1, []string{"of type integer", "generated always"}},
		"a view":           {[]string{"-table", "v", "-column", "key"}, 1, []string{"is a view"}},
		"too many parts":   {[]string{"-table", "a.b.c", "-column", "key"}, 1, []string{"3 parts"}},
		"no migrations":    {[]string{"-table", "r", "-column", "key", "-schema", "elsewhere"}, 1, []string{"relay migrate up"}},
		"SQL for a name":   {[]string{"-table", "r; drop table r", "-column", "key"}, 2, []string{"is not a name"}},
		"SQL for a column": {[]string{"-table", "r", "-column", "key) or true --"}, 1, []string{"has no column"}},
	} {
		t.Run(name, func(t *testing.T) {
			want(t, cmdtest.Run(t, cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + dsn}, "relay", append([]string{"protect"}, c.args...)...), c.code, c.texts...)
		})
	}
}
