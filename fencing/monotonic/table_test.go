package monotonic_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing/monotonic"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var ctx = context.Background()

const createReport = "create table public.report (key text primary key, epoch bigint not null, token bigint not null, note text)"

// report is a table of results, and what writes it.
func report(t testing.TB) (*pgxpool.Pool, *monotonic.Table) {
	t.Helper()
	pool := pgtest.Pool(t)
	exec(t, pool, createReport)
	table, err := monotonic.New(monotonic.Config{Table: pgx.Identifier{"public", "report"}, Key: "key", Columns: []string{"note"}})
	if err != nil {
		t.Fatal(err)
	}
	return pool, table
}

func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func note(t testing.TB, pool *pgxpool.Pool, key string) (note string) {
	t.Helper()
	err := pool.QueryRow(ctx, "select coalesce((select note from public.report where key = $1), '')", key).Scan(&note)
	if err != nil {
		t.Fatal(err)
	}
	return note
}

func at(epoch, token int64) monotonic.Position { return monotonic.Position{Epoch: epoch, Token: token} }

func TestAnOlderResultNeverOverwritesANewerOne(t *testing.T) {
	t.Parallel()
	pool, table := report(t)
	for _, c := range []struct {
		pos   monotonic.Position
		stale bool
	}{
		{at(1, 2), false}, {at(1, 1), true}, {at(1, 2), false}, {at(1, 10), false}, {at(1, 9), true},
		{at(2, 1), false}, {at(1, 11), true}, {at(1, 1<<62), true}, {at(2, 1), false}, {at(1<<62, 1), false}, {at(2, 5), true},
	} {
		before := note(t, pool, "k")
		err := table.Write(ctx, pool, "k", c.pos, c.pos.String())
		want := c.pos.String()
		if c.stale {
			want = before
			var e *monotonic.StaleError
			if !errors.As(err, &e) || !errors.Is(err, monotonic.ErrStale) || e.Presented != c.pos || e.Current.String() != before || e.Key != "k" || !strings.Contains(err.Error(), before) {
				t.Errorf("%v over %s: %v", c.pos, before, err)
			}
		} else if err != nil {
			t.Errorf("%v over %s: %v", c.pos, before, err)
		}
		if got := note(t, pool, "k"); got != want {
			t.Errorf("%v over %s: the row is %s", c.pos, before, got)
		}
	}
	if err := table.Write(ctx, pool, "other", at(1, 1), "x"); err != nil { // each row for itself
		t.Error(err)
	}
}

// Waiting for the newer write's lock, the older one must judge the row that
// this leaves, not the one it has seen.
func TestAnOlderWriteThatHasWaitedForANewerOneIsRefused(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"", "with a row before"} {
		pool, table := report(t)
		if first != "" {
			if err := table.Write(ctx, pool, "k", at(1, 1), "before"); err != nil {
				t.Fatal(err)
			}
		}
		newer, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Write(ctx, newer, "k", at(1, 3), "newer"); err != nil {
			t.Fatal(err)
		}
		older, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- table.Write(ctx, older, "k", at(1, 2), "older") }()
		pgtest.WaitBlocked(t, pool, older.Conn().PgConn().PID(), newer.Conn().PgConn().PID())
		if err := newer.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, monotonic.ErrStale) {
			t.Errorf("%s: %v", first, err)
		}
		older.Release()
		if got := note(t, pool, "k"); got != "newer" {
			t.Errorf("%s: the row is %s", first, got)
		}
	}
}

func TestTheNewestOfManyAtOnceIsWhatStays(t *testing.T) {
	t.Parallel()
	pool, table := report(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			if err := table.Write(ctx, pool, "k", at(1, int64(i+1)), fmt.Sprint(i+1)); err != nil && !errors.Is(err, monotonic.ErrStale) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := note(t, pool, "k"); got != "40" {
		t.Errorf("the row is %s", got)
	}
}

func TestWhatWroteNothingIsNeverCalledStaleOnThatAlone(t *testing.T) {
	t.Parallel()
	pool, table := report(t)
	exec(t, pool, "create function public.drop_it() returns trigger language plpgsql as $$ begin return null; end $$")
	exec(t, pool, "create trigger t before insert on public.report for each row execute function public.drop_it()")
	err := table.Write(ctx, pool, "k", at(1, 1), "x")
	if !errors.Is(err, monotonic.ErrNotWritten) || errors.Is(err, monotonic.ErrStale) || !strings.Contains(err.Error(), "triggers") {
		t.Error(err)
	}
}

func TestTheStatementToCopyIsTheOneThatRuns(t *testing.T) {
	t.Parallel()
	pool, _ := report(t)
	odd, err := monotonic.New(monotonic.Config{Table: pgx.Identifier{`odd"table`}, Key: "Key", Epoch: "e", Token: "t", Columns: []string{"b", `a"`}})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `create table "odd""table" ("Key" int primary key, e bigint not null, t bigint not null, b text, "a""" text)`)
	for token, want := range map[int64]int64{5: 1} {
		tag, err := pool.Exec(ctx, odd.SQL(), 7, 1, token, "b", "a")
		if err != nil || tag.RowsAffected() != want {
			t.Errorf("%v %v", tag, err)
		}
	}
	if tag, err := pool.Exec(ctx, odd.SQL(), 7, 1, 4, "x", "x"); err != nil || tag.String() != "INSERT 0 0" {
		t.Errorf("%v %v", tag, err)
	}
	plain, err := monotonic.New(monotonic.Config{Table: pgx.Identifier{"public", "report"}, Key: "key", Columns: []string{"note"}})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/levels.md")
	if err != nil {
		t.Fatal(err)
	}
	flat := func(s string) string { return strings.Join(strings.Fields(strings.ReplaceAll(s, `"`, "")), " ") }
	if !strings.Contains(flat(string(page)), flat(plain.SQL())) || !strings.Contains(flat(string(page)), flat(strings.TrimPrefix(createReport, "create table public."))) {
		t.Errorf("docs/levels.md shows another statement than\n%s", plain.SQL())
	}
}

func TestArgumentsOutOfRangeAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	good := monotonic.Config{Table: pgx.Identifier{"t"}, Key: "k"}
	for name, edit := range map[string]func(*monotonic.Config){
		"no table":             func(c *monotonic.Config) { c.Table = nil },
		"three parts":          func(c *monotonic.Config) { c.Table = pgx.Identifier{"a", "b", "c"} },
		"an empty name":        func(c *monotonic.Config) { c.Table = pgx.Identifier{""} },
		"no key":               func(c *monotonic.Config) { c.Key = "" },
		"a long name":          func(c *monotonic.Config) { c.Columns = []string{strings.Repeat("x", 64)} },
		"NUL":                  func(c *monotonic.Config) { c.Epoch = "a\x00" },
		"a column twice":       func(c *monotonic.Config) { c.Columns = []string{"a", "a"} },
		"the key as a column":  func(c *monotonic.Config) { c.Columns = []string{"k"} },
		"the epoch is a token": func(c *monotonic.Config) { c.Epoch = "token" },
	} {
		cfg := good
		edit(&cfg)
		if _, err := monotonic.New(cfg); !errors.Is(err, monotonic.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	table, err := monotonic.New(good)
	if err != nil {
		t.Fatal(err)
	}
	// A nil database would panic if it were used.
	for _, pos := range []monotonic.Position{at(0, 1), at(1, 0), at(-1, 1), {}} {
		if err := table.Write(ctx, nil, "k", pos); !errors.Is(err, monotonic.ErrInvalid) {
			t.Errorf("%v: %v", pos, err)
		}
	}
	if err := table.Write(ctx, nil, "k", at(1, 1), "one too many"); !errors.Is(err, monotonic.ErrInvalid) {
		t.Error(err)
	}
}
