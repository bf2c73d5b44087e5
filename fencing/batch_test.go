package fencing_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

// writeBatch is what write does, in the batch shape.
func writeBatch(b *fencing.Batch) error {
	b.Queue("insert into public.result values ($1, $2)", b.Gate().Key, b.Gate().Step)
	return outbox.Append(ctx, b, outbox.Event{Topic: "results", Type: "result", Payload: []byte(b.Gate().Step)})
}

func (k *worker) commitBatch(pos fencing.Position, c fencing.Content) (fencing.Receipt, error) {
	return k.CommitBatch(ctx, pos, c, writeBatch)
}

// trips counts round trips: how often a connection turns from writing to reading.
type trips struct {
	net.Conn
	n       *atomic.Int64
	written atomic.Bool
}

func (c *trips) Write(p []byte) (int, error) { c.written.Store(true); return c.Conn.Write(p) }
func (c *trips) Read(p []byte) (int, error) {
	if c.written.Swap(false) {
		c.n.Add(1)
	}
	return c.Conn.Read(p)
}

func TestABatchIsOneRoundTripAndACallbackTwo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var n atomic.Int64
	a := w.workerAt("a", w.producer, 1, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &trips{Conn: conn, n: &n}, err
		}
	})
	lease := a.acquire("k")
	both := func(step string) (batch, callback int64) {
		before := n.Load()
		_, err := lease.CommitBatch(ctx, content("batch "+step, "x"), writeBatch)
		w.ok(err)
		between := n.Load()
		_, err = lease.Commit(ctx, content("callback "+step, "x"), func(ctx context.Context, tx fencing.Tx) error {
			return outbox.Append(ctx, tx, outbox.Event{Topic: "results", Type: "result"})
		})
		w.ok(err)
		return between - before, n.Load() - between
	}
	both("first") // prepares the statements
	if batch, callback := both("second"); batch != 1 || callback != 2 {
		t.Errorf("a batch takes %d round trips, a callback %d around it", batch, callback)
	}
}

func TestABatchIsCommittedWithItsReceiptResultAndEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	build := func(b *fencing.Batch) error { return errors.Join(b.SetResult([]byte("small")), writeBatch(b)) }
	first, err := lease.CommitBatch(ctx, content("s", "x"), build)
	w.ok(err)
	if first.Replayed || first.Position != lease.Position() || first.Step != "s" || first.CommittedAt.IsZero() {
		t.Errorf("%+v", first)
	}
	again, err := lease.CommitBatch(ctx, content("s", "x"), build)
	w.ok(err)
	if !again.Replayed || !again.CommittedAt.Equal(first.CommittedAt) || string(again.Result) != "small" {
		t.Errorf("%+v", again)
	}
	// A retry may have another shape.
	other, err := a.commit(lease.Position(), content("s", "x"))
	w.ok(err)
	if !other.Replayed {
		t.Error("committed twice")
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestABatchHasTheAnswersOfACallback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	old := a.acquire("k")
	_, err := old.CommitBatch(ctx, content("s", "x"), writeBatch)
	w.ok(err)
	_, err = old.CommitBatch(ctx, content("s", "y"), writeBatch)
	w.is(err, fencing.ErrConflict)
	b.takeOver("k")
	_, err = old.CommitBatch(ctx, content("s2", "x"), writeBatch)
	w.is(err, fencing.ErrStale)
	if e := evidence(w, err); e.CurrentToken != 2 || e.Step != "s2" {
		t.Errorf("%+v", e)
	}
	_, err = a.commitBatch(fencing.Position{Key: "nobody's", Epoch: 1, Token: 1}, content("s", "x"))
	w.is(err, fencing.ErrUnconfirmable)
	_, err = a.commitBatch(fencing.Position{Key: "k"}, content("s", "x"))
	w.is(err, fencing.ErrInvalid)
	_, err = old.CommitBatch(ctx, content("s3", "x"), func(*fencing.Batch) error { return errCallback })
	w.is(err, errCallback)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = old.CommitBatch(ended, content("s4", "x"), writeBatch)
	w.is(err, context.Canceled)
	if errors.Is(err, fencing.ErrUnknownOutcome) {
		t.Error("unknown, though nothing was sent")
	}
	w.wantWritten("k", written{1, 1, 1})
}

func TestAStatementOfABatchThatFailsIsNamedAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	failing := func(sql string, args ...any) func(*fencing.Batch) error {
		return func(b *fencing.Batch) error {
			err := writeBatch(b)
			b.Queue(sql, args...)
			return err
		}
	}
	_, err := a.CommitBatch(ctx, pos, content("s", "x"), failing("select 1/$1::int", 0))
	var s *fencing.StatementError
	if !errors.As(err, &s) || s.Index != 2 || s.SQL != "select 1/$1::int" || sqlstate(s.Err) != "22012" {
		t.Errorf("%v", err)
	}
	// What does not even leave is no unknown outcome either.
	for sql, args := range map[string][]any{"selekt": nil, "select $1::int": {"no number"}, "select $1::text, $2": {"one"}} {
		_, err := a.CommitBatch(ctx, pos, content("s", "x"), failing(sql, args...))
		if err == nil || errors.Is(err, fencing.ErrUnknownOutcome) {
			t.Errorf("%s: %v", sql, err)
		}
	}
	w.wantWritten("k", written{})
	_, err = a.commitBatch(pos, content("s", "x"))
	w.ok(err)
}

func TestADeferredConstraintThatFailsFailsTheBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("create table public.parent (id int primary key); create table public.child (id int references public.parent deferrable initially deferred); grant all on public.parent, public.child to public")
	a := w.worker("a")
	pos := a.acquire("k").Position()
	_, err := a.CommitBatch(ctx, pos, content("s", "x"), func(b *fencing.Batch) error {
		b.Queue("insert into public.child values (1)")
		return writeBatch(b)
	})
	if sqlstate(err) != "23503" || errors.Is(err, fencing.ErrUnknownOutcome) {
		t.Errorf("%v", err)
	}
	w.wantWritten("k", written{})
}

func TestABatchCannotEndItsOwnTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	for _, sql := range []string{"rollback", "/* innocent */ commit", "rollback and chain", "commit and chain"} {
		ends := func(step string, queue func(b *fencing.Batch)) error {
			_, err := lease.CommitBatch(ctx, content(step+sql, "x"), func(b *fencing.Batch) error {
				queue(b)
				b.Queue("insert into public.result values ('k', 'behind')")
				return nil
			})
			w.is(err, fencing.ErrMisuse)
			return err
		}
		_ = ends("openly ", func(b *fencing.Batch) { b.Queue(sql) })
		if n := value[int](w, "select count(*) from fenceline.receipt where step like 'openly%'"); n > 0 {
			t.Errorf("%s was sent", sql)
		}
		if err := ends("", func(b *fencing.Batch) { b.Queue("select 1", disguised(sql)) }); !strings.Contains(err.Error(), "NOT written") {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestABatchWhoseAnswerWasLostIsReplayed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 1)
	lease := a.acquire("k")
	_, err := lease.CommitBatch(ctx, content("warm", "x"), writeBatch)
	w.ok(err)
	dropped := proxy.DropNextCommitAnswer("the step")
	_, err = lease.CommitBatch(ctx, content("the step", "x"), writeBatch)
	w.is(err, fencing.ErrUnknownOutcome)
	<-dropped
	r, err := lease.CommitBatch(ctx, content("the step", "x"), writeBatch)
	w.ok(err)
	if !r.Replayed {
		t.Error("the retry committed a second time")
	}
	w.wantWritten("k", written{2, 2, 2})
}

func TestADeadlineDoesNotReachABatchThatWasSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	holder := w.deferCommit()
	pid := a.pid()
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan answer, 1)
	go func() {
		r, err := lease.CommitBatch(short, content("s", "x"), writeBatch)
		done <- answer{r, err}
	}()
	pgtest.WaitBlocked(t, w.admin, pid, holder.PgConn().PID())
	cancel()
	w.letCommit(holder)
	w.ok((<-done).err)
	w.wantWritten("k", written{1, 1, 1})
}

func TestOnALeaseThatHasEndedABatchIsOnlyAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	_, err := lease.CommitBatch(ctx, content("s", "x"), writeBatch)
	w.ok(err)
	w.ok(lease.Release(ctx))
	r, err := lease.CommitBatch(ctx, content("s", "x"), writeBatch)
	w.ok(err)
	if !r.Replayed {
		t.Error("not replayed")
	}
	_, err = lease.CommitBatch(ctx, content("s2", "x"), writeBatch)
	w.is(err, fencing.ErrReleased)
	w.wantWritten("k", written{1, 1, 1})
}

func TestACallbackThatRollsBackAndBeginsAgainIsFoundOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	behindOurBack := func(ctx context.Context, tx fencing.Tx) error {
		_, err := tx.Conn().Exec(ctx, "rollback; begin; insert into public.result values ('k', 'without a gate')")
		return err
	}
	_, err := lease.Commit(ctx, content("s", "x"), behindOurBack)
	w.is(err, fencing.ErrMisuse)
	_, err = lease.Commit(ctx, content("s", "x"), func(ctx context.Context, tx fencing.Tx) error {
		return errors.Join(outbox.Append(ctx, tx, outbox.Event{Topic: "results", Type: "t"}), behindOurBack(ctx, tx))
	})
	w.is(err, fencing.ErrMisuse)
	w.wantWritten("k", written{})
	a.clean(lease)
}
