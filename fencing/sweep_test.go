package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

func TestAReceiptIsKeptUntilAllThreeRulesLetItGo(t *testing.T) {
	t.Parallel()
	keptByEachRule(newWorld(t))
}

func keptByEachRule(w *world) {
	a, op := w.worker("a"), w.operator()
	first := a.acquire("k").Position()
	_, err := a.commit(first, content("s", "x"))
	w.ok(err)
	kept := func(cfg fencing.SweepConfig, reason string) {
		w.Helper()
		dry := cfg
		dry.DryRun = true
		plan := op.sweep(dry)
		if r := op.sweep(cfg); r.Receipts != 0 || plan.Receipts != 0 {
			w.Errorf("%s: %d receipts swept, %d planned", reason, r.Receipts, plan.Receipts)
		}
		if k := keptFor(plan, fencing.SweptReceipts, reason); k.Count != 1 || k.Example != "k" {
			w.Errorf("%s: the plan is %+v", reason, plan)
		}
		again, err := a.commit(first, content("s", "x"))
		w.ok(err)
		if !again.Replayed {
			w.Errorf("%s: not replayed", reason)
		}
	}
	// The fence has not moved past. (a)
	kept(soon, fencing.KeptNewestToken)
	second := a.takeOver("k").Position()
	// The retry window is open. (b)
	kept(fencing.SweepConfig{RetryWindow: time.Hour, Residence: time.Microsecond}, fencing.KeptRetryWindow)
	// The residence is not over. (c)
	kept(fencing.SweepConfig{RetryWindow: time.Microsecond, Residence: time.Hour}, fencing.KeptResidence)
	// They add up: the last request can be sent at the end of the window.
	w.exec("update fenceline.turn set at = at - interval '90 min'")
	kept(fencing.SweepConfig{RetryWindow: time.Hour, Residence: time.Hour}, fencing.KeptResidence)
	w.exec("update fenceline.turn set at = at - interval '31 min'")
	dry := fencing.SweepConfig{RetryWindow: time.Hour, Residence: time.Hour, DryRun: true}
	if plan := op.sweep(dry); plan.Receipts != 1 || keptFor(plan, fencing.SweptReceipts, fencing.KeptNewestToken).Count != 0 {
		w.Errorf("plan %+v", plan)
	}
	dry.DryRun = false
	if r := op.sweep(dry); r.Receipts != 1 || r.Turns != 1 {
		w.Errorf("swept %+v", r)
	}
	_, err = a.commit(first, content("s", "x"))
	w.is(err, fencing.ErrUnconfirmable)
	_, err = a.commit(second, content("s", "x"))
	w.ok(err)
	w.wantWritten("k", written{1, 2, 2})
}

func keptFor(r fencing.SweepReport, what, reason string) fencing.Kept {
	for _, k := range r.Kept {
		if k.What == what && k.Reason == reason {
			return k
		}
	}
	return fencing.Kept{}
}

func TestARetryAfterTheSweepIsUnconfirmableAndWritesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, op := w.worker("a"), w.operator()
	pos := a.acquire("k").Position()
	_, err := a.commit(pos, content("s", "x"))
	w.ok(err)
	stale := a.takeOver("k").Position()
	a.takeOver("k")
	if r := op.sweep(soon); r.Receipts != 1 {
		t.Fatalf("swept %+v", r)
	}
	late := func() {
		t.Helper()
		before := w.written("k")
		_, err := a.commit(pos, content("s", "x"))
		w.is(err, fencing.ErrUnconfirmable)
		w.wantWritten("k", before)
	}
	late()
	// Where no receipt was removed, the answer stays sharp.
	_, err = a.commit(stale, content("s", "x"))
	w.is(err, fencing.ErrStale)
	last := a.takeOver("k").Position()
	a.close(last)
	late()
	a.open("k")
	late()
	a.close(a.acquire("k").Position())
	w.published()
	if r := op.sweep(soon); r.Tombstones != 1 {
		t.Fatalf("swept %+v", r)
	}
	late() // deleted
	a.acquire("k")
	late() // and created anew
}

func TestNothingOfAKeyIsLeftWhenItsTombstoneIsSwept(t *testing.T) {
	t.Parallel()
	nothingIsLeft(newWorld(t))
}

func nothingIsLeft(w *world) {
	a, op := w.worker("a"), w.operator()
	keep := a.acquire("other").Position()
	a.commitTo(keep, "s", "a", "b")
	pos := a.acquire("k").Position()
	a.commitTo(pos, "s", "a", "b")
	a.close(pos)
	w.published()
	if r := op.sweep(fencing.SweepConfig{}); r.Tombstones+r.Receipts+r.Turns != 0 {
		w.Errorf("swept at once: %+v", r)
	}
	dry := soon
	dry.DryRun = true
	if plan := op.sweep(dry); plan.Tombstones != 1 || plan.Receipts != 2 {
		w.Errorf("plan %+v", plan)
	}
	if r := op.sweep(soon); r.Tombstones != 1 || r.Receipts != 2 || len(r.Kept) != 0 {
		w.Errorf("swept %+v", r)
	}
	for _, table := range []string{"fence", "lease", "head", "receipt", "turn"} {
		if n := value[int](w, "select count(*) from fenceline."+table+" where key = 'k'"); n != 0 {
			w.Errorf("%d rows left in %s", n, table)
		}
	}
	if n := value[int](w, "select count(*) from fenceline.head where key = 'other'"); n != 2 {
		w.Errorf("another key remembers %d streams", n)
	}
	if !value[bool](w, "select tombstone_at > now() - interval '1 min' from fenceline.retention") {
		w.Error("when a tombstone was swept is not remembered")
	}
	fresh := a.acquire("k").Position()
	a.commitTo(fresh, "s", "a")
	r := w.stream("k", "a")
	if last := r[len(r)-1]; last.Seq != 1 || last.History == nil || last.PrevSeq != nil || last.Epoch <= pos.Epoch {
		w.Errorf("the new life begins with %s", show(r[len(r)-1:]))
	}
}

func TestATombstoneStaysUntilAllOfItsKeyIsPublished(t *testing.T) {
	t.Parallel()
	staysUntilPublished(newWorld(t))
}

func staysUntilPublished(w *world) {
	a, op := w.worker("a"), w.operator()
	pos := a.acquire("k").Position()
	a.commitTo(pos, "1", "a", "b")
	before := value[string](w, "select pg_current_snapshot()::text")
	a.close(pos)
	after := value[string](w, "select pg_current_snapshot()::text")
	end := func(topic string) int64 {
		return value[int64](w, "select pos from fenceline.outbox where kind = 'end' and topic = $1", topic)
	}
	lastEnd := max(end("a"), end("b"))
	// Receipts and turns first, so that only the publishing decides.
	op.sweep(soon)
	cursor := func(s1 string, s2 *string, last int64) {
		w.exec(`insert into fenceline.relay_checkpoint (epoch, token, s1, low, s2, high, low2, last_pos, pair_low, pair_xid)
			values (1, 1, $1::text::pg_snapshot, 0, $2::text::pg_snapshot, 0, 0, $3, 0, '3')`, s1, s2, last)
	}
	stays := func(why, reason string) {
		w.Helper()
		dry := soon
		dry.DryRun = true
		for _, r := range []fencing.SweepReport{op.sweep(dry), op.sweep(soon)} {
			if k := keptFor(r, fencing.SweptTombstones, reason); r.Tombstones != 0 || k.Count != 1 || k.Example != "k" {
				w.Fatalf("%s: %+v", why, r)
			}
		}
	}
	stays("no relay has ever run", fencing.KeptUnpublished)
	cursor(before, nil, 0)
	stays("the cursor is before it", fencing.KeptUnpublished)
	cursor(before, &after, lastEnd-1)
	stays("the cursor is inside its window, before its last record", fencing.KeptUnpublished)
	cursor(before, &before, lastEnd)
	stays("the cursor's pos is behind it, and its window's end is not", fencing.KeptUnpublished)
	cursor(after, nil, 0)
	w.exec("insert into fenceline.relay_fork (topic, s1, low, reason, detail) values ('b', $1::text::pg_snapshot, 0, '', '')", before)
	stays("one of its topics is refused", fencing.KeptUnpublished)
	w.exec("update fenceline.relay_fork set s2 = $1::text::pg_snapshot, last_pos = $2", after, lastEnd-1)
	stays("one of its topics catches up", fencing.KeptUnpublished)
	w.exec("delete from fenceline.relay_fork")
	w.exec("insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail) values ('a', 'k', 1, 1, 1, '', '')")
	stays("one of its streams is held", fencing.KeptHeld)
	w.exec("update fenceline.relay_held set key = 'another'")
	w.exec("delete from fenceline.relay_checkpoint")
	cursor(before, &after, lastEnd)
	w.exec("insert into fenceline.relay_fork (topic, s1, low, reason, detail) values ('c', $1::text::pg_snapshot, 0, '', '')", before)
	if r := op.sweep(soon); r.Tombstones != 1 {
		w.Errorf("published: %+v", r)
	}
}

func TestWithAForeignRelayATombstoneGoesByItsAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, op := w.worker("a"), w.operator()
	pos := a.acquire("k").Position()
	a.commitTo(pos, "s", "a")
	a.close(pos)
	cfg := fencing.SweepConfig{RetryWindow: time.Hour, Residence: time.Microsecond, ForeignRelay: true}
	if r := op.sweep(cfg); r.Tombstones != 0 {
		t.Errorf("swept %+v", r)
	}
	cfg.RetryWindow = time.Microsecond
	if r := op.sweep(cfg); r.Tombstones != 1 {
		t.Errorf("swept %+v", r)
	}
}

func TestAKeyThatWasOpenedAgainKeepsItsMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, op := w.worker("a"), w.operator()
	pos := a.acquire("k").Position()
	a.commitTo(pos, "s", "a")
	a.close(pos)
	w.published()
	epoch := a.open("k")
	if r := op.sweep(soon); r.Tombstones != 0 || r.Receipts != 2 || r.Turns != 3 {
		t.Errorf("swept %+v", r)
	}
	fresh := a.acquire("k").Position()
	if fresh.Epoch != epoch {
		t.Errorf("opened as %d, acquired %v", epoch, fresh)
	}
	a.commitTo(fresh, "s", "a")
	r := w.stream("k", "a")
	if last := r[len(r)-1]; last.PrevEpoch == nil || *last.PrevEpoch != pos.Epoch || *last.PrevSeq != 2 {
		t.Errorf("the new life begins with %s", show(r[len(r)-1:]))
	}
}

func TestASweepGoesOnBatchByBatchAndSeveralShareTheWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	want := fencing.SweepReport{}
	for i := range 12 {
		key := fmt.Sprint("k", i)
		pos := a.acquire(key).Position()
		for step := range 7 {
			a.commitTo(pos, fmt.Sprint(step), "t")
			want.Receipts++
		}
		if i%3 == 0 {
			a.close(pos)
			want.Receipts++
			want.Tombstones++
			want.Turns += 2
		} else {
			a.takeOver(key)
			want.Turns += 2
		}
	}
	w.published()
	cfg := soon
	cfg.Batch = 3
	var reports []fencing.SweepReport
	done := make(chan fencing.SweepReport)
	for range 3 {
		op := w.operator()
		go func() { r, err := op.Sweep(ctx, cfg); w.ok(err); done <- r }()
	}
	for range 3 {
		reports = append(reports, <-done)
	}
	reports = append(reports, w.operator().sweep(cfg)) // what one left because another had it
	got := fencing.SweepReport{}
	for _, r := range reports {
		got.Receipts += r.Receipts
		got.Tombstones += r.Tombstones
		got.Turns += r.Turns
	}
	if got.Receipts != want.Receipts || got.Tombstones != want.Tombstones || got.Turns != want.Turns {
		t.Errorf("swept %+v, want %+v", got, want)
	}
	if n := value[int](w, "select count(*) from fenceline.turn"); n != 0 {
		t.Errorf("%d turns left", n)
	}
}

func TestASweepIsRefusedWithoutTheRightTheHistoryOrSense(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, op := w.worker("a"), w.operator()
	for _, cfg := range []fencing.SweepConfig{{RetryWindow: -1}, {Residence: -1}, {Batch: -1}, {Batch: 100_001}, {Every: -1}} {
		_, err := op.Sweep(ctx, cfg)
		w.is(err, fencing.ErrInvalid)
		w.is(op.RunSweeper(ctx, cfg), fencing.ErrInvalid)
	}
	w.is(op.RunSweeper(ctx, fencing.SweepConfig{DryRun: true}), fencing.ErrInvalid)
	for _, args := range []string{"'-1 s', '0', 1", "'0', '-1 s', 1", "null, '0', 1", "'0', null, 1", "'0', '0', 0", "'0', '0', 100001", "'0', '0', null"} {
		_, err := op.pool.Exec(ctx, "select fenceline.sweep_plan("+args+", false)")
		if got := sqlstate(err); got != "FL011" {
			t.Errorf("%s: %s, want FL011", args, got)
		}
	}
	_, err := a.Sweep(ctx, soon)
	if got := sqlstate(err); got != "42501" {
		t.Errorf("a producer's sweep: %v", err)
	}
	if got := sqlstate(a.RunSweeper(ctx, soon)); got != "42501" {
		t.Errorf("a producer's sweeper ends with %s", got)
	}
	w.newIdentity("timeline = '00000009'")
	_, err = op.Sweep(ctx, soon)
	w.is(err, fencing.ErrHistory)
	w.is(op.RunSweeper(ctx, soon), fencing.ErrHistory)
}

func TestASweeperRunsUntilItIsStoppedAndOutlivesALostConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, op := w.worker("a"), w.operator()
	cfg := soon
	cfg.Every = 5 * time.Millisecond
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- op.RunSweeper(running, cfg) }()
	gone := func() {
		t.Helper()
		_, err := a.commit(a.takeOver("k").Position(), content("s", "x"))
		w.ok(err)
		a.takeOver("k")
		pgtest.WaitTrue(t, w.admin, "select not exists (select from fenceline.receipt)")
	}
	gone()
	w.exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", op.pool.Config().ConnConfig.User)
	gone()
	stop()
	if err := <-done; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// A dry run changes nothing at all.
// Nor does it begin a new history where the database may do that by itself, which a
// sweep does.
func TestADryRunBeginsNoNewHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	op := w.operator()
	w.exec("update fenceline.history set timeline = 'FFFFFFFF', on_new = 'bump'") // as if it had been restored
	dry := soon
	dry.DryRun = true
	_, err := op.Sweep(ctx, dry)
	w.is(err, fencing.ErrHistory)
	if n := value[int](w, "select count(*) from fenceline.history_change where why = 'bump by itself'"); n != 0 {
		t.Errorf("a look has begun %d histories", n)
	}
	op.sweep(soon)
	if n := value[int](w, "select count(*) from fenceline.history_change where why = 'bump by itself'"); n != 1 {
		t.Errorf("a sweep has begun %d histories", n)
	}
}

func TestADryRunOnlyReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, op := w.worker("a"), w.operator()
	pos := a.acquire("k").Position()
	a.commitTo(pos, "s", "t")
	a.commitTo(a.takeOver("k").Position(), "s", "t")
	pos = a.acquire("l").Position()
	a.close(pos)
	conn, err := op.pool.Acquire(ctx)
	w.ok(err)
	defer conn.Release()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	w.ok(err)
	_, err = tx.Exec(ctx, "select * from fenceline.sweep_plan('0', '0', 10, false)")
	w.ok(err)
	w.ok(tx.Rollback(ctx))
	dry := soon
	dry.DryRun = true
	plan := op.sweep(dry)
	if !plan.DryRun || plan.Receipts != 2 || plan.Tombstones != 1 || plan.Turns != 4 {
		t.Errorf("plan %+v", plan)
	}
	if r := op.sweep(soon); r.Receipts != plan.Receipts || r.Tombstones != plan.Tombstones || r.Turns != plan.Turns {
		t.Errorf("planned %+v, swept %+v", plan, r)
	}
	var invalid *fencing.InvalidError
	if _, err := op.Sweep(ctx, fencing.SweepConfig{Residence: -time.Second}); !errors.As(err, &invalid) || invalid.Field != "residence" {
		t.Errorf("%v", err)
	}
	if login := pgmigrated.Login(t, w.dsn, schema.KindMonitor); sqlstateOf(w.session(login), "select * from fenceline.sweep_plan('0', '0', 10, false)") != "42501" {
		t.Error("a monitor may plan a sweep")
	}
}
