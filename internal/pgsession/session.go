package pgsession

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PoolerRemedy is for a statement that was prepared and is not there.
const PoolerRemedy = "connect with default_query_exec_mode=exec or cache_describe, or have the pooler carry prepared statements along (PgBouncer from 1.21 on: max_prepared_statements)"

// Ends says that the server ended the session with this error, or began none. The
// severity that is shown is in the language of the server (lc_messages), the other
// one is not.
func Ends(pg *pgconn.PgError) bool {
	s := pg.SeverityUnlocalized
	if s == "" { // a pooler's own errors have one alone
		s = pg.Severity
	}
	return s == "FATAL" || s == "PANIC"
}

// Recovering says that a standby refuses what its promotion will let pass, with the
// code of a feature that it doesn't have, which says less: BEGIN of a transaction that
// may write (the check of the setting), and any statement of a session whose
// transactions begin in SERIALIZABLE, unless BEGIN said otherwise before it.
func Recovering(pg *pgconn.PgError) bool {
	return pg.Code == "0A000" && (pg.Routine == "call_bool_check_hook" || pg.Routine == "GetSerializableTransactionSnapshot")
}

// Acquire takes a connection out of the pool, and waits no longer for it than
// within. The pool looks first whether one that was idle is alive, which a server
// that has vanished doesn't answer: then the other idle ones are of the same server,
// and are given up with it, for each would be waited for as long. (A connection that
// is in use is not touched before it is given back.)
func Acquire(ctx context.Context, pool *pgxpool.Pool, within time.Duration) (*pgxpool.Conn, error) {
	bound, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := pool.Acquire(bound)
	if err != nil && ctx.Err() == nil && errors.Is(bound.Err(), context.DeadlineExceeded) {
		if pool.Stat().IdleConns() > 0 { // else all are in use, or were
			pool.Reset()
		}
		err = fmt.Errorf("the pool gave no connection for %v: the database does not answer, or the pool is too small: %w", within, err)
	}
	return conn, err
}
