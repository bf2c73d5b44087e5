package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Querier runs one query; *pgxpool.Pool and *pgx.Conn are some.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// waitTimeout bounds how long an event of another session is waited for.
const waitTimeout = time.Minute

// WaitBlocked waits until the session with process id pid waits for a lock that the sessions by hold or are queued for
// in front of it: until pg_blocking_pids names all of them, or, when by is empty, anybody. It fails the test after
// twenty seconds. q must be a connection other than the blocked one; conn.PgConn().PID() is a session's process id.
func WaitBlocked(t testing.TB, q Querier, pid uint32, by ...uint32) {
	t.Helper()
	want := make([]int32, 0, len(by))
	for _, b := range by {
		want = append(want, int32(b))
	}
	waitFor(t, "session blocked", q,
		"select cardinality(pg_blocking_pids($1)) > 0 and pg_blocking_pids($1) @> $2::int[]", int32(pid), want)
}

// WaitGone waits until the server has no session with process id pid. It fails the test after a minute.
func WaitGone(t testing.TB, q Querier, pid uint32) {
	t.Helper()
	waitFor(t, "session gone", q,
		"select not exists (select from pg_stat_activity where pid = $1)", int32(pid))
}

// WaitTrue waits until a query that returns one boolean returns true. It fails the test after a minute.
func WaitTrue(t testing.TB, q Querier, sql string, args ...any) {
	t.Helper()
	waitFor(t, sql, q, sql, args...)
}

func waitFor(t testing.TB, what string, q Querier, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		var ok bool
		if err := q.QueryRow(ctx, sql, args...).Scan(&ok); err != nil {
			t.Fatalf("pgtest: wait for %s %v: %v", what, args, err)
		}
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("pgtest: wait for %s %v: not so after %s", what, args, waitTimeout)
		case <-ticker.C:
		}
	}
}
