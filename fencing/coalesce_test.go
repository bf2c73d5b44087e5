package fencing_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
)

// together has several commits of the batch shape wait in a lease's line at
// once, and returns their answers.
func (k *worker) together(lease *fencing.Lease, commits ...func() (fencing.Receipt, error)) []answer {
	k.w.Helper()
	return k.atOnce(func(n int) { fencing.WaitInLine(lease, n) }, commits)
}

// atOnce has commits wait until all of them do, in their order, which is until the
// worker has a connection again. wait waits until so many of them stand in line. A
// panic and an end of the goroutine are answers, too.
func (k *worker) atOnce(wait func(n int), commits []func() (fencing.Receipt, error)) []answer {
	k.w.Helper()
	var taken []*pgxpool.Conn
	for range k.pool.Config().MaxConns {
		conn, err := k.pool.Acquire(ctx)
		k.w.ok(err)
		taken = append(taken, conn)
	}
	answers := make([]answer, len(commits))
	var wg sync.WaitGroup
	for i, commit := range commits {
		wg.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					answers[i] = answer{fencing.Receipt{}, fmt.Errorf("panic: %v", p)}
				}
			}()
			answers[i] = answer{fencing.Receipt{}, errNeverReturned}
			r, err := commit()
			answers[i] = answer{r, err}
		})
		wait(i + 1)
	}
	for _, conn := range taken {
		conn.Release()
	}
	wg.Wait()
	return answers
}

// transactions is in how many transactions the receipts of a key were written.
func (w *world) transactions(key string) int {
	w.Helper()
	return value[int](w, "select count(distinct xid) from fenceline.receipt where key = $1", key)
}

func batchOf(lease *fencing.Lease, step, body string) func() (fencing.Receipt, error) {
	return func() (fencing.Receipt, error) { return lease.CommitBatch(ctx, content(step, body), writeBatch) }
}

func TestCommitsThatWaitTogetherShareATransactionAndHaveReceiptsOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	var commits []func() (fencing.Receipt, error)
	for i := range 8 {
		commits = append(commits, batchOf(lease, fmt.Sprint(i), "x"))
	}
	for i, got := range a.together(lease, commits...) {
		w.ok(got.err)
		if want := fmt.Sprint(i); got.receipt.Step != want || got.receipt.Replayed || got.receipt.CommittedAt.IsZero() {
			t.Errorf("%d: %+v", i, got.receipt)
		}
	}
	w.wantWritten("k", written{8, 8, 8})
	if n := w.transactions("k"); n != 1 {
		t.Errorf("%d transactions", n)
	}
	if n := value[int](w, "select count(*) from (select seq, row_number() over (order by pos) n from fenceline.outbox where key = 'k') x where seq <> n"); n != 0 {
		t.Errorf("%d events out of order", n)
	}
}

func TestWhoeverFailsAmongThemFailsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("alter table public.result add unique (key, note)")
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.CommitBatch(ctx, content("done before", "x"), writeBatch)
	w.ok(err)
	sql := func(step, sql string) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) {
			return lease.CommitBatch(ctx, content(step, "x"), func(b *fencing.Batch) error {
				err := writeBatch(b)
				b.Queue(sql)
				return err
			})
		}
	}
	got := a.together(lease,
		batchOf(lease, "first", "x"),
		batchOf(lease, "done before", "x"),      // 1: replayed
		batchOf(lease, "done before", "y"),      // 2: conflict
		sql("breaks", "select 1/0"),             // 3
		batchOf(lease, "in the middle", "x"),    // 4
		sql("second breaks", "select 'x'::int"), // 5
		batchOf(lease, "last", "x"),
	)
	if w.ok(got[1].err); !got[1].receipt.Replayed {
		t.Errorf("%+v", got[1].receipt)
	}
	w.is(got[2].err, fencing.ErrConflict)
	if e := evidence(w, got[2].err); e.Step != "done before" {
		t.Errorf("%+v", e)
	}
	for i, code := range map[int]string{3: "22012", 5: "22P02"} {
		s, ok := errors.AsType[*fencing.StatementError](got[i].err)
		if !ok || s.Index != 2 || sqlstate(got[i].err) != code {
			t.Errorf("%d: %v", i, got[i].err)
		}
	}
	for _, i := range []int{0, 4, 6} {
		if w.ok(got[i].err); got[i].receipt.Replayed {
			t.Errorf("%d: %+v", i, got[i].receipt)
		}
	}
	w.wantWritten("k", written{4, 4, 4})
}

// What one of them has written does not make another's fate: the second one
// finds the first one's row, and both are told what they would be told alone.
func TestWhoeverFailsBecauseOfAnotherHasItsAnswerFromAloneToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.one (id int primary key); grant all on public.one to public")
	a := w.worker("a")
	lease := a.acquire("k")
	claim := func(step string) func() (fencing.Receipt, error) {
		return func() (fencing.Receipt, error) {
			return lease.CommitBatch(ctx, content(step, "x"), func(b *fencing.Batch) error {
				b.Queue("insert into public.one values (1)")
				return nil
			})
		}
	}
	got := a.together(lease, claim("first"), claim("second"), batchOf(lease, "third", "x"))
	w.ok(errors.Join(got[0].err, got[2].err))
	if sqlstate(got[1].err) != "23505" {
		t.Errorf("%v", got[1].err)
	}
	w.wantWritten("k", written{2, 1, 1})
}

// A statement that ends the transaction tears it apart under the others, who
// cannot know what became of theirs: they are told so, and the receipts tell.
func TestWhoeverEndsTheTransactionLeavesTheOthersNoFalseReceipt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	got := a.together(lease, batchOf(lease, "before", "x"), func() (fencing.Receipt, error) {
		return lease.CommitBatch(ctx, content("ends", "x"), func(b *fencing.Batch) error {
			b.Queue("select 1", disguised("rollback"))
			return nil
		})
	})
	w.is(got[0].err, fencing.ErrUnknownOutcome)
	w.is(got[1].err, fencing.ErrMisuse)
	r, err := lease.CommitBatch(ctx, content("before", "x"), writeBatch)
	w.ok(err)
	if r.Replayed {
		t.Error("a receipt of a transaction that was rolled back")
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestAfterATakeoverAllThatWaitAreStaleAndWhatWasCommittedIsReplayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	_, err := lease.CommitBatch(ctx, content("done before", "x"), writeBatch)
	w.ok(err)
	b.takeOver("k")
	var commits []func() (fencing.Receipt, error)
	for i := range 6 {
		commits = append(commits, batchOf(lease, fmt.Sprint(i), "x"))
	}
	commits = append(commits, batchOf(lease, "done before", "x"))
	got := a.together(lease, commits...)
	for _, a := range got[:6] {
		w.is(a.err, fencing.ErrStale)
	}
	if w.ok(got[6].err); !got[6].receipt.Replayed {
		t.Error("not replayed")
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestAnAnswerThatIsLostIsUnknownToAllThatSharedIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 1)
	lease := a.acquire("k")
	dropped := proxy.DropNextCommitAnswer("the step")
	got := a.together(lease, batchOf(lease, "the step", "x"), batchOf(lease, "another", "x"))
	<-dropped
	for _, a := range got {
		w.is(a.err, fencing.ErrUnknownOutcome)
	}
	for _, step := range []string{"the step", "another"} { // alone, or in line again
		r, err := lease.CommitBatch(ctx, content(step, "x"), writeBatch)
		w.ok(err)
		if !r.Replayed {
			t.Errorf("%s committed twice", step)
		}
	}
	w.wantWritten("k", written{2, 2, 2})
}

func TestTwoAttemptsOfOneStepAreNotInOneTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	got := a.together(lease, batchOf(lease, "s", "x"), batchOf(lease, "s", "x"), batchOf(lease, "t", "x"))
	replayed := 0
	for _, a := range got {
		w.ok(a.err)
		if a.receipt.Replayed {
			replayed++
		}
	}
	if replayed != 1 {
		t.Errorf("%d of two attempts replayed", replayed)
	}
	w.wantWritten("k", written{2, 2, 2})
	// They did not fail together first, and go one by one then.
	if n := w.transactions("k"); n != 1 {
		t.Errorf("the two steps were committed in %d transactions, want 1", n)
	}
}

func TestALineIsLeftWhenTheContextEndsAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	short, cancel := context.WithCancel(ctx)
	conn, err := a.pool.Acquire(ctx) // nobody gets a connection
	w.ok(err)
	done := make(chan error, 1)
	go func() {
		_, err := lease.CommitBatch(short, content("s", "x"), writeBatch)
		done <- err
	}()
	fencing.WaitInLine(lease, 1)
	cancel()
	err = <-done
	w.is(err, context.Canceled)
	if errors.Is(err, fencing.ErrUnknownOutcome) {
		t.Error("unknown, though nothing was sent")
	}
	conn.Release()
	w.wantWritten("k", written{})
	_, err = lease.CommitBatch(ctx, content("s", "x"), writeBatch)
	w.ok(err)
}

type panics struct{}

func (panics) Value() (driver.Value, error) { panic(errCallback) }

func TestAPanicOfOnesArgumentReachesOnlyItsCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 1)
	lease := a.acquire("k")
	got := a.together(lease, batchOf(lease, "s", "x"), func() (r fencing.Receipt, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = p.(error)
			}
		}()
		return lease.CommitBatch(ctx, content("p", "x"), func(b *fencing.Batch) error {
			b.Queue("insert into public.result values ($1, 'p')", panics{})
			return nil
		})
	}, batchOf(lease, "t", "x"))
	w.ok(errors.Join(got[0].err, got[2].err))
	w.is(got[1].err, errCallback)
	w.wantWritten("k", written{2, 2, 2})
}

func TestALeaseMayForbidToShare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	cfg := long
	cfg.Coalesce = 1
	lease := a.acquireWith("k", cfg)
	for _, a := range a.together(lease, batchOf(lease, "s", "x"), batchOf(lease, "t", "x")) {
		w.ok(a.err)
	}
	if n := w.transactions("k"); n != 2 {
		t.Errorf("%d transactions for two commits", n)
	}
	cfg.Coalesce = -1
	_, err := a.Acquire(ctx, "l", cfg)
	w.is(err, fencing.ErrInvalid)
}
