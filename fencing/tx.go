package fencing

import (
	"context"

	"github.com/fenceline/fenceline/internal/gate"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Pass says which gate a transaction has passed.
type Pass = gate.Pass

// Tx is a transaction that has passed the gate. It is a pgx.Tx for the
// business rows; its Commit and Rollback refuse, since the transaction ends
// with the callback. A nested Begin is a savepoint; it cannot shed the lock.
type Tx interface {
	pgx.Tx
	// Gate says which gate it has passed.
	Gate() Pass
	// Queue puts a statement into the round trip of COMMIT. Its result is not
	// seen; its error fails the commit, and is a [*StatementError]. It runs after
	// everything that the callback did, and a savepoint that is rolled back does
	// not take it back.
	Queue(sql string, args ...any)
	// SetResult puts a small result, at most 8 KiB, into the receipt, in the
	// round trip of COMMIT. A replay gets it back.
	SetResult(result []byte) error
}

// maxResult is what a receipt can carry; the table's check says the same.
const maxResult = 8 << 10

// errOwned is the answer to Commit and Rollback.
var errOwned = &wrappedError{"fencing: the transaction ends with the callback: return nil to commit it, an error to roll it back", ErrMisuse, nil}

// tx is a transaction on a connection of its own, begun in the same round trip
// as the gate (which pgx's own Begin could not share).
type tx struct {
	conn *pgx.Conn
	*queue
}

// queue is what a transaction that has passed a gate takes along with COMMIT.
// Several gates share the list of statements.
type queue struct {
	pass   Pass
	sql    *statements
	queued *[]statement
}

var _ Tx = (*tx)(nil)

func (q *queue) Gate() Pass { return q.pass }
func (q *queue) Queue(sql string, args ...any) {
	*q.queued = append(*q.queued, statement{sql: sql, args: args})
}
func (q *queue) SetResult(result []byte) error {
	if err := validateResult(result); err != nil {
		return err
	}
	q.Queue(q.sql.setResult, q.pass.Key, q.pass.Epoch, q.pass.Token, q.pass.Step, result)
	return nil
}
func (t *tx) Conn() *pgx.Conn              { return t.conn }
func (t *tx) Commit(context.Context) error { return errOwned }
func (t *tx) Rollback(context.Context) error {
	return errOwned
}

func (t *tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.conn.Exec(ctx, sql, args...)
}

func (t *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.conn.Query(ctx, sql, args...)
}

func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.conn.QueryRow(ctx, sql, args...)
}

func (t *tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return t.conn.SendBatch(ctx, b)
}

func (t *tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	return t.conn.CopyFrom(ctx, table, columns, src)
}

func (t *tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	return t.conn.Prepare(ctx, name, sql)
}

// Begin makes a savepoint.
func (t *tx) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := t.native(ctx)
	if err != nil {
		return nil, err
	}
	return inner.Begin(ctx)
}

// LargeObjects is for callbacks that use PostgreSQL's large objects.
func (t *tx) LargeObjects() pgx.LargeObjects {
	inner, err := t.native(context.Background())
	if err != nil {
		return pgx.LargeObjects{}
	}
	return inner.LargeObjects()
}

// native gives pgx's own transaction type over the transaction that is open
// already, for what only it can make. Its begin is a statement that does
// nothing, and its commit is never called.
func (t *tx) native(ctx context.Context) (pgx.Tx, error) {
	return t.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "select"})
}
