package fencing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/fencing"
)

// What would wait for the commit in whose callback it is called.
var waitsForItsCommit = map[string]func(context.Context, *worker, *fencing.Lease) error{
	"rotate":    func(ctx context.Context, _ *worker, l *fencing.Lease) error { _, err := l.Rotate(ctx); return err },
	"hand over": func(ctx context.Context, _ *worker, l *fencing.Lease) error { return l.HandOver(ctx, "b") },
	"close":     func(ctx context.Context, _ *worker, l *fencing.Lease) error { _, err := l.Close(ctx); return err },
	"release":   func(ctx context.Context, _ *worker, l *fencing.Lease) error { return l.Release(ctx) },
	"commit": func(ctx context.Context, _ *worker, l *fencing.Lease) error {
		return second(l.Commit(ctx, content("t", "x"), write))
	},
	"batch": func(ctx context.Context, _ *worker, l *fencing.Lease) error {
		return second(l.CommitBatch(ctx, content("t", "x"), writeBatch))
	},
	"commit plainly": func(ctx context.Context, k *worker, l *fencing.Lease) error {
		return second(k.Commit(ctx, l.Position(), content("t", "x"), write))
	},
	"batch plainly": func(ctx context.Context, k *worker, l *fencing.Lease) error {
		return second(k.CommitBatch(ctx, l.Position(), content("t", "x"), writeBatch))
	},
	"commit all": func(ctx context.Context, k *worker, l *fencing.Lease) error {
		return second(k.CommitAll(ctx, []fencing.Gate{{Position: l.Position(), Content: content("t", "x")}}, func(context.Context, []fencing.Tx) error { return nil }))
	},
	"close plainly": func(ctx context.Context, k *worker, l *fencing.Lease) error {
		return second(k.Fences.Close(ctx, l.Position()))
	},
	"open":    func(ctx context.Context, k *worker, l *fencing.Lease) error { return second(k.Open(ctx, "k")) },
	"acquire": func(ctx context.Context, k *worker, _ *fencing.Lease) error { return second(k.Acquire(ctx, "k", long)) },
	"campaign": func(ctx context.Context, k *worker, _ *fencing.Lease) error {
		return second(k.Campaign(ctx, "k", long))
	},
}

func TestWhatWouldWaitForItsOwnCommitIsRefusedInTheCallbackAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// One connection, which the commit has: whoever waited would wait for ever.
	a := w.worker("a")
	lease, other := a.acquire("k"), a.acquire("other")
	for name, call := range waitsForItsCommit {
		_, err := lease.Commit(ctx, content(name, "x"), func(ctx context.Context, tx fencing.Tx) error {
			// It is the context that tells, so any goroutine that works for the
			// callback is told, and one with a context derived from it.
			told := make(chan error, 1)
			go func() {
				child, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				told <- call(child, a, lease)
			}()
			if err := <-told; !errors.Is(err, fencing.ErrMisuse) {
				t.Errorf("%s: %v, want misuse", name, err)
			}
			return write(ctx, tx)
		})
		w.ok(err) // a refusal changes nothing
	}
	w.ok(lease.Context().Err())
	n := len(waitsForItsCommit)
	w.wantWritten("k", written{n, n, n})

	// Another key's lease is no concern of the callback's.
	_, err := a.CommitAll(ctx, []fencing.Gate{{Position: lease.Position(), Content: content("both", "x")}}, func(ctx context.Context, _ []fencing.Tx) error {
		w.is(second(lease.Rotate(ctx)), fencing.ErrMisuse)
		brief, cancel := context.WithTimeout(ctx, time.Millisecond) // for the connection, which the commit has
		defer cancel()
		if err := second(other.Commit(brief, content("s", "x"), write)); errors.Is(err, fencing.ErrMisuse) {
			t.Errorf("another key: %v", err)
		}
		return nil
	})
	w.ok(err)
}

func TestInACallbackWithinACallbackTheOuterKeyIsRefusedToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 2)
	cfg := long
	cfg.GateTimeout = 20 * time.Second // how long whoever waits all the same would wait
	outer, inner := a.acquireWith("outer", cfg), a.acquireWith("inner", cfg)
	_, err := outer.Commit(ctx, content("s", "x"), func(ctx context.Context, _ fencing.Tx) error {
		return second(inner.Commit(ctx, content("s", "x"), func(ctx context.Context, _ fencing.Tx) error {
			w.is(second(outer.Rotate(ctx)), fencing.ErrMisuse)
			w.is(second(inner.Rotate(ctx)), fencing.ErrMisuse)
			return nil
		}))
	})
	w.ok(err)
}

// A goroutine that a callback has started, and that goes on behind the commit.
func TestTheContextOfACallbackIsGoodAgainBehindIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	var kept context.Context
	_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		kept = context.WithoutCancel(ctx)
		return write(ctx, tx)
	})
	w.ok(err)
	_, err = lease.Rotate(kept)
	w.ok(err)
	w.ok(lease.HandOver(kept, "b"))
}

func TestWhoWaitsForItsOwnCommitWithAnotherContextIsToldAfterTheGatesTimeout(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *fencing.Lease) error{
		"rotate":    func(ctx context.Context, l *fencing.Lease) error { return second(l.Rotate(ctx)) },
		"hand over": func(ctx context.Context, l *fencing.Lease) error { return l.HandOver(ctx, "b") },
		"close":     func(ctx context.Context, l *fencing.Lease) error { return second(l.Close(ctx)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a := w.workerAt("a", w.producer, 2)
			cfg := long
			cfg.GateTimeout = 300 * time.Millisecond
			lease := a.acquireWith("k", cfg)
			var told error
			_, err := lease.Commit(ctx, content("s", "x"), func(context.Context, fencing.Tx) error {
				bounded, cancel := context.WithTimeout(ctx, time.Minute) // where it would wait all the same
				defer cancel()
				told = call(bounded, lease)
				return nil
			})
			var blocked *fencing.BlockedError
			if !errors.As(told, &blocked) || !errors.Is(told, fencing.ErrBlocked) || blocked.Own != cfg.GateTimeout || blocked.Key != "k" || len(blocked.PIDs) != 0 {
				t.Errorf("told %v", told)
			}
			// As long as it has waited, its session was idle.
			if err != nil && !errors.Is(err, fencing.ErrGateTimeout) && !errors.Is(err, fencing.ErrRolledBack) {
				t.Errorf("the commit: %v", err)
			}
			w.ok(lease.Context().Err()) // still held
			w.rotated(lease)            // and nothing is thought to be in progress
			_, err = a.commit(lease.Position(), content("t", "x"))
			w.ok(err)
		})
	}
}

func TestAMissingCallbackIsRefusedAndNothingIsDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	for name, err := range map[string]error{
		"commit":         second(a.Commit(ctx, lease.Position(), content("s", "x"), nil)),
		"batch":          second(a.CommitBatch(ctx, lease.Position(), content("s", "x"), nil)),
		"lease's commit": second(lease.Commit(ctx, content("s", "x"), nil)),
		"lease's batch":  second(lease.CommitBatch(ctx, content("s", "x"), nil)),
		"all":            second(a.CommitAll(ctx, []fencing.Gate{{Position: lease.Position(), Content: content("s", "x")}}, nil)),
		"retry":          second(fencing.Retry(ctx, nil)),
	} {
		var invalid *fencing.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "callback" {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.wantWritten("k", written{})
	_, err := lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
	w.rotated(lease) // no commit is thought to be in progress
}

// What the statements of a caller can meet of our functions and triggers.
func TestTheDatabasesRefusalOfACallersStatementHasItsType(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.guarded (key text); grant all on public.guarded to public")
	w.ok(fencing.Protect(ctx, w.admin, "", pgx.Identifier{"guarded"}, "key"))
	a := w.worker("a")
	lease := a.acquire("k")
	gone := a.acquire("gone").Position()
	a.close(gone)
	stale := a.acquire("stale").Position()
	_, err := a.commit(stale, content("s", "x"))
	w.ok(err)
	w.ok(a.takeOver("stale").Release(ctx))
	enter := func(p fencing.Position, step, digest string) (string, []any) {
		return "select fenceline.enter($1, $2, $3, $4, 'x', decode(repeat($5, 32), 'hex'), '1 min')", []any{p.Key, p.Epoch, p.Token, step, digest}
	}
	entered := func(p fencing.Position, step, digest string) func() (string, []any) {
		return func() (string, []any) { return enter(p, step, digest) }
	}
	plain := func(sql string) func() (string, []any) { return func() (string, []any) { return sql, nil } }
	ahead := stale
	ahead.Token = 1000
	w.exec("insert into fenceline.receipt (key, epoch, token, step, algo, digest, shard) select $1, $2, $3, 'by hand', 'x', decode(repeat('aa', 32), 'hex'), 0", stale.Key, stale.Epoch, stale.Token)
	for name, c := range map[string]struct {
		statement func() (string, []any)
		want      error
	}{
		"a protected row of another key":   {plain("insert into public.guarded values ('other')"), fencing.ErrNoPass},
		"a protected table truncated":      {plain("truncate public.guarded"), fencing.ErrNoPass},
		"another gate that has been taken": {entered(stale, "t", "aa"), fencing.ErrStale},
		"another gate's replay":            {entered(stale, "by hand", "aa"), fencing.ErrReplayed},
		"another gate's conflict":          {entered(stale, "by hand", "bb"), fencing.ErrConflict},
		"another gate that is closed":      {entered(gone, "t", "aa"), fencing.ErrClosed},
		"another gate ahead of its fence":  {entered(ahead, "t", "aa"), fencing.ErrUnconfirmable},
		"the same gate again":              {entered(lease.Position(), "the step", "aa"), fencing.ErrMisuse},
		"a close of the same key": {func() (string, []any) {
			p := lease.Position()
			return "select fenceline.close($1, $2, $3)", []any{p.Key, p.Epoch, p.Token}
		}, fencing.ErrMisuse},
		"a key of ours": {plain("select fenceline.acquire('fenceline:x', 'h', '1 min', gen_random_uuid(), '1 s')"), fencing.ErrInvalid},
	} {
		sql, args := c.statement()
		own := errors.New("the caller's own words")
		for shape, commit := range map[string]func() error{
			"callback": func() error {
				return second(lease.Commit(ctx, content("the step", "x"), func(ctx context.Context, tx fencing.Tx) error {
					_, err := tx.Exec(ctx, sql, args...)
					return errors.Join(own, err)
				}))
			},
			"bare callback": func() error {
				return second(lease.Commit(ctx, content("the step", "x"), func(ctx context.Context, tx fencing.Tx) error {
					_, err := tx.Exec(ctx, sql, args...)
					return err
				}))
			},
			"queued": func() error {
				return second(lease.Commit(ctx, content("the step", "x"), func(_ context.Context, tx fencing.Tx) error { tx.Queue(sql, args...); return nil }))
			},
			"batch": func() error {
				return second(lease.CommitBatch(ctx, content("the step", "x"), func(b *fencing.Batch) error { b.Queue(sql, args...); return nil }))
			},
			"several gates": func() error {
				return second(a.CommitAll(ctx, []fencing.Gate{{Position: lease.Position(), Content: content("the step", "x")}}, func(ctx context.Context, txs []fencing.Tx) error {
					_, err := txs[0].Exec(ctx, sql, args...)
					return err
				}))
			},
		} {
			err := commit()
			if !errors.Is(err, c.want) {
				t.Errorf("%s, %s: %v, want %v", name, shape, err, c.want)
			}
			if shape == "callback" {
				// It stays what it was, too.
				if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code[:2] != "FL" || !errors.Is(err, own) {
					t.Errorf("%s, %s: %v", name, shape, err)
				}
			}
			if statement, ok := errors.AsType[*fencing.StatementError](err); ok != (shape == "queued" || shape == "batch") || ok && (statement.Index != 0 || statement.SQL != sql) {
				t.Errorf("%s, %s: %#v", name, shape, statement)
			}
		}
	}
	w.wantWritten("k", written{})
}
