package replica_test

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing/replica"
	"github.com/fenceline/fenceline/internal/pgpooler"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// pooler is a pooler in transaction mode over several servers: after each
// transaction a client's next one goes to another server.
func pooler(t *testing.T, dsns ...string) string {
	t.Helper()
	p, err := pgpooler.Listen(pgpooler.Config{Backends: dsns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p.DSN("default_query_exec_mode=exec")
}

func TestACheckOnOneServerSaysNothingOfAReadOnAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	quick, paused := w.replica(nil), w.replica(nil)
	pool := pgtest.Connect(t, pooler(t, w.as(quick.Postgres, "postgres"), w.as(paused.Postgres, "postgres")))
	reader, err := replica.New(ctx, pgtest.Connect(t, w.as(w.server, "postgres")), []*pgxpool.Pool{pool}, w.config())
	w.ok(err)
	w.report(w.takeOver("k"), "old")
	w.ok(paused.CatchUp(ctx))
	w.ok(paused.PauseReplay(ctx))
	lease := w.takeOver("k")
	position := w.report(lease, "new")
	w.ok(quick.CatchUp(ctx))
	for range 2 { // the check on one, the read on the other, and the other way round
		text, result, err := body(reader, "k", position, replica.WaitThenPrimary(100*time.Millisecond))
		if err != nil || text != "new" || !result.Proven {
			t.Errorf("%q, %+v, %v", text, result, err)
		}
		text, result, err = body(reader, "k", position, replica.WaitThenPending(100*time.Millisecond))
		if err == nil && text != "new" || err != nil && !errors.Is(err, replica.ErrPending) {
			t.Errorf("%q, %+v, %v", text, result, err)
		}
		// The server that a transaction goes to is the next one's from here on.
		_, err = pool.Exec(ctx, "select 1")
		w.ok(err)
	}
}
