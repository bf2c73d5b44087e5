package consumer_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
)

// network loses, when it is told so, every connection that there is, without a
// word: what is sent goes nowhere. New ones work.
type network struct{ lost atomic.Int64 }

type lossyConn struct {
	net.Conn
	n     *network
	since int64
}

func (c lossyConn) Write(p []byte) (int, error) {
	if c.n.lost.Load() != c.since {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// SetDeadline shortens what the driver waits for the end of a connection that it
// has closed, which the end of the test would wait for.
func (c lossyConn) SetDeadline(t time.Time) error {
	if c.n.lost.Load() != c.since && !t.IsZero() {
		t = time.Now()
	}
	return c.Conn.SetDeadline(t)
}

func (n *network) lose() { n.lost.Add(1) }

func (n *network) pool(t *testing.T, to *pgxpool.Pool, edits ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg := to.Config()
	for _, edit := range edits {
		edit(cfg)
	}
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return lossyConn{conn, n, n.lost.Load()}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// The host of the database is gone, and answers nothing, also not that it is gone.
// The next one is there.
func TestADatabaseThatVanishesWithoutAWordIsLeftAndTold(t *testing.T) {
	// They are put back behind all of the runs.
	t.Cleanup(consumer.SetSilence(500 * time.Millisecond))
	t.Cleanup(consumer.SetIdleGrace(500 * time.Millisecond))
	for _, when := range []string{"between two transactions", "in the middle of one", "before it is looked up where to read"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			config := b.config()
			config.HandlerTimeout, config.Attempts, config.LossLimit = 500*time.Millisecond, 1000, 1000
			var lossy network
			log := newMemory("t")
			log.publish(events("t", "a", 1, 3)...)
			var once sync.Once
			ended := b.runAs(lossy.pool(t, b.pool), log.source(), config, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
				err := b.apply("x")(ctx, tx, d)
				if err == nil && d.Key == "b" && when == "in the middle of one" {
					once.Do(lossy.lose)
				}
				return err
			}))
			b.eventually("the first are applied", func() bool { return b.seen.count(consumer.Applied) == 3 })
			switch when {
			case "between two transactions":
				lossy.lose()
			case "before it is looked up where to read":
				lossy.lose()
				log.fail(errors.New("the broker is away"))
			}
			log.publish(events("t", "b", 1, 3)...)
			b.eventually("the rest is applied", func() bool { return b.seen.count(consumer.Applied) == 6 })
			b.want("b", effects("b", 1, 3)...)
			if b.seen.failed("") == 0 {
				t.Error("the observer was told nothing")
			}
			select {
			case err := <-ended:
				t.Errorf("Run: %v", err)
			default:
			}
		})
	}
}

// A pool looks whether an idle connection is alive before it hands it out, and waits
// for that for as long as its caller does: each dead one would cost that time anew.
func TestOneConnectionThatNobodyAnswersIsEnoughToLeaveTheOthers(t *testing.T) {
	t.Cleanup(consumer.SetSilence(time.Second))
	t.Cleanup(consumer.SetIdleGrace(500 * time.Millisecond))
	b := newBench(t)
	config := b.config()
	config.HandlerTimeout, config.Attempts, config.PollInterval = 500*time.Millisecond, 1000, time.Hour
	var lossy network
	const idle = 8
	pool := lossy.pool(t, b.pool, func(cfg *pgxpool.Config) { cfg.MaxConns = idle + 2 })
	log := newMemory("t")
	log.publish(event("t", "a", 1))
	b.runAs(pool, log.source(), config, b.apply("x"))
	b.eventually("the first is applied", func() bool { return b.seen.count(consumer.Applied) == 1 })
	for _, c := range take(t, pool, idle) {
		c.Release()
	}
	lossy.lose()
	log.publish(event("t", "a", 2))
	b.eventually("the next is applied", func() bool { return b.seen.count(consumer.Applied) == 2 })
	if n := b.seen.failed("the pool gave no connection"); n > idle/2 {
		t.Errorf("the pool gave no connection %d times, with %d that nobody answers: want hardly more than once", n, idle)
	}
}

// take takes so many connections at once.
func take(t *testing.T, pool *pgxpool.Pool, n int) (all []*pgxpool.Conn) {
	t.Helper()
	for range n {
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}
