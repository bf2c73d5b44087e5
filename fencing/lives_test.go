package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// What the functions of the lives of a key may be executed by.
func init() {
	for kind, functions := range map[string][]string{
		schema.KindProducer: {"close", "open"},
		schema.KindOperator: {"sweep_floors", "sweep_floor", "sweep_receipts", "sweep_tombstones", "sweep_plan"},
	} {
		g := granted[kind]
		g.execute = append(g.execute, functions...)
		granted[kind] = g
	}
	for _, kind := range []string{schema.KindMonitor, schema.KindOperator} {
		g := granted[kind]
		g.read = append(g.read, "retention")
		granted[kind] = g
	}
}

// streamRecord is an outbox row as far as lives show in it.
type streamRecord struct {
	Topic              string
	Epoch, Token, Seq  int64
	Kind, Type         string
	Payload            *string
	History            *int64
	PrevEpoch, PrevSeq *int64
}

func (w *world) stream(key, topic string) []streamRecord {
	w.Helper()
	rows, err := w.admin.Query(ctx, `select topic, epoch, token, seq, kind, type, convert_from(payload, 'UTF8'), history, prev_epoch, prev_seq
		from fenceline.outbox where key = $1 and topic = $2 order by pos`, key, topic)
	w.ok(err)
	records, err := pgx.CollectRows(rows, pgx.RowToStructByPos[streamRecord])
	w.ok(err)
	return records
}

// commitTo commits one event to each of the topics.
func (k *worker) commitTo(pos fencing.Position, step string, topics ...string) {
	k.w.Helper()
	_, err := k.Commit(ctx, pos, content(step, "x"), func(ctx context.Context, tx fencing.Tx) error {
		for _, topic := range topics {
			if err := outbox.Append(ctx, tx, outbox.Event{Topic: topic, Type: "t", Payload: []byte(step)}); err != nil {
				return err
			}
		}
		return nil
	})
	k.w.ok(err)
}

func (k *worker) close(pos fencing.Position) fencing.Closing {
	k.w.Helper()
	c, err := k.Close(ctx, pos)
	k.w.ok(err)
	return c
}

func (k *worker) open(key string) int64 {
	k.w.Helper()
	epoch, err := k.Open(ctx, key)
	k.w.ok(err)
	return epoch
}

func TestCloseEndsEveryStreamThatTheKeyRemembers(t *testing.T) {
	t.Parallel()
	endsEveryStream(newWorld(t))
}

func endsEveryStream(w *world) {
	a := w.worker("a")
	// Neighbours in the index of heads, which are none of the key's.
	for _, other := range []string{"j", "l"} {
		a.commitTo(a.acquire(other).Position(), "s", "a", "b", "c", "d")
	}
	first := a.acquire("k").Position()
	a.commitTo(first, "1", "a", "b")
	a.commitTo(first, "2", "a")
	a.close(first)
	epoch := a.open("k")
	second := a.acquire("k").Position()
	if second.Epoch != epoch || second.Token != 1 || epoch <= first.Epoch {
		w.Fatalf("the second life is %v, opened as %d, after %v", second, epoch, first)
	}
	a.commitTo(second, "1", "b", "c") // nothing in a, which is ended all the same: E of the consumer's histories
	a.close(second)
	history := value[int64](w, "select since from fenceline.history")
	data := func(topic string, pos fencing.Position, seq int64, step string) streamRecord {
		return streamRecord{Topic: topic, Epoch: pos.Epoch, Token: pos.Token, Seq: seq, Kind: "data", Type: "t", Payload: &step}
	}
	end := func(topic string, pos fencing.Position, seq int64) streamRecord {
		empty := ""
		return streamRecord{Topic: topic, Epoch: pos.Epoch, Token: pos.Token, Seq: seq, Kind: "end", Type: "fenceline.end", Payload: &empty}
	}
	begins := func(r streamRecord, prev ...int64) streamRecord {
		r.History = &history
		if prev != nil {
			r.PrevEpoch, r.PrevSeq = &prev[0], &prev[1]
		}
		return r
	}
	for topic, want := range map[string][]streamRecord{
		"a": {begins(data("a", first, 1, "1")), data("a", first, 2, "2"), end("a", first, 3), begins(end("a", second, 1), first.Epoch, 3)},
		"b": {begins(data("b", first, 1, "1")), end("b", first, 2), begins(data("b", second, 1, "1"), first.Epoch, 2), end("b", second, 2)},
		"c": {begins(data("c", second, 1, "1")), end("c", second, 2)},
		"d": nil,
	} {
		if got := w.stream("k", topic); show(got) != show(want) {
			w.Errorf("stream %s:\n got %s\nwant %s", topic, show(got), show(want))
		}
	}
	for _, other := range []string{"j", "l"} {
		if n := value[int](w, "select count(*) from fenceline.outbox where key = $1 and kind = 'end'", other); n != 0 {
			w.Errorf("%s got %d end records", other, n)
		}
	}
}

func show(records []streamRecord) string {
	s := ""
	for _, r := range records {
		s += fmt.Sprintf("\n  %s (%d, %d, %d) %s %s", r.Topic, r.Epoch, r.Token, r.Seq, r.Kind, r.Type)
		for _, p := range []*int64{r.History, r.PrevEpoch, r.PrevSeq} {
			if p != nil {
				s += fmt.Sprint(" ", *p)
			} else {
				s += " -"
			}
		}
		if r.Payload != nil {
			s += fmt.Sprintf(" %q", *r.Payload)
		}
	}
	return s
}

func TestAClosedKeyRefusesCommitsAcquiresAndAdvancesWithEvidence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.outsider()
	lease := o.acquire("k")
	pos := lease.Position()
	_, err := o.commit(pos, content("s", "x"))
	w.ok(err)
	c, err := lease.Close(ctx)
	w.ok(err)
	if c.Position != pos || c.Replayed || c.ClosedAt.IsZero() {
		t.Errorf("closing %+v", c)
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, fencing.ErrClosed) {
		t.Errorf("the lease's context ended with %v", cause)
	}
	_, err = o.commit(pos, content("late", "x"))
	w.is(err, fencing.ErrClosed)
	if e := evidence(w, err); !e.ClosedAt.Equal(c.ClosedAt) || e.Epoch != pos.Epoch || e.CurrentEpoch != pos.Epoch || e.Step != "late" {
		t.Errorf("evidence %+v", e)
	}
	_, err = o.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrClosed)
	_, err = o.advance("k", pos.Token+1)
	w.is(err, fencing.ErrClosed)
	again, err := o.commit(pos, content("s", "x"))
	w.ok(err)
	if !again.Replayed {
		t.Error("what had committed is not replayed")
	}
	if holder := value[string](w, "select holder from fenceline.turn where key = 'k' and why = 'close'"); holder != lease.Holder() {
		t.Errorf("the turn says that %q closed it", holder)
	}
	w.wantWritten("k", written{2, 1, 2}) // with the close's receipt and the end record
}

func TestARequestOfAnEarlierLifeIsStaleThoughTheNumbersAreEqual(t *testing.T) {
	t.Parallel()
	requestOfAnEarlierLife(newWorld(t))
}

func requestOfAnEarlierLife(w *world) {
	a := w.worker("a")
	old := a.acquire("k").Position()
	_, err := a.commit(old, content("done", "x"))
	w.ok(err)
	a.close(old)
	a.open("k")
	fresh := a.acquire("k").Position()
	if fresh.Token != old.Token || fresh.Epoch <= old.Epoch {
		w.Fatalf("from %v to %v", old, fresh)
	}
	_, err = a.commit(old, content("late", "x"))
	w.is(err, fencing.ErrStale)
	if e := evidence(w, err); e.CurrentEpoch != fresh.Epoch || e.CurrentToken != fresh.Token || e.Epoch != old.Epoch {
		w.Errorf("evidence %+v", e)
	}
	again, err := a.commit(old, content("done", "x"))
	w.ok(err)
	if !again.Replayed {
		w.Error("what the earlier life has committed is not replayed")
	}
	_, err = a.commit(fresh, content("done", "x")) // the same step in another life is another commit
	w.ok(err)
	w.wantWritten("k", written{3, 2, 3})
}

func TestCloseIsRepeatable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	pos := a.acquire("k").Position()
	a.commitTo(pos, "s", "a", "b")
	// Two at once: one waits for the other.
	conn := w.session(w.producer)
	tx, err := conn.Begin(ctx)
	w.ok(err)
	_, err = tx.Exec(ctx, "select fenceline.close('k', $1, $2)", pos.Epoch, pos.Token)
	w.ok(err)
	pid := b.pid()
	second := make(chan fencing.Closing, 1)
	go func() { c, err := b.Close(ctx, pos); w.ok(err); second <- c }()
	pgtest.WaitBlocked(t, w.admin, pid, conn.PgConn().PID())
	w.ok(tx.Commit(ctx))
	at := value[time.Time](w, "select closed_at from fenceline.fence where key = 'k'")
	want := func(c fencing.Closing) {
		t.Helper()
		if !c.Replayed || c.ClosedAt.Sub(at).Abs() > time.Minute { // the receipt's time and the tombstone's are of one transaction
			t.Errorf("closing %+v, closed at %v", c, at)
		}
	}
	want(<-second)
	want(a.close(pos))
	// Its receipt is swept; the tombstone stands, since nothing is published.
	if r := w.operator().sweep(soon); r.Receipts != 2 || r.Tombstones != 0 {
		t.Fatalf("swept %+v", r)
	}
	want(a.close(pos))
	// And again in the next life.
	next := w.session(w.dsn)
	_, err = next.Exec(ctx, "select fenceline.open('k')")
	w.ok(err)
	_, err = a.Close(ctx, pos)
	w.is(err, fencing.ErrUnconfirmable) // the receipt was swept
	fresh := a.acquire("k").Position()
	a.close(fresh)
	a.open("k")
	c := a.close(fresh)
	if !c.Replayed {
		t.Errorf("closing %+v", c)
	}
	if n := value[int](w, "select count(*) from fenceline.outbox where kind = 'end'"); n != 4 {
		t.Errorf("%d end records, want one for each of two streams in two lives", n)
	}
	if n := value[int](w, "select count(*) from fenceline.fence where closed_at is not null"); n != 0 {
		t.Error("a repeated close has closed the next life")
	}
}

func TestACloseIsRefusedLikeACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	old := a.acquire("k").Position()
	fresh := a.takeOver("k").Position()
	refused := func(pos fencing.Position, want error) fencing.Evidence {
		t.Helper()
		_, err := a.Close(ctx, pos)
		w.is(err, want)
		if n := value[int](w, "select count(*) from fenceline.fence where closed_at is not null"); n != 0 {
			t.Error("closed all the same")
		}
		return evidence(w, err)
	}
	if e := refused(old, fencing.ErrStale); e.CurrentToken != fresh.Token || e.Token != old.Token {
		t.Errorf("evidence %+v", e)
	}
	refused(fencing.Position{Key: "k", Epoch: fresh.Epoch, Token: fresh.Token + 1}, fencing.ErrUnconfirmable)
	refused(fencing.Position{Key: "none", Epoch: fresh.Epoch, Token: 1}, fencing.ErrUnconfirmable)
	for _, pos := range []fencing.Position{{}, {Key: "k", Epoch: fresh.Epoch}, {Key: "k", Token: 1}} {
		_, err := a.Close(ctx, pos)
		w.is(err, fencing.ErrInvalid)
	}
	_, err := a.Open(ctx, "")
	w.is(err, fencing.ErrInvalid)
	for _, call := range []string{"select fenceline.close('fenceline:relay', 5, 1)", "select fenceline.open('fenceline:relay')"} {
		_, err := a.pool.Exec(ctx, call)
		if got := sqlstate(err); got != "FL011" {
			t.Errorf("%s: %s, want FL011", call, got)
		}
	}
	for _, call := range []string{"select fenceline.close('k', 5, 1)", "select fenceline.open('k')"} {
		_, err := a.pool.Exec(ctx, "begin isolation level repeatable read; "+call)
		if got := sqlstate(err); got != "FL008" {
			t.Errorf("%s: %s, want FL008", call, got)
		}
		_, err = a.pool.Exec(ctx, "rollback")
		w.ok(err)
	}
	// Closed by somebody else under a later token.
	a.close(fresh)
	_, err = a.Close(ctx, old)
	w.is(err, fencing.ErrClosed)
	if evidence(w, err).ClosedAt.IsZero() {
		t.Error("the evidence does not say since when")
	}
	w.newIdentity("timeline = '00000009'")
	_, err = a.Open(ctx, "k")
	w.is(err, fencing.ErrHistory)
	w.exec("select fenceline.history_confirm()")
	a.open("k")
	pos := a.acquire("k").Position()
	w.newIdentity("timeline = '00000009'")
	_, err = a.Close(ctx, pos)
	w.is(err, fencing.ErrHistory)
	w.exec("select fenceline.history_confirm()")
	// A receipt of the same step that is no close's does not pass for one.
	w.exec("insert into fenceline.receipt (key, epoch, token, step, algo, digest, shard) values ('k', $1, $2, 'fenceline:close', 'sha256/raw/1', sha256(''), 0)", pos.Epoch, pos.Token)
	_, err = a.Close(ctx, pos)
	w.is(err, fencing.ErrUnconfirmable)
}

func TestNothingCanBeAppendedBehindAnEndRecord(t *testing.T) {
	t.Parallel()
	nothingBehindTheEnd(newWorld(t))
}

func nothingBehindTheEnd(w *world) {
	a := w.worker("a")
	pos := a.acquire("k").Position()
	a.commitTo(pos, "s", "results")
	conn := w.session(w.producer)
	attempt := func(why string, want string, steps ...func(tx pgx.Tx) error) {
		w.Helper()
		tx, err := conn.Begin(ctx)
		w.ok(err)
		for _, step := range steps {
			if err = step(tx); err != nil {
				break
			}
		}
		if got := sqlstate(err); got != want {
			w.Errorf("%s: %s, want %s", why, got, want)
		}
		w.ok(tx.Rollback(ctx))
	}
	do := func(sql string, args ...any) func(pgx.Tx) error {
		return func(tx pgx.Tx) error { _, err := tx.Exec(ctx, sql, args...); return err }
	}
	enter := do("select fenceline.enter('k', $1, $2, 'late', 'sha256/raw/1', $3, '1 min')", pos.Epoch, pos.Token, make([]byte, 32))
	closing := do("select fenceline.close('k', $1, $2)", pos.Epoch, pos.Token)
	attempt("close behind a gate, whose pass would outlive it", "FL009", enter, closing)
	attempt("enter behind a close", "FL005", closing, enter)
	attempt("append with the close's own receipt", "FL007", closing, do(appendOne, "k", pos.Epoch, pos.Token, "fenceline:close"))
	attempt("close twice in one transaction", "FL001", closing, closing)
}

func TestACloseWaitsForACommitInProgressAndEndsBehindItsEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	pos := a.acquire("k").Position()
	commit := a.pauseBehindGate(pos, content("s", "x"))
	pid := b.pid()
	closed := make(chan error, 1)
	go func() { _, err := b.Close(ctx, pos); closed <- err }()
	pgtest.WaitBlocked(t, w.admin, pid, commit.pid)
	commit.goOn()
	w.ok((<-commit.done).err)
	w.ok(<-closed)
	r := w.stream("k", "results")
	if len(r) != 2 || r[1].Kind != "end" || r[1].Seq != 2 {
		t.Errorf("stream %s", show(r))
	}
}

func TestACloseWhoseSessionDiesLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	a.commitTo(pos, "s", "a", "b")
	for _, call := range []string{"select fenceline.close('k', $1, $2)", "select fenceline.open('k'), $1::bigint, $2::bigint"} {
		before := value[string](w, "select f::text || (select count(*) from fenceline.outbox) || (select string_agg(h::text, ' ' order by h) from fenceline.head h) || (select count(*) from fenceline.turn) || (select expires_at from fenceline.lease) from fenceline.fence f")
		conn := w.session(w.producer)
		_, err := conn.Exec(ctx, "begin")
		w.ok(err)
		_, err = conn.Exec(ctx, call, pos.Epoch, pos.Token)
		w.ok(err)
		w.exec("select pg_terminate_backend($1)", int32(conn.PgConn().PID()))
		pgtest.WaitGone(t, w.admin, conn.PgConn().PID())
		if after := value[string](w, "select f::text || (select count(*) from fenceline.outbox) || (select string_agg(h::text, ' ' order by h) from fenceline.head h) || (select count(*) from fenceline.turn) || (select expires_at from fenceline.lease) from fenceline.fence f"); after != before {
			t.Errorf("from %s\nto %s", before, after)
		}
		if !a.close(pos).Replayed && call[14] == 'o' {
			t.Error("the open that died has opened it")
		}
	}
}

func TestOpenDoesNothingToAKeyThatIsOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	epoch := a.open("k")
	if again := a.open("k"); again != epoch {
		t.Errorf("opened as %d and %d", epoch, again)
	}
	lease := a.acquire("k")
	if got := a.open("k"); got != epoch || lease.Position().Epoch != epoch || lease.Position().Token != 1 {
		t.Errorf("opened as %d, acquired %v, then %d", epoch, lease.Position(), got)
	}
	_, err := lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
	if n := value[int](w, "select count(*) from fenceline.turn where why = 'open'"); n != 1 {
		t.Errorf("%d turns say open", n)
	}
}

func TestAKeyOfBeforeABumpOpensUnderAnEpochOfTheNewHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	since := value[int64](w, "select fenceline.history_bump($1)", pos.Epoch+int64(time.Hour/time.Microsecond))
	if epoch := a.open("k"); epoch < since {
		t.Errorf("opened as %d in a history since %d", epoch, since)
	}
	_, err := a.Close(ctx, pos)
	w.is(err, fencing.ErrUnconfirmable)
}

// operator is a process whose login may sweep, and nothing of a producer's.
func (w *world) operator() *worker {
	w.Helper()
	return w.workerAt("operator", pgmigrated.Login(w, w.dsn, schema.KindOperator), 2)
}

// soon sweeps all that the rules let go.
var soon = fencing.SweepConfig{RetryWindow: time.Microsecond, Residence: time.Microsecond}

func (k *worker) sweep(cfg fencing.SweepConfig) fencing.SweepReport {
	k.w.Helper()
	r, err := k.Sweep(ctx, cfg)
	k.w.ok(err)
	return r
}

// published stores a relay's cursor that is behind everything committed.
func (w *world) published() {
	w.Helper()
	w.exec(`insert into fenceline.relay_checkpoint (epoch, token, s1, low, pair_low, pair_xid) values (1, 1, pg_current_snapshot(), 0, 0, '3')`)
}

// The first answer is lost, and then there is no connection for the second
// attempt: that one has changed nothing, but the first one has.
func TestACloseOrOpenWhoseAnswerIsLostIsNeverSaidToHaveChangedNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var cut atomic.Bool
	a, proxy := w.behindProxy("a", 1, func(cfg *pgxpool.Config) {
		cfg.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if cut.Load() {
				return errors.New("no way through")
			}
			return nil
		}
	})
	pos := a.acquire("the key").Position()
	for _, call := range []func() error{
		func() error { return second(a.Fences.Close(ctx, pos)) },
		func() error { return second(a.Open(ctx, "the key")) },
	} {
		proxy.DropNextCommitAnswer("the key")
		cut.Store(true) // for the second attempt: the first one has its connection
		err := call()
		cut.Store(false)
		w.is(err, fencing.ErrUnknownOutcome)
		if strings.Contains(err.Error(), "nothing was changed") {
			t.Error(err)
		}
		w.ok(call()) // it has
	}
}
