package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/testmain"
)

// EnvDSN names the environment variable with the connection string of a running server to use.
const EnvDSN = "FENCELINE_TEST_POSTGRES"

// startTimeout bounds everything that the shared server is waited for: a first fetch of binaries included.
const startTimeout = 3 * time.Minute

// Main runs the tests of a package and then ends the servers that they shared, Kafka included. It returns the exit
// code.
func Main(m testmain.Runner) int { return testmain.Main(m) }

// shared is the server of this test binary: our own, or the one that EnvDSN names.
type sharedServer struct {
	base  url.URL // connection string without a database
	admin chan *pgx.Conn
}

var shared = sync.OnceValues(func() (*sharedServer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	dsn := os.Getenv(EnvDSN)
	if dsn == "" {
		server, err := devstack.StartPostgres(ctx, devstack.PostgresConfig{})
		if err != nil {
			return nil, err
		}
		testmain.OnExit(func() error { return server.Stop(context.Background()) })
		dsn = server.DSN("postgres")
	}
	base, err := url.Parse(dsn)
	if err != nil || base.Scheme != "postgres" && base.Scheme != "postgresql" {
		return nil, fmt.Errorf("pgtest: %s must be a URL such as postgres://user:password@127.0.0.1:5432/postgres", EnvDSN)
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("pgtest: the test server (%s): %w", EnvDSN, err)
	}
	s := &sharedServer{base: *base, admin: make(chan *pgx.Conn, 1)}
	s.admin <- conn
	testmain.OnExit(func() error { return s.close() })
	return s, nil
})

// exec runs one statement as the superuser, one at a time: CREATE DATABASE forces a checkpoint, and several at once
// only wait for each other.
func (s *sharedServer) exec(ctx context.Context, sql string) error {
	conn := <-s.admin
	defer func() { s.admin <- conn }()
	if conn.IsClosed() { // a context that ended in the middle of a statement closes the connection
		fresh, err := pgx.Connect(ctx, s.dsn(s.base.Path[1:]))
		if err != nil {
			return fmt.Errorf("pgtest: connect again: %w", err)
		}
		conn = fresh
	}
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("pgtest: %s: %w", sql, err)
	}
	return nil
}

func (s *sharedServer) dsn(database string) string {
	u := s.base
	u.Path = "/" + database
	return u.String()
}

func (s *sharedServer) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, name := range templateNames() {
		if err := s.exec(ctx, "drop database if exists "+pgx.Identifier{name}.Sanitize()+" (force)"); err != nil {
			return err
		}
	}
	conn := <-s.admin
	return conn.Close(ctx)
}

// Server starts a server for this test alone, without a shared one's other users: to be killed, restarted, or run with
// settings of its own. It is ended after the test.
func Server(t testing.TB, cfg devstack.PostgresConfig) *devstack.Postgres {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := devstack.StartPostgres(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return server
}
