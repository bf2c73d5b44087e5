package fencing_test

import (
	"fmt"
	"testing"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// The retry has passed R1 before its first attempt commits, and the sweep takes
// the receipt before it reads it in R2.
func TestASweepBetweenTheGateAndTheSecondLookIsNeverAFirstCommitNorStale(t *testing.T) {
	t.Parallel()
	for name, piece := range map[string]string{"before F": "-- F: every fact", "after F": "-- H: a new statement"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, retry, op := w.worker("a"), w.worker("retry"), w.operator()
			pos := a.acquire("k").Position()
			w.mutate("enter", piece, "if current_setting('application_name') = 'slow' then perform pg_advisory_xact_lock(9); end if;\n"+piece)
			w.mutate("_refuse", "\nbegin\n", "\nbegin\nif current_setting('application_name') = 'slow' then perform pg_advisory_xact_lock(9); end if;\n")
			_, err := retry.pool.Exec(ctx, "set application_name = 'slow'")
			w.ok(err)
			pause := w.session(w.dsn)
			_, err = pause.Exec(ctx, "select pg_advisory_lock(9)")
			w.ok(err)
			pid := retry.pid()
			if name == "after F" {
				// F misses at once, and R2 is where it stands.
				_, err = a.commit(pos, content("s", "x"))
				w.ok(err)
				a.takeOver("k")
			}
			second := retry.commitLater(pos, content("s", "x"))
			pgtest.WaitBlocked(t, w.admin, pid, pause.PgConn().PID())
			if name == "before F" {
				_, err = a.commit(pos, content("s", "x"))
				w.ok(err)
				a.takeOver("k")
			}
			if r := op.sweep(soon); r.Receipts != 1 {
				t.Fatalf("swept %+v", r)
			}
			_, err = pause.Exec(ctx, "select pg_advisory_unlock(9)")
			w.ok(err)
			w.is((<-second).err, fencing.ErrUnconfirmable)
			w.wantWritten("k", written{0, 1, 1})
		})
	}
}

func TestAReceiptGoesOnlyWhenItsFloorHasCommitted(t *testing.T) {
	t.Parallel()
	onlyBelowTheFloor(newWorld(t))
}

// The key's fence is busy, so its floor can't rise; its receipts stay, and a
// retry is replayed.
func onlyBelowTheFloor(w *world) {
	a, b, op := w.worker("a"), w.worker("b"), w.operator()
	first := a.acquire("k").Position()
	_, err := a.commit(first, content("s", "x"))
	w.ok(err)
	other := a.acquire("l").Position()
	_, err = a.commit(other, content("s", "x"))
	w.ok(err)
	a.takeOver("l")
	second := a.takeOver("k").Position()
	commit := b.pauseBehindGate(second, content("s", "x"))
	r := op.sweep(soon)
	if r.Receipts != 1 || keptFor(r, fencing.SweptReceipts, fencing.KeptBusy).Count != 1 {
		w.Errorf("swept %+v", r)
	}
	again, err := a.commit(first, content("s", "x"))
	w.ok(err)
	if !again.Replayed {
		w.Error("not replayed")
	}
	commit.goOn()
	w.ok((<-commit.done).err)
	if r := op.sweep(soon); r.Receipts != 1 || len(r.Kept) != 0 {
		w.Errorf("swept %+v", r)
	}
}

func TestASweepQueuesForAFenceThatIsNeverIdle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, op := w.worker("a"), w.worker("b"), w.operator()
	first := a.acquire("k").Position()
	_, err := a.commit(first, content("s", "x"))
	w.ok(err)
	second := a.takeOver("k").Position()
	commit := b.pauseBehindGate(second, content("s", "x"))
	swept := make(chan fencing.SweepReport, 1)
	go func() { r, err := op.Sweep(ctx, soon); w.ok(err); swept <- r }()
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", int32(commit.pid))
	commit.goOn()
	w.ok((<-commit.done).err)
	if r := <-swept; r.Receipts != 1 || len(r.Kept) != 0 {
		t.Errorf("swept %+v", r)
	}
}

// A transaction that has removed receipts and turns and does not end.
func TestCommitsDoNotWaitForReceiptsThatAreBeingSwept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	first := a.acquire("k").Position()
	for i := range 5 {
		_, err := a.commit(first, content(fmt.Sprint(i), "x"))
		w.ok(err)
	}
	second := a.takeOver("k").Position()
	w.exec("select fenceline.sweep_floors('0', '0', 10, '-infinity', 0)")
	tx, err := w.session(w.dsn).Begin(ctx)
	w.ok(err)
	defer func() { _ = tx.Rollback(ctx) }()
	var receipts int
	w.ok(tx.QueryRow(ctx, "select receipts from fenceline.sweep_receipts('0', '0', 10, '-infinity', 0, 'infinity', 0)").Scan(&receipts))
	if receipts != 5 {
		t.Fatalf("%d receipts removed", receipts)
	}
	_, err = a.pool.Exec(ctx, "set lock_timeout = '100 ms'")
	w.ok(err)
	_, err = a.commit(second, content("s", "x"))
	w.ok(err)
	third := a.takeOver("k").Position()
	_, err = a.commit(third, content("s", "x"))
	w.ok(err)
	// As long as the transaction is open, what it removes still answers.
	again, err := a.commit(first, content("3", "x"))
	w.ok(err)
	if !again.Replayed {
		t.Error("not replayed")
	}
	// And another sweep does not wait for it.
	if r := w.operator().sweep(soon); r.Receipts != 1 {
		t.Errorf("swept %+v", r)
	}
	w.ok(tx.Commit(ctx))
	_, err = a.commit(first, content("3", "x"))
	w.is(err, fencing.ErrUnconfirmable)
}
