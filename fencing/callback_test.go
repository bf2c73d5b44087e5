package fencing_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

var errCallback = errors.New("the callback's own")

// clean says that a worker's only connection came back without a transaction
// of before, by committing on it.
func (k *worker) clean(lease *fencing.Lease) {
	k.w.Helper()
	r, err := k.commit(lease.Position(), content("clean", "x"))
	k.w.ok(err)
	if r.Replayed {
		k.w.Error("replayed")
	}
	k.w.wantWritten(lease.Position().Key, written{1, 1, 1})
}

func TestAnErrorOfTheCallbackRollsBackAndIsReturnedAsItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		return errors.Join(write(ctx, tx), errCallback)
	})
	w.is(err, errCallback)
	a.clean(lease)
}

func TestAPanicOfTheCallbackRollsBackAndGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	func() {
		defer func() {
			if p := recover(); p != any(errCallback) {
				t.Errorf("recovered %v", p)
			}
		}()
		_, _ = lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
			w.ok(write(ctx, tx))
			panic(errCallback)
		})
	}()
	a.clean(lease)
}

func TestAGoexitOfTheCallbackRollsBackAlsoWithRowsOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
			if err := write(ctx, tx); err != nil {
				return err
			}
			if _, err := tx.Query(ctx, "select generate_series(1, 1000)"); err != nil { //nolint:sqlclosecheck // left open on purpose
				return err
			}
			runtime.Goexit()
			return nil
		})
	}()
	<-gone
	a.clean(lease)
}

func TestAStatementThatFailedCannotBeSwallowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		w.ok(write(ctx, tx))
		_, _ = tx.Exec(ctx, "select 1/0")
		return nil
	})
	w.is(err, fencing.ErrRolledBack)
	a.clean(lease)
}

func TestRowsLeftOpenAreNamedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		w.ok(write(ctx, tx))
		_, err := tx.Query(ctx, "select generate_series(1, 1000)") //nolint:sqlclosecheck // left open on purpose
		return err
	})
	w.is(err, fencing.ErrMisuse)
	a.clean(lease)
}

func TestACallbackThatEndsItsTransactionIsToldSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("rolled back", "x"), func(ctx context.Context, tx fencing.Tx) error {
		w.is(tx.Commit(ctx), fencing.ErrMisuse)
		w.is(tx.Rollback(ctx), fencing.ErrMisuse)
		_, err := tx.Conn().Exec(ctx, "rollback")
		return err
	})
	w.is(err, fencing.ErrMisuse)
	w.wantWritten("k", written{})
	// What it committed by itself is committed; the retry says so.
	_, err = lease.Commit(ctx, content("committed", "x"), func(ctx context.Context, tx fencing.Tx) error {
		_, err := tx.Conn().Exec(ctx, "commit")
		return err
	})
	w.is(err, fencing.ErrMisuse)
	r, err := lease.Commit(ctx, content("committed", "x"), write)
	w.ok(err)
	if !r.Replayed {
		t.Error("the retry ran again")
	}
}

func TestASavepointThatIsRolledBackShedsNeitherTheLockNorTheCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		for range 2 {
			err := pgx.BeginFunc(ctx, tx, func(sp pgx.Tx) error {
				_, _ = sp.Exec(ctx, "insert into public.result values ('k', 'undone')")
				_, err := sp.Exec(ctx, "select 1/0")
				return err
			})
			if sqlstate(err) != "22012" {
				t.Errorf("the savepoint gave %v", err)
			}
		}
		_, err := w.admin.Exec(ctx, "select from fenceline.fence where key = 'k' for no key update nowait")
		if sqlstate(err) != "55P03" {
			t.Errorf("the fence is not locked any more: %v", err)
		}
		return write(ctx, tx)
	})
	w.ok(err)
	w.wantWritten("k", written{1, 1, 1})
}

func TestADeferredConstraintThatFailsAtCommitWritesNothingAndTheRetryIsFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.parent (id int primary key); create table public.child (id int references public.parent deferrable initially deferred); grant all on public.parent, public.child to public")
	a := w.worker("a")
	lease := a.acquire("k")
	orphan := func(ctx context.Context, tx fencing.Tx) error {
		_, err := tx.Exec(ctx, "insert into public.child values (1)")
		return errors.Join(err, write(ctx, tx))
	}
	_, err := lease.Commit(ctx, content("s", "x"), orphan)
	if sqlstate(err) != "23503" || errors.Is(err, fencing.ErrUnknownOutcome) {
		t.Fatalf("got %v", err)
	}
	w.wantWritten("k", written{})
	w.exec("insert into public.parent values (1)")
	r, err := lease.Commit(ctx, content("s", "x"), orphan)
	w.ok(err)
	if r.Replayed {
		t.Error("replayed")
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestADeadlineDuringTheCallbackWritesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	for _, swallow := range []bool{false, true} {
		short, cancel := context.WithCancel(ctx)
		_, err := lease.Commit(short, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
			w.ok(write(ctx, tx))
			pid := tx.Conn().PgConn().PID()
			w.exec("select pg_advisory_lock(7)") // on one of the superuser's connections
			go func() {
				pgtest.WaitBlocked(t, w.admin, pid)
				cancel()
			}()
			_, err := tx.Exec(ctx, "select pg_advisory_xact_lock(7)")
			if swallow {
				return nil
			}
			return err
		})
		cancel()
		if swallow {
			w.is(err, fencing.ErrRolledBack)
		} else {
			w.is(err, context.Canceled)
		}
		if errors.Is(err, fencing.ErrUnknownOutcome) {
			t.Errorf("unknown, though COMMIT was never sent: %v", err)
		}
		w.admin.Reset()
	}
	// The server may still be rolling back what lost its connection.
	pgtest.WaitTrue(t, w.admin, "select count(*) = 0 from pg_stat_activity where datname = current_database() and state = 'idle in transaction'")
	w.exec("select pg_advisory_unlock_all()")
	a.clean(lease)
}

// deferCommit makes the COMMIT of each transaction that writes a business row
// wait for advisory lock 9, which the returned session holds. A request to
// cancel it, as the driver sends after a time-out, does not reach it: it comes
// too late, as it well may.
func (w *world) deferCommit() *pgx.Conn {
	w.Helper()
	w.exec(`create function public.wait() returns trigger language plpgsql as $$
			begin
				begin perform pg_advisory_xact_lock(9); exception when query_canceled then perform pg_advisory_xact_lock(9); end;
				return null;
			end $$;
		create constraint trigger wait after insert on public.result deferrable initially deferred for each row execute function public.wait()`)
	holder := w.session(w.dsn)
	_, err := holder.Exec(ctx, "select pg_advisory_lock(9)")
	w.ok(err)
	return holder
}

func (w *world) letCommit(holder *pgx.Conn) {
	w.Helper()
	_, err := holder.Exec(ctx, "select pg_advisory_unlock(9)")
	w.ok(err)
}

func TestADeadlineDuringCommitDoesNotReachIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	holder := w.deferCommit()
	pid := a.pid()
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan answer, 1)
	go func() {
		r, err := lease.Commit(short, content("s", "x"), write)
		done <- answer{r, err}
	}()
	pgtest.WaitBlocked(t, w.admin, pid, holder.PgConn().PID())
	cancel()
	select {
	case got := <-done:
		t.Fatalf("COMMIT was cancelled: %v", got.err)
	case <-time.After(50 * time.Millisecond): // that nothing happens is the point
	}
	w.letCommit(holder)
	w.ok((<-done).err)
	w.wantWritten("k", written{1, 1, 1})
}

func TestACommitThatTakesTooLongIsUnknownAndTheRetryTells(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.workerAt("a", w.producer, 2) // the first connection's place is free again only when its server has ended
	fences, err := fencing.New(ctx, k.pool, fencing.Config{CommitTimeout: 2 * time.Second, AllowUnsafeDatabase: true, Logger: quiet()})
	w.ok(err)
	lease, err := fences.Acquire(ctx, "k", long)
	w.ok(err)
	defer func() { _ = lease.Release(ctx) }()
	_, err = lease.Commit(ctx, content("before", "x"), write) // so that no statement must be prepared
	w.ok(err)
	holder := w.deferCommit()
	_, err = lease.Commit(ctx, content("s", "x"), write)
	w.is(err, fencing.ErrUnknownOutcome)
	// The first may still be in COMMIT; or it has been rolled back by the cancel
	// request with which pgx takes leave of a connection, if that came through in
	// time. The retry waits, at the fence or in its own COMMIT, and tells.
	retry := k.commitLater(lease.Position(), content("s", "x"))
	pgtest.WaitTrue(t, w.admin, "select count(*) >= 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
	w.letCommit(holder)
	got := <-retry
	w.ok(got.err)
	w.wantWritten("k", written{2, 2, 2}) // once, whichever attempt it was
}

func TestOnePooledConnectionIsEnough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	if n := a.pool.Config().MaxConns; n != 1 {
		t.Fatalf("%d connections", n)
	}
	for _, key := range []string{"k", "l"} {
		lease := a.acquire(key)
		_, err := lease.Commit(ctx, content("s", "x"), write)
		w.ok(err)
		_, err = lease.Commit(ctx, content("s", "x"), write)
		w.ok(err)
		w.ok(lease.Release(ctx))
	}
}

func TestTheResultAndQueuedStatementsTravelWithCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("s", "x"), func(_ context.Context, tx fencing.Tx) error {
		w.is(tx.SetResult(make([]byte, 8<<10+1)), fencing.ErrInvalid)
		tx.Queue("insert into public.result values ($1, $2)", "k", "queued")
		if n := value[int](w, "select count(*) from public.result"); n != 0 {
			t.Errorf("%d rows before COMMIT", n)
		}
		return tx.SetResult(make([]byte, 8<<10))
	})
	w.ok(err)
	w.wantWritten("k", written{1, 1, 0})
	_, err = lease.Commit(ctx, content("failing", "x"), func(_ context.Context, tx fencing.Tx) error {
		tx.Queue("insert into public.result values ('k', 'undone')")
		tx.Queue("select 1/0")
		return nil
	})
	if sqlstate(err) != "22012" || errors.Is(err, fencing.ErrUnknownOutcome) {
		t.Errorf("a queued statement that failed: %v", err)
	}
	w.wantWritten("k", written{1, 1, 0})
}

func TestALeaseThatIsLostEndsItsCallbackAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		w.ok(write(ctx, tx))
		w.expire("k")
		go func() { _ = lease.Release(context.Background()) }()
		<-ctx.Done()
		w.is(context.Cause(ctx), fencing.ErrReleased)
		return nil
	})
	w.is(err, fencing.ErrReleased)
	w.wantWritten("k", written{})
	_, err = lease.Commit(ctx, content("s", "x"), func(context.Context, fencing.Tx) error {
		t.Error("the callback ran under a lease that has ended")
		return nil
	})
	w.is(err, fencing.ErrReleased)
}
