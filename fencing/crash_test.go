package fencing_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/fencing/fencingtest"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// crash kills the server with all its sessions, and starts it again on its data.
func (w *world) crash() {
	w.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	w.ok(w.server.Kill(ctx))
	w.ok(w.server.Restart(ctx))
	w.admin.Reset()
	for ctx.Err() == nil && w.admin.Ping(ctx) != nil { // of a connection that the pool did not know to be dead
		time.Sleep(5 * time.Millisecond)
	}
	w.ok(ctx.Err())
}

func TestACrashOfTheServerAtAnyPointOfACommitOrTakeoverLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	var pauses *fencingtest.Pauses
	a := w.workerAt("a", w.producer, 1, func(cfg *pgxpool.Config) { pauses = fencingtest.Watch(cfg.ConnConfig) })
	b := w.worker("b")
	lease := a.acquire("k")
	pos := lease.Position()
	points := []fencingtest.Point{fencingtest.BeforeGate, fencingtest.BehindGate, fencingtest.BeforeCommit, fencingtest.AfterCommit}
	for i, point := range points {
		stop := pauses.At(point)
		done := a.commitLater(pos, content(string(point), "x"))
		select {
		case <-stop.Reached():
		case got := <-done:
			t.Fatalf("%s was not reached: %v", point, got.err)
		}
		w.crash()
		stop.Resume()
		first := <-done
		if (first.err == nil) != (point == fencingtest.AfterCommit) {
			t.Errorf("%s: %v", point, first.err)
		}
		again, err := fencing.Retry(ctx, func(context.Context) (fencing.Receipt, error) { return a.retried(pos, content(string(point), "x")) })
		w.ok(err)
		if again.Replayed != (point == fencingtest.AfterCommit) {
			t.Errorf("%s: asked again: %+v", point, again)
		}
		w.wantWritten("k", written{i + 1, i + 1, i + 1})
	}

	// A takeover that has moved lease and fence, and not committed.
	w.expire("k")
	hold := w.session(w.dsn)
	_, err := hold.Exec(ctx, "begin; lock table fenceline.turn in share mode")
	w.ok(err)
	b.pool.Reset() // its connections of before the crashes
	bounded, cancel := context.WithCancel(ctx)
	taken := make(chan error, 1)
	go func() { _, err := b.Acquire(bounded, "k", long); taken <- err }()
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", int32(hold.PgConn().PID()))
	cancel() // or Acquire would ask again
	w.crash()
	if err := <-taken; err == nil {
		t.Error("the takeover was acknowledged")
	}
	if got := value[int64](w, "select max_issued_token from fenceline.fence where key = 'k'"); got != pos.Token {
		t.Errorf("the fence is at token %d, %d is the last that anybody was told", got, pos.Token)
	}
	if n := value[int](w, "select count(*) from fenceline.turn where key = 'k' and token > 1"); n != 0 {
		t.Errorf("%d turns of a takeover that did not happen", n)
	}
	_, err = a.retried(pos, content("behind the takeover", "x"))
	w.ok(err)

	// One that was acknowledged is there behind a crash, and so is all else.
	w.expire("k")
	fresh, err := b.Acquire(ctx, "k", long)
	w.ok(err)
	w.crash()
	if fresh.Position().Token != pos.Token+1 {
		t.Errorf("%v, then %v", pos, fresh.Position())
	}
	_, err = a.retried(pos, content("late", "x"))
	w.is(err, fencing.ErrStale)
	for _, point := range points {
		r, err := a.retried(pos, content(string(point), "x"))
		fencingtest.WantReplayed(t, r, err)
	}
	_, err = b.retried(fresh.Position(), content("s", "x"))
	w.ok(err)
	if seqs := value[[]int64](w, "select array_agg(seq order by pos) from fenceline.outbox where key = 'k'"); !slices.Equal(seqs, []int64{1, 2, 3, 4, 5, 6}) {
		t.Errorf("seqs %v", seqs)
	}
}

// retried commits, on a connection that lives: those that the crash has ended are
// still in the pool.
func (k *worker) retried(pos fencing.Position, c fencing.Content) (fencing.Receipt, error) {
	k.pool.Reset()
	return k.commit(pos, c)
}
