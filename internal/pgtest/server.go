package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/testmain"
)

// EnvDSN names the environment variable with the connection string of a running server to use.
const EnvDSN = "FENCELINE_TEST_POSTGRES"

// EnvVersion names the environment variable with the major version that the tests are to run against, such as 18: the
// servers started here are of it, and the one that EnvDSN names must be.
const EnvVersion = "FENCELINE_TEST_POSTGRES_VERSION"

// major is what EnvVersion asks for; 0 is whatever there is.
func major() (int, error) {
	text := os.Getenv(EnvVersion)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < devstack.OldestPostgres {
		return 0, fmt.Errorf("pgtest: %s=%s: want a major version such as 18", EnvVersion, text)
	}
	return n, nil
}

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
	want, err := major()
	if err != nil {
		return nil, err
	}
	dsn := os.Getenv(EnvDSN)
	if dsn == "" {
		server, err := devstack.StartPostgres(ctx, devstack.PostgresConfig{Major: want})
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
	// Tests that ran on another version than the one asked for would say nothing about it.
	if version, err := versionOf(ctx, conn); err != nil || want != 0 && version/10000 != want {
		_ = conn.Close(ctx)
		return nil, errors.Join(err, fmt.Errorf("pgtest: the test server (%s) is of version %d, and %s=%d", EnvDSN, version, EnvVersion, want))
	}
	s := &sharedServer{base: *base, admin: make(chan *pgx.Conn, 1)}
	s.admin <- conn
	testmain.OnExit(func() error { return s.close() })
	return s, nil
})

func versionOf(ctx context.Context, conn *pgx.Conn) (version int, err error) {
	err = conn.QueryRow(ctx, "select current_setting('server_version_num')::int").Scan(&version)
	return version, err
}

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
	if cfg.Major == 0 {
		var err error
		if cfg.Major, err = major(); err != nil {
			t.Fatal(err)
		}
	}
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

// Replica starts a streaming replica of a server that [Server] started, for this test alone. It has replayed all that
// was committed before. It is ended after the test, before its primary.
func Replica(t testing.TB, primary *devstack.Postgres, cfg devstack.ReplicaConfig) *devstack.Replica {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	replica, err := primary.StartReplica(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := replica.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := replica.CatchUp(ctx); err != nil {
		t.Fatal(err)
	}
	return replica
}
