package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DSN creates an empty database and returns a superuser's connection string for it. The database is dropped after the
// test, with whatever is still connected to it.
func DSN(t testing.TB) string {
	t.Helper()
	// template0: nobody can be connected to it, which CREATE DATABASE requires of its template.
	return create(t, "template0")
}

// Pool is a pool on an empty database of its own, closed after the test.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Connect(t, DSN(t))
}

// Connect opens a pool on dsn and closes it after the test.
func Connect(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Clone returns a connection string for a copy of the database that build prepared. build runs once per test binary
// and key, on an empty database, and must close its connections before it returns. Settings made with ALTER DATABASE
// aren't copied; roles are the server's and need no copy. The copy is dropped after the test.
func Clone(t testing.TB, key string, build func(ctx context.Context, dsn string) error) string {
	t.Helper()
	templatesMu.Lock()
	tpl, ok := templates[key]
	if !ok {
		tpl = &template{}
		templates[key] = tpl
	}
	templatesMu.Unlock()
	tpl.once.Do(func() { tpl.err = tpl.prepare(build) })
	if tpl.err != nil {
		t.Fatalf("pgtest: template %q: %v", key, tpl.err)
	}
	return create(t, tpl.name)
}

type template struct {
	once sync.Once
	name string
	err  error
}

var (
	templatesMu sync.Mutex
	templates   = map[string]*template{}
)

func templateNames() []string {
	templatesMu.Lock()
	defer templatesMu.Unlock()
	var names []string
	for _, tpl := range templates {
		if tpl.name != "" {
			names = append(names, tpl.name)
		}
	}
	return names
}

func (tpl *template) prepare(build func(ctx context.Context, dsn string) error) error {
	s, err := shared()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := databaseName()
	if err := s.createDatabase(ctx, name, "template0"); err != nil {
		return err
	}
	templatesMu.Lock()
	tpl.name = name
	templatesMu.Unlock()
	if err := build(ctx, s.dsn(name)); err != nil {
		return err
	}
	// Nobody may change it from here on, nor be in the way of copying it.
	return s.exec(ctx, "alter database "+pgx.Identifier{name}.Sanitize()+" with allow_connections false")
}

func create(t testing.TB, from string) string {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	name := databaseName()
	if err := s.createDatabase(ctx, name, from); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.exec(ctx, "drop database "+pgx.Identifier{name}.Sanitize()+" (force)"); err != nil {
			t.Error(err)
		}
	})
	return s.dsn(name)
}

// createDatabase copies files instead of logging each page: quicker by far for a small database when fsync is off.
func (s *sharedServer) createDatabase(ctx context.Context, name, from string) error {
	return s.exec(ctx, fmt.Sprintf("create database %s template %s strategy file_copy",
		pgx.Identifier{name}.Sanitize(), pgx.Identifier{from}.Sanitize()))
}

// databaseName is random, since the server may be shared with other processes.
func databaseName() string { return "test_" + strings.ToLower(rand.Text()[:16]) }
