package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgproxy"
)

// vanished is a pool that has idle connections of a host that is gone without a
// word. New ones reach the next primary.
func vanished(t *testing.T, idle int) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(pgmigrated.Migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := pgproxy.Listen(fmt.Sprintf("%s:%d", cfg.ConnConfig.Host, cfg.ConnConfig.Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	var gone atomic.Bool
	server := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if gone.Load() {
			return server(ctx, network, addr)
		}
		return server(ctx, "tcp", proxy.Addr())
	}
	cfg.MaxConns = 8
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	pool, err := pgxpool.NewWithConfig(bg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	conns := make([]*pgxpool.Conn, idle)
	for i := range conns {
		if conns[i], err = pool.Acquire(bg); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		c.Release()
	}
	proxy.Freeze()
	t.Cleanup(proxy.Thaw) // before the pool is closed
	gone.Store(true)
	return pool
}

// Not with the others: how long an answer is waited for is another here.
func TestASessionTakesNoConnectionOfAHostThatIsGone(t *testing.T) {
	before := answerWithin
	answerWithin = time.Second
	defer func() { answerWithin = before }()
	pool := vanished(t, 2)
	failed := 0
	eventually(t, "it has a connection to the next primary", func() bool {
		conn, err := dial(bg, pool, writerSettings)
		if err != nil {
			failed++
			return false
		}
		hangUp(conn)
		return true
	})
	if failed == 0 {
		t.Error("no connection was of the host that is gone")
	}
	pool = vanished(t, 2)
	eventually(t, "something is written", func() bool {
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		n, err := 0, error(nil)
		if err = write(ctx, pool, "select 1", nil, &n); ctx.Err() != nil {
			t.Fatalf("it would have waited for ever: %v", err)
		}
		return err == nil
	})
	pool = vanished(t, 2)
	d := &drainage{pool: pool, cfg: Config{Schema: "fenceline"}, upTo: "3:3:"}
	eventually(t, "a drain looks", func() bool {
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		_, err := d.left(ctx)
		if ctx.Err() != nil {
			t.Fatalf("it would have waited for ever: %v", err)
		}
		return err == nil
	})
	pool = vanished(t, 2)
	eventually(t, "a pass of the retention ends", func() bool {
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		_, err := Retain(ctx, pool, "", RetentionConfig{})
		if ctx.Err() != nil {
			t.Fatalf("it would have waited for ever: %v", err)
		}
		return err == nil
	})
	pool = vanished(t, 2)
	s := &session{pool: pool, sql: new(statements)}
	*s.sql = newStatements("fenceline")
	eventually(t, "a topic's partition count is looked up", func() bool {
		_, _, err := s.pin(bg, "a", nil)
		return err == nil
	})
}

func TestAPauseIsHeededThoughAConnectionOfThePoolAnswersNothing(t *testing.T) {
	t.Parallel()
	pool := vanished(t, 1)
	paused := make(chan bool, 10)
	b := newBrake(pool, Config{Schema: "fenceline", Logger: slog.New(slog.DiscardHandler), Hooks: Hooks{Paused: func(p bool) { paused <- p }}}, make(chan struct{}), func(error) {})
	b.every = time.Second
	ctx, cancel := context.WithCancel(bg)
	done := make(chan struct{})
	go func() { defer close(done); b.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if receive(t, "whether relays are paused is known", paused) {
		t.Error("they are paused")
	}
}
