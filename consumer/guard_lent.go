package consumer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TxOf gives the transaction that a connection is in, begun by other means, as
// one to hand to a [Guard]. It is for database/sql with pgx's driver: the
// connection below a *sql.Tx is that of the *sql.Conn from which it was begun.
// Who has begun the transaction ends it: Commit and Rollback of what is returned
// only fail with [ErrNotYours]. Begin makes a savepoint. The error says that the
// connection is in no transaction, or in a failed one.
//
// Like every pgx.Tx it is for one goroutine at a time; don't use the *sql.Tx
// from another while the guard is at work.
func TxOf(conn *pgx.Conn) (pgx.Tx, error) {
	if conn == nil || conn.IsClosed() {
		return nil, fmt.Errorf("consumer: there is no open connection")
	}
	if s := conn.PgConn().TxStatus(); s != 'T' {
		return nil, fmt.Errorf("consumer: the connection is in no transaction that could commit (status %q): begin one first", s)
	}
	return borrowed{conn}, nil
}

// borrowed is a transaction that somebody else ends.
type borrowed struct{ conn *pgx.Conn }

// savepoint is a nested transaction's. pgx makes nested ones of its own
// transactions only, so it is written out here.
type savepoint struct {
	borrowed
	depth int
	done  bool
}

func (b borrowed) begin(ctx context.Context, depth int) (pgx.Tx, error) {
	s := &savepoint{borrowed: b, depth: depth}
	if _, err := b.conn.Exec(ctx, "savepoint "+s.name()); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *savepoint) name() string { return fmt.Sprintf("fenceline_%d", s.depth) }

func (b borrowed) Begin(ctx context.Context) (pgx.Tx, error) { return b.begin(ctx, 1) }
func (b borrowed) Commit(context.Context) error              { return ErrNotYours }
func (b borrowed) Rollback(context.Context) error            { return ErrNotYours }
func (b borrowed) Conn() *pgx.Conn                           { return b.conn }
func (b borrowed) LargeObjects() pgx.LargeObjects {
	panic("consumer: large objects need a transaction of pgx's own")
}

func (b borrowed) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	return b.conn.CopyFrom(ctx, table, columns, rows)
}

func (b borrowed) SendBatch(ctx context.Context, q *pgx.Batch) pgx.BatchResults {
	return b.conn.SendBatch(ctx, q)
}

func (b borrowed) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return b.conn.Prepare(ctx, name, sql)
}

func (b borrowed) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return b.conn.Exec(ctx, sql, args...)
}

func (b borrowed) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return b.conn.Query(ctx, sql, args...)
}

func (b borrowed) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return b.conn.QueryRow(ctx, sql, args...)
}

// Begin makes a savepoint below this one.
func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) { return s.begin(ctx, s.depth+1) }

// Commit releases the savepoint.
func (s *savepoint) Commit(ctx context.Context) error {
	if s.done {
		return pgx.ErrTxClosed
	}
	s.done = true
	_, err := s.conn.Exec(ctx, "release savepoint "+s.name())
	return err
}

// Rollback goes back to the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error {
	if s.done {
		return pgx.ErrTxClosed
	}
	s.done = true
	_, err := s.conn.Exec(ctx, "rollback to savepoint "+s.name())
	return err
}
