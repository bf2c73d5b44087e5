package fencing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/schema"
)

// outsider is a login that brings its own lease, and a worker for its commits.
type outsider struct {
	*worker
	conn *pgx.Conn
}

func (w *world) outsider() *outsider {
	w.Helper()
	dsn := pgmigrated.Login(w, w.dsn, schema.KindProducer, schema.KindAdvancer)
	return &outsider{w.workerAt("outsider", dsn, 1), w.session(dsn)}
}

func (o *outsider) advance(key string, token int64) (pos fencing.Position, err error) {
	o.w.Helper()
	return pos, pgx.BeginFunc(ctx, o.conn, func(tx pgx.Tx) (err error) {
		pos, err = o.Advance(ctx, tx, key, token)
		return err
	})
}

func TestAnOutsideTokenIsTakenIfItIsLargerAndTheSameAgainChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.outsider()
	first, err := o.advance("k", 100)
	w.ok(err)
	_, err = o.commit(first, content("s", "x"))
	w.ok(err)
	again, err := o.advance("k", 100) // its answer was lost, say
	w.ok(err)
	if first.Token != 100 || again != first {
		t.Errorf("%v, then %v", first, again)
	}
	_, err = o.advance("k", 99)
	w.is(err, fencing.ErrStale)
	if e := evidence(w, err); e.Token != 99 || e.CurrentToken != 100 || e.CurrentEpoch != first.Epoch || e.Key != "k" {
		t.Errorf("%+v", e)
	}
	second, err := o.advance("k", 1<<62)
	w.ok(err)
	_, err = o.commit(first, content("s2", "x"))
	w.is(err, fencing.ErrStale)
	_, err = o.commit(second, content("s2", "x"))
	w.ok(err)
	w.wantWritten("k", written{2, 2, 2})
	if turns := value[int](w, "select count(*) from fenceline.turn where key = 'k' and why = 'advance'"); turns != 2 {
		t.Errorf("%d turns", turns)
	}
	next, err := o.advance("l", 0)
	w.ok(err)
	if next.Token != 1 {
		t.Errorf("the next token of a new key is %d", next.Token)
	}
}

func TestAnOutsideTokenOutOfRangeIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.outsider()
	for _, token := range []int64{1<<62 + 1, -1} {
		_, err := o.advance("k", token)
		w.is(err, fencing.ErrInvalid)
	}
	_, err := o.advance("", 1)
	w.is(err, fencing.ErrInvalid)
	_, err = o.advance("fenceline:k", 1)
	w.is(err, fencing.ErrInvalid)
}

func TestAnAdvanceEndsTheManagedLeaseInTheSameTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.outsider()
	a := w.workerAt("a", w.producer, 2)
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 5 * time.Minute, RenewEvery: 100 * time.Millisecond})
	tx, err := o.conn.Begin(ctx)
	w.ok(err)
	pos, err := o.Advance(ctx, tx, "k", 7)
	w.ok(err)
	if until := value[time.Time](w, "select expires_at from fenceline.lease where key = 'k'"); time.Until(until) < 0 {
		t.Error("the lease ended before the transaction")
	}
	w.ok(tx.Commit(ctx))
	<-lease.Context().Done() // the next renewal is told
	w.is(context.Cause(lease.Context()), fencing.ErrLeaseLost)
	_, err = a.commit(lease.Position(), content("s", "x"))
	w.is(err, fencing.ErrStale)
	_, err = o.commit(pos, content("s", "x"))
	w.ok(err)
	if fresh := a.acquire("k").Position(); fresh.Token != 8 || fresh.Epoch != pos.Epoch {
		t.Errorf("a managed lease after it: %v", fresh)
	}
}

func TestAnAdvanceThatRollsBackChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.outsider()
	a := w.worker("a")
	lease := a.acquire("k")
	tx, err := o.conn.Begin(ctx)
	w.ok(err)
	_, err = o.Advance(ctx, tx, "k", 7)
	w.ok(err)
	w.ok(tx.Rollback(ctx))
	_, err = lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
	_, err = o.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrHeld)
}

// The number that a managed lease was granted is nobody else's: two holders
// would commit under it.
func TestTheTokenOfAManagedLeaseIsNotGivenToAnOutsiderToo(t *testing.T) {
	t.Parallel()
	managedTokenIsNobodyElses(newWorld(t))
}

func managedTokenIsNobodyElses(w *world) {
	o := w.outsider()
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := o.advance("k", lease.Position().Token)
	w.is(err, fencing.ErrStale)
	_, err = lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
}

func TestAnAdvanceAndTheGateOfItsTokenShareATransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.outsider()
	old, err := o.advance("k", 1)
	w.ok(err)
	err = pgx.BeginFunc(ctx, o.conn, func(tx pgx.Tx) error {
		pos, err := o.Advance(ctx, tx, "k", 2)
		if err != nil {
			return err
		}
		_, err = o.Enter(ctx, tx, pos, content("s", "x"))
		return err
	})
	w.ok(err)
	_, err = o.commit(old, content("s", "x"))
	w.is(err, fencing.ErrStale)
}

func TestAProducerCannotAdvance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	err := pgx.BeginFunc(ctx, w.session(w.producer), func(tx pgx.Tx) error { _, err := a.Advance(ctx, tx, "k", 7); return err })
	if sqlstate(err) != "42501" || errors.Is(err, fencing.ErrStale) {
		t.Error(err)
	}
}
