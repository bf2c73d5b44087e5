package fencing_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
)

// A group has commits of many leases, but of each as many as that one allows: who
// bounds how much is undone when one of them fails, or how long its callbacks may
// take together, does so with group commit, too.
func TestALeaseHasAsManyCommitsInAGroupAsItAllows(t *testing.T) {
	t.Parallel()
	aLeaseBoundsItsOwnInAGroup(newWorld(t))
}

func aLeaseBoundsItsOwnInAGroup(w *world) {
	a := w.group(1, 1)
	few := fencing.LeaseConfig{TTL: 5 * time.Minute, Coalesce: 2, CoalesceCallbacks: 3}
	k, l := a.acquireWith("k", few), a.acquireWith("l", few)
	callback := func(lease *fencing.Lease, step string) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) {
			return lease.Commit(ctx, content(step, "x"), func(context.Context, fencing.Tx) error { return nil })
		}
	}
	var batches, callbacks []func() (fencing.Receipt, error)
	for i := range 7 {
		batches = append(batches, batchOf(k, fmt.Sprint("b", i), "x"))
		callbacks = append(callbacks, callback(k, fmt.Sprint("c", i)))
	}
	batches, callbacks = append(batches, batchOf(l, "b", "x")), append(callbacks, callback(l, "c"))
	for _, got := range append(a.inGroup(fencing.WaitInGroup, batches...), a.inGroup(fencing.WaitForGroupCallbacks, callbacks...)...) {
		w.ok(got.err)
	}
	// The first transaction of a line takes all that may go.
	for shape, most := range map[string]int{"b": 2, "c": 3} {
		if n := value[int](w, "select max(n) from (select count(*) n from fenceline.receipt where key = 'k' and starts_with(step, $1) group by xid) x", shape); n != most {
			w.Errorf("shape %s: up to %d commits of the lease in a transaction, want %d", shape, n, most)
		}
		w.oneTransaction(shape, shape+"0")
	}
}
