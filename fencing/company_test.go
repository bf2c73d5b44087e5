package fencing_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
)

func TestABatchThatGetsNoConnectionIsToldSoAndNothingWasWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var away atomic.Bool
	a := w.workerAt("a", w.producer, 2, func(c *pgxpool.Config) {
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if away.Load() {
				return errors.New("the server is away")
			}
			return nil
		}
	})
	lease := a.acquire("k")
	away.Store(true)
	a.pool.Reset()
	for range 3 {
		if _, err := lease.CommitBatch(ctx, content("s", "x"), writeBatch); err == nil || errors.Is(err, fencing.ErrUnknownOutcome) {
			t.Errorf("without a connection: %v", err)
		}
	}
	away.Store(false)
	_, err := lease.CommitBatch(ctx, content("s", "x"), writeBatch)
	w.ok(err)
	w.wantWritten("k", written{1, 1, 1})
}

// A conflict behind a rotation says that the first attempt did commit: it must
// not be forgotten for that.
func TestAConflictBehindARotationDoesNotOpenTheStepAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 1)
	lease := a.acquire("k")
	dropped := proxy.DropNextCommitAnswer("the step")
	_, err := lease.Commit(ctx, content("the step", "x"), write)
	w.is(err, fencing.ErrUnknownOutcome)
	<-dropped
	_, err = lease.Rotate(ctx)
	w.ok(err)
	_, err = lease.Commit(ctx, content("the step", "y"), write)
	w.is(err, fencing.ErrConflict)
	r, err := lease.Commit(ctx, content("the step", "x"), write)
	w.ok(err)
	if !r.Replayed {
		t.Errorf("the step was committed a second time: %+v", r)
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestACloseDuringARotationClosesUnderTheNewestToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 4)
	for _, key := range []string{"k", "l", "m", "n", "o", "p"} {
		lease := a.acquire(key)
		var both sync.WaitGroup
		both.Go(func() { _, _ = lease.Rotate(ctx) }) // it may come too late
		both.Go(func() {
			if _, err := lease.Close(ctx); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		both.Wait()
	}
}

type panickyArgument struct{}

func (panickyArgument) Value() (driver.Value, error) { panic("encoder") }

func TestABatchWhoseArgumentPanicsGivesItsConnectionBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = a.CommitBatch(ctx, lease.Position(), content("s", "x"), func(b *fencing.Batch) error {
			b.Queue("insert into public.result values ($1, $2)", "k", panickyArgument{})
			return nil
		})
	}()
	// The only connection of the pool: it is given back, or replaced.
	_, err := a.CommitBatch(ctx, lease.Position(), content("s", "x"), writeBatch)
	w.ok(err)
}

// What one member sets would hold for those behind it in the transaction.
func TestABatchThatChangesSettingsGoesAlone(t *testing.T) {
	t.Parallel()
	for _, set := range []string{"set local synchronous_commit = off", " /* ; */ -- x\n SET LOCAL synchronous_commit = off", "select set_config('synchronous_commit', 'off', true)"} {
		w := newWorld(t)
		a := w.worker("a")
		lease := a.acquire("k")
		w.exec("create table setting (v text); grant all on setting to public")
		got := a.together(lease,
			func() (fencing.Receipt, error) {
				return lease.CommitBatch(ctx, content("1", "x"), func(b *fencing.Batch) error { b.Queue(set); return nil })
			},
			func() (fencing.Receipt, error) {
				return lease.CommitBatch(ctx, content("2", "x"), func(b *fencing.Batch) error {
					b.Queue("insert into public.setting values (current_setting('synchronous_commit'))")
					return nil
				})
			})
		w.ok(errors.Join(got[0].err, got[1].err))
		if v := value[string](w, "select v from setting"); v != "on" {
			t.Errorf("behind %q another's commit ran with synchronous_commit = %s", set, v)
		}
	}
}

func TestStepsOfTheToolkitsOwnAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("fenceline:close", "x"), write)
	w.is(err, fencing.ErrInvalid)
	p := lease.Position()
	for _, sql := range []string{
		"select fenceline.enter($1, $2, $3, 'fenceline:close', 'close/1', sha256('fenceline:close'), interval '5 s')",
		"select fenceline.enter_many($1, $2, $3, array['a', 'fenceline:close'], array['x', 'x'], array[sha256('a'), sha256('b')], interval '5 s')",
		"select fenceline.enter_many($1, $2, $3, '{}', '{}', '{}', interval '5 s')",
		"select fenceline.enter_many($1, $2, $3, array['a'], array['x', 'y'], array[sha256('a')], interval '5 s')",
	} {
		_, err := a.pool.Exec(ctx, sql, p.Key, p.Epoch, p.Token)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "FL011" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}
