package verify

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// noTimeouts has the transaction last as long as it takes: what a login may have set
// is meant for others, and whoever is told of findings may take his time.
const noTimeouts = `select set_config(name, '0', true) from pg_catalog.pg_settings
 where name in ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`

// reading runs f in a transaction that only reads, whatever a login has set.
func reading(ctx context.Context, pool *pgxpool.Pool, isolation pgx.TxIsoLevel, f func(tx pgx.Tx) error) error {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: isolation, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer func() { // also when ctx has ended; but a server that hangs must not keep the caller
		over, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(over)
	}()
	if _, err := tx.Exec(ctx, noTimeouts); err != nil {
		return err
	}
	return f(tx)
}
