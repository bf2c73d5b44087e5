package fencing_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

// The functions of docs/bring-your-own-lease.md, as they stand there.

// reign advances the fence of key to the token that the lock was granted with.
// Commits under the position that it returns are refused as soon as somebody
// with a larger token has done the same.
func reign(ctx context.Context, fences *fencing.Fences, pool *pgxpool.Pool, key string, token int64) (pos fencing.Position, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		pos, err = fences.Advance(ctx, tx, key, token)
		return err
	})
	return pos, err
}

// whileLocked works until the session that holds the lock is over (done is
// session.Done()).
func whileLocked(ctx context.Context, fences *fencing.Fences, pool *pgxpool.Pool, key string, createRevision int64, done <-chan struct{}, work func(context.Context, fencing.Position) error) error {
	pos, err := reign(ctx, fences, pool, key, createRevision)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return work(ctx, pos)
}

// transitionsToken: the first holder has 0 transitions or none, and a token
// begins at 1.
func transitionsToken(transitions *int32) int64 {
	if transitions == nil {
		return 1
	}
	return int64(*transitions) + 1
}

// runDue begins the next run of a job that is due, and says under which
// position its results are committed. A run that hangs is overtaken by the next
// one: from then on it commits nothing.
func runDue(ctx context.Context, fences *fencing.Fences, pool *pgxpool.Pool, job string, every time.Duration) (pos fencing.Position, due bool, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var run int64
		// clock_timestamp() and not now(): behind the wait for the row the
		// transaction's own time would be an old one.
		err := tx.QueryRow(ctx, `update job set run = run + 1, next_at = clock_timestamp() + $2
			where name = $1 and next_at <= clock_timestamp() returning run`, job, every).Scan(&run)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		due = true
		pos, err = fences.Advance(ctx, tx, "job/"+job, run)
		return err
	})
	return pos, due && err == nil, err
}

func runReport(ctx context.Context, fences *fencing.Fences, pool *pgxpool.Pool) error {
	pos, due, err := runDue(ctx, fences, pool, "report", time.Hour)
	if err != nil || !due {
		return err
	}
	content := fencing.Content{Step: "report", Type: "text/plain", Bytes: []byte("what the run has found")}
	_, err = fences.Commit(ctx, pos, content, func(ctx context.Context, tx fencing.Tx) error {
		_, err := tx.Exec(ctx, "insert into report (run, body) values ($1, $2)", pos.Token, content.Bytes)
		return err
	})
	return err
}

// The page and this file say the same.
func TestTheFunctionsOfThePageOnLeasesFromElsewhereAreTheOnesTestedHere(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/bring-your-own-lease.md")
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.ReadFile("own_lease_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"reign", "whileLocked", "transitionsToken", "runDue", "runReport"} {
		_, function, found := strings.Cut(string(page), "\nfunc "+name+"(")
		function, _, ended := strings.Cut(function, "\n}\n")
		if !found || !ended || !strings.Contains(string(here), "\nfunc "+name+"("+function+"\n}\n") {
			t.Errorf("%s is another one on the page", name)
		}
	}
}

func TestAnOvertakenRunOfACronTableCommitsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.job (name text primary key, run bigint not null default 0, next_at timestamptz not null default now()); grant all on public.job to public; insert into public.job (name) values ('report')")
	o := w.workerAt("cron", pgmigrated.Login(t, w.dsn, schema.KindProducer, schema.KindAdvancer), 2)
	first, due, err := runDue(ctx, o.Fences, o.pool, "report", time.Hour)
	w.ok(err)
	if !due || first.Token != 1 {
		t.Fatalf("%v %v", first, due)
	}
	if _, due, err := runDue(ctx, o.Fences, o.pool, "report", time.Hour); err != nil || due {
		t.Errorf("a job that is not due: %v %v", due, err)
	}
	p := o.pauseBehindGate(first, content("s", "x"))
	w.exec("update public.job set next_at = now()")
	// The next run waits for the commit in progress; then the first one is late.
	type started struct {
		pos fencing.Position
		due bool
		err error
	}
	second := make(chan started, 1)
	go func() {
		pos, due, err := runDue(ctx, o.Fences, o.pool, "report", time.Hour)
		second <- started{pos, due, err}
	}()
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", int32(p.pid))
	p.goOn()
	w.ok((<-p.done).err)
	s := <-second
	w.ok(s.err)
	if !s.due || s.pos.Token != 2 {
		t.Errorf("%+v", s)
	}
	_, err = o.commit(first, content("s2", "x"))
	w.is(err, fencing.ErrStale)
	_, err = o.commit(s.pos, content("s", "x"))
	w.ok(err)
	w.wantWritten("job/report", written{2, 2, 2})
	// Two schedulers at once: one run.
	w.exec("update public.job set next_at = now()")
	runs := make(chan bool, 2)
	for range 2 {
		go func() {
			_, due, err := runDue(ctx, o.Fences, o.pool, "report", time.Hour)
			if err != nil {
				t.Error(err)
			}
			runs <- due
		}()
	}
	if a, b := <-runs, <-runs; a == b {
		t.Errorf("of two schedulers %v and %v began the run", a, b)
	}
	w.exec("create table public.report (run bigint, body bytea); grant all on public.report to public; update public.job set next_at = now()")
	w.ok(runReport(ctx, o.Fences, o.pool))
	w.ok(runReport(ctx, o.Fences, o.pool)) // not due
	if run := value[int64](w, "select run from public.report"); run != 4 {
		t.Errorf("reported by run %d", run)
	}
	// A run that rolls back has not begun.
	w.exec("update public.job set next_at = now(); update fenceline.fence set closed_at = now()")
	_, due, err = runDue(ctx, o.Fences, o.pool, "report", time.Hour)
	w.is(err, fencing.ErrClosed)
	if run := value[int64](w, "select run from public.job"); due || run != 4 {
		t.Errorf("due %v, run %d", due, run)
	}
}

func TestALockFromElsewhereEndsTheWorkAndTheFenceWhatIsLeftOfIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.workerAt("outsider", pgmigrated.Login(t, w.dsn, schema.KindProducer, schema.KindAdvancer), 2)
	var late fencing.Position
	done := make(chan struct{})
	err := whileLocked(ctx, o.Fences, o.pool, "k", 1234, done, func(ctx context.Context, pos fencing.Position) error {
		late = pos
		_, err := o.commit(pos, content("s", "x"))
		w.ok(err)
		close(done)
		<-ctx.Done()
		return ctx.Err()
	})
	w.is(err, context.Canceled)
	two, three := int32(2), transitionsToken(nil)
	if transitionsToken(&two) != 3 || three != 1 {
		t.Error("tokens of a Lease object")
	}
	w.exec("alter role " + w.loginOf(o.pool.Config().ConnString()) + " set default_transaction_isolation = 'serializable'")
	o.pool.Reset() // such a login does as well
	_, err = reign(ctx, o.Fences, o.pool, "k", 1235)
	w.ok(err)
	_, err = o.commit(late, content("s2", "x"))
	w.is(err, fencing.ErrStale)
	_, err = reign(ctx, o.Fences, o.pool, "k", 1234)
	w.is(err, fencing.ErrStale)
	if !errors.Is(err, fencing.ErrStale) || w.written("k").results != 1 {
		t.Error("an overtaken holder wrote")
	}
}
