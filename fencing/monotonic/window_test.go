package monotonic_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/fencing/monotonic"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// level is how a holder writes a result into public.report.
type level func(pos fencing.Position, step, key, note string) error

// levels are the two, over one database and one lease.
func levels(t *testing.T) (pool *pgxpool.Pool, fences *fencing.Fences, compare, gate level) {
	t.Helper()
	pool = pgtest.Connect(t, pgmigrated.Migrated(t))
	exec(t, pool, createReport)
	fences, err := fencing.New(ctx, pool, fencing.Config{AllowUnsafeDatabase: true})
	if err != nil {
		t.Fatal(err)
	}
	table, err := monotonic.New(monotonic.Config{Table: pgx.Identifier{"public", "report"}, Key: "key", Columns: []string{"note"}})
	if err != nil {
		t.Fatal(err)
	}
	compare = func(pos fencing.Position, _, key, note string) error {
		return table.Write(ctx, pool, key, monotonic.Position{Epoch: pos.Epoch, Token: pos.Token}, note)
	}
	gate = func(pos fencing.Position, step, key, note string) error {
		_, err := fences.Commit(ctx, pos, fencing.Content{Step: step, Bytes: []byte(note)}, func(ctx context.Context, tx fencing.Tx) error {
			_, err := tx.Exec(ctx, "insert into public.report values ($1, $2, $3, $4) on conflict (key) do update set epoch = $2, token = $3, note = $4", key, pos.Epoch, pos.Token, note)
			return err
		})
		return err
	}
	return pool, fences, compare, gate
}

// takeover is A's position, whose lease is over, and B's, who has taken over
// and has written nothing yet.
func takeover(t *testing.T, pool *pgxpool.Pool, fences *fencing.Fences) (a, b fencing.Position) {
	t.Helper()
	acquire := func() fencing.Position {
		lease, err := fences.Acquire(ctx, "job", fencing.LeaseConfig{TTL: 5 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lease.Release(ctx) })
		return lease.Position()
	}
	a = acquire()
	exec(t, pool, "update fenceline.lease set expires_at = '-infinity'")
	return a, acquire()
}

// The window that this package's documentation draws, as a fact.
func TestComparingWhenWritingLetsTheOldHolderWriteUntilTheNewOneHas(t *testing.T) {
	t.Parallel()
	pool, fences, write, _ := levels(t)
	a, b := takeover(t, pool, fences)
	if err := write(a, "late", "total", "of A, late"); err != nil {
		t.Fatalf("the window is not as documented: %v", err)
	}
	if got := note(t, pool, "total"); got != "of A, late" {
		t.Errorf("readers see %q", got)
	}
	if err := write(b, "first", "total", "of B"); err != nil {
		t.Fatal(err)
	}
	if err := write(a, "later", "total", "of A, later"); !errors.Is(err, monotonic.ErrStale) { // what this level does promise
		t.Errorf("after the new holder's write: %v", err)
	}
	if err := write(a, "elsewhere", "detail", "of A, late"); err != nil { // the window of a row that B does not write never closes
		t.Fatalf("the window is not as documented: %v", err)
	}
	if got := note(t, pool, "total") + ", " + note(t, pool, "detail"); got != "of B, of A, late" {
		t.Errorf("at the end: %s", got)
	}
}

func TestUnderTheGateTheTakeoverItselfEndsTheOldHoldersWrites(t *testing.T) {
	t.Parallel()
	pool, fences, _, write := levels(t)
	a, b := takeover(t, pool, fences)
	if err := write(a, "late", "total", "of A, late"); !errors.Is(err, fencing.ErrStale) {
		t.Fatalf("the old holder, before the new one has written: %v", err)
	}
	if got := note(t, pool, "total"); got != "" {
		t.Errorf("readers see %q", got)
	}
	if err := write(b, "first", "total", "of B"); err != nil {
		t.Fatal(err)
	}
	for step, key := range map[string]string{"later": "total", "elsewhere": "detail"} {
		if err := write(a, step, key, "of A, late"); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("%s: %v", step, err)
		}
	}
	if got := note(t, pool, "total") + ", " + note(t, pool, "detail"); got != "of B, " {
		t.Errorf("at the end: %s", got)
	}
}
