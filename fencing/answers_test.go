package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// Each scenario is a function of its own, so that the tests of mutated
// functions can run it and see it fail.

func TestAHolderThatWaitedBehindATakeoverIsStaleAndWritesNothing(t *testing.T) {
	t.Parallel()
	waitedBehindATakeover(newWorld(t))
}

func waitedBehindATakeover(w *world) {
	a := w.worker("a")
	lease := a.acquire("k")
	w.expire("k")
	b := w.session(w.producer)
	tx, err := b.Begin(ctx)
	w.ok(err)
	_, err = tx.Exec(ctx, "select fenceline.acquire('k', 'b', '1 min', gen_random_uuid(), '1 s')")
	w.ok(err)
	pid := a.pid()
	late := a.commitLater(lease.Position(), content("s", "x"))
	pgtest.WaitBlocked(w, w.admin, pid, b.PgConn().PID())
	w.ok(tx.Commit(ctx))
	err = (<-late).err
	w.is(err, fencing.ErrStale)
	if e := evidence(w, err); e.Key != "k" || e.Step != "s" || e.Token != 1 || e.CurrentToken != 2 || e.Epoch != lease.Position().Epoch || e.CurrentEpoch != e.Epoch {
		w.Errorf("evidence %+v", e)
	}
	w.wantWritten("k", written{})
}

func TestATakeoverThatRollsBackLeavesTheHolderItsCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	w.expire("k")
	b := w.session(w.producer)
	tx, err := b.Begin(ctx)
	w.ok(err)
	_, err = tx.Exec(ctx, "select fenceline.acquire('k', 'b', '1 min', gen_random_uuid(), '1 s')")
	w.ok(err)
	pid := a.pid()
	late := a.commitLater(lease.Position(), content("s", "x"))
	pgtest.WaitBlocked(w, w.admin, pid, b.PgConn().PID())
	w.ok(tx.Rollback(ctx))
	got := <-late
	w.ok(got.err)
	if got.receipt.Replayed || got.receipt.CommittedAt.IsZero() || got.receipt.Position != lease.Position() || got.receipt.Step != "s" {
		t.Errorf("receipt %+v", got.receipt)
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestAPausedHolderIsRefusedBeforeTheNewHolderHasWritten(t *testing.T) {
	t.Parallel()
	refusedBeforeTheNewHolderHasWritten(newWorld(t))
}

func refusedBeforeTheNewHolderHasWritten(w *world) {
	a, b := w.worker("a"), w.worker("b")
	old := a.acquire("k")
	fresh := b.takeOver("k")
	if fresh.Position().Epoch != old.Position().Epoch || fresh.Position().Token != old.Position().Token+1 {
		w.Errorf("the takeover went from %v to %v", old.Position(), fresh.Position())
	}
	_, err := a.commit(old.Position(), content("s", "x"))
	w.is(err, fencing.ErrStale)
	w.wantWritten("k", written{})
	_, err = b.commit(fresh.Position(), content("s", "x"))
	w.ok(err)
	w.wantWritten("k", written{1, 1, 1})
}

func TestARetryBehindItsOwnCommitAndATakeoverIsReplayed(t *testing.T) {
	t.Parallel()
	retryBehindItsOwnCommitAndATakeover(newWorld(t))
}

// The retry finds no receipt, waits for the fence, and when it gets there both
// its own first attempt and a takeover have committed.
func retryBehindItsOwnCommitAndATakeover(w *world) {
	a, b, retry := w.worker("a"), w.worker("b"), w.worker("retry")
	lease := a.acquire("k")
	first := a.pauseBehindGate(lease.Position(), content("s", "x"))
	w.expire("k")
	bpid := b.pid()
	taken := make(chan error, 1)
	go func() {
		l, err := b.Acquire(ctx, "k", long)
		if err == nil {
			w.Cleanup(func() { _ = l.Release(ctx) })
		}
		taken <- err
	}()
	pgtest.WaitBlocked(w, w.admin, bpid, first.pid)
	rpid := retry.pid()
	second := retry.commitLater(lease.Position(), content("s", "x"))
	pgtest.WaitBlocked(w, w.admin, rpid)
	first.goOn()
	got := <-first.done
	w.ok(got.err)
	w.ok(<-taken)
	again := <-second
	w.ok(again.err)
	if !again.receipt.Replayed || !again.receipt.CommittedAt.Equal(got.receipt.CommittedAt) {
		w.Errorf("first %+v, retry %+v", got.receipt, again.receipt)
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestARetryAfterATakeoverIsReplayedWithTheFirstResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	result := bytes.Repeat([]byte{0, 1, 254, 255}, 500) // longer than a line of base64
	first, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		if err := tx.SetResult(result); err != nil {
			return err
		}
		return write(ctx, tx)
	})
	w.ok(err)
	b.takeOver("k")
	for range 2 {
		ran := false
		again, err := lease.Commit(ctx, content("s", "x"), func(context.Context, fencing.Tx) error { ran = true; return nil })
		w.ok(err)
		if !again.Replayed || !again.CommittedAt.Equal(first.CommittedAt) || !bytes.Equal(again.Result, result) || ran {
			t.Errorf("replayed %v at %v with %d bytes of result, callback ran: %v", again.Replayed, again.CommittedAt, len(again.Result), ran)
		}
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestOtherContentUnderTheSameStepIsAConflictWithBothDigests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	mine, other := content("s", "x"), content("s", "y")
	check := func(err error) {
		t.Helper()
		w.is(err, fencing.ErrConflict)
		e := evidence(w, err)
		first, err1 := mine.Digest()
		second, err2 := other.Digest()
		w.ok(errors.Join(err1, err2))
		if !bytes.Equal(e.Digest, first[:]) || !bytes.Equal(e.PresentedDigest, second[:]) || e.CommittedAt.IsZero() {
			t.Errorf("evidence %+v", e)
		}
	}
	// At once: the second waits for the first.
	first := a.pauseBehindGate(lease.Position(), mine)
	pid := b.pid()
	second := b.commitLater(lease.Position(), other)
	pgtest.WaitBlocked(t, w.admin, pid, first.pid)
	first.goOn()
	w.ok((<-first.done).err)
	check((<-second).err)
	// And later.
	_, err := b.commit(lease.Position(), other)
	check(err)
	if !strings.Contains(err.Error(), "digest") {
		t.Errorf("the error does not name the digests: %v", err)
	}
	// The content type is content.
	_, err = b.commit(lease.Position(), fencing.Content{Step: "s", Type: "other", Bytes: mine.Bytes})
	w.is(err, fencing.ErrConflict)
	w.wantWritten("k", written{1, 1, 1})
}

func TestTwoIdenticalAttemptsAtOnceCommitOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	first := a.pauseBehindGate(lease.Position(), content("s", "x"))
	pid := b.pid()
	second := b.commitLater(lease.Position(), content("s", "x"))
	pgtest.WaitBlocked(t, w.admin, pid, first.pid)
	first.goOn()
	w.ok((<-first.done).err)
	got := <-second
	w.ok(got.err)
	if !got.receipt.Replayed {
		t.Errorf("receipt %+v", got.receipt)
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestTheSecondAttemptIsFirstWhenTheFirstRollsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.worker("b")
	lease := b.acquire("k")
	a := w.session(w.producer)
	tx, err := a.Begin(ctx)
	w.ok(err)
	_, err = b.Enter(ctx, tx, lease.Position(), content("s", "x"))
	w.ok(err)
	pid := b.pid()
	second := b.commitLater(lease.Position(), content("s", "x"))
	pgtest.WaitBlocked(t, w.admin, pid, a.PgConn().PID())
	w.ok(tx.Rollback(ctx))
	got := <-second
	w.ok(got.err)
	if got.receipt.Replayed {
		t.Error("what was rolled back was replayed")
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestATokenOfAnotherLifeIsRefusedThoughTheNumbersAreEqual(t *testing.T) {
	t.Parallel()
	tokenOfAnotherLife(newWorld(t))
}

func tokenOfAnotherLife(w *world) {
	a := w.worker("a")
	old := a.acquire("k").Position()
	// A new life of the key, whose token has come to the same number.
	w.exec("update fenceline.fence set epoch = epoch + 1, max_issued_token = $1 where key = 'k'", old.Token)
	_, err := a.commit(old, content("s", "x"))
	w.is(err, fencing.ErrStale)
	w.wantWritten("k", written{})
}

func TestNeitherEpochNorTokenNorFloorEverFalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	a.acquire("k")
	a.takeOver("k")
	for _, set := range []string{
		"max_issued_token = max_issued_token - 1", "epoch = epoch - 1, max_issued_token = 99",
		"floor_token = floor_token - 1", "floor_epoch = floor_epoch - 1", "key = 'other'",
	} {
		_, err := w.admin.Exec(ctx, "update fenceline.fence set "+set+" where key = 'k'")
		if got := sqlstate(err); got != "FL009" {
			t.Errorf("set %s: %s, want FL009", set, got)
		}
	}
	w.exec("update fenceline.fence set closed_at = now() where key = 'k'")
	_, err := w.admin.Exec(ctx, "update fenceline.fence set closed_at = null where key = 'k'")
	if got := sqlstate(err); got != "FL009" {
		t.Errorf("reopened in the same epoch: %s", got)
	}
}

func TestWhatNothingCanConfirmIsUnconfirmableAndNotStale(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	old := a.acquire("k").Position()
	_, err := a.commit(old, content("s", "x"))
	w.ok(err)
	now := a.takeOver("k").Position()
	for _, c := range []struct {
		name, reason string
		pos          fencing.Position
	}{
		{"token ahead", "ahead of the fence", fencing.Position{Key: "k", Epoch: now.Epoch, Token: now.Token + 1}},
		{"epoch ahead", "ahead of the fence", fencing.Position{Key: "k", Epoch: now.Epoch + 1, Token: 1}},
		{"no such key", "unknown key", fencing.Position{Key: "other", Epoch: now.Epoch, Token: 1}},
		{"before this history", "earlier history", fencing.Position{Key: "k", Epoch: 5, Token: 1}},
	} {
		_, err := a.commit(c.pos, content("s", "x"))
		w.is(err, fencing.ErrUnconfirmable)
		if e := evidence(w, err); e.Reason != c.reason {
			t.Errorf("%s: reason %q, want %q", c.name, e.Reason, c.reason)
		}
	}
	// Swept: the receipt is gone, and the floor says so.
	w.exec("update fenceline.fence set floor_epoch = $1, floor_token = $2 where key = 'k'", old.Epoch, old.Token)
	w.exec("delete from fenceline.receipt")
	_, err = a.commit(old, content("s", "x"))
	w.is(err, fencing.ErrUnconfirmable)
	if e := evidence(w, err); e.Reason != "receipts swept" {
		t.Errorf("reason %q", e.Reason)
	}
	w.wantWritten("k", written{0, 1, 1})
}

func TestAReceiptOfAnotherDigestAlgorithmConfirmsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	_, err := a.commit(pos, content("s", "x"))
	w.ok(err)
	w.exec("update fenceline.receipt set algo = 'sha999/raw/1'")
	_, err = a.commit(pos, content("s", "x"))
	w.is(err, fencing.ErrUnconfirmable)
	if !strings.Contains(err.Error(), "algorithm") {
		t.Error(err)
	}
}

func TestAClosedLifeIsRefusedAsClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	old := a.acquire("k")
	_, err := a.commit(old.Position(), content("s", "x"))
	w.ok(err)
	w.exec("update fenceline.fence set closed_at = now() where key = 'k'")
	_, err = a.commit(old.Position(), content("next", "x"))
	w.is(err, fencing.ErrClosed)
	if evidence(w, err).ClosedAt.IsZero() {
		t.Error("the evidence does not say since when")
	}
	r, err := a.commit(old.Position(), content("s", "x"))
	w.ok(err)
	if !r.Replayed {
		t.Error("what was committed before the close is not replayed")
	}
	w.expire("k")
	_, err = a.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrClosed)
}

func TestEachStepOfATokenCommitsOnItsOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	for _, step := range []string{"", "1", "2", "ä"} {
		r, err := lease.Commit(ctx, content(step, "x"), write)
		w.ok(err)
		if r.Replayed {
			t.Errorf("step %q was replayed", step)
		}
	}
	w.wantWritten("k", written{4, 4, 4})
}

func TestAnAnswerMatchesNoOther(t *testing.T) {
	all := []error{fencing.ErrStale, fencing.ErrConflict, fencing.ErrUnconfirmable, fencing.ErrClosed, fencing.ErrReplayed}
	for _, answer := range all {
		err := error(&fencing.RefusedError{Answer: answer})
		for _, other := range all {
			if errors.Is(err, other) != (answer == other) {
				t.Errorf("%v matches %v", answer, other)
			}
		}
	}
}
