package fencing_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fenceline/fenceline/fencing"
)

// The commits of a key are one after the other, and so are the callbacks that share
// a transaction: also what one has only queued is there for the next one. Sent with
// COMMIT it would come behind what that one has made of the row as it was.
func TestACallbackSeesWhatThoseBeforeItHaveQueued(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.counter (n int); insert into public.counter values (0); grant all on public.counter to public")
	a := w.worker("a")
	lease := a.sharing("k")
	add := func(step string) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) {
			return lease.Commit(ctx, content(step, "x"), func(ctx context.Context, tx fencing.Tx) error {
				var n int
				if err := tx.QueryRow(ctx, "select n from public.counter").Scan(&n); err != nil {
					return err
				}
				tx.Queue("update public.counter set n = $1", n+1)
				return errors.Join(tx.SetResult([]byte(step)), write(ctx, tx))
			})
		}
	}
	for _, got := range a.togetherIn(lease, add("1"), add("2"), add("3")) {
		w.ok(got.err)
	}
	w.oneTransaction("1", "2", "3")
	if n := value[int](w, "select n from public.counter"); n != 3 {
		t.Errorf("three commits have added %d", n)
	}
	w.wantWritten("k", written{3, 3, 3})

	// Who fails in what it has queued fails alone, wherever it stands; and a
	// statement that ends the transaction there gives nobody a false receipt.
	bad := func(sql string, args ...any) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) {
			return lease.Commit(ctx, content(sql, "x"), func(_ context.Context, tx fencing.Tx) error { tx.Queue(sql, args...); return nil })
		}
	}
	got := a.togetherIn(lease, add("4"), bad("select 1 / 0"), add("5"))
	w.ok(errors.Join(got[0].err, got[2].err))
	w.oneTransaction("4", "5")
	if s, ok := errors.AsType[*fencing.StatementError](got[1].err); !ok || s.Index != 0 || sqlstate(got[1].err) != "22012" {
		t.Errorf("%v", got[1].err)
	}
	for _, sql := range []string{"commit", "rollback"} {
		for i, got := range a.togetherIn(lease, add("before "+sql), bad("select 'a "+sql+"'", rewritten(sql)), add("behind "+sql)) {
			if !errors.Is(got.err, fencing.ErrMisuse) {
				t.Errorf("%s: %d is told %+v, %v", sql, i, got.receipt, got.err)
			}
		}
	}
	if n := value[int](w, "select n from public.counter"); n != 6 { // with the one that was committed in their midst
		t.Errorf("the counter is at %d", n)
	}
}
