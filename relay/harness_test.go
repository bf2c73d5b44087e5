package relay

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
)

// quick is a configuration for tests: whatever should happen soon happens at
// once, and nothing is logged.
func quick() Config {
	return Config{
		LeaseTTL: 2 * time.Second, PollMin: time.Millisecond, PollMax: 5 * time.Millisecond,
		CheckpointInterval: 5 * time.Millisecond, TopicCheck: 20 * time.Millisecond, PartitionGrace: time.Hour, Grace: 2 * time.Second,
		AllowUnsafeDatabase: true, Logger: slog.New(slog.DiscardHandler),
	}
}

// running is a relay in the background.
type running struct {
	t     testing.TB
	stop  context.CancelFunc
	done  chan struct{}
	err   error
	polls atomic.Int64 // reads of the main flow
	loads atomic.Int64

	mu   sync.Mutex
	main cursor // after the latest read
}

func startRelay(t testing.TB, pool *pgxpool.Pool, pub Publisher, cfg Config) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(bg)
	r := &running{t: t, stop: cancel, done: make(chan struct{})}
	read, loaded := cfg.signals.read, cfg.signals.loaded
	cfg.signals.read = func(c cursor, rows int) {
		r.mu.Lock()
		r.main = c
		r.mu.Unlock()
		r.polls.Add(1)
		if read != nil {
			read(c, rows)
		}
	}
	cfg.signals.loaded = func(c cursor) {
		r.loads.Add(1)
		if loaded != nil {
			loaded(c)
		}
	}
	go func() {
		defer close(r.done)
		r.err = Run(ctx, pool, pub, cfg)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// end stops the relay and wants a clean stop.
func (r *running) end() {
	r.t.Helper()
	r.stop()
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		r.t.Fatal("the relay does not stop")
	}
	if r.err != nil {
		r.t.Fatalf("a clean stop gives %v", r.err)
	}
}

// passed waits until the relay has taken n snapshots from now on.
func (r *running) passed(n int64) {
	r.t.Helper()
	from := r.polls.Load()
	eventually(r.t, "the relay polls", func() bool { return r.polls.Load() >= from+n })
}

func (r *running) cursor() cursor {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.main
}

// everything is what a relay without forks reads.
var everything = filter{shards: allShards}

// leases are those of a relay that has all shards, for sessions without a runner.
func leases() (own []fencing.Position) {
	for n := range outbox.Shards {
		own = append(own, fencing.Position{Key: ShardKey(n)})
	}
	return own
}

// seize takes a shard's lease over, as another instance would after it has
// expired.
func seize(t testing.TB, pool *pgxpool.Pool, shard int, ttl time.Duration) (token int64) {
	t.Helper()
	if _, err := pool.Exec(bg, "update fenceline.lease set expires_at = '-infinity' where key = $1", ShardKey(shard)); err != nil {
		t.Fatal(err)
	}
	return query[int64](t, pool, "select token from fenceline.relay_acquire($1, 'other', $2, gen_random_uuid(), interval '5 s')", ShardKey(shard), ttl)
}

// checkpoints is the number of cursors ever stored.
func checkpointsOf(t testing.TB, pool *pgxpool.Pool) int64 {
	t.Helper()
	return query[int64](t, pool, "select coalesce(max(n), 0) from fenceline.relay_checkpoint")
}

// fresh gives a database and a broker in memory with the topics.
func fresh(t testing.TB, topics ...string) (*pgxpool.Pool, *memory) {
	t.Helper()
	return pgmigrated.Pool(t), newMemory(t, topics...)
}

// runFor runs a relay that should end by itself: nil if it didn't.
func runFor(t testing.TB, pool *pgxpool.Pool, pub Publisher, cfg Config) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	defer cancel()
	return Run(ctx, pool, pub, cfg)
}
