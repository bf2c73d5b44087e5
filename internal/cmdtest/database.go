package cmdtest

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/testmain"
)

// durable is the server of this test binary.
var durable = sync.OnceValues(func() (*devstack.Postgres, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	server, err := devstack.StartPostgres(ctx, devstack.PostgresConfig{Durable: true})
	if err == nil {
		testmain.OnExit(func() error { return server.Stop(context.Background()) })
	}
	return server, err
})

// Database creates an empty database and returns a superuser's connection
// string for it. It goes with the server, at the end of the test binary.
func Database(t testing.TB) (dsn string) {
	t.Helper()
	server, err := durable()
	if err != nil {
		t.Fatal(err)
	}
	name := "test_" + strings.ToLower(rand.Text()[:16])
	Exec(t, server.DSN("postgres"), "create database "+pgx.Identifier{name}.Sanitize())
	return server.DSN(name)
}

// Migrated is a Database to which "relay migrate up" was applied.
func Migrated(t testing.TB) (dsn string) {
	t.Helper()
	dsn = Database(t)
	if r := Run(t, Env{"FENCELINE_POSTGRES_DSN=" + dsn}, "relay", "migrate", "up"); r.Code != 0 {
		t.Fatalf("relay migrate up: exit code %d\n%s", r.Code, r.All())
	}
	return dsn
}

// Exec runs statements on a connection of their own.
func Exec(t testing.TB, dsn string, statements ...string) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}
