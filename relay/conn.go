package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// sessionSettings are for sessions that last. Times that were set for the login, the
// database or the cluster are meant for others: these sessions are idle whenever
// nothing is published, and each one that the server ends has events published
// twice; and a statement that was ended for its time would be ended so each time.
// What PostgreSQL doesn't know before version 17 is set where it does.
const sessionSettings = `
set statement_timeout = 0;
set lock_timeout = 0;
set idle_session_timeout = 0;
set idle_in_transaction_session_timeout = 0;
select set_config(name, '0', false) from pg_catalog.pg_settings where name = 'transaction_timeout';`

// readerSettings make the plans of reader.go's statements what they must be,
// whatever the statistics say: an index, walked in order, and no more of it
// than the page. A plan made for one set of parameters is not better, only
// less certain.
const readerSettings = sessionSettings + `
set application_name = 'fenceline relay reader';
set plan_cache_mode = force_generic_plan;
set jit = off;
set max_parallel_workers_per_gather = 0;
set enable_seqscan = off;
set enable_bitmapscan = off;
set work_mem = '32MB';
set default_transaction_isolation = 'read committed'`

const writerSettings = sessionSettings + `
set application_name = 'fenceline relay checkpoint';
set default_transaction_isolation = 'read committed';
set default_transaction_read_only = off`

const doctorSettings = `set application_name = 'fenceline relay doctor'`

// PoolerError is returned by [Run] when something between the relay and
// PostgreSQL, a pooler in transaction mode usually, hands its sessions from one
// backend to another. Point the relay's DSN at PostgreSQL itself; producers may
// go on using the pooler. [Drain], [Republish] and [Follow] return it, too.
type PoolerError struct {
	// Reason is what was seen.
	Reason string
}

// Error implements error.
func (e *PoolerError) Error() string {
	return fmt.Sprintf("relay: a connection pooler is in the way: %s; connect the relay to PostgreSQL directly, or to the pooler in session mode (producers may use transaction mode)", e.Reason)
}

// answerWithin is how long an answer is waited for where nothing else bounds that:
// a lease, or a lock's time. A host that is gone answers nothing, also not that it is
// gone, and what a pool has idle may be of such a one, though the next primary is
// there: the operating system would wait for a quarter of an hour. A variable only for
// tests.
var answerWithin = 10 * time.Second

// dial takes a connection out of the pool for good: whoever holds it must know
// when it breaks, and a pool would hide that.
func dial(ctx context.Context, pool *pgxpool.Pool, settings string) (*pgx.Conn, error) {
	end := time.Now().Add(answerWithin) // of both
	c, err := pgsession.Acquire(ctx, pool, answerWithin)
	if err != nil {
		return nil, fmt.Errorf("relay: connect: %w", err)
	}
	conn := c.Hijack()
	if settings == "" {
		return conn, nil
	}
	bound, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if _, err := conn.Exec(bound, settings); err != nil {
		hangUp(conn)
		return nil, fmt.Errorf("relay: prepare the connection: %w", err)
	}
	return conn, nil
}

func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing is open on it; the server ends it in any case
}

// direct refuses a pooler in transaction mode before anything is set or listened
// to: what a session sets there stays with the backend, for whoever is given that
// next, and this package's sessions have settings that nobody else should have.
func direct(ctx context.Context, pool *pgxpool.Pool) error {
	a, err := dial(ctx, pool, "")
	if err != nil {
		return err
	}
	defer hangUp(a)
	b, err := dial(ctx, pool, "")
	if err != nil {
		return err
	}
	defer hangUp(b)
	_, err = pinned(ctx, a, b)
	return err
}

// pinned makes sure that a session stays with one backend, and gives its pid.
//
// A direct connection is known by its pid: the server has told it at connect.
// A pooler tells another one. Then the session is tried: while other holds a
// backend in a transaction, a pooler in transaction mode has to give conn a
// different one than it had, or none.
func pinned(ctx context.Context, conn, other *pgx.Conn) (uint32, error) {
	// Without a prepared statement, which another backend would not know. Nor by
	// the simple protocol, which the driver refuses on a connection that is not in
	// UTF8 or reads backslashes in strings: both may be set for a login or by a
	// cluster that was made without a locale, and nothing here minds them.
	const ask, plain = "select pg_backend_pid()", pgx.QueryExecModeExec
	var before uint32
	if err := conn.QueryRow(ctx, ask, plain).Scan(&before); err != nil {
		return 0, fmt.Errorf("relay: check the connection: %w", err)
	}
	if before == conn.PgConn().PID() {
		return before, nil
	}
	// Which of the backends that it has idle a pooler gives is a matter of moments: most
	// give the one that came back last, which after a try is other's. So conn is asked
	// again before each.
	for range 5 {
		if err := stays(ctx, conn, other, before); err != nil {
			return 0, err
		}
	}
	return before, nil
}

// oneServer refuses two sessions that are not with the same server, or with a standby.
// A pool that knows several hosts gives such ones after a failover: a host of before
// takes connections again, and what is idle is of another one. A snapshot of the
// reader's becomes a cursor that the writer stores. Of another server it says nothing
// here; and on a standby a snapshot lists no transaction that runs, so that the
// events of those would count as published.
func oneServer(ctx context.Context, reader, writer *pgx.Conn) error {
	var started [2]time.Time
	for i, conn := range [...]*pgx.Conn{reader, writer} {
		var standby bool
		if err := conn.QueryRow(ctx, "select pg_is_in_recovery(), pg_postmaster_start_time()").Scan(&standby, &started[i]); err != nil {
			return fmt.Errorf("relay: check the connection: %w", err)
		}
		if standby {
			return fmt.Errorf("relay: check the connection: %s is a standby: %s", conn.Config().Host, oneServerRemedy)
		}
	}
	if !started[0].Equal(started[1]) {
		return fmt.Errorf("relay: check the connection: one session is with a server that runs since %v, the other with one that runs since %v: %s",
			started[0].UTC().Format(time.RFC3339Nano), started[1].UTC().Format(time.RFC3339Nano), oneServerRemedy)
	}
	return nil
}

// errStandby: who looks at a standby may see what was, and takes it for what is.
var errStandby = errors.New("a session of the pool is with a standby: " + oneServerRemedy)

const oneServerRemedy = "connect to the primary alone; where the connection string names several hosts, with target_session_attrs=primary"

// stays is one try: conn is still with backend before while other has a transaction.
func stays(ctx context.Context, conn, other *pgx.Conn, before uint32) error {
	const ask, plain = "select pg_backend_pid()", pgx.QueryExecModeExec
	var after uint32
	if err := conn.QueryRow(ctx, ask, plain).Scan(&after); err != nil {
		return fmt.Errorf("relay: check the connection: %w", err)
	}
	if before != after {
		return moved(before, after)
	}
	tx, err := other.Begin(ctx)
	if err != nil {
		return fmt.Errorf("relay: check the connection: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, ask, plain); err != nil {
		return fmt.Errorf("relay: check the connection: %w", err)
	}
	soon, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	switch err := conn.QueryRow(soon, ask, plain).Scan(&after); {
	case err != nil && errors.Is(soon.Err(), context.DeadlineExceeded):
		return &PoolerError{Reason: "a second session gets no backend while the first one has a transaction open"}
	case err != nil:
		return fmt.Errorf("relay: check the connection: %w", err)
	case before != after:
		return moved(before, after)
	}
	return nil
}

func moved(before, after uint32) *PoolerError {
	return &PoolerError{Reason: fmt.Sprintf("one session ran on backend %d and then on backend %d", before, after)}
}
