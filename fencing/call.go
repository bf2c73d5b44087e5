package fencing

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// queryBehind runs one statement, behind settings of its own, in a READ COMMITTED
// transaction in one round trip: whatever isolation the pool's connections begin with,
// the functions need this one. limit, where it isn't 0, is how long is waited for a
// connection, and then for the answer.
func (f *Fences) queryBehind(ctx context.Context, limit time.Duration, settings []string, read func(pgx.Rows) error, sql string, args ...any) error {
	_, err := f.asked(ctx, limit, settings, read, sql, args...)
	return err
}

// asked is queryBehind, and says whether what has been committed may be on the primary
// alone.
func (f *Fences) asked(ctx context.Context, limit time.Duration, settings []string, read func(pgx.Rows) error, sql string, args ...any) (alone bool, err error) {
	taking, taken := within(ctx, limit)
	conn, err := f.connection(taking) // which asks one that was idle whether it lives
	taken()
	if err != nil {
		return false, err
	}
	defer conn.Release()
	forgetNotice(conn.Conn().PgConn())
	ctx, done := within(ctx, limit)
	defer done()
	b := &pgx.Batch{}
	b.Queue(f.sql.begin)
	for _, set := range settings {
		b.Queue(set)
	}
	b.Queue(sql, args...).Query(read)
	b.Queue(f.sql.commit)
	err = conn.SendBatch(ctx, b).Close()
	if err != nil {
		f.rollback(conn)
		return false, err
	}
	return notReplicated(conn.Conn().PgConn()), nil
}

// patientSQL keeps the times that a login may have set for its queries and
// transactions from a function that waits for a fence as long as its argument says.
// They would end the wait before the function does, with an error that doesn't name
// who is in the way; so a takeover would never end a session that keeps it (see
// unblock). The last one is there since PostgreSQL 17.
const patientSQL = `select set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
	case when current_setting('transaction_timeout', true) is not null then set_config('transaction_timeout', '0', true) end`

// wait is queryBehind for a function that gives one row, waits for others, and bounds that
// itself.
func (f *Fences) wait(ctx context.Context, limit time.Duration, read func(pgx.Row) error, sql string, args ...any) error {
	return f.queryBehind(ctx, limit, []string{patientSQL}, oneRow(read), sql, args...)
}

// issue is wait for a function that issues a token, with ErrNotReplicated where the
// token may be on the primary alone. Behind a failover without loss it would be
// issued once more, to somebody else, whose commits are then not told from those of
// who has it.
func (f *Fences) issue(ctx context.Context, limit time.Duration, read func(pgx.Row) error, sql string, args ...any) error {
	alone, err := f.asked(ctx, limit, []string{patientSQL}, oneRow(read), sql, args...)
	if err == nil && alone {
		err = ErrNotReplicated
	}
	return err
}

func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, limit)
}

func oneRow(read func(pgx.Row) error) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		if !rows.Next() {
			if err := rows.Err(); err != nil {
				return err
			}
			return pgx.ErrNoRows
		}
		if err := read(rows); err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	}
}
