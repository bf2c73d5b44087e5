package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// errStopped: the generation or Run ends; what was in flight is rolled back.
var errStopped = errors.New("consumer: stopped")

// errEnded: a handler has ended the transaction by a statement and another one
// was begun.
var errEnded = fmt.Errorf("%w; it was ended by a statement and another one begun, so what was done before that may be committed", ErrNotYours)

// errMoved: the guards are not where this transaction has locked them. Only a
// handler can have brought that about.
var errMoved = fmt.Errorf("%w; the guards are not where they were locked: it has ended the transaction by a statement, and what was done before that may be committed, or it has written to a guard", ErrNotYours)

// fatalError ends Run with err.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// passing tells whether err has a reason outside of the records, so that it is
// right to try the same again for as long as it takes. lost says that the
// connection is gone.
func passing(err error, lost bool) bool {
	var timeout *HandlerTimeoutError
	if errors.As(err, &timeout) || IsRejected(err) {
		return false
	}
	var sink *sinkError
	if errors.As(err, &sink) {
		return true
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
		case "53400": // a limit that is configured (temp_file_limit): it is the statement that exceeds it
			return false
		}
		switch pg.Code[:min(2, len(pg.Code))] { // who stands between may send none
		case "08", // connection
			"53", // disk full, out of memory, too many connections
			"58": // I/O error
			return true
		}
		// Anything else the server says, it says of the statement; also when it
		// ends the connection with it.
		return forgotten(pg) || pgsession.Recovering(pg) || pgsession.Ends(pg) && refusedLogin(err) == nil
	}
	if connBusy(err) {
		return false
	}
	var connect *pgconn.ConnectError
	return lost || errors.As(err, &connect) || pgconn.SafeToRetry(err)
}

// connBusy tells whether a statement was refused because the answer to the one
// before it is not read to its end. The driver calls that safe to retry, since
// nothing was sent; but the code that left it open leaves it open again.
func connBusy(err error) bool {
	var lock interface {
		error
		SafeToRetry() bool
	}
	return errors.As(err, &lock) && lock.Error() == "conn busy"
}

// AccessError says that the database refuses this login something that no
// waiting gives it: [Run] ends with it, instead of trying for ever.
type AccessError struct {
	// What says what was refused, and Remedy what gives it.
	What, Remedy string
	// Err is the database's error.
	Err error
}

// Error implements error.
func (e *AccessError) Error() string {
	return fmt.Sprintf("consumer: the database refuses %s: %v; %s", e.What, e.Err, e.Remedy)
}

// Unwrap gives the database's error.
func (e *AccessError) Unwrap() error { return e.Err }

// refusedLogin is for an error of connecting: the password, the role or the
// database is wrong. nil for anything else.
func refusedLogin(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || !pgsession.Ends(pg) {
		return nil
	}
	switch {
	case strings.HasPrefix(pg.Code, "28"):
		return &AccessError{"the login", "give the pool the right user and password, and see pg_hba.conf; a pool that must follow a rotated password sets it in pgxpool.Config.BeforeConnect", err}
	case pg.Code == "3D000":
		return &AccessError{"the login, for there is no such database", "correct the pool's connection string", err}
	case pg.Code == "42501":
		return &AccessError{"the login the database", "grant it CONNECT on the database", err}
	}
	return nil
}

// refusedStatement is for a handler's statement that this login has no right
// to. Every event would fail on it, and each be parked or dead-lettered for
// what is no fault of its own. nil for anything else, also for a policy of row
// security or a function of the handler's that raises the same code: those
// look at the row.
func refusedStatement(err error) error {
	var pg *pgconn.PgError
	if IsRejected(err) || !errors.As(err, &pg) || pg.Code != "42501" || !strings.HasPrefix(pg.Routine, "aclcheck_error") {
		return nil
	}
	return &AccessError{"a statement of the handler", "grant this login what the statement needs, and start again: nothing was passed over", err}
}

// readOnly says that the server takes no writes. (Where a login's transactions begin
// in SERIALIZABLE, a standby says so while statements are prepared, before BEGIN is
// sent.)
func readOnly(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "25006" || pgsession.Recovering(pg))
}

// blurred says that the error may come from any event before the one at which
// it showed: a statement of a handler had failed, and the handler said it had
// not; the transaction isn't the one that was begun; or COMMIT itself found
// something wrong.
func blurred(err error) bool {
	var pg *pgconn.PgError
	return errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, errEnded) || errors.Is(err, errMoved) ||
		errors.As(err, &pg) && pg.Code == "25P02"
}

// whole is for an error of a whole transaction, as COMMIT's: how many events had
// their handler called in it, and the only one, if there is one.
func whole(err error) (handled int, sole *Delivery) {
	var t *txError
	if errors.As(err, &t) {
		return t.handled, t.sole
	}
	return 0, nil
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

// ended says whether the context's deadline, and not somebody, ended it.
func ended(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }
