package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// errNeverReturned is left by a goroutine that has ended itself.
var errNeverReturned = errors.New("never returned")

// rewritten has pgx send another statement than the one it was given.
type rewritten string

func (r rewritten) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return string(r), nil, nil
}

// sharing is a lease whose callbacks share transactions.
func (k *worker) sharing(key string) *fencing.Lease {
	k.w.Helper()
	lease, err := k.Acquire(ctx, key, fencing.LeaseConfig{TTL: time.Hour, CoalesceCallbacks: 32})
	k.w.ok(err)
	return lease
}

// togetherIn is together for callbacks.
func (k *worker) togetherIn(lease *fencing.Lease, commits ...func() (fencing.Receipt, error)) []answer {
	k.w.Helper()
	return k.atOnce(func(n int) { fencing.WaitForCallbacks(lease, n) }, commits)
}

// callbackOf writes, and then does something else.
func callbackOf(lease *fencing.Lease, step, body string, and ...func(ctx context.Context, tx fencing.Tx) error) func() (fencing.Receipt, error) {
	return func() (fencing.Receipt, error) {
		return lease.Commit(ctx, content(step, body), func(ctx context.Context, tx fencing.Tx) error {
			if err := write(ctx, tx); err != nil {
				return err
			}
			for _, f := range and {
				if err := f(ctx, tx); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func TestCallbacksShareATransactionWhereTheLeaseSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.sharing("k")
	var commits []func() (fencing.Receipt, error)
	for i := range 8 {
		commits = append(commits, callbackOf(lease, fmt.Sprint(i), "x", func(_ context.Context, tx fencing.Tx) error {
			return tx.SetResult([]byte(fmt.Sprint("result ", i)))
		}))
	}
	for i, got := range a.togetherIn(lease, commits...) {
		w.ok(got.err)
		if got.receipt.Step != fmt.Sprint(i) || got.receipt.Replayed || got.receipt.CommittedAt.IsZero() {
			t.Errorf("%d: %+v", i, got.receipt)
		}
		again, err := commits[i]()
		w.ok(err)
		if !again.Replayed || string(again.Result) != fmt.Sprint("result ", i) {
			t.Errorf("%d again: %+v", i, again)
		}
	}
	w.wantWritten("k", written{8, 8, 8})
	if n := w.transactions("k"); n != 1 {
		t.Errorf("%d transactions", n)
	}
	if order := value[string](w, "select string_agg(convert_from(payload, 'UTF8'), ' ' order by seq) from fenceline.outbox where key = 'k'"); order != "0 1 2 3 4 5 6 7" {
		t.Errorf("the events are %s", order)
	}
}

func TestCallbacksHaveTransactionsOfTheirOwnUnlessAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 4)
	lease := a.acquire("k")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if _, err := callbackOf(lease, fmt.Sprint(i), "x")(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := w.transactions("k"); n != 4 {
		t.Errorf("%d transactions", n)
	}
}

// Whatever goes wrong with one of them is its own, and nobody's answer is due to
// another's writes.
func TestACallbackThatFailsInCompanyFailsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.one (id int primary key); grant all on public.one to public")
	a := w.worker("a")
	do := func(sql string) func(ctx context.Context, tx fencing.Tx) error {
		return func(ctx context.Context, tx fencing.Tx) error { _, err := tx.Exec(ctx, sql); return err }
	}
	own, over := errors.New("not today"), errors.New("no time for this")
	for name, c := range map[string]struct {
		step, body string
		and        func(ctx context.Context, tx fencing.Tx) error
		is         func(fencing.Receipt, error) bool
	}{
		"has committed before": {"done before", "x", nil, func(r fencing.Receipt, err error) bool { return err == nil && r.Replayed }},
		"had another content":  {"done before", "y", nil, func(_ fencing.Receipt, err error) bool { return errors.Is(err, fencing.ErrConflict) }},
		"returns an error":     {"s", "x", func(context.Context, fencing.Tx) error { return own }, func(_ fencing.Receipt, err error) bool { return errors.Is(err, own) }},
		"returns what another key's gate has said": {"s", "x", func(context.Context, fencing.Tx) error {
			return &fencing.RefusedError{Answer: fencing.ErrStale, Evidence: fencing.Evidence{Step: "s"}}
		}, func(_ fencing.Receipt, err error) bool { return errors.Is(err, fencing.ErrStale) }},
		"fails in a statement":              {"s", "x", do("select 1/0"), func(_ fencing.Receipt, err error) bool { return sqlstate(err) == "22012" }},
		"swallows the error of a statement": {"s", "x", func(ctx context.Context, tx fencing.Tx) error { _ = do("select 1/0")(ctx, tx); return nil }, func(_ fencing.Receipt, err error) bool { return errors.Is(err, fencing.ErrRolledBack) }},
		"ends the transaction, and begins another": {"s", "x", func(ctx context.Context, tx fencing.Tx) error {
			_, err := tx.Conn().Exec(ctx, "rollback; begin")
			return err
		}, func(_ fencing.Receipt, err error) bool { return errors.Is(err, fencing.ErrMisuse) }},
		"commits on its connection": {"s", "x", func(ctx context.Context, tx fencing.Tx) error {
			return pgx.BeginFunc(ctx, tx.Conn(), func(pgx.Tx) error { return nil })
		}, func(_ fencing.Receipt, err error) bool { return errors.Is(err, fencing.ErrMisuse) }},
		"uses its connection": {"s", "x", func(ctx context.Context, tx fencing.Tx) error { return tx.Conn().Ping(ctx) }, func(r fencing.Receipt, err error) bool { return err == nil && !r.Replayed }},
		"uses its connection, and survives whatever comes": {"s", "x", func(ctx context.Context, tx fencing.Tx) error {
			defer func() { _ = recover() }()
			return tx.Conn().Ping(ctx)
		}, func(r fencing.Receipt, err error) bool { return err == nil && !r.Replayed }},
		"fails in a queued statement": {"s", "x", func(_ context.Context, tx fencing.Tx) error { tx.Queue("select 'x'::int"); return nil }, func(_ fencing.Receipt, err error) bool {
			s, ok := errors.AsType[*fencing.StatementError](err)
			return ok && s.Index == 1 && sqlstate(err) == "22P02"
		}},
		"panics":              {"s", "x", func(context.Context, fencing.Tx) error { panic("help") }, func(_ fencing.Receipt, err error) bool { return err != nil && err.Error() == "panic: help" }},
		"ends its goroutine":  {"s", "x", func(context.Context, fencing.Tx) error { runtime.Goexit(); return nil }, func(_ fencing.Receipt, err error) bool { return err == errNeverReturned }},
		"changes settings":    {"s", "x", do("set local application_name = 'changed'"), func(r fencing.Receipt, err error) bool { return err == nil && !r.Replayed }},
		"writes a row before": {"s", "x", do("insert into public.one values (1)"), func(r fencing.Receipt, err error) bool { return err == nil && !r.Replayed }},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.TB = t
			a := *a
			a.w = &w
			lease := a.sharing(name)
			_, err := lease.Commit(ctx, content("done before", "x"), write)
			w.ok(err)
			changed := false
			ands := []func(ctx context.Context, tx fencing.Tx) error{}
			if c.and != nil {
				ands = append(ands, c.and)
			}
			got := a.togetherIn(lease,
				callbackOf(lease, "first", "x"),
				callbackOf(lease, c.step, c.body, ands...),
				callbackOf(lease, "last", "x", func(ctx context.Context, tx fencing.Tx) error {
					var now string
					err := tx.QueryRow(ctx, "select current_setting('application_name')").Scan(&now)
					changed = changed || now == "changed"
					return err
				}))
			for _, i := range []int{0, 2} {
				if w.ok(got[i].err); got[i].receipt.Replayed {
					t.Errorf("%d: %+v", i, got[i].receipt)
				}
			}
			if !c.is(got[1].receipt, got[1].err) {
				t.Errorf("%+v, %v", got[1].receipt, got[1].err)
			}
			if changed {
				t.Error("one callback ran under another's settings")
			}
			if n := value[int](&w, "select count(distinct xid) from fenceline.receipt where key = $1 and step in ('first', 'last')", name); n != 1 {
				t.Errorf("the others were in %d transactions", n)
			}
			want := written{3, 3, 3}
			if got[1].err == nil && !got[1].receipt.Replayed {
				want = written{4, 4, 4}
			}
			if name == "commits on its connection" { // what was before that, and not what was queued
				want = written{4, 4, 3}
			}
			w.wantWritten(name, want)
			_, err = callbackOf(lease, "afterwards", "x")() // the lease goes on
			w.ok(err)
		})
	}

	// A row that another has written, who then fails: alone, it is free.
	lease := a.sharing("k")
	insert := do("insert into public.one values (7)")
	runs := 0
	got := a.togetherIn(lease,
		callbackOf(lease, "not the second time", "x", insert, func(context.Context, fencing.Tx) error {
			if runs++; runs > 1 {
				return own
			}
			return nil
		}),
		callbackOf(lease, "row that nobody has", "x", insert))
	w.ok(got[1].err)
	w.is(got[0].err, own)

	// One that ends the transaction by a statement that only pgx knows: the
	// others are not told that they have committed, nor asked again, which would
	// be answered as replayed and lose their events.
	for _, sql := range []string{"commit", "rollback", "commit; begin", "rollback; begin"} {
		for _, events := range []string{"none", "the others", "all"} {
			innocent := func(step string) func() (fencing.Receipt, error) {
				return func() (fencing.Receipt, error) {
					return lease.Commit(ctx, content(step, "x"), func(ctx context.Context, tx fencing.Tx) error {
						if events != "none" {
							return outbox.Append(ctx, tx, outbox.Event{Topic: "results", Type: "result"})
						}
						return nil
					})
				}
			}
			got = a.togetherIn(lease,
				innocent(fmt.Sprint("before ", sql, events)),
				func() (fencing.Receipt, error) {
					return lease.Commit(ctx, content(fmt.Sprint(sql, events), "x"), func(ctx context.Context, tx fencing.Tx) error {
						_, err := tx.Exec(ctx, "select 1", rewritten(sql))
						if err == nil && events == "all" {
							err = outbox.Append(ctx, tx, outbox.Event{Topic: "results", Type: "result"})
						}
						return err
					})
				},
				innocent(fmt.Sprint("behind ", sql, events)))
			for i := range got {
				if !errors.Is(got[i].err, fencing.ErrMisuse) {
					t.Errorf("%s, events of %s: %d is told %+v, %v", sql, events, i, got[i].receipt, got[i].err)
				}
			}
		}
	}

	// A context that ends in the middle.
	ending, end := context.WithCancelCause(ctx)
	got = a.togetherIn(lease,
		callbackOf(lease, "before it", "x"),
		func() (fencing.Receipt, error) {
			return lease.Commit(ending, content("no time", "x"), func(ctx context.Context, tx fencing.Tx) error {
				end(over)
				<-ctx.Done()
				return context.Cause(ctx)
			})
		},
		callbackOf(lease, "behind it", "x"))
	w.ok(errors.Join(got[0].err, got[2].err))
	w.is(got[1].err, over)
}

// Whoever waits in line can leave it, and a lease that is lost in between ends
// those who still wait.
func TestACallbackThatWaitsInLineCanLeaveIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.sharing("k")
	conn, err := a.pool.Acquire(ctx)
	w.ok(err)
	leaving, leave := context.WithCancelCause(ctx)
	gone := errors.New("no time for this")
	left := make(chan error)
	go func() {
		_, err := lease.Commit(leaving, content("s", "x"), write)
		left <- err
	}()
	fencing.WaitForCallbacks(lease, 1)
	leave(gone)
	w.is(<-left, gone)
	conn.Release()
	w.wantWritten("k", written{})
	_, err = callbackOf(lease, "s", "x")()
	w.ok(err)
	w.wantWritten("k", written{1, 1, 1})
}

// A takeover does not wait for many callbacks one after the other: those that
// take long have transactions of their own.
func TestSlowCallbacksShareNoTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease, err := a.Acquire(ctx, "k", fencing.LeaseConfig{TTL: time.Hour, GateTimeout: 4 * time.Second, CoalesceCallbacks: 32})
	w.ok(err)
	slow := func(ctx context.Context, tx fencing.Tx) error {
		_, err := tx.Exec(ctx, "select pg_sleep(1.1)") // a quarter of the gate's timeout, and a little
		return err
	}
	got := a.togetherIn(lease, callbackOf(lease, "1", "x", slow), callbackOf(lease, "2", "x"), callbackOf(lease, "3", "x"))
	w.ok(errors.Join(got[0].err, got[1].err, got[2].err))
	w.wantWritten("k", written{3, 3, 3})
	if n := w.transactions("k"); n != 3 {
		t.Errorf("%d transactions", n)
	}
}
