package fencing_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

// group is a worker whose commits of all keys share transactions.
func (w *world) group(lanes, conns int) *worker {
	w.Helper()
	return w.workerOn(w.poolAt(w.producer, conns), fencing.Config{Holder: "group", GroupCommit: lanes})
}

// inGroup is together for commits of all keys.
func (k *worker) inGroup(wait func(*fencing.Fences, int), commits ...func() (fencing.Receipt, error)) []answer {
	k.w.Helper()
	return k.atOnce(func(n int) { wait(k.Fences, n) }, commits)
}

func (w *world) oneTransaction(steps ...string) {
	w.Helper()
	if n := value[int](w, "select count(distinct xid) from fenceline.receipt where step = any ($1)", steps); n != 1 {
		w.Errorf("%q were committed in %d transactions, want 1", steps, n)
	}
}

func TestCommitsOfDifferentKeysShareATransactionAndHaveReceiptsOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.group(1, 1)
	keys := []string{"k", "l", "m"}
	leases := map[string]*fencing.Lease{}
	for _, key := range keys {
		leases[key] = a.acquire(key)
	}
	for range 2 { // the first events of their streams, and others
		var commits []func() (fencing.Receipt, error)
		var steps []string
		for i := range 7 { // a key with several steps among them
			step := fmt.Sprint(i, "-", len(steps), "-", rand.Uint64())
			steps = append(steps, step)
			commits = append(commits, batchOf(leases[keys[i%3]], step, "x"))
		}
		for i, got := range a.inGroup(fencing.WaitInGroup, commits...) {
			w.ok(got.err)
			if r := got.receipt; r.Step != steps[i] || r.Position.Key != keys[i%3] || r.Replayed || r.CommittedAt.IsZero() {
				t.Errorf("%d: %+v", i, r)
			}
		}
		w.oneTransaction(steps...)
	}
	w.wantWritten("k", written{6, 6, 6})
	w.wantWritten("l", written{4, 4, 4})
	w.wantWritten("m", written{4, 4, 4})
	w.gapless()
}

// gapless says that the events of each stream are numbered from 1 on in the order
// of their places.
func (w *world) gapless() {
	w.Helper()
	if n := value[int](w, "select count(*) from (select seq, row_number() over (partition by topic, key, epoch order by pos) n from fenceline.outbox) x where seq <> n"); n != 0 {
		w.Errorf("%d events out of order", n)
	}
}

// However their events are appended: of one key, and of several.
func TestATransactionThatIsSharedWakesTheRelayOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wakes atomic.Int64
	a := w.workerOn(w.poolAt(w.producer, 1), fencing.Config{Holder: "group", GroupCommit: 1, Wake: func() { wakes.Add(1) }})
	k, l := a.acquire("k"), a.acquire("l")
	for i, second := range []*fencing.Lease{k, l} {
		steps := []string{fmt.Sprint("first ", i), fmt.Sprint("second ", i)}
		for _, got := range a.inGroup(fencing.WaitInGroup, batchOf(k, steps[0], "x"), batchOf(second, steps[1], "x")) {
			w.ok(got.err)
		}
		w.oneTransaction(steps...)
		if n := wakes.Swap(0); n != 1 {
			t.Errorf("%q woke it %d times, want once", steps, n)
		}
	}
}

// Several events of a commit stay in their order, whatever else is in the group.
func TestEventsOfACommitInAGroupStayInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.group(1, 1)
	k, l := a.acquire("k"), a.acquire("l")
	_, err := k.CommitBatch(ctx, content("before", "x"), writeBatch) // so that the stream has a newest event
	w.ok(err)
	got := a.inGroup(fencing.WaitInGroup, batchOf(l, "one", "x"), func() (fencing.Receipt, error) {
		return k.CommitBatch(ctx, content("many", "x"), func(b *fencing.Batch) error {
			for i := range 5 {
				if err := outbox.Append(ctx, b, outbox.Event{Topic: "results", Type: "result", Payload: fmt.Append(nil, i)}); err != nil {
					return err
				}
			}
			return nil
		})
	})
	w.ok(errors.Join(got[0].err, got[1].err))
	w.oneTransaction("one", "many")
	if s := value[string](w, "select string_agg(convert_from(payload, 'utf8'), ' ' order by seq) from fenceline.outbox where key = 'k'"); s != "before 0 1 2 3 4" {
		t.Errorf("the events are %q", s)
	}
	w.gapless()
}

func TestWhoeverFailsInAGroupFailsAlone(t *testing.T) {
	t.Parallel()
	eachOfAGroupHasItsOwnAnswer(newWorld(t))
}

func eachOfAGroupHasItsOwnAnswer(w *world) {
	a, b := w.group(1, 1), w.worker("b")
	lease := func(key string) *fencing.Lease { return a.acquire(key) }
	k, lost, closed, twice := lease("k"), lease("lost"), lease("closed"), lease("twice")
	_, err := twice.CommitBatch(ctx, content("done before", "x"), writeBatch)
	w.ok(err)
	_, err = lost.CommitBatch(ctx, content("done before", "x"), writeBatch)
	w.ok(err)
	b.takeOver("lost")
	_, err = a.Close(ctx, closed.Position())
	w.ok(err)
	_, err = closed.CommitBatch(ctx, content("after", "x"), writeBatch)
	w.is(err, fencing.ErrClosed)
	got := a.inGroup(fencing.WaitInGroup,
		batchOf(k, "good", "x"),
		batchOf(lost, "too late", "x"),
		batchOf(closed, "closed", "x"),
		batchOf(twice, "done before", "x"),
		batchOf(twice, "done before", "y"),
		func() (fencing.Receipt, error) {
			return a.commitBatch(fencing.Position{Key: "unknown", Epoch: 1, Token: 1}, content("unknown", "x"))
		},
		func() (fencing.Receipt, error) {
			return k.CommitBatch(ctx, content("breaks", "x"), func(b *fencing.Batch) error {
				b.Queue("select 1/0")
				return writeBatch(b)
			})
		},
		func() (fencing.Receipt, error) {
			return twice.CommitBatch(ctx, content("bad event", "x"), func(b *fencing.Batch) error {
				b.Queue("select fenceline.append($1, 1, 1, 's', 't', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')", "twice")
				return writeBatch(b)
			})
		},
		batchOf(lost, "done before", "x"), // by whoever has lost it: the answer of then
		batchOf(twice, "good too", "x"),
	)
	w.ok(errors.Join(got[0].err, got[3].err, got[8].err, got[9].err))
	for i, want := range map[int]error{1: fencing.ErrStale, 2: fencing.ErrClosed, 4: fencing.ErrConflict, 5: fencing.ErrUnconfirmable, 7: fencing.ErrNoPass} {
		w.is(got[i].err, want)
	}
	if !got[3].receipt.Replayed || !got[8].receipt.Replayed || got[0].receipt.Replayed || got[9].receipt.Replayed {
		w.Errorf("replayed: %v %v, first: %v %v", got[3].receipt, got[8].receipt, got[0].receipt, got[9].receipt)
	}
	if s, ok := errors.AsType[*fencing.StatementError](got[6].err); !ok || s.Index != 0 || sqlstate(got[6].err) != "22012" {
		w.Errorf("%v", got[6].err)
	}
	w.wantWritten("k", written{1, 1, 1})
	w.wantWritten("twice", written{2, 2, 2})
	w.wantWritten("lost", written{1, 1, 1})
	w.gapless()
}

func TestWhoHasLostItsLeaseDoesNotCommitInAGroup(t *testing.T) {
	t.Parallel()
	groupWithALostLease(newWorld(t))
}

func groupWithALostLease(w *world) {
	a, b := w.group(1, 1), w.worker("b")
	k, lost := a.acquire("k"), a.acquire("lost")
	b.takeOver("lost")
	got := a.inGroup(fencing.WaitInGroup, batchOf(k, "good", "x"), batchOf(lost, "too late", "x"))
	w.ok(got[0].err)
	w.is(got[1].err, fencing.ErrStale)
	w.wantWritten("lost", written{})
}

func TestNobodyInAGroupWaitsForAnothersFence(t *testing.T) {
	t.Parallel()
	nobodyWaitsForAnothersFence(newWorld(t))
}

// Somebody has a fence's lock for as long as the test likes. Who needs it goes
// alone and waits; the others commit meanwhile.
func nobodyWaitsForAnothersFence(w *world) {
	a := w.group(1, 3)
	k, l, m := a.acquire("k"), a.acquire("l"), a.acquire("m")
	lock := w.session(w.dsn)
	_, err := lock.Exec(ctx, "begin; select from fenceline.fence where key = 'k' for update")
	w.ok(err)
	var waits answer
	done := make(chan struct{})
	others := make(chan []answer, 1)
	go func() {
		others <- a.inGroup(fencing.WaitInGroup,
			func() (fencing.Receipt, error) {
				defer close(done)
				waits.receipt, waits.err = batchOf(k, "waits", "x")()
				return fencing.Receipt{}, nil
			},
			batchOf(l, "l", "x"), batchOf(m, "m", "x"))
	}()
	for _, key := range []string{"l", "m"} {
		pgtest.WaitTrue(w, w.admin, "select count(*) = 1 from fenceline.receipt where key = $1", key)
	}
	pgtest.WaitTrue(w, w.admin, "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", int32(lock.PgConn().PID()))
	// Nor does who comes now, with the only lane's first transaction under way.
	_, err = l.CommitBatch(ctx, content("later", "x"), writeBatch)
	w.ok(err)
	w.wantWritten("k", written{})
	_, err = lock.Exec(ctx, "commit")
	w.ok(err)
	<-done
	w.ok(waits.err)
	for _, got := range (<-others)[1:] {
		w.ok(got.err)
	}
	w.wantWritten("k", written{1, 1, 1})
}

// A commit that has nobody with it waits for its fence in the lane. Others do not
// wait for the lane.
func TestALaneThatIsHeldUpHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.group(1, 3)
	k, l := a.acquire("k"), a.acquire("l")
	lock := w.session(w.dsn)
	_, err := lock.Exec(ctx, "begin; select from fenceline.fence where key = 'k' for update")
	w.ok(err)
	waits := make(chan error, 1)
	go func() { _, err := batchOf(k, "waits", "x")(); waits <- err }()
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", int32(lock.PgConn().PID()))
	for i := range 3 {
		_, err = l.CommitBatch(ctx, content(fmt.Sprint(i), "x"), writeBatch)
		w.ok(err)
	}
	_, err = lock.Exec(ctx, "commit")
	w.ok(errors.Join(err, <-waits))
	w.wantWritten("k", written{1, 1, 1})
	w.wantWritten("l", written{3, 3, 3})
}

// The locks of a group last until its COMMIT: a takeover waits for it, and
// whatever the group has written is there when the new holder has its token.
func TestATakeoverWaitsForAGroup(t *testing.T) {
	t.Parallel()
	aTakeoverWaitsForAGroup(newWorld(t))
}

func aTakeoverWaitsForAGroup(w *world) {
	a, b := w.group(1, 1), w.worker("b")
	k, l := a.acquire("k"), a.acquire("l")
	w.exec("create table public.slow (id int primary key); grant all on public.slow to public; insert into public.slow values (1)")
	hold := w.session(w.dsn)
	_, err := hold.Exec(ctx, "begin; select from public.slow for update")
	w.ok(err)
	group := make(chan []answer, 1)
	go func() {
		group <- a.inGroup(fencing.WaitInGroup, batchOf(k, "k", "x"), func() (fencing.Receipt, error) {
			return l.CommitBatch(ctx, content("l", "x"), func(b *fencing.Batch) error {
				b.Queue("update public.slow set id = 1")
				return nil
			})
		})
	}()
	pgtest.WaitTrue(w, w.admin, "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", int32(hold.PgConn().PID()))
	w.expire("k")
	cfg := long
	cfg.Wait = time.Minute
	next := make(chan error, 1)
	go func() {
		lease, err := b.Acquire(ctx, "k", cfg)
		if err == nil {
			w.Cleanup(func() { _ = lease.Release(ctx) })
			if n := w.written("k"); n.receipts != 1 {
				err = fmt.Errorf("the new holder found %+v of the group, which commits under the old token", n)
			}
		}
		next <- err
	}()
	pgtest.WaitTrue(w, w.admin, "select count(*) >= 2 or exists (select from fenceline.fence where key = 'k' and max_issued_token > 1) from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0 and datname = current_database()")
	_, err = hold.Exec(ctx, "commit")
	w.ok(err)
	err = <-next
	for _, got := range <-group {
		w.ok(got.err)
	}
	w.ok(err)
}

// The tokens of two lives may be equal numbers.
func groupOfAnotherLife(w *world) {
	a := w.group(1, 1)
	k, l := a.acquire("k"), a.acquire("l")
	old := k.Position()
	_, err := a.Close(ctx, old)
	w.ok(err)
	_, err = a.Open(ctx, "k")
	w.ok(err)
	if now := a.acquire("k").Position(); now.Token != old.Token || now.Epoch == old.Epoch {
		w.Fatalf("%v and %v: the scenario needs equal tokens of two lives", old, now)
	}
	got := a.inGroup(fencing.WaitInGroup, batchOf(l, "l", "x"), func() (fencing.Receipt, error) {
		return a.CommitBatch(ctx, old, content("old life", "x"), func(b *fencing.Batch) error {
			b.Queue("insert into public.result values ('k', 'of the old life')") // and no event, which append refuses by itself
			return nil
		})
	})
	w.ok(got[0].err)
	if got[1].err == nil {
		w.Error("a commit of an earlier life went with a group")
	}
	w.wantWritten("k", written{1, 0, 0}) // of the end of the old life
}

func TestAGroupDoesNotTakeACommitOfAnEarlierLifeAlong(t *testing.T) {
	t.Parallel()
	groupOfAnotherLife(newWorld(t))
}

func TestInAnotherHistoryNoGroupCommits(t *testing.T) {
	t.Parallel()
	groupInAnotherHistory(newWorld(t))
}

func groupInAnotherHistory(w *world) {
	a := w.group(1, 1)
	k, l := a.acquire("k"), a.acquire("l")
	for _, lease := range []*fencing.Lease{k, l} {
		_, err := lease.CommitBatch(ctx, content("before", "x"), writeBatch)
		w.ok(err)
	}
	w.newIdentity("timeline = '00000009'")
	got := a.inGroup(fencing.WaitInGroup, batchOf(k, "after", "x"), batchOf(l, "after", "x"), batchOf(l, "before", "x"))
	w.is(got[0].err, fencing.ErrHistory)
	w.is(got[1].err, fencing.ErrHistory)
	w.ok(got[2].err) // what is certain is still said
	w.exec("select fenceline.history_confirm()")
	w.wantWritten("k", written{1, 1, 1})
	w.wantWritten("l", written{1, 1, 1})
}

func TestAfterABumpNoGroupCommitsUnderAPositionOfBefore(t *testing.T) {
	t.Parallel()
	groupOfBeforeABump(newWorld(t))
}

func groupOfBeforeABump(w *world) {
	a := w.group(1, 1)
	k, l := a.acquire("k"), a.acquire("l")
	w.newIdentity("timeline = '00000009'")
	value[int64](w, "select fenceline.history_bump()")
	got := a.inGroup(fencing.WaitInGroup, batchOf(k, "s", "x"), batchOf(l, "s", "x"))
	w.is(got[0].err, fencing.ErrUnconfirmable)
	w.is(got[1].err, fencing.ErrUnconfirmable)
	w.wantWritten("k", written{})
}

func TestALostAnswerIsUnknownToTheWholeGroupAndARetryTells(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b, proxy := w.behindProxy("a", 1)
	a := w.workerOn(b.pool, fencing.Config{Holder: "group", GroupCommit: 1})
	k, l := a.acquire("k"), a.acquire("l")
	dropped := proxy.DropNextCommitAnswer("of k")
	got := a.inGroup(fencing.WaitInGroup, batchOf(k, "of k", "x"), batchOf(l, "of l", "x"))
	<-dropped
	for _, a := range got {
		w.is(a.err, fencing.ErrUnknownOutcome)
	}
	for step, lease := range map[string]*fencing.Lease{"of k": k, "of l": l} {
		r, err := lease.CommitBatch(ctx, content(step, "x"), writeBatch)
		w.ok(err)
		if !r.Replayed {
			t.Errorf("%s committed twice", step)
		}
	}
}

func TestCallbacksOfDifferentKeysShareATransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.group(1, 1)
	cfg := long
	cfg.CoalesceCallbacks = 8
	k, l, m := a.acquireWith("k", cfg), a.acquireWith("l", cfg), a.acquireWith("m", cfg)
	call := func(lease *fencing.Lease, step string, fn func(context.Context, fencing.Tx) error) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) { return lease.Commit(ctx, content(step, "x"), fn) }
	}
	for i := range 2 {
		one, two := fmt.Sprint("one ", i), fmt.Sprint("two ", i)
		for _, got := range a.inGroup(fencing.WaitForGroupCallbacks, call(k, one, write), call(l, two, write)) {
			w.ok(got.err)
		}
		w.oneTransaction(one, two)
	}
	got := a.inGroup(fencing.WaitForGroupCallbacks,
		call(k, "good", write),
		call(l, "fails", func(ctx context.Context, tx fencing.Tx) error { return errors.Join(write(ctx, tx), errCallback) }),
		call(m, "panics", func(context.Context, fencing.Tx) error { panic("of m's own") }),
		call(l, "two 0", write), // replayed
	)
	w.ok(errors.Join(got[0].err, got[3].err))
	w.is(got[1].err, errCallback)
	if got[2].err == nil || got[2].err.Error() != "panic: of m's own" || !got[3].receipt.Replayed {
		t.Errorf("%v, %+v", got[2].err, got[3].receipt)
	}
	w.wantWritten("k", written{3, 3, 3})
	w.wantWritten("l", written{2, 2, 2})
	w.wantWritten("m", written{})
	w.gapless()
}

// The nested commit would wait for the transaction that its own callback is of.
func TestACallbackThatCommitsUnderAKeyOfItsCompanyRunsAgainAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.group(1, 3)
	cfg := long
	cfg.CoalesceCallbacks = 8
	k, l := a.acquireWith("k", cfg), a.acquireWith("l", cfg)
	var nested error
	runs := 0
	got := a.inGroup(fencing.WaitForGroupCallbacks,
		func() (fencing.Receipt, error) {
			return k.Commit(ctx, content("outer", "x"), func(ctx context.Context, tx fencing.Tx) error {
				runs++
				_, nested = l.Commit(ctx, content("nested", "x"), write)
				return write(ctx, tx) // whatever became of it
			})
		},
		func() (fencing.Receipt, error) { return l.Commit(ctx, content("of l", "x"), write) })
	w.ok(errors.Join(got[0].err, got[1].err, nested))
	if runs != 2 {
		t.Errorf("the callback ran %d times, want once in company and once alone", runs)
	}
	w.wantWritten("k", written{1, 1, 1})
	w.wantWritten("l", written{2, 2, 2})
}

// Two callbacks commit under each other's keys. At the fences one of them is ended
// by the gate's timeout; in a line nothing would end the wait.
func TestWhatIsCommittedInACallbackWaitsForNoLine(t *testing.T) {
	t.Parallel()
	for name, lanes := range map[string]int{"lines of the leases": 0, "a line of all keys": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a := w.group(lanes, 6)
			cfg := fencing.LeaseConfig{TTL: 5 * time.Minute, GateTimeout: 2 * time.Second, CoalesceCallbacks: 8}
			k, l := a.acquireWith("k", cfg), a.acquireWith("l", cfg)
			var inside, done sync.WaitGroup
			inside.Add(2)
			cross := func(outer, inner *fencing.Lease) {
				first := true
				_, _ = outer.Commit(ctx, content("outer", "x"), func(ctx context.Context, _ fencing.Tx) error {
					if first {
						first = false
						inside.Done()
					}
					inside.Wait() // both gates are passed
					_, err := inner.Commit(ctx, content("nested", "x"), write)
					return err
				})
			}
			done.Go(func() { cross(k, l) })
			done.Go(func() { cross(l, k) })
			over := make(chan struct{})
			go func() { done.Wait(); close(over) }()
			select {
			case <-over:
			case <-time.After(time.Minute):
				t.Fatal("they wait for each other for ever")
			}
		})
	}
}

// Slow statements of many commits in one transaction would outlast the time in
// which COMMIT must be answered, with each retry again.
func TestSlowCommitsHaveNoCompany(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.group(1, 8)
	slow := func(lease *fencing.Lease, step string) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) {
			return lease.CommitBatch(ctx, content(step, "x"), func(b *fencing.Batch) error {
				b.Queue("select pg_sleep(0.6)")
				return writeBatch(b)
			})
		}
	}
	_, err := slow(a.acquire("before"), "before")()
	w.ok(err)
	for _, got := range a.inGroup(fencing.WaitInGroup, slow(a.acquire("k"), "slow 1"), slow(a.acquire("l"), "slow 2"), slow(a.acquire("m"), "slow 3")) {
		w.ok(got.err)
	}
	if n := value[int](w, "select count(distinct xid) from fenceline.receipt where step like 'slow %'"); n != 3 {
		t.Errorf("3 slow commits went in %d transactions", n)
	}
}

type exits struct{}

func (exits) Value() (driver.Value, error) { runtime.Goexit(); return nil, nil }

// An argument's encoder runs in the library's goroutine.
func TestWhoEndsALanesGoroutineIsToldAndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.group(1, 2)
	k, l := a.acquire("k"), a.acquire("l")
	_, err := k.CommitBatch(ctx, content("exits", "x"), func(b *fencing.Batch) error {
		b.Queue("insert into public.result values ('k', $1)", exits{})
		return nil
	})
	w.is(err, fencing.ErrMisuse)
	for _, lease := range []*fencing.Lease{k, l} {
		_, err := lease.CommitBatch(ctx, content("after", "x"), writeBatch)
		w.ok(err)
	}
	w.wantWritten("k", written{1, 1, 1})
}

// However long a transaction was held up, the next commit is not.
func TestALaneWaitsForCompanyForAFewMillisecondsAtMost(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: 0, 2 * time.Millisecond: 500 * time.Microsecond, time.Minute: 5 * time.Millisecond,
	} {
		if got := fencing.GatherFor(took); got != want {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
}

func TestALeaseMayStayOutOfGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.group(1, 3)
	cfg := long
	cfg.Coalesce = 1
	k, l, m := a.acquireWith("k", cfg), a.acquire("l"), a.acquire("m")
	got := a.atOnce(func(n int) {
		if n == 1 {
			fencing.WaitInLine(k, 1) // whichever that is
			return
		}
		fencing.WaitInGroup(a.Fences, n-1)
	}, []func() (fencing.Receipt, error){batchOf(k, "k", "x"), batchOf(l, "l", "x"), batchOf(m, "m", "x")})
	w.ok(errors.Join(got[0].err, got[1].err, got[2].err))
	w.oneTransaction("l", "m")
	if n := value[int](w, "select count(distinct xid) from fenceline.receipt"); n != 2 {
		t.Errorf("%d transactions, want one of the group and one of the lease that stays out", n)
	}
}

// Each holder's gate timeout is what a takeover counts on.
func TestAGroupHasTheShortestOfItsGateTimeouts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.group(1, 1)
	short, other := long, long
	short.GateTimeout, other.GateTimeout = 31*time.Second, 47*time.Second
	k, l := a.acquireWith("k", other), a.acquireWith("l", short)
	got := a.inGroup(fencing.WaitInGroup, func() (fencing.Receipt, error) {
		return k.CommitBatch(ctx, content("k", "x"), func(b *fencing.Batch) error {
			b.Queue("insert into public.result values ('k', current_setting('statement_timeout') || ' ' || current_setting('idle_in_transaction_session_timeout'))")
			return nil
		})
	}, batchOf(l, "l", "x"))
	w.ok(errors.Join(got[0].err, got[1].err))
	w.oneTransaction("k", "l")
	if s := value[string](w, "select note from public.result where key = 'k'"); s != "31s 31s" {
		t.Errorf("the group's timeouts are %q, want the shorter one's 31 s", s)
	}
}

func TestAnImpossibleNumberOfGroupCommitsIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	for _, n := range []int{-1, 65} {
		_, err := fencing.New(ctx, a.pool, fencing.Config{GroupCommit: n, AllowUnsafeDatabase: true})
		w.is(err, fencing.ErrInvalid)
	}
}

func TestTheGateOfAGroupRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	p := a.acquire("k").Position()
	for sql, want := range map[string]string{
		"select fenceline.enter_group(array[$1, 'l'], array[$2]::bigint[], array[$3]::bigint[], array['s'], array['x'], array[sha256('a')], interval '5 s')":                                       "FL011",
		"select fenceline.enter_group(array[$1]::text[], array[$2]::bigint[], array[$3]::bigint[], array['fenceline:s'], array['x'], array[sha256('a')], interval '5 s')":                          "FL013",
		"select fenceline.enter_group(array[$1]::text[], array[$2]::bigint[], array[$3]::bigint[], array['s'], array[null]::text[], array[sha256('a')], interval '5 s')":                           "FL013",
		"select fenceline.enter_group(array[$1]::text[], array[$2]::bigint[], array[$3]::bigint[], array['s'], array['x'], array['short']::bytea[], interval '5 s')":                               "FL013",
		"select fenceline.enter_group(array[$1, $1]::text[], array[$2, $2]::bigint[], array[$3, $3]::bigint[], array['s', 's'], array['x', 'x'], array[sha256('a'), sha256('a')], interval '5 s')": "FL013",
	} {
		if _, err := a.pool.Exec(ctx, sql, p.Key, p.Epoch, p.Token); sqlstate(err) != want {
			t.Errorf("%s: %v, want %s", sql, err, want)
		}
	}
	w.wantWritten("k", written{})
}

// Many goroutines, few keys, two lanes, failing statements, retries and takeovers
// by another process: each answer is true, and nothing is written twice or lost.
func TestGroupsUnderTakeoversSayWhatIsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.group(2, 6), w.worker("b")
	keys := []string{"k0", "k1", "k2", "k3"}
	type attempt struct {
		pos  fencing.Position
		step string
		bad  bool
	}
	var mu sync.Mutex
	positions := map[string]fencing.Position{}
	told := map[attempt]error{}
	for _, key := range keys {
		positions[key] = a.acquire(key).Position()
	}
	var wg, other sync.WaitGroup
	for g := range 12 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(g)))
			for i := range 25 {
				mu.Lock()
				at := attempt{positions[keys[rng.IntN(len(keys))]], fmt.Sprintf("%d/%d", g, i), rng.IntN(8) == 0}
				mu.Unlock()
				commit := func() error {
					_, err := a.CommitBatch(ctx, at.pos, content(at.step, "x"), func(b *fencing.Batch) error {
						if at.bad {
							b.Queue("select 1/0")
						}
						return writeBatch(b)
					})
					return err
				}
				err := commit()
				if rng.IntN(4) == 0 && err == nil {
					err = commit() // replayed, or gone: never stale
				}
				mu.Lock()
				told[at] = err
				mu.Unlock()
			}
		})
	}
	stop := make(chan struct{})
	other.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			pos := b.takeOver(keys[i%len(keys)]).Position()
			mu.Lock()
			positions[pos.Key] = pos
			mu.Unlock()
		}
	})
	wg.Wait()
	close(stop)
	other.Wait()
	var good int
	for at, err := range told {
		n := value[int](w, "select count(*) from fenceline.receipt where key = $1 and epoch = $2 and token = $3 and step = $4", at.pos.Key, at.pos.Epoch, at.pos.Token, at.step)
		r := value[int](w, "select count(*) from public.result where key = $1 and note = $2", at.pos.Key, at.step)
		switch {
		case at.bad && (err == nil || n+r != 0), err == nil && (n != 1 || r != 1), err != nil && n+r != 0:
			t.Errorf("%+v was told %v; there are %d receipts and %d results", at, err, n, r)
		case err != nil && !at.bad && !errors.Is(err, fencing.ErrStale):
			t.Errorf("%+v: %v", at, err)
		case err == nil:
			good++
		}
	}
	if good == 0 {
		t.Error("nothing committed")
	}
	if n := value[int](w, "select count(*) from fenceline.outbox"); n != good {
		t.Errorf("%d events of %d commits", n, good)
	}
	w.gapless()
}
