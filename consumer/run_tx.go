package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// txOptions: the guard needs to see, under its lock, what was committed while
// it waited for it. A stricter level would show its own snapshot.
var txOptions = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}

// txError is a failed transaction and what is known of its connection.
type txError struct {
	err  error
	lost bool
	// ours: a statement of the guard's failed, not of the handler's.
	ours bool
}

func (e *txError) Error() string { return e.err.Error() }
func (e *txError) Unwrap() error { return e.err }

// isPassing is [passing] for what transact returns. A statement of ours that
// was cancelled was cancelled by somebody, not because of an event.
func isPassing(err error) bool {
	var t *txError
	if !errors.As(err, &t) {
		return passing(err, false)
	}
	var pg *pgconn.PgError
	return passing(t.err, t.lost) || t.ours && errors.As(t.err, &pg) && pg.Code == "57014"
}

// inTx does work in a transaction and commits it. The error is a [*txError], or
// a [*fatalError].
func (p *partition) inTx(work func(ctx context.Context, tx pgx.Tx) error) error {
	ctx := p.applying
	tx, err := p.pool.BeginTx(ctx, txOptions)
	if err != nil {
		return &txError{err: fmt.Errorf("consumer: begin: %w", err), lost: true, ours: true}
	}
	// What ends a transaction is not reached by the stop signal: a connection
	// must not go back to the pool with a transaction open, and a COMMIT that is
	// cancelled has an unknown outcome. If it has one all the same, the work is
	// done again, and the guards know what was done.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.CommitTimeout)
	defer cancel()
	if err := work(ctx, tx); err != nil {
		var h *HandlerError
		failed := &txError{err: err, lost: tx.Conn().IsClosed(), ours: !errors.As(err, &h)}
		_ = tx.Rollback(ending)
		if failed.ours && !blurred(err) && !isPassing(failed) && ctx.Err() == nil {
			// Nothing that an event can be blamed for: a right that is missing, a
			// stream of another policy.
			return &fatalError{err}
		}
		return failed
	}
	if err := tx.Commit(ending); err != nil {
		return &txError{err: fmt.Errorf("consumer: commit: %w", err), lost: tx.Conn().IsClosed()}
	}
	return nil
}
