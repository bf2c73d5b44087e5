package fencing

import (
	"context"
	"fmt"

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
	// seen; its error fails the commit. It runs after everything that the
	// callback did, and a savepoint that is rolled back does not take it back.
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
	conn   *pgx.Conn
	pass   Pass
	sql    *statements
	queued []statement
}

type statement struct {
	sql  string
	args []any
}

var _ Tx = (*tx)(nil)

func (t *tx) Gate() Pass                    { return t.pass }
func (t *tx) Queue(sql string, args ...any) { t.queued = append(t.queued, statement{sql, args}) }
func (t *tx) SetResult(result []byte) error {
	if err := validateResult(result); err != nil {
		return err
	}
	t.Queue(t.sql.setResult, t.pass.Key, t.pass.Epoch, t.pass.Token, t.pass.Step, result)
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

// Entered is a caller's own transaction that has passed the gate through
// [Fences.Enter]. The caller commits it.
type Entered struct {
	pgx.Tx
	pass Pass
	sql  *statements
}

// Gate says which gate it has passed.
func (t *Entered) Gate() Pass { return t.pass }

// SetResult puts a small result, at most 8 KiB, into the receipt.
func (t *Entered) SetResult(ctx context.Context, result []byte) error {
	if err := validateResult(result); err != nil {
		return err
	}
	_, err := t.Exec(ctx, t.sql.setResult, t.pass.Key, t.pass.Epoch, t.pass.Token, t.pass.Step, result)
	return translate(err)
}

func validateResult(result []byte) error {
	if len(result) > maxResult {
		return &InvalidError{"result", fmt.Sprintf("has %d bytes, a receipt carries at most %d", len(result), maxResult)}
	}
	return nil
}

// ended says what the callback has done to the transaction, by the state that
// the server last reported.
func (t *tx) ended() error {
	if t.conn.IsClosed() {
		return &wrappedError{"fencing: the connection was lost during the callback: nothing was written", ErrRolledBack, nil}
	}
	if t.conn.PgConn().IsBusy() {
		return &wrappedError{"fencing: the callback left rows open, so COMMIT could not be sent: nothing was written; close the rows", ErrMisuse, nil}
	}
	switch t.conn.PgConn().TxStatus() {
	case 'T':
		return nil
	case 'E':
		return ErrRolledBack
	default:
		return &wrappedError{"fencing: the callback ended the transaction itself: whether its writes are committed is for a retry to tell", ErrMisuse, nil}
	}
}
