package fencing_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
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
