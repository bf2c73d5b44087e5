package replica_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing/replica"
	"github.com/fenceline/fenceline/internal/pgtest"
)

const page = 8192

// hit commits until the log ends exactly where a page does.
func hit(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	flushed := func() int { return value[int](t, pool, "select (pg_current_wal_flush_lsn() - '0/0')::bigint") }
	overhead := 100 // of the message's record and the commit's
	for range 500 {
		before := flushed()
		rest := page - before%page
		n := rest - overhead
		if n < 300 { // too near: a record would cross
			n = 1000
		}
		if _, err := pool.Exec(ctx, "select pg_logical_emit_message(true, '', repeat('x', $1))", n); err != nil {
			t.Fatal(err)
		}
		after := flushed()
		if after%page == 0 {
			return
		}
		if n == rest-overhead && after-before-rest > -200 && after-before-rest < 200 {
			overhead += after - before - rest
			if after > before+rest { // the next page's header counts as well
				overhead -= 24
			}
		}
	}
	t.Fatal("no commit ended at the end of a page")
}

// With an idle primary the log does not go on: a position behind the header of the
// page that comes next would be waited for until somebody writes.
func TestAPositionAtTheEndOfAPageIsReachedWhileThePrimaryIsIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	reader := w.reader(standby)
	lease := w.takeOver("k")
	w.report(lease, "x")
	for attempt := 1; ; attempt++ {
		hit(t, w.admin)
		position, err := replica.At(ctx, w.admin)
		w.ok(err)
		text, result, err := body(reader, "k", position, replica.WaitThenPending(10*time.Second))
		if err != nil || text != "x" || result.FromPrimary() {
			t.Fatalf("%q, %+v, %v", text, result, err)
		}
		// The same, taken where the next record will be inserted.
		wrong := position
		wrong.LSN = uint64(value[int64](t, w.admin, "select (pg_current_wal_insert_lsn() - '0/0')::bigint"))
		_, _, err = body(reader, "k", wrong, replica.WaitThenPending(300*time.Millisecond))
		idle := value[bool](t, w.admin, "select (pg_current_wal_flush_lsn() - '0/0')::bigint = $1", int64(position.LSN))
		if position.LSN%page == 0 && idle {
			if wrong.LSN <= position.LSN || !errors.Is(err, replica.ErrPending) {
				t.Errorf("taken at %v, flushed at %v: %v; the case that this test is for didn't arise", wrong, position, err)
			}
			break
		}
		if attempt == 10 { // the server itself wrote something each time
			t.Fatal("the primary was never idle")
		}
	}
}

func TestAPositionIsTakenAfterCommitOnThePrimaryByASessionThatWaitsForItsLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	conn, err := w.admin.Acquire(ctx)
	w.ok(err)
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	w.ok(err)
	_, err = tx.Exec(ctx, "insert into report values ('k', 'x')")
	w.ok(err)
	_, err = replica.At(ctx, tx)
	w.is(err, replica.ErrInvalid)
	w.ok(tx.Commit(ctx))
	position, err := replica.At(ctx, conn)
	w.ok(err)
	w.ok(standby.CatchUp(ctx))
	if text, _, err := body(w.reader(standby), "k", position, replica.WaitThenPending(5*time.Second)); err != nil || text != "x" {
		t.Errorf("%q, %v", text, err)
	}
	_, err = conn.Exec(ctx, "set synchronous_commit = off")
	w.ok(err)
	_, err = replica.At(ctx, conn)
	w.is(err, replica.ErrInvalid)
	_, err = conn.Exec(ctx, "reset synchronous_commit")
	w.ok(err)
	_, err = replica.At(ctx, pgtest.Connect(t, standby.DSN("postgres")))
	w.is(err, replica.ErrNotPrimary)
}
