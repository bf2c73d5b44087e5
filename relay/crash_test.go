package relay

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/migrations"
)

// ownServer gives a migrated server for this test alone.
func ownServer(t *testing.T, settings map[string]string) (*devstack.Postgres, *pgxpool.Pool) {
	t.Helper()
	server := pgtest.Server(t, devstack.PostgresConfig{Settings: settings})
	pool := pgtest.Connect(t, server.DSN("postgres"))
	conn, err := pgx.Connect(bg, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(bg) }()
	migrator, err := migrations.New(conn, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = migrator.Up(bg, migrations.UpOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return server, pool
}

// After a crash PostgreSQL gives out again the transaction ids that left no
// trace in its log. A snapshot from before the crash counts them as seen.
func TestNothingIsPassedOverWhenACrashGivesTransactionIDsOutAgain(t *testing.T) {
	t.Parallel()
	server, pool := ownServer(t, map[string]string{"wal_writer_delay": "10s"}) // the log is written at commits only
	kafka := newMemory(t, "a")
	cfg := quick()
	cfg.LeaseTTL = 10 * time.Minute // no renewal writes the log in between
	r := startRelay(t, pool, kafka, cfg)
	p := newProducer(t, pool, "k")
	for attempt := range 5 {
		last := string(rune('a' + attempt))
		p.publish("a", "before "+last)
		eventually(t, "it is published", func() bool { return kafka.has("a", "before "+last) })
		n := checkpointsOf(t, pool)
		eventually(t, "nothing is left to store", func() bool {
			m := n
			n = checkpointsOf(t, pool)
			return m == n && r.cursor().boundary()
		})
		var burnt uint64
		for range 8 {
			tx, err := pool.Begin(bg)
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.QueryRow(bg, "select pg_current_xact_id()").Scan(&burnt); err != nil {
				t.Fatal(err)
			}
			_ = tx.Rollback(bg)
		}
		eventually(t, "the cursor counts them as seen", func() bool { return r.cursor().s1.xmax > burnt })

		if err := server.StopImmediate(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
		pool.Reset()
		var next uint64
		eventually(t, "the server is back", func() bool {
			return pool.QueryRow(bg, "select pg_snapshot_xmax(pg_current_snapshot())").Scan(&next) == nil
		})
		p.publish("a", "after "+last)
		eventually(t, "what was committed after the crash is published", func() bool { return kafka.has("a", "after "+last) })
		var xid uint64
		if err := pool.QueryRow(bg, "select xid from fenceline.outbox where payload = $1", []byte("after "+last)).Scan(&xid); err != nil {
			t.Fatal(err)
		}
		if xid <= burnt {
			t.Logf("transaction %d was given out again, the cursor had counted ids up to %d as seen", xid, burnt)
			r.end()
			return
		}
	}
	t.Fatal("no transaction id was given out again in five crashes: the test proves nothing")
}

// A killed server loses what was not yet on disk: the last checkpoints perhaps,
// never the order.
func TestEventsAreInOrderAcrossKillsOfTheDatabase(t *testing.T) {
	t.Parallel()
	server, pool := ownServer(t, map[string]string{"wal_writer_delay": "1s"})
	kafka := newMemory(t, "a")
	cfg := quick()
	cfg.LeaseTTL = 5 * time.Second
	r := startRelay(t, pool, kafka, cfg)
	p := newProducer(t, pool, "k")
	total := 0
	for range 3 {
		for range 20 {
			p.publish("a", "x", "y", "z")
			total += 3
		}
		if err := server.Kill(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(context.Background()); err != nil {
			t.Fatal(err)
		}
		pool.Reset()
	}
	eventually(t, "all is published", func() bool {
		kafka.mu.Lock()
		defer kafka.mu.Unlock()
		n, _, _ := firsts(t, kafka.logs["a"])
		return n == total
	})
	r.end()
}

// After a dump was loaded into a younger cluster, rows and cursor carry
// transaction ids that this cluster has yet to give out.
func TestTransactionIDsOfAnotherClusterAreRefusedUntilTheyAreRestamped(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("a", "1")
	first := startRelay(t, pool, kafka, quick())
	eventually(t, "the first event is published", func() bool { return kafka.has("a", "1") })
	first.end()
	for name, sql := range map[string]string{
		"cursor": "update fenceline.relay_checkpoint set s1 = '99000000:99000000:'",
		"event":  "update fenceline.outbox set xid = '99000000'",
	} {
		if _, err := pool.Exec(bg, sql); err != nil {
			t.Fatal(err)
		}
		p.publish("a", name)
		var setting *SettingError
		if err := Run(bg, pool, kafka, quick()); !errors.As(err, &setting) || !strings.Contains(err.Error(), "history_restamp()") {
			t.Fatalf("%s of another cluster: %v, want a refusal with the remedy", name, err)
		}
		if _, err := pool.Exec(bg, "select fenceline.history_restamp()"); err != nil {
			t.Fatal(err)
		}
		r := startRelay(t, pool, kafka, quick())
		eventually(t, name+": what was committed since is published", func() bool { return kafka.has("a", name) })
		r.end()
	}
}
