package fencing_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// Not parallel: it looks at all goroutines.
func TestTheRenewerEndsWithTheLastRelease(t *testing.T) {
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 2)
	before := goleak.IgnoreCurrent()
	for range 2 {
		cfg := fencing.LeaseConfig{TTL: time.Minute, RenewEvery: 50 * time.Millisecond}
		k, l := a.acquireWith("k", cfg), a.acquireWith("l", cfg)
		start := value[time.Time](w, "select max(expires_at) from fenceline.lease")
		pgtest.WaitTrue(t, w.admin, "select min(expires_at) > $1 from fenceline.lease", start)
		w.ok(k.Release(ctx))
		w.ok(l.Release(ctx))
		a.pool.Reset() // so that the pool's own goroutines end as well
		w.admin.Reset()
		goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
	}
}

// counter counts the statements that renew, and the leases in them.
type counter struct{ statements, leases atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (c *counter) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	if strings.Contains(d.SQL, ".renew(") {
		c.statements.Add(1)
		c.leases.Add(int64(len(d.Args[0].([]string))))
	}
}
func (c *counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func TestManyLeasesAreRenewedByOneStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var count counter
	a := w.workerAt("a", w.producer, 2, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &count })
	const n = 60
	cfg := fencing.LeaseConfig{TTL: time.Minute, RenewEvery: 4 * time.Second} // those due within a second share a statement
	for i := range n {
		a.acquireWith("k"+string(rune('a'+i)), cfg)
	}
	acquired := value[time.Time](w, "select max(expires_at) from fenceline.lease")
	pgtest.WaitTrue(t, w.admin, "select min(expires_at) > $1 from fenceline.lease", acquired)
	// The database shows the renewal before its answer has come back.
	for deadline := time.Now().Add(10 * time.Second); count.leases.Load() < n && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	if statements, leases := count.statements.Load(), count.leases.Load(); leases < n || leases < 4*statements {
		t.Errorf("%d renewals took %d statements", leases, statements)
	}
}

// An attempt that is made twice gets the same lease, and so may have two handles.
func TestEachHandleOfAnAttemptIsRenewed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 2)
	cfg := long
	cfg.Attempt = uuid.New()
	handles := []*fencing.Lease{a.acquireWith("k", cfg), a.acquireWith("k", cfg)}
	if handles[0].Position() != handles[1].Position() {
		t.Fatalf("%v and %v", handles[0].Position(), handles[1].Position())
	}
	before := []time.Time{fencing.Trusted(handles[0]), fencing.Trusted(handles[1])}
	fencing.RenewNow(a.Fences, handles...)
	for i, l := range handles {
		if !fencing.Trusted(l).After(before[i]) {
			t.Errorf("handle %d was not renewed", i)
		}
	}
	w.exec("update fenceline.lease set expires_at = '-infinity' where key = 'k'")
	fencing.RenewNow(a.Fences, handles...)
	for i, l := range handles {
		if !errors.Is(context.Cause(l.Context()), fencing.ErrLeaseLost) {
			t.Errorf("handle %d has not lost it", i)
		}
	}
}

// endedWhileHeld waits for the end of a lease's context, and asks the database at once
// whether the lease is still there.
func (w *world) endedWhileHeld(lease *fencing.Lease) {
	w.Helper()
	<-lease.Context().Done()
	var left time.Duration
	w.ok(w.admin.QueryRow(ctx, "select expires_at - clock_timestamp() from fenceline.lease where key = $1", lease.Position().Key).Scan(&left))
	if left <= 0 {
		w.Errorf("the context ended %v after the lease", -left)
	}
	w.is(context.Cause(lease.Context()), fencing.ErrLeaseLost)
}

// The margin is generous so that a busy machine has time to look.
var brief = fencing.LeaseConfig{TTL: 6 * time.Second, Margin: 3 * time.Second, RenewEvery: 300 * time.Millisecond}

func TestTheContextEndsBeforeTheLeaseWhenRenewalsHang(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 2)
	lease := a.acquireWith("k", brief)
	proxy.Freeze()
	w.endedWhileHeld(lease)
	// It is not renewed any more either, but for what was on the way.
	proxy.Thaw()
	pgtest.WaitTrue(t, w.admin, "select expires_at < clock_timestamp() from fenceline.lease where key = 'k'")
}

func TestTheContextEndsBeforeTheLeaseWhenItsRowStaysLocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 2)
	lease, other := a.acquireWith("k", brief), a.acquireWith("l", brief)
	lock := w.session(w.dsn)
	tx, err := lock.Begin(ctx)
	w.ok(err)
	// After a first renewal, so that both ways to trust are seen.
	from := value[time.Time](w, "select expires_at from fenceline.lease where key = 'k'")
	pgtest.WaitTrue(t, w.admin, "select expires_at > $1 from fenceline.lease where key = 'k'", from)
	_, err = tx.Exec(ctx, "select from fenceline.lease where key = 'k' for update")
	w.ok(err)
	w.endedWhileHeld(lease)
	if err := other.Context().Err(); err != nil {
		t.Error("a lease whose row was free was lost with the other")
	}
	w.ok(tx.Rollback(ctx))
}

// lateLeases has whoever sets a lease's time wait at COMMIT, until the session lets one
// of them through.
func (w *world) lateLeases() (hold *pgx.Conn, let func()) {
	w.Helper()
	w.exec(`create function public.late() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(11); return null; end $$;
		create constraint trigger late after insert or update on fenceline.lease deferrable initially deferred for each row execute function public.late()`)
	hold = w.session(w.dsn)
	_, err := hold.Exec(ctx, "select pg_advisory_lock(11)")
	w.ok(err)
	return hold, func() {
		w.Helper()
		_, err := hold.Exec(ctx, "select pg_advisory_unlock(11), pg_advisory_lock(11)") // behind who waits
		w.ok(err)
	}
}

const waitsFor = "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))"

// The database's time runs from when it was asked: an answer that is late is of a
// lease that is as much older. Here it is by more than the margin.
func TestTheTrustInALeaseCountsFromTheQuestion(t *testing.T) {
	t.Parallel()
	if !longRun() {
		t.Skip("it lasts as long as a lease that a busy machine can look at: FENCELINE_LONG=1")
	}
	w := newWorld(t)
	hold, let := w.lateLeases()
	a := w.workerAt("a", w.producer, 2)
	got := make(chan *fencing.Lease, 1)
	go func() {
		lease, err := a.Acquire(ctx, "k", fencing.LeaseConfig{TTL: 18 * time.Second, Margin: 3 * time.Second, RenewEvery: 14 * time.Second})
		if err != nil {
			t.Error(err)
		}
		got <- lease
	}()
	pgtest.WaitTrue(t, w.admin, waitsFor, int32(hold.PgConn().PID()))
	time.Sleep(4 * time.Second) // it is the time that is tested
	let()
	lease := <-got
	if t.Failed() {
		return
	}
	w.endedWhileHeld(lease)
	w.ok(hold.Close(ctx))
	w.ok(lease.Release(ctx))
}

func TestTheTrustInARenewedLeaseCountsFromTheQuestion(t *testing.T) {
	t.Parallel()
	if !longRun() {
		t.Skip("it lasts as long as a lease that a busy machine can look at: FENCELINE_LONG=1")
	}
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 2)
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 18 * time.Second, Margin: 3 * time.Second, RenewEvery: 7 * time.Second})
	before := value[time.Time](w, "select expires_at from fenceline.lease")
	hold, let := w.lateLeases()
	pgtest.WaitTrue(t, w.admin, waitsFor, int32(hold.PgConn().PID()))
	time.Sleep(4 * time.Second) // less than a renewal is waited for
	let()
	pgtest.WaitTrue(t, w.admin, "select expires_at > $1 from fenceline.lease", before)
	w.endedWhileHeld(lease)
	w.ok(hold.Close(ctx))
}

func TestARenewalThatFailsIsTriedAgainWhileTrustRemains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 2)
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 20 * time.Second, RenewEvery: 200 * time.Millisecond})
	renewed := func() {
		t.Helper()
		from := value[time.Time](w, "select expires_at from fenceline.lease where key = 'k'")
		pgtest.WaitTrue(t, w.admin, "select expires_at > $1 from fenceline.lease where key = 'k'", from)
	}
	renewed()
	w.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and usename like 'test_%'")
	renewed()
	w.ok(lease.Context().Err())
}

func TestALeaseThatWasTakenOverIsLostAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.workerAt("a", w.producer, 2), w.worker("b")
	old := a.acquireWith("k", fencing.LeaseConfig{TTL: 5 * time.Minute, RenewEvery: 100 * time.Millisecond})
	// A renewal may come between the expiry and the takeover: try again.
	for {
		w.expire("k")
		lease, err := b.Acquire(ctx, "k", long)
		if err == nil {
			defer func() { _ = lease.Release(ctx) }()
			break
		}
		w.is(err, fencing.ErrHeld)
	}
	<-old.Context().Done()
	w.is(context.Cause(old.Context()), fencing.ErrLeaseLost)
}

func TestARenewalDuringATakeoverNeitherWaitsNorSpoilsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos, other := a.acquire("k").Position(), a.acquire("l").Position()
	w.expire("k")
	taker := w.session(w.producer)
	tx, err := taker.Begin(ctx)
	w.ok(err)
	_, err = tx.Exec(ctx, "select fenceline.acquire('k', 'b', '1 min', gen_random_uuid(), '1 s')")
	w.ok(err)
	ask := func() (answers map[string]bool) {
		t.Helper()
		conn := w.session(w.producer)
		rows, err := conn.Query(ctx, "select key, ok from fenceline.renew($1, $2, $3, $4)", []string{"k", "l", "gone"}, []int64{pos.Epoch, other.Epoch, 1}, []int64{1, 1, 1},
			[]time.Duration{time.Minute, time.Minute, time.Minute})
		w.ok(err)
		answers = map[string]bool{}
		for rows.Next() {
			var key string
			var ok bool
			w.ok(rows.Scan(&key, &ok))
			answers[key] = ok
		}
		w.ok(rows.Err())
		return answers
	}
	busy := ask()
	if _, there := busy["k"]; there || !busy["l"] || len(busy) != 2 || busy["gone"] {
		t.Errorf("during the takeover: %v, want k absent (busy), l renewed, gone lost", busy)
	}
	w.ok(tx.Commit(ctx))
	lost := ask()
	if ok, there := lost["k"]; !there || ok {
		t.Errorf("after the takeover: %v, want k lost", lost)
	}
}
