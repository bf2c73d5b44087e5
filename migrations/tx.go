package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that decide something here.
const (
	insufficientPrivilege = "42501"
	duplicateObject       = "42710"
	uniqueViolation       = "23505"
	internalError         = "XX000" // "tuple concurrently updated", of two grants
	dependentObjects      = "2BP01"
	lockNotAvailable      = "55P03"
	deadlockDetected      = "40P01"
)

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// inTx runs fn in a transaction of its own, under the migrators' advisory lock,
// and again from its beginning for as long as LockPatience allows if it got no
// lock. Trying again is right because fn decides what to do from what it reads
// under that lock.
func (m *Migrator) inTx(ctx context.Context, doing string, fn func(pgx.Tx) error) error {
	start := time.Now()
	pause := 50 * time.Millisecond
	for {
		err := m.attempt(ctx, fn)
		if state := sqlState(err); state != lockNotAvailable && state != deadlockDetected {
			return err
		}
		waited := time.Since(start)
		if waited >= m.config.LockPatience {
			return &LockedError{Doing: doing, Waited: waited, Holders: m.lockHolders(ctx), Err: err}
		}
		m.config.Logger.WarnContext(ctx, "migration waits for a lock", "schema", m.config.Schema, "doing", doing, "waited", waited)
		// Others run in the pause: a queue behind us empties.
		select {
		case <-ctx.Done():
			return fmt.Errorf("migrations: %s: %w while waiting for a lock: %w", doing, context.Cause(ctx), err)
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Second)
	}
}

func (m *Migrator) attempt(ctx context.Context, fn func(pgx.Tx) error) error {
	// READ COMMITTED is load-bearing (see lock), so it isn't left to the
	// login's default; neither is writing.
	tx, err := m.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("migrations: begin: %w", err)
	}
	// On a context that is over, pgx closes the connection, and the server rolls back.
	defer func() { _ = tx.Rollback(ctx) }()
	if err := checkServer(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, settle); err != nil {
		return fmt.Errorf("migrations: begin: %w", err)
	}
	timeout := fmt.Sprintf("%dms", m.config.LockTimeout.Milliseconds())
	if _, err := tx.Exec(ctx, `select pg_catalog.set_config('lock_timeout', $1::text, true)`, timeout); err != nil {
		return fmt.Errorf("migrations: begin: %w", err)
	}
	if _, err := tx.Exec(ctx, lock, m.lockKey); err != nil {
		return fmt.Errorf("migrations: wait for another migrator: %w", err)
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("migrations: commit: %w (if the connection was lost, this step may or may not have been kept; running again finds out)", err)
	}
	return nil
}

func checkServer(ctx context.Context, tx pgx.Tx) error {
	have, err := serverVersion(ctx, tx)
	if err != nil {
		return err
	}
	if have < oldestServer {
		return &ServerError{Have: have, Want: oldestServer}
	}
	return nil
}

func serverVersion(ctx context.Context, tx pgx.Tx) (version int, err error) {
	if err := tx.QueryRow(ctx, `select pg_catalog.current_setting('server_version_num')::int`).Scan(&version); err != nil {
		return 0, fmt.Errorf("migrations: ask for the server's version: %w", err)
	}
	return version, nil
}

// inSavepoint runs fn so that its failure leaves the transaction usable.
func inSavepoint(ctx context.Context, tx pgx.Tx, fn func(pgx.Tx) error) error {
	nested, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	if err := fn(nested); err != nil {
		if rollback := nested.Rollback(ctx); rollback != nil {
			return errors.Join(err, rollback)
		}
		return err
	}
	return nested.Commit(ctx)
}

// lockHolders is for an error text: what it can't find out is left out.
func (m *Migrator) lockHolders(ctx context.Context) []Session {
	tx, err := m.db.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil
	}
	defer func() { _ = tx.Rollback(ctx) }()
	rows, err := tx.Query(ctx, holders, m.lockKey, m.config.Schema)
	if err != nil {
		return nil
	}
	sessions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Session])
	if err != nil {
		return nil
	}
	return sessions
}
