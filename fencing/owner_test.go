package fencing_test

import (
	"errors"
	"net/url"
	"testing"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

func (w *world) mender() *fencing.Operator {
	w.Helper()
	o, err := fencing.NewOperator(ctx, pgtest.Connect(w, pgmigrated.Login(w, w.dsn, schema.KindOperator)), "")
	w.ok(err)
	return o
}

func (w *world) loginOf(dsn string) string {
	w.Helper()
	u, err := url.Parse(dsn)
	w.ok(err)
	return u.User.Username()
}

var own = fencing.LeaseConfig{TTL: long.TTL, Own: true}

func TestUnderAnOwnedKeyOnlyItsLoginAcquiresAndCommits(t *testing.T) {
	t.Parallel()
	ownedCommit(newWorld(t))
	ownedAcquire(newWorld(t))
}

// What a shared role can't prevent, an owner does: a position that another login
// has heard of is of no use to it.
func ownedCommit(w *world) {
	a := w.worker("a")
	b := w.workerAt("b", pgmigrated.Login(w, w.dsn, schema.KindProducer), 1)
	pos := a.acquireWith("k", own).Position()
	_, err := a.commit(pos, content("s", "x"))
	w.ok(err)
	for _, step := range []string{"s", "s2"} { // a replay would tell what was committed
		_, err = b.commit(pos, content(step, "x"))
		w.is(err, fencing.ErrOwner)
		var refused *fencing.RefusedError
		if errors.As(err, &refused) {
			w.Errorf("another login is told %+v", refused.Evidence)
		}
	}
	_, err = a.commit(pos, content("s2", "x"))
	w.ok(err)
	w.wantWritten("k", written{2, 2, 2})
}

func ownedAcquire(w *world) {
	a := w.worker("a")
	other := pgmigrated.Login(w, w.dsn, schema.KindProducer, schema.KindAdvancer)
	b := w.workerAt("b", other, 1)
	a.acquireWith("k", own)
	w.expire("k")
	_, err := b.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrOwner)
	_, err = b.Acquire(ctx, "k", own)
	w.is(err, fencing.ErrOwner)
	o := &outsider{b, w.session(other)}
	_, err = o.advance("k", 7)
	w.is(err, fencing.ErrOwner)
	if token := value[int64](w, "select max_issued_token from fenceline.fence where key = 'k'"); token != 1 {
		w.Errorf("the fence is at %d", token)
	}
	lease := a.acquireWith("k", own)
	w.rotated(lease)
	w.ok(lease.Release(ctx))
	a.acquire("k") // nor need it say so again
}

func TestAKeyThatHasServedOthersIsNotHadByNamingOneselfItsOwner(t *testing.T) {
	t.Parallel()
	servedOthers(newWorld(t))
}

func servedOthers(w *world) {
	a := w.worker("a")
	w.ok(a.acquire("k").Release(ctx))
	_, err := a.Acquire(ctx, "k", own)
	w.is(err, fencing.ErrOwner)
	op := w.mender()
	w.is(op.SetOwner(ctx, "k", "no such login", "alice"), fencing.ErrInvalid)
	w.is(op.SetOwner(ctx, "", w.loginOf(w.producer), "alice"), fencing.ErrInvalid)
	w.ok(op.SetOwner(ctx, "k", w.loginOf(w.producer), "alice"))
	lease := a.acquireWith("k", own)
	// Taken away while it holds the lease.
	w.ok(op.SetOwner(ctx, "k", w.loginOf(w.dsn), "alice"))
	_, err = lease.Commit(ctx, content("s", "x"), write)
	w.is(err, fencing.ErrOwner)
	w.ok(op.SetOwner(ctx, "k", "", "alice"))
	_, err = lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
	info, err := op.Show(ctx, "k", 0)
	w.ok(err)
	if turn := info.Turns[0]; info.Owner != "" || turn.Why != "owner" || turn.Whom != "alice" || turn.Login == "" {
		w.Errorf("%+v", info)
	}
	// Before the first acquire.
	w.ok(op.SetOwner(ctx, "new", w.loginOf(w.producer), "alice"))
	if pos := a.acquireWith("new", own).Position(); pos.Token != 1 {
		w.Error(pos)
	}
}
