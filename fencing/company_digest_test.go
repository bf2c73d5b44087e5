package fencing_test

import (
	"context"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
)

// A retry with another digest algorithm than the first attempt's is compared by the
// library. What it finds is the same answer in each shape, alone and in company.
func TestARetryWithAnotherAlgorithmHasTheSameAnswerInCompany(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 5 * time.Minute, CoalesceCallbacks: 8})
	nothing := func(context.Context, fencing.Tx) error { return nil }
	as := func(step, body string, algorithm fencing.Algorithm) fencing.Content {
		return fencing.Content{Step: step, Type: "application/json", Bytes: []byte(body), Algorithm: algorithm}
	}
	for _, step := range []string{"callback", "conflict", "batch"} {
		_, err := lease.Commit(ctx, as(step, `{"a":1}`, fencing.RawBytes), nothing)
		w.ok(err)
	}
	callback := func(c fencing.Content) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) { return lease.Commit(ctx, c, nothing) }
	}
	batch := func(c fencing.Content) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) { return lease.CommitBatch(ctx, c, writeBatch) }
	}
	got := a.togetherIn(lease, callback(as("first", `1`, fencing.StrictJSON)), callback(as("callback", `{"a":1}`, fencing.StrictJSON)), callback(as("conflict", `{"a":2}`, fencing.StrictJSON)))
	got = append(got, a.together(lease, batch(as("second", `1`, fencing.StrictJSON)), batch(as("batch", `{"a":1}`, fencing.StrictJSON)))...)
	for i, replayed := range []bool{false, true, false, false, true} {
		if i == 2 {
			w.is(got[i].err, fencing.ErrConflict)
			continue
		}
		if r := got[i].receipt; got[i].err != nil || r.Replayed != replayed || r.CommittedAt.IsZero() || r.Position != lease.Position() {
			t.Errorf("%d: %+v, %v", i, r, got[i].err)
		}
	}
}
