package consumer

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/sqltext"
	"github.com/fenceline/fenceline/internal/unsent"
)

// lentTx is the transaction as a handler sees it. Savepoints are allowed. A
// statement that would end the transaction is refused before it is sent: what it
// had committed could not be taken back. What gets past this (a function's own, a
// statement on Conn) is found at the end of the batch, by the transaction's mark.
//
// When the batch is over so is this, and its connection is somebody else's: what a
// handler has kept answers pgx.ErrTxClosed.
type lentTx struct {
	pgx.Tx
	own   *ownTx // whose it is; nil where the guard was given another one
	tried string // the statement that would have ended it
}

func (l *lentTx) open() error {
	if l.own != nil && l.own.over.Load() {
		return pgx.ErrTxClosed
	}
	return nil
}

func (l *lentTx) Commit(context.Context) error   { l.tried = "commit"; return ErrNotYours }
func (l *lentTx) Rollback(context.Context) error { l.tried = "rollback"; return ErrNotYours }

func (l *lentTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := l.check(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	return l.Tx.Exec(ctx, sql, args...)
}

func (l *lentTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := l.check(sql); err != nil {
		return unsent.Rows{Error: err}, err
	}
	return l.Tx.Query(ctx, sql, args...)
}

func (l *lentTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := l.check(sql); err != nil {
		return unsent.Rows{Error: err}
	}
	return l.Tx.QueryRow(ctx, sql, args...)
}

func (l *lentTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := l.check(q.SQL); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return l.Tx.SendBatch(ctx, b)
}

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

func (l *lentTx) Begin(ctx context.Context) (pgx.Tx, error) { return l.begin(ctx, l.Tx) }

func (l *lentTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := l.open(); err != nil {
		return 0, err
	}
	return l.Tx.CopyFrom(ctx, table, columns, rows)
}

func (l *lentTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := l.open(); err != nil {
		return nil, err
	}
	return l.Tx.Prepare(ctx, name, sql)
}

func (l *lentTx) LargeObjects() pgx.LargeObjects { return l.large(l.Tx) }

// large gives what only pgx's own transaction can end.
func (l *lentTx) large(tx pgx.Tx) pgx.LargeObjects {
	if l.own != nil {
		l.own.kept = true
	}
	return tx.LargeObjects()
}

// begin makes a savepoint.
func (l *lentTx) begin(ctx context.Context, tx pgx.Tx) (pgx.Tx, error) {
	if err := l.open(); err != nil {
		return nil, err
	}
	inner, err := tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &lentSavepoint{inner, l}, nil
}

// lentSavepoint is over when the transaction is.
type lentSavepoint struct {
	pgx.Tx
	outer *lentTx
}

func (s *lentSavepoint) Begin(ctx context.Context) (pgx.Tx, error) { return s.outer.begin(ctx, s.Tx) }
func (s *lentSavepoint) LargeObjects() pgx.LargeObjects            { return s.outer.large(s.Tx) }

func (s *lentSavepoint) Commit(ctx context.Context) error {
	if err := s.outer.open(); err != nil {
		return err
	}
	return s.Tx.Commit(ctx)
}

func (s *lentSavepoint) Rollback(ctx context.Context) error {
	if err := s.outer.open(); err != nil {
		return err
	}
	return s.Tx.Rollback(ctx)
}

func (s *lentSavepoint) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := s.outer.open(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return s.Tx.Exec(ctx, sql, args...)
}

func (s *lentSavepoint) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := s.outer.open(); err != nil {
		return unsent.Rows{Error: err}, err
	}
	return s.Tx.Query(ctx, sql, args...)
}

func (s *lentSavepoint) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := s.outer.open(); err != nil {
		return unsent.Rows{Error: err}
	}
	return s.Tx.QueryRow(ctx, sql, args...)
}

func (s *lentSavepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := s.outer.open(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return s.Tx.SendBatch(ctx, b)
}

func (s *lentSavepoint) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := s.outer.open(); err != nil {
		return 0, err
	}
	return s.Tx.CopyFrom(ctx, table, columns, rows)
}

func (s *lentSavepoint) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := s.outer.open(); err != nil {
		return nil, err
	}
	return s.Tx.Prepare(ctx, name, sql)
}
