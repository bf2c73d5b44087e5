package fencing_test

import (
	"context"
	"fmt"
	"sync/atomic"
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

// The fences of all callbacks of a company are locked until the last one is done.
// A lease that lets takeovers wait for a short time only is not in one that lasts
// as long as another lease allows.
func TestACompanyLastsNoLongerThanEachOfItsLeasesAllows(t *testing.T) {
	t.Parallel()
	companyOfUnequals(newWorld(t))
}

func companyOfUnequals(w *world) {
	a := w.group(1, 1)
	with := func(gate time.Duration) fencing.LeaseConfig {
		return fencing.LeaseConfig{TTL: 5 * time.Minute, CoalesceCallbacks: 8, GateTimeout: gate}
	}
	slow, next, brief := a.acquireWith("slow", with(5*time.Minute)), a.acquireWith("next", with(5*time.Minute)), a.acquireWith("brief", with(4*time.Second))
	var runs, nexts atomic.Int64
	commit := func(lease *fencing.Lease, fn func()) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) {
			return lease.Commit(ctx, content("s", "x"), func(context.Context, fencing.Tx) error { fn(); return nil })
		}
	}
	for _, got := range a.inGroup(fencing.WaitForGroupCallbacks,
		commit(slow, func() {
			if runs.Add(1) == 1 {
				time.Sleep(1100 * time.Millisecond) // more than a part of the brief one's
			}
		}),
		commit(next, func() { nexts.Add(1) }),
		commit(brief, func() {})) {
		w.ok(got.err)
	}
	if runs.Load() != 2 || nexts.Load() != 1 {
		w.Errorf("the slow one ran %d times, and the one behind it %d: it ran in a company that had lasted too long", runs.Load(), nexts.Load())
	}
}

// A lease with Coalesce 1 takes no part in groups, nor do its callbacks, which may
// share a transaction among themselves.
func TestTheCallbacksOfALeaseThatStaysOutOfGroupsStayAmongThemselves(t *testing.T) {
	t.Parallel()
	callbacksAmongThemselves(newWorld(t))
}

func callbacksAmongThemselves(w *world) {
	a := w.group(1, 2)
	out := a.acquireWith("out", fencing.LeaseConfig{TTL: 5 * time.Minute, Coalesce: 1, CoalesceCallbacks: 8})
	in := a.acquireWith("in", fencing.LeaseConfig{TTL: 5 * time.Minute, CoalesceCallbacks: 8})
	callback := func(lease *fencing.Lease, step string) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) {
			return lease.Commit(ctx, content(step, "x"), func(context.Context, fencing.Tx) error { return nil })
		}
	}
	for _, got := range a.atOnce(func(n int) {
		if n == 1 {
			fencing.WaitForGroupCallbacks(a.Fences, 1)
		} else {
			fencing.WaitForCallbacks(out, n-1)
		}
	}, []func() (fencing.Receipt, error){callback(in, "3"), callback(out, "1"), callback(out, "2")}) {
		w.ok(got.err)
	}
	w.oneTransaction("1", "2")
	if n := value[int](w, "select count(distinct xid) from fenceline.receipt"); n != 2 {
		w.Errorf("%d transactions", n)
	}
}
