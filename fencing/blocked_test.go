package fencing_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestABlockedErrorPromisesNoMoreOfTheTimeoutThanItDoes(t *testing.T) {
	t.Parallel()
	err := error(&fencing.BlockedError{Key: "order-7", PIDs: []int32{4711}})
	for _, part := range []string{`"order-7"`, "4711", "try again", "when it idles", "in one statement", "but not while it goes from statement to statement", "pg_terminate_backend"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error doesn't say %q: %v", part, err)
		}
	}
	if !errors.Is(err, fencing.ErrBlocked) {
		t.Errorf("the error is no ErrBlocked: %v", err)
	}
}

// The wait of a takeover is for the fence, and then for the row of the lease: in all
// as long as it was told, and whoever has the one or the other is named.
func TestATakeoverThatWaitsForFenceAndLeaseWaitsOnceAndNamesWhoHasTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.worker("a").acquire("k")
	w.expire("k")
	fence, lease := w.session(w.dsn), w.session(w.dsn)
	hold := func(conn *pgx.Conn, table string) {
		_, err := conn.Exec(ctx, "begin; select from fenceline."+table+" where key = 'k' for no key update")
		w.ok(err)
	}
	hold(fence, "fence")
	hold(lease, "lease")
	b := w.worker("b")
	got := make(chan error, 1)
	began := time.Now()
	go func() {
		_, err := b.Acquire(ctx, "k", fencing.LeaseConfig{TTL: time.Hour, Wait: 12 * time.Second})
		got <- err
	}()
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where usename = $1 and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '8 s')", w.loginOf(w.producer))
	_, err := fence.Exec(ctx, "rollback")
	w.ok(err)
	err = <-got
	var blocked *fencing.BlockedError
	if !errors.As(err, &blocked) || len(blocked.PIDs) != 1 || blocked.PIDs[0] != int32(lease.PgConn().PID()) {
		t.Errorf("%v, want the pid %d", err, lease.PgConn().PID())
	}
	// Twice is 8 s at the least, and 12 s more.
	if took := time.Since(began); took >= 20*time.Second {
		t.Errorf("it has waited for %v", took)
	}
}
