package fencing_test

import (
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// Between two messages of a pipeline a session is not idle, so that the gate's
// timeout doesn't end it: a client that is stopped while it sends would keep
// the fence for ever.
func TestAHolderThatStopsWhileItSendsLosesItsSessionToTheTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	p := lease.Position()
	holder := w.session(w.producer)
	_, err := holder.Exec(ctx, "begin")
	w.ok(err)
	_, err = holder.Exec(ctx, "select fenceline.enter($1, $2, $3, 's', 'sha256/raw/1', sha256('x'), interval '200 ms')", p.Key, p.Epoch, p.Token)
	w.ok(err)
	pipeline := holder.PgConn().StartPipeline(ctx)
	pipeline.SendQueryParams("select 1", nil, nil, nil, nil)
	w.ok(pipeline.Flush()) // without Sync: the server goes on waiting inside the pipeline
	pgtest.WaitTrue(t, w.admin, "select state = 'active' and wait_event = 'ClientRead' and state_change < clock_timestamp() - interval '300 ms' from pg_stat_activity where pid = $1", holder.PgConn().PID())

	w.expire("k")
	taken, err := b.Acquire(ctx, "k", fencing.LeaseConfig{TTL: time.Minute, GateTimeout: 200 * time.Millisecond, Wait: 100 * time.Millisecond})
	w.ok(err)
	defer func() { _ = taken.Release(ctx) }()
	if got := taken.Position(); got.Token != p.Token+1 {
		t.Errorf("taken over under %v, after %v", got, p)
	}
	pgtest.WaitGone(t, w.admin, holder.PgConn().PID())
	_, err = a.commit(p, content("s", "x"))
	w.is(err, fencing.ErrStale)
}
