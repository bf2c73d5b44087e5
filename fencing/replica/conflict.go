package replica

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// serverFault tells whether an error of a statement is the server's and not the
// caller's, so that another server may do better; nil if it is the caller's.
func serverFault(s *server, conn *pgx.Conn, err error) *RefusedError {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		// A context of the caller's own that ended takes the connection along.
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return nil
		}
		// A callback may have hidden the error that took its connection away.
		if conn.IsClosed() {
			return refuse(s, ErrUnavailable, "the connection was lost", err)
		}
		return nil
	}
	switch {
	case s.index >= 0 && recoveryConflict(pg):
		return refuse(s, ErrRecoveryConflict, "", err)
	case strings.HasPrefix(pg.Code, "57P"), strings.HasPrefix(pg.Code, "08"), pg.Code == "53300", conn.IsClosed():
		return refuse(s, ErrUnavailable, "", err)
	}
	return nil
}

// recoveryConflict: on a standby nothing but replay causes a serialization
// failure or a deadlock of a read-only transaction; 57014 is also what a
// statement_timeout or a cancel request gives, which are the caller's. The server's
// routine tells them apart, which is spelt alike whatever language its messages are
// in; the text is for who stands between and leaves that out.
func recoveryConflict(pg *pgconn.PgError) bool {
	switch pg.Code {
	case "40001", "40P01":
		return true
	case "57014":
		return pg.Routine == "ProcessRecoveryConflictInterrupt" || strings.Contains(pg.Message, "conflict with recovery")
	}
	return false
}
