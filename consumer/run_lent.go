package consumer

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/sqltext"
	"github.com/fenceline/fenceline/internal/unsent"
)

// lent is a transaction or a savepoint of a batch in a handler's hands. When the
// batch is over so is this, and its connection is somebody else's: what a handler
// has kept answers pgx.ErrTxClosed.
type lent struct {
	pgx.Tx
	own  *ownTx                 // whose it is; nil where the guard was given another one
	look func(sql string) error // refuses a statement before it is sent
}

func (l *lent) open() error {
	if l.own != nil && l.own.over.Load() {
		return pgx.ErrTxClosed
	}
	return nil
}

func (l *lent) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := l.look(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	return l.Tx.Exec(ctx, sql, args...)
}

func (l *lent) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := l.look(sql); err != nil {
		return unsent.Rows{Error: err}, err
	}
	return l.Tx.Query(ctx, sql, args...)
}

func (l *lent) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := l.look(sql); err != nil {
		return unsent.Rows{Error: err}
	}
	return l.Tx.QueryRow(ctx, sql, args...)
}

func (l *lent) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	err := l.open()
	for i := 0; i < len(b.QueuedQueries) && err == nil; i++ {
		err = l.look(b.QueuedQueries[i].SQL)
	}
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return l.Tx.SendBatch(ctx, b)
}

func (l *lent) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := l.open(); err != nil {
		return 0, err
	}
	return l.Tx.CopyFrom(ctx, table, columns, rows)
}

func (l *lent) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := l.open(); err != nil {
		return nil, err
	}
	return l.Tx.Prepare(ctx, name, sql)
}

// LargeObjects gives what only pgx's own transaction can end.
func (l *lent) LargeObjects() pgx.LargeObjects {
	if l.own != nil {
		l.own.kept = true
	}
	return l.Tx.LargeObjects()
}

// Begin makes a savepoint.
func (l *lent) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := l.open(); err != nil {
		return nil, err
	}
	inner, err := l.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	s := &lentSavepoint{lent{Tx: inner, own: l.own}}
	s.look = func(string) error { return s.open() }
	return s, nil
}

// lentTx is the transaction as a handler sees it. Savepoints are allowed. A
// statement that would end the transaction is refused before it is sent: what it
// had committed could not be taken back. What gets past this (a function's own, a
// statement on Conn) is found at the end of the batch, by the transaction's mark.
type lentTx struct {
	lent
	tried string // the statement that would have ended it
}

func lend(tx pgx.Tx) *lentTx {
	l := &lentTx{lent: lent{Tx: tx}}
	if own, is := tx.(*ownTx); is {
		l.Tx, l.own = own.Tx, own // it has a bound of its own
	}
	l.look = l.check
	return l
}

func (l *lentTx) Commit(context.Context) error   { l.tried = "commit"; return ErrNotYours }
func (l *lentTx) Rollback(context.Context) error { l.tried = "rollback"; return ErrNotYours }

func (l *lentTx) check(sql string) error {
	if err := l.open(); err != nil {
		return err
	}
	if !sqltext.EndsTransaction(sql) {
		return nil
	}
	l.tried = sql
	return ErrNotYours
}

// lentSavepoint may be ended by the handler, within the batch.
type lentSavepoint struct{ lent }

func (s *lentSavepoint) Commit(ctx context.Context) error {
	if err := s.open(); err != nil {
		return err
	}
	return s.Tx.Commit(ctx)
}

func (s *lentSavepoint) Rollback(ctx context.Context) error {
	if err := s.open(); err != nil {
		return err
	}
	return s.Tx.Rollback(ctx)
}
