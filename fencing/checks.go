package fencing

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/dbcheck"
	"github.com/fenceline/fenceline/internal/pgsession"
)

// SettingError says that server or database are set up in a way in which no
// promise would hold: fsync or full_page_writes off, a table or sequence of ours
// unlogged, a sequence that gives numbers out ahead, a column of another type;
// that the login's sessions spell texts or times in a way that can't be read back;
// or that it is a standby. [New] refuses to start. It matches ErrInvalid.
type SettingError struct {
	// Name is what is set wrongly, Have how.
	Name, Have string
	// Remedy is what breaks, and what to do.
	Remedy string
}

// Error implements error.
func (e *SettingError) Error() string {
	return fmt.Sprintf("fencing: %s is %s: %s", e.Name, e.Have, e.Remedy)
}

// Unwrap gives ErrInvalid.
func (e *SettingError) Unwrap() error { return ErrInvalid }

// pooled names the remedy where a statement that was prepared is not there: what
// is between hands each transaction to another session.
func pooled(err error) error {
	if code(err) != "26000" { // invalid_sql_statement_name
		return err
	}
	return &SettingError{"the connection", "a pooler's in transaction mode, which has lost a prepared statement",
		"commits would fail now and then: " + pgsession.PoolerRemedy}
}

// checkDatabase refuses a database on which an acknowledged commit can vanish.
func checkDatabase(ctx context.Context, pool *pgxpool.Pool, cfg Config) error {
	err := dbcheck.Check(ctx, pool, cfg.Schema, !cfg.AllowUnsafeDatabase)
	var p *dbcheck.Problem
	switch {
	case errors.As(err, &p):
		return (*SettingError)(p)
	case err != nil:
		return fmt.Errorf("fencing: %w", err)
	}
	return nil
}
