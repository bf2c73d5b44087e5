package fencing_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// clockSetBack has sessions with the setting test.back see a clock that was set
// back by so much after their transactions had begun: PostgreSQL's own function goes
// under another name, and one of the test's has taken its place.
func (w *world) clockSetBack() {
	w.Helper()
	w.exec(`alter function pg_catalog.clock_timestamp() rename to the_clock`)
	w.exec(`create function pg_catalog.clock_timestamp() returns timestamptz language sql volatile as
		$$ select pg_catalog.the_clock() - coalesce(nullif(pg_catalog.current_setting('test.back', true), ''), '0')::pg_catalog.interval $$`)
	// A default knows the function that it was made with, and not its name.
	w.exec(`do $$ declare was text; begin
		select replace(pg_get_expr(d.adbin, d.adrelid), 'the_clock', 'clock_timestamp') into was
		  from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum where d.adrelid = 'fenceline.receipt'::regclass and a.attname = 'committed_at';
		execute 'alter table fenceline.receipt alter column committed_at set default ' || was;
	end $$`)
}

func setBack(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["test.back"] = "1 hour" }

// A pass is a receipt that is no older than its transaction. Where the clock was set
// back while the commit waited for its fence, it would be, and nothing could be
// appended behind a gate that had let the commit through.
func TestAClockThatIsSetBackWhileACommitWaitsFailsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.clockSetBack()
	w.protect("key", "result")
	var back time.Duration
	conn := w.session(w.producer)
	_, err := conn.Exec(ctx, "set test.back = '1 hour'")
	w.ok(err)
	w.ok(conn.QueryRow(ctx, "select now() - clock_timestamp()").Scan(&back))
	if back < 59*time.Minute {
		t.Fatalf("the clock is back by %v", back)
	}

	k := w.workerOn(w.poolAt(w.producer, 2, setBack), fencing.Config{Holder: "k"})
	g := w.workerOn(w.poolAt(w.producer, 1, setBack), fencing.Config{Holder: "g", GroupCommit: 1})
	lease := k.acquire("k")
	event := func(c outbox.Tx) error {
		return outbox.Append(ctx, c, outbox.Event{Topic: "results", Type: "t"})
	}
	for name, commit := range map[string]func() (fencing.Receipt, error){
		"callback": func() (fencing.Receipt, error) { return lease.Commit(ctx, content("callback", "x"), write) },
		"nothing queued": func() (fencing.Receipt, error) {
			return lease.Commit(ctx, content("nothing", "x"), func(ctx context.Context, tx fencing.Tx) error {
				_, err := tx.Exec(ctx, "insert into public.result values ('k', 'x')")
				return err
			})
		},
		"batch": func() (fencing.Receipt, error) {
			return lease.CommitBatch(ctx, content("batch", "x"), func(b *fencing.Batch) error { return event(b) })
		},
		"batch of two": func() (fencing.Receipt, error) {
			return lease.CommitBatch(ctx, content("two", "x"), func(b *fencing.Batch) error {
				return errors.Join(event(b), event(b), b.SetResult([]byte("r")))
			})
		},
		"several gates": func() (fencing.Receipt, error) {
			gates := []fencing.Gate{{Position: lease.Position(), Content: content("all", "x")}, {Position: k.acquire("l").Position(), Content: content("all", "x")}}
			r, err := k.CommitAll(ctx, gates, func(ctx context.Context, txs []fencing.Tx) error {
				return errors.Join(write(ctx, txs[0]), write(ctx, txs[1]))
			})
			return append(r, fencing.Receipt{})[0], err
		},
		"entered": func() (r fencing.Receipt, err error) {
			tx, err := k.pool.Begin(ctx)
			w.ok(err)
			defer tx.Rollback(ctx) // nothing of it is needed
			entered, err := k.Enter(ctx, tx, lease.Position(), content("entered", "x"))
			if err != nil {
				return r, err
			}
			if _, err := k.Enter(ctx, tx, lease.Position(), content("entered", "x")); !errors.Is(err, fencing.ErrMisuse) {
				t.Errorf("the same step twice: %v", err)
			}
			_ = entered
			return r, nil
		},
	} {
		if _, err := commit(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	one, two := g.acquire("one"), g.acquire("two")
	var all []answer
	for range 2 { // the first events of their streams, and others
		s := time.Now().String()
		all = append(all, g.inGroup(fencing.WaitInGroup, batchOf(one, s, "x"), batchOf(two, s, "x"))...)
	}
	all = append(all, k.together(lease, batchOf(lease, "a", "x"), batchOf(lease, "b", "x"), batchOf(lease, "c", "x"))...)
	for i, got := range all {
		if got.err != nil {
			t.Errorf("together, %d: %v", i, got.err)
		}
	}
	w.gapless()
	if _, err := lease.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// Whatever is told of a lease is of one moment: a clock that goes on between two looks
// at it makes of a reservation one for nobody, until no time.
func TestWhatIsToldOfALeaseIsOfOneMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.worker("k")
	w.ok(k.acquire("k").HandOver(ctx, "b"))
	o, err := fencing.NewOperator(ctx, w.admin, "")
	w.ok(err)
	w.exec("update fenceline.lease set reserved_until = clock_timestamp() + interval '90 min', waiter = 'w', waiter_until = clock_timestamp() + interval '90 min' where key = 'k'")
	w.exec("create sequence public.looks")
	w.exec("alter function pg_catalog.clock_timestamp() rename to the_clock")
	w.exec(`create function pg_catalog.clock_timestamp() returns timestamptz language sql volatile as
		$$ select pg_catalog.the_clock() + pg_catalog.nextval('public.looks') * interval '1 hour' $$`)
	leases, err := o.Leases(ctx, fencing.LeaseFilter{})
	w.ok(err)
	w.exec("alter sequence public.looks restart")
	info, err := o.Show(ctx, "k", 0)
	w.ok(err)
	for _, l := range append(leases, *info.Lease) {
		if l.State != fencing.LeaseReserved || l.Successor != "b" || l.ReservedUntil.IsZero() || l.Waiter != "w" {
			t.Errorf("%+v", l)
		}
	}
}
