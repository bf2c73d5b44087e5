package fencing_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// What is asked for under a lease that is over does not wait for its commits in
// progress, though its token would be due.
func TestARetryUnderALostLeaseWaitsForNoRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 3)
	cfg := long
	cfg.RotateAfter = 1
	lease := a.acquireWith("k", cfg)
	stop := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(stop) })
	t.Cleanup(goOn)
	commit := func(step string, wait <-chan struct{}) (inside chan struct{}, done chan error) {
		inside, done = make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := lease.Commit(ctx, content(step, "x"), func(ctx context.Context, tx fencing.Tx) error {
				close(inside)
				<-wait
				return write(ctx, tx)
			})
			done <- err
		}()
		return inside, done
	}
	second := make(chan struct{})
	first, firstDone := commit("first", second)
	<-first
	inside, secondDone := commit("second", stop)
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%enter%')")
	close(second)
	w.ok(<-firstDone) // from here on the token is due
	<-inside
	w.ok(lease.Release(ctx))
	short, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	r, err := lease.Commit(short, content("first", "x"), write)
	w.ok(err)
	if !r.Replayed {
		t.Error("committed a second time")
	}
	goOn()
	w.is(<-secondDone, fencing.ErrReleased)
	w.wantWritten("k", written{1, 1, 1})
}
