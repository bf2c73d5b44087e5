package consumer

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// A server that vanishes (its host is gone, or the network in between) answers
// nothing, also not that it is gone: without a bound of our own the operating
// system would wait for it for a quarter of an hour, while the next primary is
// long there, and nobody be told. So everything has a bound: a handler and a COMMIT
// their own, and every other round trip this one. A server that is there has ended
// any statement by then, see settingsSQL.

// silence is how much longer than a statement may take an answer is waited for. A
// variable only for tests.
var silence = 10 * time.Second

// patience is how long an answer is waited for.
func (r *runner) patience() time.Duration { return r.cfg.HandlerTimeout + idleGrace + silence }

// acquire takes a connection.
func (p *partition) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	return pgsession.Acquire(ctx, p.pool, p.patience())
}

func (t *ownTx) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.patience)
}

// SendBatch begins the transaction if it isn't. So whoever sends the first batch
// reads its answers by callbacks alone: there are some in front of them.
func (t *ownTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	ctx, cancel := t.bound(ctx)
	return boundResults{t.send(ctx, b), cancel}
}

// Exec is the transaction's, with the bound.
func (t *ownTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	ctx, cancel := t.bound(ctx)
	defer cancel()
	return t.Tx.Exec(ctx, sql, args...)
}

// Query is the transaction's, with the bound for all of the rows.
func (t *ownTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	ctx, cancel := t.bound(ctx)
	rows, err := t.Tx.Query(ctx, sql, args...)
	return boundRows{rows, cancel}, err
}

// QueryRow is the transaction's, with the bound.
func (t *ownTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	ctx, cancel := t.bound(ctx)
	return boundRow{t.Tx.QueryRow(ctx, sql, args...), cancel}
}

// These give the bound up when the answer was read.
type (
	boundResults struct {
		pgx.BatchResults
		done context.CancelFunc
	}
	boundRows struct {
		pgx.Rows
		done context.CancelFunc
	}
	boundRow struct {
		pgx.Row
		done context.CancelFunc
	}
)

func (b boundResults) Close() error {
	defer b.done()
	return b.BatchResults.Close()
}

func (b boundRows) Close() {
	b.Rows.Close()
	b.done()
}

// Next closes the rows behind the last one.
func (b boundRows) Next() bool {
	if b.Rows.Next() {
		return true
	}
	b.done()
	return false
}

func (b boundRow) Scan(dest ...any) error {
	defer b.done()
	return b.Row.Scan(dest...)
}
