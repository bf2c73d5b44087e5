package relay

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// write runs one statement that changes something, in a transaction of its own
// that says what it needs. A login can have other defaults: in a stricter
// isolation the functions that look again under a lock refuse or see what was
// there before it, and many a hosted server turns writing off by default when
// its disk is nearly full, which is when somebody wants to remove events, or to
// publish what keeps them. In one message, so that it costs no round trip.
//
// After an error the connection is not idle, and the pool drops it. How long one is
// waited for is bounded: what a pool has idle may be of a host that is gone.
func write(ctx context.Context, pool *pgxpool.Pool, sql string, args []any, dest ...any) error {
	conn, err := pgsession.Acquire(ctx, pool, answerWithin)
	if err != nil {
		return err
	}
	defer conn.Release()
	b := &pgx.Batch{}
	b.Queue("begin isolation level read committed, read write")
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(dest...) })
	b.Queue("commit")
	return conn.SendBatch(ctx, b).Close()
}

// patient reads one row, and waits for a connection no longer than write does.
type patient struct{ pool *pgxpool.Pool }

// QueryRow asks when the row is scanned.
func (p patient) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return &patientRow{ctx, p.pool, sql, args}
}

type patientRow struct {
	ctx  context.Context
	pool *pgxpool.Pool
	sql  string
	args []any
}

// Scan implements pgx.Row.
func (r *patientRow) Scan(dest ...any) error {
	conn, err := pgsession.Acquire(r.ctx, r.pool, answerWithin)
	if err != nil {
		return err
	}
	defer conn.Release()
	return conn.QueryRow(r.ctx, r.sql, r.args...).Scan(dest...)
}
