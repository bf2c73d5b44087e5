package fencing_test

import (
	"fmt"
	"testing"

	"github.com/fenceline/fenceline/fencing"
)

// Each rule of the lives of a key and of the sweep, taken away, and the scenario
// that must then fail.
func TestEachRuleOfTheLivesOfAKeyIsNeededByAScenario(t *testing.T) {
	t.Parallel()
	type piece struct{ function, piece, with string }
	for name, m := range map[string]struct {
		scenario func(*world)
		pieces   []piece
	}{
		"end records only where this life had an event": {endsEveryStream, []piece{
			{"close", "for st in select * from @schema@._streams(p_key) loop", "for st in select * from @schema@._streams(p_key) x where x.epoch = p_epoch loop"}}},
		"a close that leaves no receipt of its own kind": {nothingBehindTheEnd, []piece{{"close", "close_digest, s, '0')", "close_digest, s, pg_current_xact_id())"}}},
		"a close behind a gate of its own transaction":   {nothingBehindTheEnd, []piece{{"close", "and r.committed_at >= transaction_timestamp() and r.key = p_key", "and false"}}},
		"a close that does not look at the epoch": {staleClose, []piece{
			{"close", "where key = p_key and epoch = p_epoch and max_issued_token = p_token and closed_at is null for no key update", "where key = p_key and max_issued_token = p_token and closed_at is null for no key update"}}},
		"F that does not look at the epoch": {requestOfAnEarlierLife, []piece{
			{"enter", "key = p_key and epoch = p_epoch and max_issued_token = p_token and closed_at is null and (owner is null or owner = session_user) for no key update", "key = p_key and max_issued_token = p_token and closed_at is null for no key update"}}},
		"an epoch from the clock alone, opened again":     {neverComesBack["when it is opened again"], []piece{{"open", ", f.epoch + 1)", ")"}, {"_fence_monotone", "(new.epoch, new.max_issued_token) < (old.epoch, old.max_issued_token)", "false"}, {"_fence_monotone", "(old.closed_at is not null and new.closed_at is null and new.epoch <= old.epoch)", "false"}}},
		"a tombstone that goes without raising the floor": {neverComesBack["when its tombstone was swept"], []piece{{"sweep_tombstones", "where epoch_floor <= newest", "where false"}}},
		"the floor read before the insert": {sweptWhileOpened, []piece{
			{"_lock_fence", "pids int[];", "pids int[]; floor_before bigint := (select epoch_floor from @schema@.history);"},
			{"_lock_fence", "greatest(epoch_floor, @schema@._now_us()) epoch from @schema@.history", "greatest(floor_before, @schema@._now_us()) epoch"},
			{"_fence_epoch", "if new.epoch < (select", "if false and new.epoch < (select"}}},
		"any epoch may be written": {noHandBringsAnEpochBack, []piece{{"_fence_epoch", "if new.epoch < (select", "if false and new.epoch < (select"}}},
		"receipts of the newest token": {keptByEachRule, []piece{
			{"sweep_floors", "t.token - (t.why <> 'close')::int as token", "t.token"},
			{"sweep_floors", "and ((w.epoch, w.token) < (f.epoch, f.max_issued_token) or (f.closed_at is not null and (w.epoch, w.token) = (f.epoch, f.max_issued_token)))", ""}}},
		"no retry window":              {keptByEachRule, []piece{{"_sweep_until", "- p_retry", ""}}},
		"no residence":                 {keptByEachRule, []piece{{"_sweep_until", "- p_residence", ""}}},
		"the longer of the two times":  {keptByEachRule, []piece{{"_sweep_until", "- p_retry - p_residence", "- greatest(p_retry, p_residence)"}}},
		"receipts go before the floor": {onlyBelowTheFloor, []piece{{"sweep_receipts", "(c.epoch, c.token) <= (t.floor_epoch, t.floor_token)", "(c.epoch, c.token) <= (t.epoch, t.token)"}}},
		"receipts whose floor is told to nobody": {unconfirmableAfterTheSweep, []piece{
			{"sweep_floors", "set floor_epoch = m.epoch, floor_token = m.token", "set floor_epoch = f.floor_epoch"},
			{"sweep_receipts", "(c.epoch, c.token) <= (t.floor_epoch, t.floor_token)", "(c.epoch, c.token) <= (t.epoch, t.token)"}}},
		"a memory that outlives the tombstone":  {nothingIsLeft, []piece{{"sweep_tombstones", "delete from @schema@.head h where h.topic = t and h.key = any (gone);", "null;"}}},
		"a memory that takes its neighbours":    {nothingIsLeft, []piece{{"sweep_tombstones", "where h.topic = t and h.key = any (gone);", "where h.topic = t;"}}},
		"tombstones of what is not published":   {staysUntilPublished, []piece{{"sweep_tombstones", "case when p_foreign_relay then", "case when true then"}}},
		"tombstones whatever forks say":         {staysUntilPublished, []piece{{"_unpublished", "left join @schema@.relay_fork k on k.topic = s.topic", "left join @schema@.relay_fork k on false"}}},
		"tombstones of streams that are held":   {staysUntilPublished, []piece{{"_unpublished", "d.topic = s.topic and d.key = p_key", "false"}}},
		"tombstones by pos alone":               {staysUntilPublished, []piece{{"_unpublished", "and pg_visible_in_snapshot(p_xid, case when k.topic is null then m.s2 else k.s2 end)", ""}}},
		"tombstones by the window's end alone":  {staysUntilPublished, []piece{{"_unpublished", "p_pos <= case when k.topic is null then m.last_pos else k.last_pos end", "true"}}},
		"a tombstone while its receipts remain": {tombstoneBehindReceipts, []piece{{"sweep_tombstones", "and not exists (select 1 from @schema@.receipt r where r.key = x.key)", ""}}},
		"a tombstone of a life that was reopened": {reopenedBehindTheSweep, []piece{
			{"sweep_tombstones", "on f.key = w.key and f.epoch = w.epoch and f.closed_at is not null\n     order by f.key for update of f skip locked", "on f.key = w.key\n     order by f.key for update of f"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, p := range m.pieces {
				w.mutate(p.function, p.piece, p.with)
			}
			if !fails(w, m.scenario) {
				t.Error("the scenario passes without the rule")
			}
		})
	}
}

func TestACloseOfAnEarlierLifeClosesNothing(t *testing.T) {
	t.Parallel()
	staleClose(newWorld(t))
}

func staleClose(w *world) {
	a := w.worker("a")
	old := a.acquire("k").Position()
	a.close(old)
	// Its receipt is gone, or it would answer.
	w.operator().sweep(soon)
	a.open("k")
	fresh := a.acquire("k").Position()
	if fresh.Token != old.Token {
		w.Fatalf("from %v to %v", old, fresh)
	}
	_, err := a.Close(ctx, old)
	w.is(err, fencing.ErrUnconfirmable)
	_, err = a.commit(fresh, content("s", "x"))
	w.ok(err)
}

func TestAfterTheSweepARetryIsUnconfirmable(t *testing.T) {
	t.Parallel()
	unconfirmableAfterTheSweep(newWorld(t))
}

func unconfirmableAfterTheSweep(w *world) {
	a := w.worker("a")
	pos := a.acquire("k").Position()
	_, err := a.commit(pos, content("s", "x"))
	w.ok(err)
	a.takeOver("k")
	if r := w.operator().sweep(soon); r.Receipts != 1 {
		w.Fatalf("swept %+v", r)
	}
	_, err = a.commit(pos, content("s", "x"))
	w.is(err, fencing.ErrUnconfirmable)
}

func TestATombstoneOutlivesTheReceiptsOfItsKey(t *testing.T) {
	t.Parallel()
	tombstoneBehindReceipts(newWorld(t))
}

// A receipt that another sweep is at work on is passed over; the tombstone, on
// whose floor it rests, must not go before it.
func tombstoneBehindReceipts(w *world) {
	a, op := w.worker("a"), w.operator()
	pos := a.acquire("k").Position()
	a.commitTo(pos, "s", "t")
	a.close(pos)
	w.published()
	tx, err := w.session(w.dsn).Begin(ctx)
	w.ok(err)
	_, err = tx.Exec(ctx, "select 1 from fenceline.receipt where step = 's' for update")
	w.ok(err)
	if r := op.sweep(soon); r.Tombstones != 0 || r.Receipts != 1 {
		w.Errorf("swept %+v", r)
	}
	w.ok(tx.Rollback(ctx))
	again, err := a.commit(pos, content("s", "x"))
	w.ok(err)
	if !again.Replayed {
		w.Error("not replayed")
	}
	if r := op.sweep(soon); r.Tombstones != 1 || r.Receipts != 1 {
		w.Errorf("swept %+v", r)
	}
}

func TestAnOpenThatComesBeforeTheSweepKeepsTheKey(t *testing.T) {
	t.Parallel()
	reopenedBehindTheSweep(newWorld(t))
}

// The sweep sees the tombstone as it was, while an open of the key is not yet
// committed.
func reopenedBehindTheSweep(w *world) {
	a, op := w.worker("a"), w.operator()
	pos := a.acquire("k").Position()
	a.commitTo(pos, "s", "t")
	a.close(pos)
	op.sweep(soon) // the receipts
	w.published()
	opener := w.session(w.producer)
	tx, err := opener.Begin(ctx)
	w.ok(err)
	var epoch int64
	w.ok(tx.QueryRow(ctx, "select epoch from fenceline.open('k')").Scan(&epoch))
	sweeper := w.session(w.dsn)
	swept := later(sweeper, "select fenceline.sweep_tombstones('0', '0', 10, '-infinity', 0, 'infinity', 0, false)")
	for waits := false; !waits; {
		select {
		case err := <-swept: // as it should, without waiting
			w.ok(err)
			swept = nil
			waits = true
		default:
			waits = value[bool](w, "select cardinality(pg_blocking_pids($1)) > 0", int32(sweeper.PgConn().PID()))
		}
	}
	w.ok(tx.Commit(ctx))
	if swept != nil {
		w.ok(<-swept)
	}
	if got := value[string](w, "select coalesce(string_agg(epoch::text, ' '), '') from fenceline.fence where key = 'k'"); got != fmt.Sprint(epoch) {
		w.Errorf("the fence is at %q, opened as %d", got, epoch)
	}
	if n := value[int](w, "select count(*) from fenceline.head where key = 'k'"); n != 1 {
		w.Errorf("the key remembers %d streams", n)
	}
}
