package pgmigrated

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/migrations"
)

// Migrated creates a database with both parts applied in schema fenceline and
// returns a superuser's connection string for it. The database is dropped after
// the test.
func Migrated(t testing.TB) (dsn string) {
	t.Helper()
	dsn = pgtest.Clone(t, "fenceline migrations", migrate)
	// A copy is another history, in which nothing may commit. This one has lost
	// nothing: an operator says so.
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(ctx, schema.Expand("select @schema@.history_confirm()", schema.Default))
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		t.Fatal(err)
	}
	return dsn
}

// Pool is a pool on a database of its own that Migrated made, closed after the
// test.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return pgtest.Connect(t, Migrated(t))
}

func migrate(ctx context.Context, dsn string) (err error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	migrator, err := migrations.New(conn, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = migrator.Up(ctx, migrations.UpOptions{})
	return err
}
