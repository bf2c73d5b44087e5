package fencing_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing/fencingtest"
)

// database is a migrated database for an example, as a producer sees it, with a
// link between that can lose answers.
func database() (pool *pgxpool.Pool, link *fencingtest.Link, end func()) {
	tb := &exampleTB{}
	w := newWorld(tb)
	w.exec("create table public.quake (id text, report jsonb); grant all on public.quake to public")
	dsn, link := fencingtest.Lossy(tb, w.producer)
	pool, err := pgxpool.New(ctx, dsn)
	w.ok(err)
	tb.Cleanup(pool.Close)
	return pool, link, tb.end
}

// exampleTB stands in for the test that an example has not.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (tb *exampleTB) Helper()                   {}
func (tb *exampleTB) Name() string              { return "Example" }
func (tb *exampleTB) Log(args ...any)           {}
func (tb *exampleTB) Logf(string, ...any)       {}
func (tb *exampleTB) Cleanup(f func())          { tb.cleanups = append(tb.cleanups, f) }
func (tb *exampleTB) Errorf(s string, a ...any) { panic(fmt.Sprintf(s, a...)) }
func (tb *exampleTB) Error(a ...any)            { panic(fmt.Sprint(a...)) }
func (tb *exampleTB) Fatalf(s string, a ...any) { panic(fmt.Sprintf(s, a...)) }
func (tb *exampleTB) Fatal(a ...any)            { panic(fmt.Sprint(a...)) }
func (tb *exampleTB) Failed() bool              { return false }
func (tb *exampleTB) end() {
	for _, f := range slices.Backward(tb.cleanups) {
		f()
	}
}
