package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errStopped: the generation or Run ends; what was in flight is rolled back.
var errStopped = errors.New("consumer: stopped")

// fatalError ends Run with err.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// HandlerTimeoutError says that a handler took longer than
// Config.HandlerTimeout. It counts as a failure of the event, although the
// connection is lost with it: an event that hangs for ever must not be tried
// for ever.
type HandlerTimeoutError struct {
	After time.Duration
	// Err is what the handler returned.
	Err error
}

// Error implements error.
func (e *HandlerTimeoutError) Error() string {
	return fmt.Sprintf("consumer: the handler exceeded Config.HandlerTimeout (%v): %v", e.After, e.Err)
}

// Unwrap gives the handler's error.
func (e *HandlerTimeoutError) Unwrap() error { return e.Err }

// ErrNotYours is returned to a handler that commits or rolls back the
// transaction that it was lent. What it has done must stand or fall with the
// guard.
var ErrNotYours = errors.New("consumer: a handler must neither commit nor roll back the transaction that it was given: return nil or an error instead")

// lentTx is the transaction as a handler sees it. Savepoints (Begin) are
// allowed.
type lentTx struct{ pgx.Tx }

func (lentTx) Commit(context.Context) error   { return ErrNotYours }
func (lentTx) Rollback(context.Context) error { return ErrNotYours }

// bounded is a handler whose context ends, and whose transaction isn't its own.
type bounded struct {
	Handler
	timeout time.Duration
}

// Handle implements Handler.
func (b bounded) Handle(ctx context.Context, tx pgx.Tx, d Delivery) error {
	hctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	err := b.Handler.Handle(hctx, lentTx{tx}, d)
	if err != nil && hctx.Err() != nil && ctx.Err() == nil {
		return &HandlerTimeoutError{b.timeout, err}
	}
	return err
}

// passing tells whether err has a reason outside of the records, so that it is
// right to try the same again for as long as it takes. lost says that the
// connection is gone.
func passing(err error, lost bool) bool {
	var timeout *HandlerTimeoutError
	if errors.As(err, &timeout) || IsRejected(err) {
		return false
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "40001", "40P01", // serialisation failure, deadlock
			"55P03",          // a lock was not to be had in time
			"25006",          // read-only: a standby, or a primary that became one
			"25P03", "25P04", // idle for too long, transaction for too long: the process was paused
			"57P01", "57P02", "57P03", "57P05": // the server shuts down, crashed, starts
			return true
		}
		switch pg.Code[:2] {
		case "08", // connection
			"53", // disk full, out of memory, too many connections
			"58": // I/O error
			return true
		}
		// Anything else the server says, it says of the statement; also when it
		// ends the connection with it.
		return pg.Severity == "FATAL"
	}
	var connect *pgconn.ConnectError
	return lost || errors.As(err, &connect) || pgconn.SafeToRetry(err)
}

// blurred says that the error may come from any event before the one at which
// it showed: a statement of a handler had failed, and the handler said it had
// not; or COMMIT itself found something wrong.
func blurred(err error) bool {
	var pg *pgconn.PgError
	return errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, pgx.ErrTxCommitRollback) ||
		errors.As(err, &pg) && pg.Code == "25P02"
}

// sleep waits, and says whether it did so to the end.
func sleep(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return false
	case <-t.C:
		return true
	}
}
