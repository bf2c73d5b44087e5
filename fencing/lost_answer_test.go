package fencing_test

import (
	"net/url"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgproxy"
)

// behindProxy is a worker whose connection goes through a proxy.
func (w *world) behindProxy(name string, conns int, edit ...func(*pgxpool.Config)) (*worker, *pgproxy.Proxy) {
	w.Helper()
	u, err := url.Parse(w.producer)
	w.ok(err)
	proxy, err := pgproxy.Listen(u.Host)
	w.ok(err)
	w.Cleanup(func() { _ = proxy.Close() })
	dsn, err := proxy.DSN(w.producer)
	w.ok(err)
	return w.workerAt(name, dsn, conns, edit...), proxy
}

func TestACommitWhoseAnswerWasLostIsReplayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 1)
	lease := a.acquire("k")
	dropped := proxy.DropNextCommitAnswer("the step")
	_, err := lease.Commit(ctx, content("the step", "x"), write)
	w.is(err, fencing.ErrUnknownOutcome)
	<-dropped
	r, err := lease.Commit(ctx, content("the step", "x"), write)
	w.ok(err)
	if !r.Replayed {
		t.Error("the retry committed a second time")
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestACommitWhoseAnswerWasLostIsReplayedAlsoAfterATakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 1)
	b := w.worker("b")
	lease := a.acquire("k")
	proxy.DropNextCommitAnswer("the step")
	_, err := lease.Commit(ctx, content("the step", "x"), write)
	w.is(err, fencing.ErrUnknownOutcome)
	b.takeOver("k")
	r, err := lease.Commit(ctx, content("the step", "x"), write)
	w.ok(err)
	if !r.Replayed {
		t.Error("the retry committed a second time")
	}
	_, err = lease.Commit(ctx, content("another step", "x"), write)
	w.is(err, fencing.ErrStale)
	w.wantWritten("k", written{1, 1, 1})
}

func TestAnAcquireWhoseAnswerWasLostGetsTheSameTokenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 1)
	dropped := proxy.DropNextCommitAnswer("the key")
	lease := a.acquire("the key") // asks twice
	<-dropped
	if got := value[int64](w, "select max_issued_token from fenceline.fence where key = 'the key'"); got != 1 || lease.Position().Token != 1 {
		t.Errorf("the fence is at %d, the lease at %v", got, lease.Position())
	}
}

func TestTheSameAttemptGetsTheSameTokenAndAnotherDoesNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	cfg := long
	cfg.Attempt = uuid.New()
	first := a.acquireWith("k", cfg)
	second := a.acquireWith("k", cfg) // a process that was restarted, say
	if first.Position() != second.Position() {
		t.Errorf("%v, then %v", first.Position(), second.Position())
	}
	_, err := a.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrHeld)
	// Its lease over, the attempt is one like any other.
	w.expire("k")
	third := a.acquireWith("k", cfg)
	if third.Position().Token != first.Position().Token+1 {
		t.Errorf("%v, then %v", first.Position(), third.Position())
	}
}
