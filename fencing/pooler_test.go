package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgpooler"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// behindPooler is a worker with several connections to a pooler in transaction
// mode that has fewer backends, and none for the same client twice in a row.
func (w *world) behindPooler(name, mode string, reset bool) *worker {
	w.Helper()
	p, err := pgpooler.Listen(pgpooler.Config{Backends: []string{w.producer, w.producer, w.producer}, Reset: reset})
	w.ok(err)
	w.Cleanup(func() { _ = p.Close() })
	return w.workerAt(name, p.DSN("default_query_exec_mode="+mode), 4)
}

// Producers may connect through a pooler in transaction mode: nothing is kept in
// a session, whether the pooler wipes it or not, and nothing is left there. Only
// prepared statements must not be (of pgx's modes, those below don't).
func TestAPoolerInTransactionModeMayBeInTheWay(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exec", "cache_describe", "simple_protocol"} {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, wiped %v", mode, reset), func(t *testing.T) {
				t.Parallel()
				throughAPooler(newWorld(t), mode, reset)
			})
		}
	}
}

func throughAPooler(w *world, mode string, reset bool) {
	a, b := w.behindPooler("a", mode, reset), w.behindPooler("b", mode, reset)
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 5 * time.Minute, RenewEvery: 20 * time.Millisecond, RotateAfter: -1})
	first := lease.Position()

	// Each shape, and a replay of each.
	commits := map[string]func(string) (fencing.Receipt, error){
		"callback": func(body string) (fencing.Receipt, error) {
			return lease.Commit(ctx, content("callback", body), func(ctx context.Context, tx fencing.Tx) error {
				var n int // between the two round trips the transaction stays on its backend
				if err := tx.QueryRow(ctx, "select count(*) from public.result where key = $1", tx.Gate().Key).Scan(&n); err != nil {
					return err
				}
				return errors.Join(tx.SetResult([]byte("result")), write(ctx, tx))
			})
		},
		"batch": func(body string) (fencing.Receipt, error) {
			return lease.CommitBatch(ctx, content("batch", body), writeBatch)
		},
		"several gates": func(body string) (fencing.Receipt, error) {
			r, err := a.CommitAll(ctx, []fencing.Gate{{Position: first, Content: content("several", body)}}, func(ctx context.Context, txs []fencing.Tx) error { return write(ctx, txs[0]) })
			if err != nil {
				return fencing.Receipt{}, err
			}
			return r[0], nil
		},
	}
	for name, commit := range commits {
		r, err := commit("x")
		w.ok(err)
		again, err := commit("x")
		w.ok(err)
		if r.Replayed || !again.Replayed || name == "callback" && string(again.Result) != "result" {
			w.Errorf("%s: %+v, then %+v", name, r, again)
		}
		_, err = commit("y")
		w.is(err, fencing.ErrConflict)
	}
	w.wantWritten("k", written{3, 3, 3})

	// Many at once, more than there are backends.
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			var err error
			if i%2 == 0 {
				_, err = lease.Commit(ctx, content(fmt.Sprint(i), "x"), write)
			} else {
				_, err = lease.CommitBatch(ctx, content(fmt.Sprint(i), "x"), writeBatch)
			}
			if err != nil {
				w.Errorf("commit %d of many: %v", i, err)
			}
		})
	}
	all.Wait()
	w.wantWritten("k", written{15, 15, 15})

	// The lease is renewed meanwhile, and its token rotates.
	from := value[time.Time](w, "select expires_at from fenceline.lease where key = 'k'")
	pgtest.WaitTrue(w, w.admin, "select expires_at > $1 from fenceline.lease where key = 'k'", from)
	w.rotated(lease)
	_, err := b.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrHeld)

	// A takeover waits for a holder behind the gate, whichever backend it has.
	w.ok(lease.Release(ctx))
	fresh := a.acquire("k").Position()
	p := a.pauseBehindGate(fresh, content("paused", "x"))
	w.expire("k")
	cfg := long
	cfg.Wait = 10 * time.Millisecond
	_, err = b.Acquire(ctx, "k", cfg)
	w.is(err, fencing.ErrBlocked)
	p.goOn()
	w.ok((<-p.done).err)
	taken := b.takeOver("k")
	_, err = a.commit(fresh, content("late", "x"))
	w.is(err, fencing.ErrStale)

	// The lives of the key, and who waits for it.
	_, err = taken.Close(ctx)
	w.ok(err)
	_, err = b.commit(taken.Position(), content("closed", "x"))
	w.is(err, fencing.ErrClosed)
	_, err = a.Open(ctx, "k")
	w.ok(err)
	again := w.won(a.campaignLater(ctx, "k", patient))
	if again.Position().Epoch <= first.Epoch {
		w.Errorf("%v, then %v", first, again.Position())
	}
	w.ok(again.HandOver(ctx, "b"))
	w.ok(b.acquire("k").Release(ctx))

	// What is left in the sessions, if the pooler leaves it there.
	if !reset {
		for range 6 {
			var timeouts, isolation, path string
			var prepared, locks int
			w.ok(a.pool.QueryRow(ctx, `select current_setting('idle_in_transaction_session_timeout') || current_setting('statement_timeout') || current_setting('lock_timeout'),
				current_setting('default_transaction_isolation'), current_setting('search_path'),
				(select count(*) from pg_prepared_statements), (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory')`).Scan(&timeouts, &isolation, &path, &prepared, &locks))
			if timeouts != "000" || isolation != "read committed" || path != `"$user", public` || prepared != 0 || locks != 0 {
				w.Errorf("left in a session: timeouts %s, isolation %s, search path %s, %d prepared statements, %d locks", timeouts, isolation, path, prepared, locks)
			}
		}
	}
}

// A client that goes while it is behind the gate: its transaction goes with it.
func TestBehindAPoolerAHolderThatGoesLeavesTheFenceFree(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.behindPooler("a", "exec", false), w.behindPooler("b", "exec", false)
	lease := a.acquire("k")
	_, err := lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		if err := write(ctx, tx); err != nil {
			return err
		}
		return tx.Conn().PgConn().Conn().Close()
	})
	if !errors.Is(err, fencing.ErrRolledBack) && !errors.Is(err, fencing.ErrUnknownOutcome) {
		t.Errorf("the answer is %v", err)
	}
	b.takeOver("k")
	_, err = lease.Commit(ctx, content("s", "x"), write)
	w.is(err, fencing.ErrStale)
	w.wantWritten("k", written{})
}

// With prepared statements, which pgx uses unless it is told otherwise, a pooler
// that does not carry them along makes the commit fail; but it fails whole.
func TestBehindAPoolerThatForgetsPreparedStatementsACommitFailsWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	direct := w.worker("direct")
	pos := direct.acquire("k").Position()
	p, err := pgpooler.Listen(pgpooler.Config{Backends: []string{w.producer, w.producer}})
	w.ok(err)
	t.Cleanup(func() { _ = p.Close() })
	_, err = fencing.New(ctx, pgtest.Connect(t, p.DSN("")), fencing.Config{AllowUnsafeDatabase: true})
	var setting *fencing.SettingError
	if !errors.As(err, &setting) || !errors.Is(err, fencing.ErrInvalid) || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
		t.Errorf("started: %v", err)
	}
	var prepares atomic.Bool
	a := w.workerAt("a", p.DSN("default_query_exec_mode=exec"), 1, func(cfg *pgxpool.Config) {
		cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if prepares.Load() {
				c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
			}
			return nil
		}
	})
	prepares.Store(true)
	a.pool.Reset()
	failed := 0
	for i := range 4 {
		step := fmt.Sprint(i)
		_, err := a.commit(pos, content(step, "x"))
		_, batchErr := a.CommitBatch(ctx, pos, content(step+"b", "x"), writeBatch)
		for _, err := range []error{err, batchErr} {
			if err == nil {
				continue
			}
			failed++
			if s := sqlstate(err); s != "26000" || errors.Is(err, fencing.ErrUnknownOutcome) {
				t.Errorf("%v", err)
			}
		}
	}
	if failed == 0 {
		t.Error("nothing failed: the pooler forgets nothing")
	}
	n := 8 - failed
	w.wantWritten("k", written{n, n, n})
}
