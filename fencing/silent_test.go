package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/schema"
)

// blackhole swallows, from when it is told so, what is sent on every connection
// that there is, without a word. New ones work.
type blackhole struct{ opened atomic.Int64 }

type swallowed struct {
	net.Conn
	by    *blackhole
	since int64
}

func (c swallowed) gone() bool { return c.by.opened.Load() != c.since }

func (c swallowed) Write(p []byte) (int, error) {
	if c.gone() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// SetDeadline shortens how long the driver waits for the end of a connection that
// it has given up, which the end of the test would wait for.
func (c swallowed) SetDeadline(at time.Time) error {
	if c.gone() && !at.IsZero() {
		at = time.Now()
	}
	return c.Conn.SetDeadline(at)
}

func (b *blackhole) open() { b.opened.Add(1) }

func (b *blackhole) between(cfg *pgxpool.Config) {
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return swallowed{conn, b, b.opened.Load()}, err
	}
}

// The host of the database is gone, and answers nothing, also not that it is gone;
// the next primary is there. Who campaigns would else wait for a quarter of an hour,
// and with it everything that wants a leader.
func TestACampaignGoesOnWhereTheServerVanishesWithoutAWord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.worker("a").acquire("k")
	var hole blackhole
	b := w.workerAt("b", w.producer, 1, hole.between)
	campaigning, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	got := b.campaignLater(campaigning, "k", fencing.LeaseConfig{TTL: 5 * time.Minute, Wait: 100 * time.Millisecond, PollEvery: 50 * time.Millisecond})
	w.inLine("k", "b")
	hole.open()
	w.expire("k")
	select {
	case c := <-got:
		w.ok(c.err)
	case <-time.After(time.Minute):
		t.Fatal("it waits for a server that is gone")
	}
}

// What a callback has queued is sent before the next one begins, and waited for no
// longer than a COMMIT is.
func TestAServerThatVanishesBetweenTwoCallbacksKeepsNeither(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var hole blackhole
	a := w.workerOn(w.poolAt(w.producer, 1, hole.between), fencing.Config{Holder: "a", CommitTimeout: 5 * time.Second})
	lease := a.sharing("k")
	var once sync.Once
	commit := func(step string) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) {
			return lease.Commit(ctx, content(step, "x"), func(_ context.Context, tx fencing.Tx) error {
				tx.Queue("insert into public.result values ('k', $1)", step)
				once.Do(hole.open)
				return nil
			})
		}
	}
	done := make(chan []answer, 1)
	go func() { done <- a.togetherIn(lease, commit("1"), commit("2")) }()
	select {
	case got := <-done:
		w.ok(errors.Join(got[0].err, got[1].err))
		w.wantWritten("k", written{receipts: 2, results: 2})
	case <-time.After(time.Minute):
		t.Fatal("they wait for a server that is gone")
	}
}

// It does so whatever is asked of it, with no deadline but the library's own: also
// where the pool has connections that were idle, each of which leads nowhere, and the
// pool would ask them first, one after the other.
func TestWhatIsAskedOfAServerThatHasVanishedIsAskedOfTheNextOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := map[string]func(k *worker, lease *fencing.Lease) error{
		"Commit": func(_ *worker, lease *fencing.Lease) error {
			_, err := lease.Commit(ctx, content("s", "x"), write)
			return err
		},
		"CommitBatch": func(_ *worker, lease *fencing.Lease) error {
			_, err := lease.CommitBatch(ctx, content("s", "x"), func(*fencing.Batch) error { return nil })
			return err
		},
		"Close": func(_ *worker, lease *fencing.Lease) error {
			_, err := lease.Close(ctx)
			return err
		},
		"Open": func(k *worker, _ *fencing.Lease) error {
			_, err := k.Open(ctx, "another")
			return err
		},
		"Acquire": func(k *worker, _ *fencing.Lease) error {
			_, err := k.Acquire(ctx, "another still", fencing.LeaseConfig{TTL: time.Minute})
			return err
		},
	}
	for name, ask := range asked {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var hole blackhole
			k := w.workerAt(name, w.producer, 4, hole.between, func(cfg *pgxpool.Config) {
				cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
			})
			lease := k.acquireWith(name, fencing.LeaseConfig{TTL: 10 * time.Minute})
			var idle []*pgxpool.Conn
			for range 4 {
				conn, err := k.pool.Acquire(ctx)
				w.ok(err)
				idle = append(idle, conn)
			}
			for _, conn := range idle {
				conn.Release()
			}
			hole.open()
			within(t, func() error { return ask(k, lease) })
		})
	}
}

// Who holds leases and asks for nothing else must not lose them while the idle
// connections of a large pool are tried one after the other.
func TestOfAServerThatHasVanishedARenewalTriesOneConnectionAndThenANewOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var hole blackhole
	var asks atomic.Int64
	k := w.workerAt("k", w.producer, 4, func(cfg *pgxpool.Config) {
		hole.between(cfg)
		cfg.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) { // it could ask the server, if it had time to
			if ctx.Err() == nil {
				asks.Add(1)
			}
			return true, nil
		}
	})
	lease := k.acquireWith("k", fencing.LeaseConfig{TTL: 10 * time.Minute})
	var idle []*pgxpool.Conn
	for range 4 {
		conn, err := k.pool.Acquire(ctx)
		w.ok(err)
		idle = append(idle, conn)
	}
	for _, conn := range idle {
		conn.Release()
	}
	hole.open()
	before := fencing.Trusted(lease)
	asks.Store(0)
	within(t, func() error {
		fencing.RenewNow(k.Fences, lease) // in vain
		if n := asks.Load(); n != 1 {
			return fmt.Errorf("a hook could ask on %d connections, one after the other", n)
		}
		if fencing.Trusted(lease).After(before) {
			return errors.New("somebody has answered")
		}
		fencing.RenewNow(k.Fences, lease)
		if !fencing.Trusted(lease).After(before) {
			return errors.New("not renewed at the second try")
		}
		return nil
	})
}

// The question may also be lost on its way, on a connection that has just worked.
func TestAGateThatAnswersNothingIsAskedAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, callbacks := range []int{1, 2} {
		t.Run(fmt.Sprintf("callbacks at once: %d", callbacks), func(t *testing.T) {
			t.Parallel()
			var hole blackhole
			k := w.workerAt("k", w.producer, 1, hole.between)
			lease := k.acquireWith(t.Name(), fencing.LeaseConfig{TTL: 10 * time.Minute, GateTimeout: 3 * time.Second, CoalesceCallbacks: callbacks})
			hole.open()
			within(t, func() error {
				answers := make(chan error, callbacks)
				for i := range callbacks {
					go func() {
						_, err := lease.Commit(ctx, content(fmt.Sprint(i), "x"), write)
						answers <- err
					}()
				}
				var err error
				for range callbacks {
					err = errors.Join(err, <-answers)
				}
				return err
			})
		})
	}
}

// What can't be asked anew ends with an error.
func TestASweepAndAnAdvanceEndWhereTheServerHasVanished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ends := func(name, dsn string, ask func(k *worker, hole *blackhole) error) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var hole blackhole
			k := w.workerOn(w.poolAt(dsn, 1, hole.between), fencing.Config{Holder: name, CommitTimeout: time.Second})
			within(t, func() error {
				if err := ask(k, &hole); !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("it ended with %w", err)
				}
				return nil
			})
		})
	}
	ends("sweep", pgmigrated.Login(t, w.dsn, schema.KindOperator), func(k *worker, hole *blackhole) error {
		hole.open()
		_, err := k.Sweep(ctx, fencing.SweepConfig{Batch: 1})
		return err
	})
	ends("advance", w.dsn, func(k *worker, hole *blackhole) error {
		tx, err := k.pool.Begin(ctx)
		w.ok(err)
		defer tx.Rollback(ctx)
		hole.open()
		_, err = k.Advance(ctx, tx, "k", 1)
		return err
	})
}

// within fails where something takes longer than any bound that the library has.
func within(t *testing.T, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for a server that is gone")
	}
}
