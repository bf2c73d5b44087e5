package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// Those who wait for a hot key's fence hold one connection: the others of the pool
// are for the other keys.
func TestCommitsThatWaitForAHotKeyLeaveTheConnectionsToTheOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 2)
	hot, other := a.acquire("hot").Position(), a.acquire("other").Position()
	hold := w.session(w.dsn)
	_, err := hold.Exec(ctx, "begin; select from fenceline.fence where key = 'hot' for update")
	w.ok(err)

	const many = 12
	var all sync.WaitGroup
	answers := make([]error, many)
	commit := func(ctx context.Context, i int) error {
		_, err := a.CommitBatch(ctx, hot, content(fmt.Sprint(i), "x"), writeBatch)
		return err
	}
	for i := range many {
		all.Go(func() { answers[i] = commit(ctx, i) })
	}
	fencing.WaitForTurns(a.Fences, "hot", many)
	pgtest.WaitTrue(t, w.admin, "select count(*) = 1 from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0 and datname = current_database()")

	// Whoever waits for a turn can leave, and has sent nothing.
	leaving, leave := context.WithCancelCause(ctx)
	left := make(chan error)
	go func() { left <- commit(leaving, many) }()
	fencing.WaitForTurns(a.Fences, "hot", many+1)
	gone := errors.New("no time for this")
	leave(gone)
	w.is(<-left, gone)

	soon, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err = a.CommitBatch(soon, other, content("s", "x"), writeBatch)
	w.ok(err)

	_, err = hold.Exec(ctx, "commit")
	w.ok(err)
	all.Wait()
	w.ok(errors.Join(answers...))
	w.wantWritten("hot", written{many, many, many})
	w.wantWritten("other", written{1, 1, 1})
	if n := fencing.Turns(a.Fences); n != 0 {
		t.Errorf("%d keys are remembered under which nobody commits", n)
	}
}
