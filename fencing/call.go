package fencing

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// query runs one statement in a READ COMMITTED transaction of its own, in one
// round trip: whatever isolation the pool's connections begin with, the
// functions need this one.
func (f *Fences) query(ctx context.Context, read func(pgx.Rows) error, sql string, args ...any) error {
	conn, err := f.connection(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	b := &pgx.Batch{}
	b.Queue(f.sql.begin)
	b.Queue(sql, args...).Query(read)
	b.Queue(f.sql.commit)
	err = conn.SendBatch(ctx, b).Close()
	if err != nil {
		f.rollback(conn)
	}
	return err
}

// call is query for a statement that gives one row.
func (f *Fences) call(ctx context.Context, read func(pgx.Row) error, sql string, args ...any) error {
	return f.query(ctx, func(rows pgx.Rows) error {
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
	}, sql, args...)
}
