package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// beginSQL begins a transaction of the runner's, in one round trip.
//
// READ COMMITTED: the guard needs to see, under its lock, what was committed
// while it waited for it. A stricter level would show its own snapshot.
//
// The two timeouts are for the handler that doesn't heed its context: one that
// hangs in a statement (with a context of its own), and one that hangs in Go.
// Without them such a handler would hold the guards of its batch for ever,
// against the member that has the partition next, too. Lower ones of the login
// or the database stay.
//
// The mark is how the end of the batch tells whether this is still the
// transaction that was begun: a local setting ends with its transaction, also
// where COMMIT or ROLLBACK has chained another one to it, which by its status
// alone can't be told from this one.
const beginSQL = `begin isolation level read committed read write;
select set_config('statement_timeout', least(nullif(extract(epoch from current_setting('statement_timeout')::interval) * 1000, 0), %[1]d)::bigint::text, true),
       set_config('idle_in_transaction_session_timeout', least(nullif(extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000, 0), %[2]d)::bigint::text, true),
       set_config('fenceline.batch', '%[3]d', true)`

// markSQL is read at the end, together with what else is to be written there.
const markSQL = `select coalesce(current_setting('fenceline.batch', true), '')`

// idleGrace is how much longer than its context a handler may keep a
// transaction idle: its context is to end first, so that the error says so. A
// variable only for tests.
var idleGrace = 5 * time.Second

var lastMark atomic.Int64

// begin gives a transaction and its mark.
func (p *partition) begin(ctx context.Context) (pgx.Tx, string, error) {
	mark := lastMark.Add(1)
	limit := p.cfg.HandlerTimeout + idleGrace
	tx, err := p.pool.BeginTx(ctx, pgx.TxOptions{BeginQuery: fmt.Sprintf(beginSQL, limit.Milliseconds(), limit.Milliseconds(), mark)})
	return tx, fmt.Sprint(mark), err
}

// txError is a failed transaction and what is known of its connection.
type txError struct {
	err  error
	lost bool
	// ours: a statement of the guard's failed, not of the handler's.
	ours bool
	// begun: there was a transaction, so the database was there.
	begun bool
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

// tookConnection says that the connection was lost in the middle of a
// transaction. Once, that is an accident. Again and again at the same event,
// while every new connection works, it is the event.
func tookConnection(err error) bool {
	var t *txError
	return errors.As(err, &t) && t.begun && t.lost && passing(t.err, t.lost)
}

// inTx does work in a transaction and commits it. What work queues in last is
// sent when it has returned, together with the look at the mark. The error is a
// [*txError], or a [*fatalError].
func (p *partition) inTx(work func(ctx context.Context, tx pgx.Tx, last *pgx.Batch) error) error {
	ctx := p.applying
	tx, mark, err := p.begin(ctx)
	if err != nil {
		if refused := refusedLogin(err); refused != nil {
			return &fatalError{refused}
		}
		return &txError{err: fmt.Errorf("consumer: begin: %w", err), lost: true, ours: true}
	}
	conn := tx.Conn()
	returned := false
	defer func() {
		if !returned { // a panic, or a runtime.Goexit: nothing else would end the transaction
			ending, cancel := p.ending()
			defer cancel()
			_ = tx.Rollback(ending)
		}
	}()
	var last pgx.Batch
	err = work(ctx, tx, &last)
	returned = true
	if err == nil {
		err = seal(ctx, tx, &last, mark)
	}
	ending, cancel := p.ending()
	defer cancel()
	if err != nil {
		var h *HandlerError
		failed := &txError{err: err, lost: conn.IsClosed(), ours: !errors.As(err, &h), begun: true}
		if readOnly(err) {
			// This server was a primary once. The pool would hand the same
			// connection out again and again; a new one goes wherever the primary
			// is now.
			_ = conn.Close(ending)
		}
		_ = tx.Rollback(ending)
		if refused := refusedStatement(err); refused != nil {
			return &fatalError{refused}
		}
		if failed.ours && !blurred(err) && !isPassing(failed) && ctx.Err() == nil {
			// Nothing that an event can be blamed for: a right that is missing, a
			// stream of another policy.
			return &fatalError{err}
		}
		return failed
	}
	if err := tx.Commit(ending); err != nil {
		return &txError{err: fmt.Errorf("consumer: commit: %w", err), lost: conn.IsClosed(), begun: true}
	}
	return nil
}

// ending bounds what ends a transaction, from when it is sent: the handlers of a
// batch may take as long as they like together. It is not reached by the stop
// signal: a connection must not go back to the pool with a transaction open, and a
// COMMIT that is cancelled has an unknown outcome. If it has one all the same, the
// work is done again, and the guards know what was done.
func (p *partition) ending() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(p.applying), p.cfg.CommitTimeout)
}

// seal sends what is left to be written, and tells whether what is about to be
// committed is the transaction that was begun.
func seal(ctx context.Context, tx pgx.Tx, last *pgx.Batch, mark string) error {
	var got string
	last.Queue(markSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
	if err := tx.SendBatch(ctx, last).Close(); err != nil {
		return fmt.Errorf("consumer: storing the offset: %w", err)
	}
	if got != mark {
		return errEnded
	}
	return nil
}
