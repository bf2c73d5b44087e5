package fencing_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
)

// set gives the producer's login settings of its own, from its next connection on.
func (w *world) set(settings ...string) {
	w.Helper()
	cfg, err := pgx.ParseConfig(w.producer)
	w.ok(err)
	for _, s := range settings {
		w.exec(fmt.Sprintf("alter role %s set %s", pgx.Identifier{cfg.User}.Sanitize(), s))
	}
}

// A login's statement_timeout is for its queries. A takeover waits for as long as
// it was told, and says who is in the way; and it ends a session that only it can
// tell from a living one (see unblock).
func TestALoginsStatementTimeoutDoesNotEndTheWaitForAFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.worker("a"), w.worker("b"), w.worker("c")
	lease := a.acquire("k")
	mine := b.acquireWith("mine", fencing.LeaseConfig{TTL: 5 * time.Minute, Wait: 700 * time.Millisecond})
	w.set("statement_timeout = '500ms'")
	b.pool.Reset()
	var blocked *fencing.BlockedError

	own := c.pauseBehindGate(mine.Position(), content("s", "x"))
	if _, err := mine.Rotate(ctx); !errors.As(err, &blocked) || len(blocked.PIDs) != 1 || blocked.PIDs[0] != int32(own.pid) {
		t.Errorf("rotate: %v", err)
	}
	own.goOn()
	w.ok((<-own.done).err)

	p := a.pauseBehindGate(lease.Position(), content("s", "x"))
	w.expire("k")
	if _, err := b.Acquire(ctx, "k", fencing.LeaseConfig{TTL: 5 * time.Minute, Wait: 700 * time.Millisecond}); !errors.As(err, &blocked) || len(blocked.PIDs) != 1 || blocked.PIDs[0] != int32(p.pid) {
		t.Errorf("acquire: %v", err)
	}
	closed := make(chan error, 1)
	go func() {
		_, err := b.Close(ctx, lease.Position())
		closed <- err
	}()
	select {
	case err := <-closed:
		t.Fatalf("close: %v", err)
	case <-time.After(700 * time.Millisecond):
	}
	p.goOn()
	w.ok(errors.Join((<-p.done).err, <-closed))
}
