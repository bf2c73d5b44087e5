package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

func (w *world) rotated(lease *fencing.Lease) fencing.Position {
	w.Helper()
	pos, err := lease.Rotate(ctx)
	w.ok(err)
	if pos != lease.Position() {
		w.Errorf("rotated to %v, the lease is at %v", pos, lease.Position())
	}
	return pos
}

func TestARotationMovesTheTokenAndKeepsTheLease(t *testing.T) {
	t.Parallel()
	rotationMoves(newWorld(t))
}

func rotationMoves(w *world) {
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	old := lease.Position()
	_, err := lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
	fresh := w.rotated(lease)
	if fresh.Epoch != old.Epoch || fresh.Token != old.Token+1 {
		w.Errorf("%v, then %v", old, fresh)
	}
	_, err = b.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrHeld)
	_, err = a.commit(old, content("s2", "x"))
	w.is(err, fencing.ErrStale)
	r, err := a.commit(old, content("s", "x"))
	w.ok(err)
	if !r.Replayed {
		w.Error("a receipt of before was not replayed")
	}
	_, err = lease.Commit(ctx, content("s", "y"), write) // another token's step
	w.ok(err)
	w.ok(lease.Release(ctx))
	why := value[string](w, "select string_agg(why || ' ' || token || ' ' || holder, ', ' order by n) from fenceline.turn where key = 'k'")
	if want := "acquire 1 a, rotate 2 a, release 2 a"; why != want {
		w.Errorf("turns: %s", why)
	}
	if seqs := value[[]int64](w, "select array_agg(seq order by pos) from fenceline.outbox where key = 'k'"); !slices.Equal(seqs, []int64{1, 2}) {
		w.Errorf("seqs %v", seqs)
	}
	if b.acquire("k").Position().Token != 3 {
		w.Error("the next holder's token")
	}
}

func TestARotationLetsTheCommitsInProgressEndAndTheNextOnesWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 4)
	lease := a.acquire("k")
	inside, proceed := make(chan struct{}), make(chan struct{})
	type result struct {
		r   fencing.Receipt
		err error
	}
	first, second := make(chan result, 1), make(chan result, 1)
	go func() {
		r, err := lease.Commit(ctx, content("s1", "x"), func(ctx context.Context, tx fencing.Tx) error {
			close(inside)
			<-proceed
			return write(ctx, tx)
		})
		first <- result{r, err}
	}()
	<-inside
	rotated := make(chan error, 1)
	go func() { _, err := lease.Rotate(ctx); rotated <- err }()
	for waits := false; !waits; { // for the rotation, and no longer for the fence
		brief, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		_, err := lease.Commit(brief, content("probe", "x"), write)
		cancel()
		w.is(err, context.DeadlineExceeded)
		waits = strings.Contains(err.Error(), "waiting for the rotation")
	}
	go func() { r, err := lease.Commit(ctx, content("s2", "x"), write); second <- result{r, err} }()
	select {
	case err := <-rotated:
		t.Fatalf("rotated under a commit in progress: %v", err)
	default:
	}
	close(proceed)
	one, two := <-first, <-second
	w.ok(one.err)
	w.ok(two.err)
	w.ok(<-rotated)
	if one.r.Position.Token != 1 || two.r.Position.Token != 2 {
		t.Errorf("committed under %v and %v", one.r.Position, two.r.Position)
	}
	w.wantWritten("k", written{2, 2, 2})
}

func TestALeaseRotatesByItselfAfterItsCommitsOrItsTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	for name, c := range map[string]struct {
		after int
		every time.Duration
		want  []int64
	}{
		"commits": {3, -1, []int64{1, 1, 1, 2, 2, 2, 3}},
		"time":    {-1, time.Nanosecond, []int64{1, 2, 3, 4, 5, 6, 7}},
		"never":   {-1, -1, []int64{1, 1, 1, 1, 1, 1, 1}},
		"default": {0, 0, []int64{1, 1, 1, 1, 1, 1, 1}},
	} {
		cfg := long
		cfg.RotateAfter, cfg.RotateEvery = c.after, c.every
		lease := a.acquireWith(name, cfg)
		var tokens []int64
		for i := range c.want {
			r, err := lease.Commit(ctx, content(fmt.Sprint(i), "x"), write)
			w.ok(err)
			tokens = append(tokens, r.Position.Token)
		}
		if !slices.Equal(tokens, c.want) {
			t.Errorf("%s: tokens %v, want %v", name, tokens, c.want)
		}
	}
}

func TestAnUnknownOutcomeIsAskedForUnderItsOwnTokenBehindARotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 1)
	for name, c := range map[string]func(*fencing.Lease) (fencing.Receipt, error){
		"callback": func(l *fencing.Lease) (fencing.Receipt, error) { return l.Commit(ctx, content("the step", "x"), write) },
		"batch": func(l *fencing.Lease) (fencing.Receipt, error) {
			return l.CommitBatch(ctx, content("the step", "x"), func(b *fencing.Batch) error {
				b.Queue("insert into public.result values ($1, $2)", b.Gate().Key, b.Gate().Step)
				return nil
			})
		},
	} {
		lease := a.acquire(name)
		old := lease.Position()
		dropped := proxy.DropNextCommitAnswer("the step")
		_, err := c(lease)
		w.is(err, fencing.ErrUnknownOutcome)
		<-dropped
		if fresh := w.rotated(lease); fresh.Token != 2 {
			t.Fatalf("%s: %v", name, fresh)
		}
		r, err := c(lease)
		w.ok(err)
		if !r.Replayed || r.Position != old {
			t.Errorf("%s: %+v, want a replay at %v", name, r, old)
		}
		if n := w.written(name).results; n != 1 {
			t.Errorf("%s: %d results", name, n)
		}
		// Its answer is here: from now on the step is one of the new token.
		r, err = c(lease)
		w.ok(err)
		if r.Replayed || r.Position.Token != 2 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestAnAttemptThatDidNotCommitBeforeARotationCommitsBehindIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 2)
	lease := a.acquire("k")
	w.ok(func() error { // its COMMIT never arrives
		_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
			pid := tx.Conn().PgConn().PID()
			if err := write(ctx, tx); err != nil {
				return err
			}
			proxy.Freeze()
			w.exec("select pg_terminate_backend($1)", int32(pid))
			pgtest.WaitGone(w, w.admin, pid)
			proxy.Thaw()
			return nil
		})
		if err == nil || errors.Is(err, fencing.ErrStale) {
			return fmt.Errorf("the answer is %w", err)
		}
		return nil
	}())
	w.rotated(lease)
	r, err := lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
	if r.Replayed || r.Position.Token != 2 {
		t.Errorf("%+v", r)
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestARotationWhoseAnswerWasLostGetsTheSameTokenAgain(t *testing.T) {
	t.Parallel()
	rotationAgain(newWorld(t))
}

func rotationAgain(w *world) {
	a, proxy := w.behindProxy("a", 1)
	cfg := long
	cfg.PollEvery = 10 * time.Millisecond
	lease := a.acquireWith("the key", cfg)
	dropped := proxy.DropNextCommitAnswer("the key")
	fresh := w.rotated(lease)
	<-dropped
	if got := value[int64](w, "select max_issued_token from fenceline.fence where key = 'the key'"); got != 2 || fresh.Token != 2 {
		w.Errorf("the fence is at %d, the lease at %v", got, fresh)
	}
	_, err := lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
}

func TestARotationAndTheRenewalsDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 3)
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: time.Minute, RenewEvery: time.Millisecond})
	for range 200 {
		w.rotated(lease)
	}
	w.ok(lease.Context().Err())
	from := value[time.Time](w, "select expires_at from fenceline.lease")
	pgtest.WaitTrue(t, w.admin, "select expires_at > $1 from fenceline.lease", from)
}

// A renewal that was asked for under the old token, and is answered behind the
// rotation: "lost", which is true of that token and not of the lease.
func TestARenewalThatARotationHasOvertakenDoesNotEndTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mutate("_renew", "return query", "perform pg_advisory_xact_lock(9);\n  return query")
	pause := w.session(w.dsn)
	_, err := pause.Exec(ctx, "select pg_advisory_lock(9)")
	w.ok(err)
	a := w.workerAt("a", w.producer, 3)
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 5 * time.Minute, RenewEvery: time.Second})
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_locks where locktype = 'advisory' and objid = 9 and not granted)")
	w.rotated(lease)
	_, err = pause.Exec(ctx, "select pg_advisory_unlock(9)")
	w.ok(err)
	from := value[time.Time](w, "select expires_at from fenceline.lease")
	pgtest.WaitTrue(t, w.admin, "select expires_at > $1 from fenceline.lease", from)
	w.ok(lease.Context().Err())
}

func TestManyGoroutinesCommitOnceEachWhileTheTokenRotates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 6)
	cfg := long
	cfg.RotateAfter = 7
	lease := a.acquireWith("k", cfg)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			for i := range 20 {
				step := fmt.Sprint(g, "-", i)
				var err error
				if g%2 == 0 {
					_, err = lease.Commit(ctx, content(step, "x"), write)
				} else {
					_, err = lease.CommitBatch(ctx, content(step, "x"), func(b *fencing.Batch) error {
						b.Queue("insert into public.result values ($1, $2)", b.Gate().Key, b.Gate().Step)
						return outbox.Append(ctx, b, outbox.Event{Topic: "results", Type: "result", Payload: []byte(step)})
					})
				}
				if err != nil {
					t.Errorf("%s: %v", step, err)
				}
			}
		})
	}
	wg.Wait()
	w.wantWritten("k", written{120, 120, 120})
	if bad := value[int](w, `select count(*) from (select seq - row_number() over w as off, token - lag(token) over w as step from fenceline.outbox window w as (order by pos)) x where off <> 0 or step < 0`); bad != 0 {
		t.Errorf("%d events are out of order", bad)
	}
	if token := lease.Position().Token; token < 5 {
		t.Errorf("only %d tokens", token)
	}
}

func TestALeaseThatIsOverIsNotRotated(t *testing.T) {
	t.Parallel()
	overIsNotRotated(newWorld(t))
}

func overIsNotRotated(w *world) {
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	w.expire("k") // nobody took it yet
	_, err := lease.Rotate(ctx)
	w.is(err, fencing.ErrStale)
	w.is(context.Cause(lease.Context()), fencing.ErrLeaseLost)
	other := b.acquire("k")
	_, err = lease.Rotate(ctx)
	w.is(err, fencing.ErrLeaseLost)
	w.ok(other.Release(ctx))
	_, err = other.Rotate(ctx)
	w.is(err, fencing.ErrReleased)
	if got := value[int64](w, "select max_issued_token from fenceline.fence"); got != 2 {
		w.Errorf("the fence is at %d", got)
	}
}

func TestARotationBlockedByACommitOfSomebodyElseLeavesTheLeaseAsItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, other := w.worker("a"), w.worker("other")
	cfg := long
	cfg.Wait = 50 * time.Millisecond
	lease := a.acquireWith("k", cfg)
	p := other.pauseBehindGate(lease.Position(), content("s", "x"))
	_, err := lease.Rotate(ctx)
	w.is(err, fencing.ErrBlocked)
	w.ok(lease.Context().Err())
	p.goOn()
	w.ok((<-p.done).err)
	_, err = lease.Commit(ctx, content("s2", "x"), write)
	w.ok(err)
}

func TestTheToolkitsOwnLeasesAreNotRotated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool := pgtest.Connect(t, pgmigrated.Login(t, w.dsn, schema.KindRelay))
	f, err := fencing.New(ctx, pool, fencing.Config{System: true, AllowUnsafeDatabase: true, Logger: quiet()})
	w.ok(err)
	lease, err := f.Acquire(ctx, "fenceline:x", long)
	w.ok(err)
	_, err = lease.Rotate(ctx)
	w.is(err, fencing.ErrMisuse)
	w.ok(lease.HandOver(ctx, "another relay"))
	_, err = f.Acquire(ctx, "fenceline:x", long)
	w.is(err, fencing.ErrHeld)
}

func TestInAnotherHistoryNoTokenIsRotated(t *testing.T) {
	t.Parallel()
	rotatesInAnotherHistory(newWorld(t))
}

func rotatesInAnotherHistory(w *world) {
	lease := w.worker("a").acquire("k")
	w.newIdentity("timeline = '00000009'")
	_, err := lease.Rotate(ctx)
	w.is(err, fencing.ErrHistory)
	w.ok(lease.Context().Err())
	w.exec("select fenceline.history_confirm()")
	w.rotated(lease)
}
