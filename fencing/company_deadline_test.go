package fencing_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// A commit whose company has failed goes again. Where its context has ended
// meanwhile it does not stand in line for a connection once more: nobody bounds
// that.
func TestACommitWhoseTimeIsOverDoesNotGoAgainForTheSakeOfItsCompany(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]func(*world) (*worker, func(*fencing.Lease, int)){
		"of a lease": func(w *world) (*worker, func(*fencing.Lease, int)) { return w.worker("a"), fencing.WaitInLine },
		"of all keys": func(w *world) (*worker, func(*fencing.Lease, int)) {
			a := w.group(1, 1)
			return a, func(_ *fencing.Lease, n int) { fencing.WaitInGroup(a.Fences, n) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a, wait := k(w)
			aCommitWhoseTimeIsOver(w, a, wait)
		})
	}
}

func aCommitWhoseTimeIsOver(w *world, a *worker, wait func(*fencing.Lease, int)) {
	lease := a.acquire("k")
	admin := w.session(w.dsn)
	_, err := admin.Exec(ctx, "select pg_advisory_lock(7)")
	w.ok(err)
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	over, again := make(chan error, 1), make(chan error, 1)

	// Both are in one transaction, which waits.
	held, err := a.pool.Acquire(ctx)
	w.ok(err)
	go func() {
		_, err := lease.CommitBatch(ctx, content("fails", "x"), func(b *fencing.Batch) error {
			b.Queue("select pg_advisory_xact_lock(7)")
			b.Queue("select 1 / 0")
			return nil
		})
		again <- err
	}()
	wait(lease, 1)
	go func() {
		_, err := lease.CommitBatch(short, content("in time", "x"), writeBatch)
		over <- err
	}()
	wait(lease, 2)
	held.Release()
	pgtest.WaitTrue(w, w.admin, "select exists (select from pg_stat_activity where wait_event = 'advisory' and datname = current_database())")

	// Its company fails, and somebody else has the connection then. (Or a moment
	// later: then it would commit.)
	cancel()
	next := make(chan func(), 1)
	go func() {
		conn, err := a.pool.Acquire(ctx)
		w.ok(err)
		next <- conn.Release
	}()
	_, err = admin.Exec(ctx, "select pg_advisory_unlock(7)")
	w.ok(err)
	release := <-next
	select {
	case err := <-over:
		if !errors.Is(err, context.Canceled) || errors.Is(err, fencing.ErrUnknownOutcome) || !strings.Contains(err.Error(), "nothing was written") {
			w.Errorf("the answer is %v", err)
		}
	case <-time.After(20 * time.Second):
		w.Error("a commit whose context has ended waits for a connection")
	}
	release()
	if err := <-again; sqlstate(err) != "22012" {
		w.Errorf("the one that fails: %v", err)
	}
	w.wantWritten("k", written{})
}
