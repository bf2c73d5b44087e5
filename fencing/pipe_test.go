package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

// convoy is commits of one key of which the first one stands in a statement of its
// own, and the second one has been sent behind it (where its statements are the first
// one's, or were prepared before).
type convoy struct {
	w    *world
	a    *worker
	gate *pgx.Conn // holds what the first one waits for
	pid  int32     // of the connection
	got  []<-chan answer
}

// filler is what a commit of a convoy queues.
type filler = func(b *fencing.Batch) error

// newConvoy commits the steps "0", "1", … under pos, in this order.
func newConvoy(a *worker, pos fencing.Position, fill ...filler) *convoy {
	w := a.w
	w.Helper()
	c := &convoy{w: w, a: a, gate: w.session(w.dsn), pid: int32(a.pid())}
	_, err := c.gate.Exec(ctx, "select pg_advisory_lock(77)")
	w.ok(err)
	conn, err := a.pool.Acquire(ctx) // the only one: until it is back, all stand in line
	w.ok(err)
	for i, f := range fill {
		done := make(chan answer, 1)
		go func() {
			defer func() {
				if p := recover(); p != nil {
					done <- answer{err: fmt.Errorf("panic: %v", p)}
				}
			}()
			r, err := a.CommitBatch(ctx, pos, content(fmt.Sprint(i), "x"), func(b *fencing.Batch) error {
				if i == 0 {
					b.Queue("select pg_advisory_xact_lock(77)")
				}
				return f(b)
			})
			done <- answer{r, err}
		}()
		c.got = append(c.got, done)
		fencing.WaitForTurn(a.Fences, pos.Key, i+1)
	}
	conn.Release()
	fencing.WaitUnderWay(a.Fences, pos.Key, 2)
	pgtest.WaitTrue(w, w.admin, "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'advisory')", c.pid)
	return c
}

func (c *convoy) free() {
	c.w.Helper()
	_, err := c.gate.Exec(ctx, "select pg_advisory_unlock(77)")
	c.w.ok(err)
}

func TestACommitIsSentWhileTheOneBeforeIsUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	c := newConvoy(a, pos, writeBatch, writeBatch, writeBatch)
	// It waits behind the first one in the connection's buffer, and not at the fence.
	if n := value[int](w, "select count(*)::int from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0 and datname = current_database()"); n != 1 {
		t.Errorf("%d sessions wait", n)
	}
	c.free()
	for i, got := range c.got {
		r := <-got
		w.ok(r.err)
		if r.receipt.Step != fmt.Sprint(i) || r.receipt.Replayed || r.receipt.CommittedAt.IsZero() {
			t.Errorf("receipt %+v of step %d", r.receipt, i)
		}
	}
	w.wantWritten("k", written{3, 3, 3})
	// Three transactions, in the order in which they came.
	if order := value[string](w, "select string_agg(step, ' ' order by xid::text::bigint) from fenceline.receipt"); order != "0 1 2" {
		t.Errorf("committed in the order %s", order)
	}
	if n := value[int](w, "select count(distinct xid)::int from fenceline.receipt"); n != 3 {
		t.Errorf("%d transactions", n)
	}
	if pid := int32(a.pid()); pid != c.pid {
		t.Errorf("the connection is another one, %d, than %d", pid, c.pid)
	}
}

// What fails leaves its session in a failed transaction, in which the next one's
// BEGIN is refused.
func TestWhatWasSentBehindAFailureGoesAgain(t *testing.T) {
	t.Parallel()
	fails := func(b *fencing.Batch) error {
		b.Queue("insert into public.result values ('k', 1 / 0)")
		return writeBatch(b)
	}
	atCommit := func(b *fencing.Batch) error {
		b.Queue("insert into public.unique_late values (1), (1)")
		return writeBatch(b)
	}
	for name, c := range map[string]struct {
		first filler
		code  string
	}{
		"a statement fails": {fails, "22012"},
		"COMMIT fails":      {atCommit, "23505"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec("create table public.unique_late (n int unique deferrable initially deferred); grant all on public.unique_late to public")
			a := w.worker("a")
			pos := a.acquire("k").Position()
			convoy := newConvoy(a, pos, c.first, writeBatch, fails, writeBatch)
			convoy.free()
			for i, got := range convoy.got {
				r := <-got
				switch i {
				case 0:
					if sqlstate(r.err) != c.code {
						t.Errorf("the first: %v", r.err)
					}
				case 2:
					if sqlstate(r.err) != "22012" {
						t.Errorf("the third: %v", r.err)
					}
				default:
					w.ok(r.err)
				}
			}
			w.wantWritten("k", written{2, 2, 2})
		})
	}
}

// A refusal of the gate is an answer of the one alone, too.
func TestARefusalOfTheGateIsNotThatOfTheOneBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	_, err := a.commitBatch(pos, content("1", "other bytes"))
	w.ok(err)
	_, err = a.commitBatch(pos, content("2", "x"))
	w.ok(err)
	c := newConvoy(a, pos, writeBatch, writeBatch, writeBatch, writeBatch)
	c.free()
	w.ok((<-c.got[0]).err)
	w.is((<-c.got[1]).err, fencing.ErrConflict)
	if r := <-c.got[2]; r.err != nil || !r.receipt.Replayed {
		t.Errorf("the replay: %+v, %v", r.receipt, r.err)
	}
	w.ok((<-c.got[3]).err)
	w.wantWritten("k", written{4, 4, 4})
}

// A server executes what it has received, so neither outcome is known; a retry
// tells each.
func TestALostConnectionLeavesTheOutcomeOfAllThatWasSentUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	c := newConvoy(a, pos, writeBatch, writeBatch, writeBatch)
	w.exec("select pg_terminate_backend($1)", c.pid)
	for _, got := range c.got[:2] {
		r := <-got
		w.is(r.err, fencing.ErrUnknownOutcome)
	}
	w.ok((<-c.got[2]).err) // had not been sent
	w.wantWritten("k", written{1, 1, 1})
	c.free()
	for i := range c.got {
		_, err := a.commitBatch(pos, content(fmt.Sprint(i), "x"))
		w.ok(err)
	}
	w.wantWritten("k", written{3, 3, 3})
}

// CommitTimeout is each one's own, from when nothing is before it.
func TestWhatIsNotAnsweredInTimeIsUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerOn(w.poolAt(w.producer, 1), fencing.Config{Holder: "a", CommitTimeout: 12 * time.Second, GateTimeout: time.Minute})
	pos := a.acquire("k").Position()
	c := newConvoy(a, pos, writeBatch, writeBatch)
	for _, got := range c.got {
		r := <-got
		w.is(r.err, fencing.ErrUnknownOutcome)
		w.is(r.err, context.DeadlineExceeded)
		if !strings.Contains(r.err.Error(), "no answer within 12s") {
			t.Errorf("it does not say why: %v", r.err)
		}
	}
	c.free() // the server goes on, with both
	pgtest.WaitTrue(t, w.admin, "select count(*) = 0 from pg_stat_activity where pid = $1", c.pid)
	for i := range c.got {
		_, err := a.commitBatch(pos, content(fmt.Sprint(i), "x"))
		w.ok(err)
	}
	w.wantWritten("k", written{2, 2, 2})
}

func TestWhatComesBehindAnotherOneHasItsTimeFromThenOn(t *testing.T) {
	t.Parallel()
	c, second := twoThatWait(newWorld(t), 12*time.Second)
	c.free()
	c.w.ok((<-c.got[0]).err)
	c.w.is((<-c.got[1]).err, context.DeadlineExceeded)
	_, err := second.Exec(ctx, "select pg_advisory_unlock(78)")
	c.w.ok(err)
}

// It may take as long as the one before has taken, and more than what was left of
// that one's time.
func TestWhatComesBehindAnotherOneHasAllOfItsTime(t *testing.T) {
	t.Parallel()
	if !longRun() {
		t.Skip("it takes as long as two commits may, which a busy machine must not cut short: FENCELINE_LONG=1")
	}
	const limit = 30 * time.Second
	c, second := twoThatWait(newWorld(t), limit)
	time.Sleep(limit * 2 / 3) // it is the time that is tested
	c.free()
	c.w.ok((<-c.got[0]).err)
	time.Sleep(limit * 2 / 3)
	_, err := second.Exec(ctx, "select pg_advisory_unlock(78)")
	c.w.ok(err)
	c.w.ok((<-c.got[1]).err)
}

// twoThatWait is a convoy of two, of which the second one waits for a lock of the
// session's that is given, too.
func twoThatWait(w *world, limit time.Duration) (*convoy, *pgx.Conn) {
	w.Helper()
	a := w.workerOn(w.poolAt(w.producer, 1), fencing.Config{Holder: "a", CommitTimeout: limit, GateTimeout: time.Minute})
	pos := a.acquire("k").Position()
	waits := func(b *fencing.Batch) error {
		b.Queue("select pg_advisory_xact_lock(78)")
		return writeBatch(b)
	}
	_, err := a.CommitBatch(ctx, pos, content("prepares", "x"), waits)
	w.ok(err)
	second := w.session(w.dsn)
	_, err = second.Exec(ctx, "select pg_advisory_lock(78)")
	w.ok(err)
	return newConvoy(a, pos, writeBatch, waits), second
}

// What is encoded while another one is under way is encoded in the lane's
// goroutine.
func TestAnArgumentThatCannotBeEncodedHarmsNoCommitUnderWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		arg  any
		want func(error) bool
	}{
		"panics":             {panics{}, func(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "panic: ") }},
		"ends its goroutine": {exits{}, func(err error) bool { return errors.Is(err, fencing.ErrMisuse) }},
		"is of no type":      {make(chan int), func(err error) bool { return err != nil && strings.Contains(err.Error(), "nothing was written") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a := w.worker("a")
			pos := a.acquire("k").Position()
			// With all its statements prepared the third one is encoded while the second
			// is under way.
			_, err := a.CommitBatch(ctx, pos, content("prepares", "x"), func(b *fencing.Batch) error {
				b.Queue("insert into public.result values ('k', $1)", "x")
				return nil
			})
			w.ok(err)
			conv := newConvoy(a, pos, writeBatch, writeBatch, func(b *fencing.Batch) error {
				b.Queue("insert into public.result values ('k', $1)", c.arg)
				return nil
			}, writeBatch)
			conv.free()
			for i, got := range conv.got {
				r := <-got
				if i != 2 {
					w.ok(r.err)
				} else if !c.want(r.err) {
					t.Errorf("the third: %v", r.err)
				}
			}
			w.wantWritten("k", written{4, 4, 3})
		})
	}
}

// Whatever becomes of what was prepared, nobody's commit fails for it.
func TestStatementsThatArePreparedAndGoneArePreparedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.wide (a int); insert into public.wide values (1); grant all on public.wide to public")
	a := w.worker("a")
	pos := a.acquire("k").Position()
	commit := func(step string) {
		t.Helper()
		_, err := a.CommitBatch(ctx, pos, content(step, "x"), func(b *fencing.Batch) error {
			b.Queue("select * from public.wide")
			return writeBatch(b)
		})
		w.ok(err)
	}
	commit("first")
	for i, undo := range []string{"discard plans", "deallocate all", "discard all"} {
		_, err := a.pool.Exec(ctx, undo)
		w.ok(err)
		commit(undo)
		w.exec(fmt.Sprintf("alter table public.wide add column b%d text", i)) // "cached plan must not change result type"
		commit(undo + " altered")
		commit(undo + " again")
	}
	w.wantWritten("k", written{10, 10, 10})
}

// Texts that come once each don't fill the session.
func TestAConnectionKeepsABoundedNumberOfStatementsPrepared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	n := 0
	for i := range 8 {
		_, err := a.CommitBatch(ctx, pos, content(fmt.Sprint(i), "x"), func(b *fencing.Batch) error {
			for range fencing.PreparedMost / 4 {
				n++
				b.Queue(fmt.Sprintf("select %d", n))
			}
			return writeBatch(b)
		})
		w.ok(err)
	}
	var ours, most int
	w.ok(a.pool.QueryRow(ctx, "select count(*) filter (where name like 'fenceline%'), $1::int from pg_prepared_statements", fencing.PreparedMost).Scan(&ours, &most))
	if ours > most || ours < most/2 {
		t.Errorf("%d statements are prepared, where %d may be", ours, most)
	}
	w.wantWritten("k", written{8, 8, 8})
}

// More texts than are kept, and names that pgx knows and the server does not.
func TestWhatCannotGoThroughAPipeGoesWithoutOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 1, func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Prepare(ctx, "note", "insert into public.result values ($1, $2)")
			return err
		}
	})
	pos := a.acquire("k").Position()
	_, err := a.CommitBatch(ctx, pos, content("many", "x"), func(b *fencing.Batch) error {
		for i := range 2 * fencing.PreparedMost {
			b.Queue(fmt.Sprintf("select %d", i))
		}
		return writeBatch(b)
	})
	w.ok(err)
	var kept int
	w.ok(a.pool.QueryRow(ctx, "select count(*) from pg_prepared_statements where name like 'fenceline%'").Scan(&kept))
	if kept > fencing.PreparedMost {
		t.Errorf("%d statements are prepared for it, where %d may be", kept, fencing.PreparedMost)
	}
	for i := range 3 {
		_, err = a.CommitBatch(ctx, pos, content(fmt.Sprint("named ", i), "x"), func(b *fencing.Batch) error {
			b.Queue("note", "k", pgx.NamedArgs{}) // an argument that it can't encode
			return nil
		})
		if err == nil || errors.Is(err, fencing.ErrUnknownOutcome) {
			t.Errorf("an argument that can't be encoded: %v", err)
		}
		_, err = a.CommitBatch(ctx, pos, content(fmt.Sprint("named ", i), "x"), func(b *fencing.Batch) error {
			b.Queue("note", "k", "by name")
			b.Queue("select @a::int + @b::int", pgx.NamedArgs{"a": 1, "b": 2})
			return outbox.Append(ctx, b, outbox.Event{Topic: "results", Type: "result"})
		})
		w.ok(err)
	}
	w.wantWritten("k", written{4, 4, 4})
}

// batchTracer counts the batches that pgx tells of.
type batchTracer struct{ n *atomic.Int32 }

func (b batchTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	if slices.ContainsFunc(d.Batch.QueuedQueries, func(q *pgx.QueuedQuery) bool { return q.SQL == "commit" }) {
		b.n.Add(1)
	}
	return ctx
}
func (batchTracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (batchTracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (batchTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (batchTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Whoever traces pgx sees each commit.
func TestATracerOfThePoolIsToldOfEachCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var batches atomic.Int32
	a := w.workerAt("a", w.producer, 1, func(c *pgxpool.Config) { c.ConnConfig.Tracer = batchTracer{&batches} })
	pos := a.acquire("k").Position()
	batches.Store(0)
	for i := range 3 {
		_, err := a.commitBatch(pos, content(fmt.Sprint(i), "x"))
		w.ok(err)
	}
	if n := batches.Load(); n != 3 {
		t.Errorf("told of %d batches", n)
	}
}

// The connection goes back to the pool now and then, however many wait in line.
func TestALongLineLeavesAPoolOfOneConnectionToTheOthersToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	hot, other := a.acquire("hot").Position(), a.acquire("other").Position()
	stop := make(chan struct{})
	var committing [4]chan error
	for i := range committing {
		committing[i] = make(chan error, 1)
		go func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					committing[i] <- nil
					return
				default:
				}
				if _, err := a.commitBatch(hot, content(fmt.Sprint(i, n), "x")); err != nil {
					committing[i] <- err
					return
				}
			}
		}()
	}
	fencing.WaitForTurns(a.Fences, "hot", len(committing))
	soon, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i := range 3 {
		_, err := a.CommitBatch(soon, other, content(fmt.Sprint(i), "x"), writeBatch)
		w.ok(err)
	}
	close(stop)
	for _, done := range committing {
		w.ok(<-done)
	}
}

// The warning is of the one that it came with.
func TestTheWarningThatOneIsNotReplicatedIsNotThatOfTheOneBehind(t *testing.T) {
	t.Parallel()
	w := newServerWorld(t)
	a := w.workerAt("a", w.producer, 1, func(c *pgxpool.Config) { fencing.WatchNotices(c.ConnConfig) })
	pos := a.acquire("k").Position()
	c := newConvoy(a, pos, writeBatch, writeBatch)
	w.exec("alter system set synchronous_standby_names = 'nobody'")
	w.exec("select pg_reload_conf()")
	w.waitForStandbys()
	waits := "select exists (select from pg_stat_activity where pid = $1 and wait_event = 'SyncRep')"
	c.free()
	pgtest.WaitTrue(t, w.admin, waits, c.pid)
	w.exec("select pg_cancel_backend($1)", c.pid)
	w.is((<-c.got[0]).err, fencing.ErrNotReplicated)
	pgtest.WaitTrue(t, w.admin, waits, c.pid)
	w.exec("alter system reset synchronous_standby_names")
	w.exec("select pg_reload_conf()")
	w.ok((<-c.got[1]).err)
	w.wantWritten("k", written{2, 2, 2})
}
