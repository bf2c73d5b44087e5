package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

const waitsForStandby = "select exists (select from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep' and not pid = any ($1))"

// standbys has commits wait for a standby that never comes, or for none.
func (w *world) standbys(names string) {
	w.Helper()
	w.exec("alter system set synchronous_standby_names = '" + names + "'")
	w.exec("select pg_reload_conf()")
	if names != "" {
		w.waitForStandbys()
	}
}

// What has happened on the primary alone is lost with it: a token would then be issued
// a second time, to somebody else, and a closed key would be open. An attempt that is
// made again, since the answer to the first one was lost, finds it done. It waits for
// the standby as that one has.
func TestWhatIsAskedForAgainWaitsForTheStandbyAsTheFirstTime(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	for name, c := range map[string]struct {
		set string // at the login
		ask func(k *worker, lease *fencing.Lease) error
	}{
		"acquire": {"on", func(k *worker, _ *fencing.Lease) error {
			lease, err := k.Acquire(ctx, "another", long)
			if err == nil {
				k.w.Cleanup(func() { _ = lease.Release(ctx) })
				if pos := lease.Position(); pos.Token != 1 {
					err = fmt.Errorf("the lease is at %v", pos)
				}
			}
			return err
		}},
		"rotate": {"local", func(_ *worker, lease *fencing.Lease) error {
			pos, err := lease.Rotate(ctx)
			if err == nil && pos.Token != 2 {
				err = fmt.Errorf("rotated to %v", pos)
			}
			return err
		}},
		"close": {"on", func(_ *worker, lease *fencing.Lease) error {
			c, err := lease.Close(ctx)
			if err == nil && !c.Replayed {
				err = fmt.Errorf("closed twice: %+v", c)
			}
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k := w.workerAt(name, w.producer, 2, func(cfg *pgxpool.Config) {
				fencing.WatchNotices(cfg.ConnConfig)
				cfg.ConnConfig.RuntimeParams["synchronous_commit"] = c.set
			})
			lease := k.acquire("of " + name)
			w.standbys("nobody")
			defer w.standbys("")
			done := make(chan error, 1)
			go func() { done <- c.ask(k, lease) }()
			pgtest.WaitTrue(t, w.admin, waitsForStandby, []int32{})
			first := value[[]int32](w, "select array_agg(pid) from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep'")
			w.exec("select pg_terminate_backend(pid) from unnest($1::int[]) pid", first)
			for waits := false; !waits; {
				select {
				case err := <-done:
					t.Fatalf("it has ended though no standby has it: %v", err)
				case <-time.After(5 * time.Millisecond):
					waits = value[bool](w, waitsForStandby, first)
				}
			}
			w.standbys("")
			w.ok(<-done)
		})
	}
}

// Nor is a token given to somebody where the wait was cut short.
func TestATokenThatIsOnThePrimaryAloneIsNobodys(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	k := w.workerAt("k", w.producer, 2, func(c *pgxpool.Config) { fencing.WatchNotices(c.ConnConfig) })
	w.standbys("nobody")
	cfg := long
	cfg.Attempt = [16]byte{1}
	var lease *fencing.Lease
	done := make(chan error, 1)
	ask := func() {
		var err error
		lease, err = k.Acquire(ctx, "k", cfg)
		done <- err
	}
	go ask()
	for {
		select {
		case err := <-done:
			if lease != nil {
				t.Fatalf("a lease at %v, with %v", lease.Position(), err)
			}
			if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "57014" { // a cancel that came late, to the next statement
				go ask()
				continue
			}
			w.is(err, fencing.ErrNotReplicated)
			w.standbys("")
			if pos := k.acquireWith("k", cfg).Position(); pos.Token != 1 {
				t.Errorf("the same attempt has got %v", pos)
			}
			return
		case <-time.After(5 * time.Millisecond):
			w.exec("select pg_cancel_backend(pid) from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep'")
		}
	}
}

// Of several gates, too, and with all receipts.
func TestAReplayThroughSeveralGatesThatIsNotReplicatedSaysSo(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	k := w.workerAt("k", w.producer, 2, func(c *pgxpool.Config) { fencing.WatchNotices(c.ConnConfig) })
	gates := []fencing.Gate{
		{Position: k.acquire("b").Position(), Content: content("s", "x")},
		{Position: k.acquire("a").Position(), Content: content("s", "y")},
	}
	commit := func() ([]fencing.Receipt, error) {
		return k.CommitAll(ctx, gates, func(context.Context, []fencing.Tx) error { return nil })
	}
	_, err := commit()
	w.ok(err)
	w.standbys("nobody")
	defer w.standbys("")
	done := make(chan struct{})
	var receipts []fencing.Receipt
	go func() {
		defer close(done)
		receipts, err = commit()
	}()
	for waits := true; waits; {
		select {
		case <-done:
			waits = false
		case <-time.After(5 * time.Millisecond):
			w.exec("select pg_cancel_backend(pid) from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep'")
		}
	}
	w.is(err, fencing.ErrNotReplicated)
	if len(receipts) != 2 || !receipts[0].Replayed || !receipts[1].Replayed {
		t.Errorf("receipts: %+v", receipts)
	}
}

// A warning of the server's that has the same code says nothing of standbys where there
// is none to wait for (auto_explain's, an audit's).
func TestAWarningOfSomethingElseKeepsNobodyFromALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, function := range []string{"_acquire", "rotate"} { // there is no such backend, which PostgreSQL says in a warning
		w.mutate(function, "begin\n", "begin\n  perform pg_cancel_backend(2147483647);\n")
	}
	k := w.workerAt("k", w.producer, 2, func(c *pgxpool.Config) { fencing.WatchNotices(c.ConnConfig) })
	lease := k.acquire("k")
	if pos, err := lease.Rotate(ctx); err != nil || pos.Token != 2 {
		t.Errorf("rotated to %v: %v", pos, err)
	}
}
