package relay

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// lines is a log to look into.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// String is all of it.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// Nothing is published before it is known whether relays are paused. Whoever may not
// know it would wait for ever, with leases in hand that no other instance gets.
func TestARelayThatMayNotReadWhetherItIsPausedEndsWithTheReason(t *testing.T) {
	t.Parallel()
	dsn := pgmigrated.Migrated(t)
	admin := pgtest.Connect(t, dsn)
	if _, err := admin.Exec(bg, "revoke select on fenceline.relay_pause from fenceline_relay"); err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Connect(t, pgmigrated.Login(t, dsn, "relay"))
	err := runFor(t, pool, newMemory(t, "a"), quick())
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "42501" || !strings.Contains(err.Error(), "whether relays are paused") {
		t.Errorf("it ends with %v", err)
	}
	if n := query[int](t, admin, "select count(*) from fenceline.lease where key like 'fenceline:relay/%' and expires_at > clock_timestamp()"); n != 0 {
		t.Errorf("it has kept %d leases", n)
	}
}

func TestThatItIsNotKnownWhetherRelaysArePausedIsSaidOnce(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	var log lines
	known := make(chan bool, 10)
	cfg := quick()
	cfg.Logger = log.logger()
	cfg.Hooks.Paused = func(p bool) { known <- p }
	b := newBrake(pool, cfg, make(chan struct{}), func(err error) { t.Error(err) })
	b.every = 100 * time.Millisecond
	tx, err := pool.Begin(bg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(bg, "lock table fenceline.relay_pause in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	done := make(chan struct{})
	go func() { defer close(done); b.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	const words = "cannot look whether relays are paused"
	eventually(t, "it is said", func() bool { return log.count(words) > 0 })
	began := time.Now()
	eventually(t, "it looks again", func() bool { return time.Since(began) > time.Second })
	if err := tx.Rollback(bg); err != nil {
		t.Fatal(err)
	}
	if receive(t, "it is known", known) {
		t.Error("they are paused")
	}
	if n := log.count(words); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}
