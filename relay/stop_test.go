package relay

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgproxy"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

// Somebody holds what a checkpoint has to lock: a transaction that was left open in
// a console, or the lock of a change of the schema.
func TestAStopWaitsForNoCheckpointBeyondTheGraceTime(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	r := startRelay(t, pool, kafka, quick())
	p.publish("a", "x")
	eventually(t, "a cursor is stored", func() bool { return checkpointsOf(t, pool) > 0 })

	held, err := pool.Begin(bg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(bg) }()
	if _, err := held.Exec(bg, "select from fenceline.fence where key = $1 for update", ShardKey(outbox.Shard("k"))); err != nil {
		t.Fatal(err)
	}
	p.publish("a", "y")
	eventually(t, "the checkpoint waits for the lock", func() bool {
		return query[bool](t, pool, "select exists (select from pg_stat_activity where datname = current_database() and application_name = 'fenceline relay checkpoint' and wait_event_type = 'Lock')")
	})
	began := time.Now()
	r.end() // within a minute, and without an error
	t.Logf("it took %v", time.Since(began))
	if err := held.Rollback(bg); err != nil {
		t.Fatal(err)
	}

	// What could not be stored is published again, in order.
	r = startRelay(t, pool, kafka, quick())
	p.publish("a", "z")
	eventually(t, "the next one goes on", func() bool { return kafka.has("a", "z") })
	r.end()
	if distinct, _, _ := firsts(t, kafka.logs["a"]); distinct != 3 {
		t.Errorf("%d events are published, 3 were committed", distinct)
	}
}

// A network that swallows everything: nobody answers, and nobody says so.
func TestAStopEndsThoughTheDatabaseDoesNotAnswer(t *testing.T) {
	t.Parallel()
	dsn := pgmigrated.Migrated(t)
	direct, kafka := pgtest.Connect(t, dsn), newMemory(t, "a")
	server := direct.Config().ConnConfig
	proxy, err := pgproxy.Listen(fmt.Sprintf("%s:%d", server.Host, server.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	through, err := proxy.DSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(bg, through)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	has := make(chan []int, 100)
	cfg := quick()
	cfg.LeaseTTL = time.Hour // and so nothing ends by itself
	cfg.Hooks.Shards = func(shards []int) { has <- shards }
	r := startRelay(t, pool, kafka, cfg)
	for len(receive(t, "the relay has all shards", has)) < outbox.Shards {
	}
	newProducer(t, direct, "k").publish("a", "x")
	eventually(t, "it publishes", func() bool { return kafka.has("a", "x") })

	proxy.Freeze()
	t.Cleanup(proxy.Thaw) // before the pool is closed
	began := time.Now()
	r.end() // within a minute: one for each of its leases would take longer
	t.Logf("it took %v", time.Since(began))
}

// slowConn takes its time for each answer of the server.
type slowConn struct {
	net.Conn
	delay *atomic.Int64
}

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	time.Sleep(time.Duration(c.delay.Load()))
	return n, err
}

// farShare is an instance's share of a database, over one connection that becomes
// slow when delay is set.
func farShare(t *testing.T, pool *pgxpool.Pool) (h *share, delay *atomic.Int64) {
	t.Helper()
	delay = new(atomic.Int64)
	far := poolWith(t, pool, func(c *pgxpool.Config) {
		c.MaxConns = 1
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return slowConn{conn, delay}, err
		}
	})
	cfg := quick().withDefaults()
	cfg.LeaseTTL, cfg.Name = time.Minute, "far"
	fences, err := fencing.New(bg, far, fencing.Config{Holder: cfg.Name, System: true, AllowUnsafeDatabase: true, Logger: cfg.Logger})
	if err != nil {
		t.Fatal(err)
	}
	sql := newStatements("fenceline")
	return newShare(far, fences, cfg, &sql), delay
}

const farLeases = "select count(*) from fenceline.lease where starts_with(holder, 'far ') and expires_at > clock_timestamp()"

// Giving up its shards takes such an instance longer than a stop waits for a
// database that doesn't answer. This one answers.
func TestAStopGivesAllShardsUpHoweverFarAwayTheDatabaseIs(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	h, delay := farShare(t, pool)
	if _, err := h.round(bg); err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, pool, farLeases); n != outbox.Shards {
		t.Fatalf("it has %d shards", n)
	}
	delay.Store(int64(100 * time.Millisecond))
	h.leave(bg)
	if n := query[int](t, pool, farLeases); n != 0 {
		t.Errorf("it has kept %d shards, for which others wait until they expire", n)
	}
}

// A round of looking takes no longer than some seconds. What it has asked for by
// then it must hear of: else the database has given a lease of which nobody knows.
func TestEachLeaseThatTheDatabaseHasGivenIsKnownHoweverFarAwayItIs(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	h, delay := farShare(t, pool)
	delay.Store(int64(130 * time.Millisecond))
	if _, err := h.round(bg); err != nil {
		t.Error(err)
	}
	delay.Store(0)
	h.mu.Lock()
	known := len(h.leases)
	h.mu.Unlock()
	if n := query[int](t, pool, farLeases); n != known || n == 0 || n == outbox.Shards {
		t.Errorf("%d leases are given, and %d of them are known", n, known)
	}
	h.leave(bg)
}
