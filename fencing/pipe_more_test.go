package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// A connection that is lost right behind the error of one commit: the server has
// gone on with the next one, of which that error says nothing.
func TestWhatIsLostBehindAFailureIsUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.unique_late (n int unique deferrable initially deferred); grant all on public.unique_late to public")
	a := w.workerAt("a", w.producer, 1, func(c *pgxpool.Config) {
		next := c.ConnConfig.OnPgError
		c.ConnConfig.OnPgError = func(pc *pgconn.PgConn, e *pgconn.PgError) bool { return e.Code != "23505" && next(pc, e) } // closes it
	})
	pos := a.acquire("k").Position()
	c := newConvoy(a, pos, func(b *fencing.Batch) error {
		b.Queue("insert into public.unique_late values (1), (1)")
		return writeBatch(b)
	}, writeBatch)
	c.free()
	if r := <-c.got[0]; sqlstate(r.err) != "23505" {
		t.Errorf("the first: %v", r.err)
	}
	r := <-c.got[1]
	w.is(r.err, fencing.ErrUnknownOutcome)
	if _, theirs := errors.AsType[*pgconn.PgError](r.err); theirs {
		t.Errorf("the second has the first one's error: %v", r.err)
	}
	_, err := a.commitBatch(pos, content("1", "x"))
	w.ok(err)
	w.wantWritten("k", written{1, 1, 1})
}

// What a migration changes under a running producer fails none of its commits.
func TestAPlanWhoseTypesAreOutOfDateIsMadeAnew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, change, value string }{
		"a column of another type": {"create table public.doc (body text)", "alter table public.doc alter column body type jsonb using body::jsonb", "{}"},
		"a type made anew": {"create type public.e as enum ('a'); create table public.doc (body public.e)",
			"drop table public.doc; drop type public.e; create type public.e as enum ('a', 'b'); create table public.doc (body public.e)", "a"},
		"another column's type": {"create table public.doc (body int)", "drop table public.doc; create table public.doc (body text)", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(c.before + "; grant all on public.doc to public")
			a := w.worker("a")
			pos := a.acquire("k").Position()
			commit := func(step string) error {
				_, err := a.CommitBatch(ctx, pos, content(step, "x"), func(b *fencing.Batch) error {
					b.Queue("insert into public.doc values ($1)", c.value)
					return nil
				})
				return err
			}
			w.ok(commit("first"))
			w.exec(c.change + "; grant all on public.doc to public")
			for i := range 3 {
				w.ok(commit(fmt.Sprint(i)))
			}
		})
	}
}

// Whoever is asked why nothing was written says so, and a retry goes on.
func TestAConnectionThatIsLostWhileAStatementIsPreparedHasWrittenNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	gate := w.session(w.dsn)
	_, err := gate.Exec(ctx, "begin; lock table public.result in access exclusive mode")
	w.ok(err)
	pid := int32(a.pid())
	attempts := 0
	done := make(chan error, 1)
	go func() {
		_, err := fencing.Retry(ctx, func(ctx context.Context) (fencing.Receipt, error) {
			if attempts++; attempts == 1 {
				return fencing.Receipt{}, fencing.ErrUnknownOutcome
			}
			r, err := a.CommitBatch(ctx, pos, content("s", "x"), writeBatch)
			if err != nil && (errors.Is(err, fencing.ErrUnknownOutcome) || sqlstate(err) != "57P01" || !strings.Contains(err.Error(), "nothing was written")) {
				t.Errorf("attempt %d: %v", attempts, err)
			}
			return r, err
		})
		done <- err
	}()
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')", pid)
	w.exec("select pg_terminate_backend($1)", pid)
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where pid <> $1 and usename = $2 and wait_event_type = 'Lock')", pid, w.loginOf(w.producer))
	_, err = gate.Exec(ctx, "rollback")
	w.ok(err)
	w.ok(<-done)
	w.wantWritten("k", written{1, 1, 1})
}

// A statement that is not prepared yet waits for the connection, in line.
func TestWhoWaitsForTheConnectionCanStillLeave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	gate := w.session(w.dsn)
	_, err := gate.Exec(ctx, "select pg_advisory_lock(77)")
	w.ok(err)
	pid := int32(a.pid())
	conn, err := a.pool.Acquire(ctx)
	w.ok(err)
	commit := func(ctx context.Context, step, sql string) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := a.CommitBatch(ctx, pos, content(step, "x"), func(b *fencing.Batch) error {
				b.Queue(sql)
				return writeBatch(b)
			})
			done <- err
		}()
		return done
	}
	first := commit(ctx, "0", "select pg_advisory_xact_lock(77)")
	fencing.WaitForTurn(a.Fences, "k", 1)
	leaving, leave := context.WithCancelCause(ctx)
	second := commit(leaving, "1", "select 4711")
	fencing.WaitForTurn(a.Fences, "k", 2)
	conn.Release()
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'advisory')", pid)
	gone := errors.New("no time for this")
	leave(gone)
	err = <-second
	w.is(err, gone)
	if errors.Is(err, fencing.ErrUnknownOutcome) {
		t.Errorf("nothing was sent, and it says %v", err)
	}
	_, err = gate.Exec(ctx, "select pg_advisory_unlock(77)")
	w.ok(err)
	w.ok(<-first)
	w.wantWritten("k", written{1, 1, 1})
}

// Config.Wake is the caller's, and runs between the answers.
func TestAPanicOfWakeIsTheCallersWhoseCommitItFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	armed := make(chan struct{})
	a := w.workerOn(w.poolAt(w.producer, 1), fencing.Config{Holder: "a", Wake: func() {
		select {
		case <-armed:
			panic("wake")
		default:
		}
	}})
	pos := a.acquire("k").Position()
	c := newConvoy(a, pos, writeBatch, writeBatch)
	close(armed)
	c.free()
	for i, got := range c.got {
		if r := <-got; r.err == nil || r.err.Error() != "panic: wake" {
			t.Errorf("commit %d: %+v, %v", i, r.receipt, r.err)
		}
	}
	w.wantWritten("k", written{2, 2, 2})
}

// Short of a connection, a process renews its leases all the same.
func TestALongLineOfSlowCommitsLosesNoLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	fencing.LendFor(a.Fences, fencing.PipeTime)
	lease := a.acquireWith("other", fencing.LeaseConfig{TTL: 6 * time.Second})
	hot := a.acquire("hot").Position()
	stop := make(chan struct{})
	done := make(chan error, 4)
	for g := range cap(done) {
		go func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				_, err := a.CommitBatch(ctx, hot, content(fmt.Sprint(g, " ", n), "x"), func(b *fencing.Batch) error {
					b.Queue("select pg_sleep(0.3)")
					return nil
				})
				if err != nil {
					done <- err
					return
				}
			}
		}()
	}
	before := value[time.Time](w, "select expires_at from fenceline.lease where key = 'other'")
	pgtest.WaitTrue(t, w.admin, "select expires_at > $1 from fenceline.lease where key = 'other'", before)
	if lease.Context().Err() != nil {
		t.Errorf("the lease is lost: %v", context.Cause(lease.Context()))
	}
	close(stop)
	for range cap(done) {
		w.ok(<-done)
	}
}

func TestStatementsThatAreOutOfDateDoNotPileUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create function public.nope() returns void language plpgsql as 'begin raise feature_not_supported; end'")
	a := w.worker("a")
	pos := a.acquire("k").Position()
	n := 0
	for i := range 6 {
		_, err := a.CommitBatch(ctx, pos, content(fmt.Sprint(i), "x"), func(b *fencing.Batch) error {
			for range 100 {
				n++
				b.Queue(fmt.Sprintf("select %d", n))
			}
			b.Queue("select public.nope()")
			return nil
		})
		if sqlstate(err) != "0A000" {
			t.Errorf("commit %d: %v", i, err)
		}
	}
	var ours int
	w.ok(a.pool.QueryRow(ctx, "select count(*) filter (where name like 'fenceline%') from pg_prepared_statements").Scan(&ours))
	if ours > fencing.PreparedMost || ours == 0 {
		t.Errorf("%d are prepared, where %d may be", ours, fencing.PreparedMost)
	}
}

type tenant struct{}

// Hooks of a pool prepare the connection for the one with whose context it is taken.
func TestACommitTakesAConnectionForItselfWhereHooksPrepareIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.audit (step text, who text default current_setting('app.who', true)); grant all on public.audit to public")
	a := w.workerAt("a", w.producer, 2, func(c *pgxpool.Config) {
		c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
			who, _ := ctx.Value(tenant{}).(string)
			if who == "bad" {
				return true, errors.New("no such tenant")
			}
			_, err := conn.Exec(ctx, "select set_config('app.who', $1, false)", who)
			return err == nil, err
		}
	})
	pos := a.acquire("k").Position()
	done := make(chan error, 21)
	commit := func(who string) {
		_, err := a.CommitBatch(context.WithValue(ctx, tenant{}, who), pos, content(who, "x"), func(b *fencing.Batch) error {
			b.Queue("insert into public.audit (step) values ($1)", who)
			return nil
		})
		if (who == "bad") != (err != nil) {
			done <- fmt.Errorf("%s: %w", who, err)
			return
		}
		done <- nil
	}
	go commit("bad")
	for i := range 20 {
		go commit(fmt.Sprint(i))
	}
	for range cap(done) {
		w.ok(<-done)
	}
	if n := value[int](w, "select count(*)::int from public.audit where step is distinct from who"); n != 0 {
		t.Errorf("%d of 20 commits ran under somebody else's setting", n)
	}
}

// So does one of a lease whose batches share no transaction, and whoever waits with
// another one that gives up.
func TestABatchThatSharesNothingTakesItsConnectionItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.audit (step text, who text default current_setting('app.who', true)); grant all on public.audit to public")
	a := w.workerAt("a", w.producer, 1, func(c *pgxpool.Config) {
		c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
			who, _ := ctx.Value(tenant{}).(string)
			_, err := conn.Exec(ctx, "select set_config('app.who', $1, false)", who)
			return err == nil, err
		}
	})
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 5 * time.Minute, Coalesce: 1})
	conn, err := a.pool.Acquire(ctx)
	w.ok(err)
	defer conn.Release() // once more does nothing
	commit := func(ctx context.Context, who string) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := lease.CommitBatch(context.WithValue(ctx, tenant{}, who), content(who, "x"), func(b *fencing.Batch) error {
				b.Queue("insert into public.audit (step) values ($1)", who)
				return nil
			})
			done <- err
		}()
		return done
	}
	impatient, giveUp := context.WithCancel(ctx)
	first := commit(impatient, "first")
	fencing.WaitForTurns(a.Fences, "k", 1)
	second := commit(ctx, "second")
	fencing.WaitForTurns(a.Fences, "k", 2)
	giveUp()
	w.is(<-first, context.Canceled)
	conn.Release()
	w.ok(<-second)
	if who := value[string](w, "select string_agg(step || ' as ' || who, ', ') from public.audit"); who != "second as second" {
		t.Errorf("written: %s", who)
	}
}

// Nobody was before it but those who have the pool's connections.
func TestWhoWaitsInVainForAConnectionIsToldThatThePoolIsTooSmall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	conn, err := a.pool.Acquire(ctx)
	w.ok(err)
	defer conn.Release()
	for name, commit := range map[string]func(ctx context.Context) error{
		"by position": func(ctx context.Context) error {
			_, err := a.CommitBatch(ctx, lease.Position(), content("s", "x"), writeBatch)
			return err
		},
		"by lease": func(ctx context.Context) error {
			_, err := lease.CommitBatch(ctx, content("s", "x"), writeBatch)
			return err
		},
	} {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		err := commit(short)
		cancel()
		w.is(err, context.DeadlineExceeded)
		if err == nil || !strings.Contains(err.Error(), "all 1 connections of the pool are taken") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
