package fencing_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// Under a held snapshot each commit leaves a dead row in head, and none is read:
// the newest is found from the index's end, and the one that goes by its whole
// key.
func TestCommitsUnderAHeldSnapshotDoNotReadTheDeadRowsOfTheirStream(t *testing.T) {
	t.Parallel()
	for name, prepare := range plansBefore {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			prepare(w)
			readsNoDeadHead(w)
		})
	}
}

// plansBefore is what the planner knows of head when the sessions make the plans
// that they keep.
var plansBefore = map[string]func(*world){
	"never analyzed": func(*world) {},
	// One page: reading it all costs less than a descent of the index.
	"analyzed with one row": func(w *world) {
		w.exec("insert into fenceline.head values ('other', 'other', 1, 1)")
		w.exec("analyze fenceline.head")
	},
	// One stream with all the rows, as if those of a held snapshot were alive.
	"analyzed with a long stream": func(w *world) {
		w.exec("insert into fenceline.head select 'results', 'k', 1, i from generate_series(1, 5000) i")
		w.exec("analyze fenceline.head")
		w.exec("delete from fenceline.head")
	},
}

func readsNoDeadHeadOfASmallTable(w *world) {
	plansBefore["analyzed with one row"](w)
	readsNoDeadHead(w)
}

func readsNoDeadHead(w *world) {
	w.Helper()
	a := w.workerAt("a", w.producer, 1)
	lease := a.acquire("k")
	n := 0
	// Every way to append, as often as it takes to settle for a plan.
	round := func(times int) {
		for range times {
			n++
			_, err := a.CommitBatch(ctx, lease.Position(), content(fmt.Sprint("batch ", n), "x"), writeBatch)
			w.ok(err)
			_, err = a.commit(lease.Position(), content(fmt.Sprint("callback ", n), "x"))
			w.ok(err)
			_, err = a.Commit(ctx, lease.Position(), content(fmt.Sprint("several ", n), "x"), func(ctx context.Context, tx fencing.Tx) error {
				return outbox.Append(ctx, tx, outbox.Event{Topic: "results", Type: "a"}, outbox.Event{Topic: "results", Type: "b"})
			})
			w.ok(err)
		}
	}
	held, err := w.session(w.dsn).BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	w.ok(err)
	defer func() { _ = held.Rollback(ctx) }()
	_, err = held.Exec(ctx, "select txid_current()")
	w.ok(err)
	round(20)
	before := w.headReads(a)
	const times = 40
	round(times)
	after := w.headReads(a)
	if n := after.scans - before.scans; n != 0 {
		w.Errorf("head was read as a whole %d times", n)
	}
	// A commit looks once and deletes once. Each finds the one row that lives,
	// and at most the ones of the commit before on its way.
	if n := after.entries - before.entries; n > 3*times*4 {
		w.Errorf("%d commits have read %d entries of head's index", 3*times, n)
	}
	if dead := value[int](w, "select count(*)::int from fenceline.head where topic = 'results' and key = 'k'"); dead != 1 {
		w.Errorf("%d rows of head are left", dead)
	}
}

// headReads is how often head was read from its beginning to its end, and how
// many entries of its index were.
type headReads struct{ scans, entries int64 }

func (w *world) headReads(k *worker) (r headReads) {
	w.Helper()
	// What a session has counted is there as soon as this has its answer.
	_, err := k.pool.Exec(ctx, "select pg_stat_force_next_flush()")
	w.ok(err)
	err = w.admin.QueryRow(ctx, `select t.seq_scan, i.idx_tup_read from pg_stat_user_tables t join pg_stat_user_indexes i using (relid)
		where t.relid = 'fenceline.head'::regclass and i.indexrelname = 'head_pkey'`).Scan(&r.scans, &r.entries)
	w.ok(err)
	return r
}
