package replica_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/fencing/replica"
	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/migrations"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var ctx = context.Background()

// world is a primary of its own, on which workers commit reports under keys, and
// a login that may read.
type world struct {
	testing.TB
	server *devstack.Postgres
	admin  *pgxpool.Pool
	fences *fencing.Fences
	login  string // connection string of the reader's login
	name   string // its name
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, server: pgtest.Server(t, devstack.PostgresConfig{Settings: map[string]string{"autovacuum": "off"}})}
	dsn := w.server.DSN("postgres")
	w.admin = pgtest.Connect(t, dsn)
	m, err := migrations.New(w.admin, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
	w.ok(err)
	_, err = m.Up(ctx, migrations.UpOptions{})
	w.ok(err)
	w.exec("create table report (key text primary key, body text)")
	w.login = pgmigrated.Login(t, dsn, schema.KindMonitor)
	u, err := url.Parse(w.login)
	w.ok(err)
	w.name = u.User.Username()
	w.exec("grant pg_read_all_stats to " + w.name)
	w.exec("grant select, insert on report to " + w.name)
	w.fences, err = fencing.New(ctx, w.admin, fencing.Config{AllowUnsafeDatabase: true, Logger: slog.New(slog.DiscardHandler)})
	w.ok(err)
	return w
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.admin.Exec(ctx, sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t testing.TB, q pgtest.Querier, sql string, args ...any) (v T) {
	t.Helper()
	if err := q.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// takeOver gives the key's lease to a new holder.
func (w *world) takeOver(key string) *fencing.Lease {
	w.Helper()
	w.exec("update fenceline.lease set expires_at = clock_timestamp() - interval '1 s' where key = $1", key)
	lease, err := w.fences.Acquire(ctx, key, fencing.LeaseConfig{TTL: 5 * time.Minute})
	w.ok(err)
	w.Cleanup(func() { _ = lease.Release(ctx) })
	return lease
}

// report commits a report under the lease, and gives the position after it.
func (w *world) report(lease *fencing.Lease, body string) replica.Position {
	w.Helper()
	_, err := lease.Commit(ctx, fencing.Content{Step: body, Type: "text/plain", Bytes: []byte(body)}, func(ctx context.Context, tx fencing.Tx) error {
		_, err := tx.Exec(ctx, "insert into report values ($1, $2) on conflict (key) do update set body = excluded.body", tx.Gate().Key, body)
		return err
	})
	w.ok(err)
	p, err := replica.At(ctx, w.admin)
	w.ok(err)
	return p
}

// as is the reader's connection string for another server or database.
func (w *world) as(server *devstack.Postgres, database string) string {
	w.Helper()
	u, err := url.Parse(w.login)
	w.ok(err)
	u.Host, u.Path = fmt.Sprintf("127.0.0.1:%d", server.Port()), "/"+database
	return u.String()
}

func (w *world) replica(settings map[string]string) *devstack.Replica {
	w.Helper()
	return pgtest.Replica(w, w.server, devstack.ReplicaConfig{Settings: settings})
}

func (w *world) config() replica.Config {
	return replica.Config{Timeout: 20 * time.Second, Logger: slog.New(slog.DiscardHandler)}
}

func (w *world) reader(replicas ...*devstack.Replica) *replica.Reader {
	w.Helper()
	var pools []*pgxpool.Pool
	for _, r := range replicas {
		pools = append(pools, pgtest.Connect(w, w.as(r.Postgres, "postgres")))
	}
	reader, err := replica.New(ctx, pgtest.Connect(w, w.as(w.server, "postgres")), pools, w.config())
	w.ok(err)
	return reader
}

// body reads the key's report; "" is none.
func body(r *replica.Reader, key string, point replica.Point, policy replica.Policy) (text string, result replica.Result, err error) {
	result, err = r.Read(ctx, point, policy, func(ctx context.Context, tx pgx.Tx) error {
		text = ""
		err := tx.QueryRow(ctx, "select body from report where key = $1", key).Scan(&text)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return text, result, err
}

// waits returns once the reader's login has looked at a server more than once: it
// waits there.
func (w *world) waits(server *devstack.Postgres) {
	w.Helper()
	pool := pgtest.Connect(w, server.DSN("postgres"))
	pgtest.WaitTrue(w, pool, "select exists (select from pg_stat_activity where usename = $1 and query <> '' and state_change > query_start - interval '1 s')", w.name)
}

func (w *world) is(err error, want ...error) {
	w.Helper()
	for _, sentinel := range want {
		if !errors.Is(err, sentinel) {
			w.Errorf("got %v, want %v", err, sentinel)
		}
	}
}
