package fencing_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

// patient is a lease for which nobody asks again by the clock within a test.
var patient = fencing.LeaseConfig{TTL: 5 * time.Minute, PollEvery: time.Minute}

type campaigned struct {
	lease *fencing.Lease
	err   error
}

func (k *worker) campaignLater(ctx context.Context, key string, cfg fencing.LeaseConfig) <-chan campaigned {
	ch := make(chan campaigned, 1)
	go func() {
		l, err := k.Campaign(ctx, key, cfg)
		if err == nil {
			k.w.Cleanup(func() { _ = l.Release(context.Background()) })
		}
		ch <- campaigned{l, err}
	}()
	return ch
}

// inLine waits until the holder's name stands first in line.
func (w *world) inLine(key, holder string) {
	w.Helper()
	pgtest.WaitTrue(w, w.admin, "select coalesce((select waiter = $2 from fenceline.lease where key = $1), false)", key, holder)
}

func (w *world) won(c <-chan campaigned) *fencing.Lease {
	w.Helper()
	select {
	case got := <-c:
		w.ok(got.err)
		return got.lease
	case <-time.After(20 * time.Second):
		w.Fatal("the campaign goes on")
		panic("unreachable")
	}
}

func TestACampaignWinsWhenTheLeaseHasExpiredAndNotLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// A holder that has died: nobody renews.
	w.exec("select fenceline.acquire('k', 'dead', '1 s', gen_random_uuid(), '1 s')")
	expires := value[time.Time](w, "select expires_at from fenceline.lease where key = 'k'")
	lease := w.won(w.worker("b").campaignLater(ctx, "k", patient))
	if lease.Position().Token != 2 {
		t.Errorf("token %d", lease.Position().Token)
	}
	if late := value[time.Time](w, "select at from fenceline.turn where key = 'k' and token = 2").Sub(expires); late < 0 || late > 15*time.Second { // by its clock it would ask after 30 s at the earliest
		t.Errorf("won %v after the lease could expire", late)
	}
}

func TestACampaignIsWokenByAReleaseInTheSameProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	next := a.campaignLater(ctx, "k", patient)
	w.inLine("k", "a")
	w.ok(lease.Release(ctx))
	w.won(next) // it would have slept for half a minute
}

func TestTheWaitersOfAProcessQueueAndOneOfThemAsks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var acquires atomic.Int64
	a := w.workerAt("a", w.producer, 2, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = &statementCounter{part: ".acquire(", n: &acquires}
	})
	first := a.acquire("k")
	const n = 20
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			l, err := a.Campaign(ctx, "k", patient)
			if err != nil {
				t.Error(err)
				return
			}
			if err := l.Release(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	w.inLine("k", "a")
	w.ok(first.Release(ctx))
	wg.Wait() // each is woken by the release before it
	// The winner's, and one that was told "held" now and then, more often on a
	// busy machine; if all who wait asked at each release, more than ten times n.
	if got := acquires.Load(); got > 6*n {
		t.Errorf("%d questions for %d leases", got, n)
	}
	if got := value[int](w, "select count(*) from fenceline.turn where key = 'k' and why = 'acquire'"); got != n+1 {
		t.Errorf("%d turns", got)
	}
}

func TestAReleaseKeepsTheKeyForWhoIsFirstInLine(t *testing.T) {
	t.Parallel()
	firstInLine(newWorld(t))
}

// A holder that comes back at once would otherwise win for ever: it knows of its
// release before anybody else can.
func firstInLine(w *world) {
	a, b, c := w.worker("a"), w.worker("b"), w.worker("c")
	lease := a.acquire("k")
	until, stop := context.WithCancel(ctx)
	defer stop()
	waiting := b.campaignLater(until, "k", patient)
	w.inLine("k", "b")
	// Who comes later does not take its place.
	_, err := w.session(w.producer).Exec(ctx, "select fenceline.acquire('k', 'c', '1 min', gen_random_uuid(), '1 s', false, '50 ms')")
	w.ok(err)
	if first := value[string](w, "select waiter from fenceline.lease"); first != "b" {
		w.Errorf("first in line is %s", first)
	}
	behind := c.campaignLater(until, "k", fencing.LeaseConfig{TTL: time.Minute, PollEvery: 50 * time.Millisecond})
	w.ok(lease.Release(ctx))
	for _, k := range []*worker{a, c} {
		_, err := k.Acquire(ctx, "k", long)
		var held *fencing.HeldError
		if !errors.As(err, &held) || held.Holder != "b" || !held.Reserved || held.Remaining > 2*time.Minute || !strings.Contains(err.Error(), "kept for") {
			w.Errorf("%s acquires: %v, want it kept for b", k.name, err)
		}
	}
	// Not for ever, should it have died.
	w.exec("update fenceline.lease set reserved_until = clock_timestamp() - interval '1 s'")
	w.won(behind)
	stop()
	w.is((<-waiting).err, context.Canceled)
}

func TestAHolderThatComesBackAtOnceDoesNotWinForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	cfg := fencing.LeaseConfig{TTL: time.Minute, PollEvery: 100 * time.Millisecond}
	until, stop := context.WithCancel(ctx)
	var greedy sync.WaitGroup
	greedy.Go(func() {
		for until.Err() == nil {
			if l, err := a.Campaign(until, "k", cfg); err == nil {
				_ = l.Release(ctx)
			}
		}
	})
	pgtest.WaitTrue(t, w.admin, "select exists (select from fenceline.turn where key = 'k' and why = 'release')")
	w.won(b.campaignLater(ctx, "k", cfg))
	stop()
	greedy.Wait()
}

func TestACampaignGoesOnThroughLostConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	a.acquire("k")
	next := b.campaignLater(ctx, "k", fencing.LeaseConfig{TTL: time.Minute, PollEvery: 20 * time.Millisecond})
	w.inLine("k", "b")
	for range 3 {
		w.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and usename like 'test_%'")
		from := value[time.Time](w, "select waiter_until from fenceline.lease")
		pgtest.WaitTrue(t, w.admin, "select waiter_until > $1 from fenceline.lease", from)
	}
	w.expire("k")
	w.won(next)
}

func TestACampaignThatIsCalledOffSaysWhoHadTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	a.acquire("k")
	why := errors.New("called off")
	until, stop := context.WithCancelCause(ctx)
	first := b.campaignLater(until, "k", patient)
	w.inLine("k", "b")
	// The database has answered; now it has the answer, too.
	for deadline := time.Now().Add(time.Minute); b.pool.Stat().AcquiredConns() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the answer does not arrive")
		}
	}
	second := b.campaignLater(until, "k", patient) // queues behind it, without asking
	stop(why)
	err := (<-first).err
	w.is(err, why)
	w.is(err, fencing.ErrHeld)
	if !strings.Contains(err.Error(), `"a"`) {
		t.Error(err)
	}
	w.is((<-second).err, why)
	_, err = b.Campaign(until, "l", patient)
	w.is(err, why)
	if n := b.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
}

func TestACampaignReturnsWhatAskingAgainCannotChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	_, err := a.Campaign(ctx, "", patient)
	w.is(err, fencing.ErrInvalid)
	_, err = a.Campaign(ctx, "k", fencing.LeaseConfig{})
	w.is(err, fencing.ErrInvalid)
	_, err = a.Campaign(ctx, "fenceline:k", patient)
	w.is(err, fencing.ErrInvalid)
	a.acquire("closed")
	w.exec("update fenceline.fence set closed_at = now(); update fenceline.lease set expires_at = '-infinity'")
	_, err = a.Campaign(ctx, "closed", patient)
	w.is(err, fencing.ErrClosed)
	w.newIdentity("timeline = '00000009'")
	_, err = a.Campaign(ctx, "k", patient)
	w.is(err, fencing.ErrHistory)
	nobody := w.workerAt("nobody", pgmigrated.Login(t, w.dsn, schema.KindMonitor), 1)
	_, err = nobody.Campaign(ctx, "k", patient)
	if sqlstate(err) != "42501" {
		t.Error(err)
	}
}

// statementCounter counts the statements that contain a text.
type statementCounter struct {
	part string
	n    *atomic.Int64
}

func (c *statementCounter) see(sql string) {
	if strings.Contains(sql, c.part) {
		c.n.Add(1)
	}
}
func (c *statementCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	c.see(d.SQL)
	return ctx
}
func (c *statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *statementCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (c *statementCounter) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	c.see(d.SQL)
}
func (c *statementCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
