package fencing_test

import (
	"context"
	"errors"
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

// road is one of the ways on which commits come to a gate: by their shape, and by
// who goes with them. The gate of a single commit, of several steps of a key and of
// several keys are functions of their own, and the first has a short way and a long
// one; so whatever a gate promises is asked on each road.
type road struct {
	name        string
	lease, mate *fencing.Lease // of whom goes with it
	// wakes is how often the relay is woken for a commit.
	wakes int64
	// commit has the commits of some steps, whose names begin with step, execute a
	// statement about their key and their step. Of a lease's first ones it is certain
	// who goes with whom: later ones may be too slow for company.
	commit func(ctx context.Context, step, sql string) []answer
}

// ownTransaction is the road of those who begin and commit their transaction
// themselves.
const ownTransaction = "transaction of one's own"

func (r road) key() string { return r.lease.Position().Key }

// roads are all of them, or those of the names, each with a key of its own.
func (w *world) roads(cfg fencing.Config, names []string, edit ...func(*pgxpool.Config)) (roads []road) {
	w.Helper()
	cfg.Holder = "plain"
	plain := w.workerOn(w.poolAt(w.producer, 2, edit...), cfg)
	cfg.Holder, cfg.GroupCommit = "group", 1
	group := w.workerOn(w.poolAt(w.producer, 2, edit...), cfg)
	add := func(name string, k *worker, wakes int64, commit func(lease, mate *fencing.Lease) func(ctx context.Context, step, sql string) []answer) {
		if len(names) > 0 && !slices.Contains(names, name) {
			return
		}
		cfg := long
		if strings.Contains(name, "callbacks") {
			cfg.CoalesceCallbacks = 8
		}
		lease, mate := k.acquireWith(name, cfg), k.acquireWith("mate of "+name, cfg)
		roads = append(roads, road{name, lease, mate, wakes, commit(lease, mate)})
	}
	one := func(commit func(ctx context.Context, lease *fencing.Lease, c fencing.Content, sql string) (fencing.Receipt, error)) func(lease, mate *fencing.Lease) func(ctx context.Context, step, sql string) []answer {
		return func(lease, _ *fencing.Lease) func(ctx context.Context, step, sql string) []answer {
			return func(ctx context.Context, step, sql string) []answer {
				r, err := commit(ctx, lease, content(step, "x"), sql)
				return []answer{{r, err}}
			}
		}
	}
	add("callback", plain, 1, one(func(ctx context.Context, l *fencing.Lease, c fencing.Content, sql string) (fencing.Receipt, error) {
		return l.Commit(ctx, c, appending(sql))
	}))
	add("callback with a savepoint", plain, 1, one(func(ctx context.Context, l *fencing.Lease, c fencing.Content, sql string) (fencing.Receipt, error) {
		return l.Commit(ctx, c, inSavepoint(sql))
	}))
	add("callback by position", plain, 1, one(func(ctx context.Context, l *fencing.Lease, c fencing.Content, sql string) (fencing.Receipt, error) {
		return plain.Commit(ctx, l.Position(), c, appending(sql))
	}))
	for events, name := range []string{"batch without events", "batch with an event", "batch with two events"} {
		add(name, plain, int64(min(events, 1)), one(func(ctx context.Context, l *fencing.Lease, c fencing.Content, sql string) (fencing.Receipt, error) {
			return l.CommitBatch(ctx, c, batch(sql, events))
		}))
	}
	add("batch by position", plain, 1, one(func(ctx context.Context, l *fencing.Lease, c fencing.Content, sql string) (fencing.Receipt, error) {
		return plain.CommitBatch(ctx, l.Position(), c, batch(sql, 1))
	}))
	add("several gates", plain, 1, func(lease, mate *fencing.Lease) func(ctx context.Context, step, sql string) []answer {
		return func(ctx context.Context, step, sql string) []answer {
			gates := []fencing.Gate{{Position: mate.Position(), Content: content(step, "x")}, {Position: lease.Position(), Content: content(step, "x")}}
			receipts, err := plain.CommitAll(ctx, gates, func(ctx context.Context, txs []fencing.Tx) error { return appending(sql)(ctx, txs[1]) })
			return []answer{{append(receipts, fencing.Receipt{}, fencing.Receipt{})[1], err}}
		}
	})
	add(ownTransaction, plain, 0, one(func(ctx context.Context, l *fencing.Lease, c fencing.Content, sql string) (r fencing.Receipt, err error) {
		tx, err := plain.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
		if err != nil {
			return r, err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		entered, err := plain.Enter(ctx, tx, l.Position(), c)
		if errors.Is(err, fencing.ErrReplayed) {
			return fencing.Receipt{Replayed: true}, nil
		} else if err != nil {
			return r, err
		}
		_, err = tx.Exec(ctx, sql, l.Position().Key, c.Step)
		return r, errors.Join(err, outbox.Append(ctx, entered, eventOf(c.Step)), tx.Commit(ctx))
	}))
	add("batches of a key", plain, 1, func(lease, _ *fencing.Lease) func(ctx context.Context, step, sql string) []answer {
		return func(ctx context.Context, step, sql string) []answer {
			return plain.together(lease, batches(ctx, lease, step+" 1", sql), batches(ctx, lease, step+" 2", sql))
		}
	})
	add("callbacks of a key", plain, 1, func(lease, _ *fencing.Lease) func(ctx context.Context, step, sql string) []answer {
		return func(ctx context.Context, step, sql string) []answer {
			return plain.togetherIn(lease, callbacks(ctx, lease, step+" 1", sql), callbacks(ctx, lease, step+" 2", sql))
		}
	})
	add("callbacks of a key with savepoints", plain, 1, func(lease, _ *fencing.Lease) func(ctx context.Context, step, sql string) []answer {
		return func(ctx context.Context, step, sql string) []answer {
			commit := func(step string) func() (fencing.Receipt, error) {
				return func() (fencing.Receipt, error) { return lease.Commit(ctx, content(step, "x"), inSavepoint(sql)) }
			}
			return plain.togetherIn(lease, commit(step+" 1"), commit(step+" 2"))
		}
	})
	// The mate's answer is its own affair.
	add("group of batches", group, 1, func(lease, mate *fencing.Lease) func(ctx context.Context, step, sql string) []answer {
		return func(ctx context.Context, step, sql string) []answer {
			return group.inGroup(fencing.WaitInGroup, batches(ctx, mate, step, sql), batches(ctx, lease, step, sql))[1:]
		}
	})
	add("group of callbacks", group, 1, func(lease, mate *fencing.Lease) func(ctx context.Context, step, sql string) []answer {
		return func(ctx context.Context, step, sql string) []answer {
			return group.inGroup(fencing.WaitForGroupCallbacks, callbacks(ctx, mate, step, sql), callbacks(ctx, lease, step, sql))[1:]
		}
	})
	return roads
}

func eventOf(step string) outbox.Event {
	return outbox.Event{Topic: "results", Type: "result", Payload: []byte(step)}
}

func appending(sql string) func(ctx context.Context, tx fencing.Tx) error {
	return func(ctx context.Context, tx fencing.Tx) error {
		_, err := tx.Exec(ctx, sql, tx.Gate().Key, tx.Gate().Step)
		return errors.Join(err, outbox.Append(ctx, tx, eventOf(tx.Gate().Step)))
	}
}

// part is a part of a transaction that has passed a gate, with events that go with it.
type part struct {
	pgx.Tx
	pass outbox.Pass
}

func (p part) Gate() outbox.Pass { return p.pass }

func inSavepoint(sql string) func(ctx context.Context, tx fencing.Tx) error {
	return func(ctx context.Context, tx fencing.Tx) error {
		nested, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		_, err = nested.Exec(ctx, sql, tx.Gate().Key, tx.Gate().Step)
		return errors.Join(err, outbox.Append(ctx, part{nested, tx.Gate()}, eventOf(tx.Gate().Step)), nested.Commit(ctx))
	}
}

func batch(sql string, events int) func(b *fencing.Batch) error {
	return func(b *fencing.Batch) (err error) {
		b.Queue(sql, b.Gate().Key, b.Gate().Step)
		for range events {
			err = errors.Join(err, outbox.Append(ctx, b, eventOf(b.Gate().Step)))
		}
		return err
	}
}

func batches(ctx context.Context, lease *fencing.Lease, step, sql string) func() (fencing.Receipt, error) {
	return func() (fencing.Receipt, error) { return lease.CommitBatch(ctx, content(step, "x"), batch(sql, 1)) }
}

func callbacks(ctx context.Context, lease *fencing.Lease, step, sql string) func() (fencing.Receipt, error) {
	return func() (fencing.Receipt, error) { return lease.Commit(ctx, content(step, "x"), appending(sql)) }
}

// ends are what can befall a lease so that nothing commits under it any more.
var ends = map[string]struct {
	befall func(w *world, roads []road)
	want   error
}{
	"taken over": {func(w *world, roads []road) {
		other := w.worker("other")
		for _, r := range roads {
			other.takeOver(r.key())
		}
	}, fencing.ErrStale},
	"closed": {func(w *world, roads []road) {
		other := w.worker("other")
		for _, r := range roads {
			other.close(r.lease.Position())
		}
	}, fencing.ErrClosed},
	"of an earlier life": {func(w *world, roads []road) {
		other := w.worker("other")
		for _, r := range roads {
			old := r.lease.Position()
			other.close(old)
			other.open(r.key())
			if now := other.acquire(r.key()).Position(); now.Token != old.Token {
				w.Fatalf("%v, then %v: equal tokens are needed", old, now)
			}
		}
	}, fencing.ErrStale},
	"another login's": {func(w *world, roads []road) {
		for _, r := range roads {
			w.exec("update fenceline.fence set owner = 'somebody else' where key = $1", r.key())
		}
	}, fencing.ErrOwner},
	"in another history": {func(w *world, _ []road) { w.newIdentity("timeline = '00000009'") }, fencing.ErrHistory},
	"on another server":  {func(w *world, _ []road) { w.newIdentity("system_identifier = system_identifier + 1") }, fencing.ErrHistory},
	"an old dump's":      {func(w *world, _ []road) { w.newIdentity("self_oid = (self_oid::bigint + 1)::oid") }, fencing.ErrHistory},
	"of before a bump": {func(w *world, _ []road) {
		w.newIdentity("timeline = '00000009'")
		value[int64](w, "select fenceline.history_bump()")
	}, fencing.ErrUnconfirmable},
}

func TestOnWhicheverWayACommitComesTheGateGivesTheSameAnswer(t *testing.T) {
	t.Parallel()
	for name := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusedOn(name)(newWorld(t))
		})
	}
}

// refusedOn has something befall a lease, and then commits under it.
func refusedOn(end string, names ...string) func(*world) {
	return func(w *world) {
		roads := w.roads(fencing.Config{}, names)
		elsewhere := w.worker("elsewhere")
		for _, r := range roads {
			for _, step := range []string{"before", "before 1", "before 2"} {
				for _, lease := range []*fencing.Lease{r.lease, r.mate} {
					_, err := elsewhere.Commit(ctx, lease.Position(), content(step, "x"), appending(insertResult))
					w.ok(err)
				}
			}
		}
		ends[end].befall(w, roads)
		for _, r := range roads {
			for _, got := range r.commit(ctx, "late", insertResult) {
				if !errors.Is(got.err, ends[end].want) {
					w.Errorf("%s: %v, want %v", r.name, got.err, ends[end].want)
				}
			}
			if n := value[int](w, `select (select count(*) from fenceline.receipt where starts_with(step, 'late') and key = any ($1))
				+ (select count(*) from public.result where starts_with(note, 'late') and key = $2)
				+ (select count(*) from fenceline.outbox where starts_with(convert_from(payload, 'UTF8'), 'late') and key = $2)`, []string{r.key()}, r.key()); n != 0 {
				w.Errorf("%s: %d rows are written", r.name, n)
			}
			// What has committed before is certain, and no other login's business.
			for _, got := range r.commit(ctx, "before", insertResult) {
				switch {
				case ends[end].want == fencing.ErrOwner:
					if !errors.Is(got.err, fencing.ErrOwner) {
						w.Errorf("%s, asked again: %v", r.name, got.err)
					}
				case got.err != nil || !got.receipt.Replayed:
					w.Errorf("%s, asked again: %+v, %v", r.name, got.receipt, got.err)
				}
			}
		}
	}
}

func TestOnWhicheverWayACommitComesItHoldsItsFence(t *testing.T) {
	t.Parallel()
	locksOn()(newWorld(t))
}

// locksOn looks for the fence's lock while commits stand in a statement of theirs.
func locksOn(names ...string) func(*world) {
	return func(w *world) {
		hold := w.session(w.dsn)
		for _, r := range w.roads(fencing.Config{}, names) {
			_, err := hold.Exec(ctx, "select pg_advisory_lock(5)")
			w.ok(err)
			done := make(chan []answer, 1)
			go func() { done <- r.commit(ctx, "slow", "select $1::text, $2::text, pg_advisory_xact_lock(5)") }()
			pgtest.WaitTrue(w, w.admin, "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", int32(hold.PgConn().PID()))
			if n := value[int](w, "select count(*) from (select from fenceline.fence where key = $1 for no key update skip locked) free", r.key()); n != 0 {
				w.Errorf("%s: the fence is free", r.name)
			}
			_, err = hold.Exec(ctx, "select pg_advisory_unlock(5)")
			w.ok(err)
			for _, got := range <-done {
				w.ok(got.err)
			}
		}
	}
}

func TestOnWhicheverWayACommitComesADeadlineDoesNotReachItsCOMMIT(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	holder := w.deferCommit()
	for _, r := range w.roads(fencing.Config{}, nil) {
		if r.name == ownTransaction { // whose COMMIT is the caller's
			continue
		}
		short, cancel := context.WithCancel(ctx)
		done := make(chan []answer, 1)
		go func() { done <- r.commit(short, "s", insertResult) }()
		pgtest.WaitTrue(w, w.admin, "select exists (select from pg_stat_activity where $1 = any (pg_blocking_pids(pid)))", int32(holder.PgConn().PID()))
		cancel()
		select {
		case got := <-done:
			t.Fatalf("%s: COMMIT was cancelled: %v", r.name, got)
		case <-time.After(50 * time.Millisecond): // that nothing happens is the point
		}
		w.letCommit(holder)
		for _, got := range <-done {
			if got.err != nil || got.receipt.Replayed {
				t.Errorf("%s: %+v, %v", r.name, got.receipt, got.err)
			}
		}
		_, err := holder.Exec(ctx, "select pg_advisory_lock(9)")
		w.ok(err)
	}
}

func TestOnWhicheverWayACommitComesItIsDurableBoundedAndReadCommitted(t *testing.T) {
	t.Parallel()
	for _, durability := range []string{"off", "local"} {
		t.Run(durability, func(t *testing.T) {
			t.Parallel()
			settingsOn(durability)(newWorld(t))
		})
	}
}

// settingsOn looks at what commits run under in the sessions of a login that would
// have it otherwise.
func settingsOn(durability string, names ...string) func(*world) {
	return func(w *world) {
		w.exec("create table public.setting (key text, step text, isolation text, durability text, idle text, statement text); grant all on public.setting to public")
		roads := w.roads(fencing.Config{}, names, func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
			c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
			c.ConnConfig.RuntimeParams["synchronous_commit"] = durability
		})
		for _, r := range roads {
			for _, step := range []string{"first", "second"} { // of a session, and of a stream
				for _, got := range r.commit(ctx, step, `insert into public.setting select $1, $2, current_setting('transaction_isolation'), current_setting('synchronous_commit'),
					current_setting('idle_in_transaction_session_timeout'), current_setting('statement_timeout')`) {
					w.ok(got.err)
				}
			}
			if n := value[int](w, "select count(*) from public.setting where key = $1", r.key()); n < 2 {
				w.Errorf("%s: %d commits", r.name, n)
			}
			if is := value[string](w, `select coalesce(string_agg(concat_ws(', ', step, isolation, durability, idle, statement), '; '), '') from public.setting
				where key = $1 and (isolation, durability) <> ('read committed', 'on') or key = $1 and '0' in (idle, statement)`, r.key()); is != "" {
				w.Errorf("%s: %s", r.name, is)
			}
		}
	}
}

func TestOnWhicheverWayACommitComesItsEventsWakeTheRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wakes atomic.Int64
	for _, r := range w.roads(fencing.Config{Wake: func() { wakes.Add(1) }}, nil) {
		for _, got := range r.commit(ctx, "s", insertResult) {
			w.ok(got.err)
		}
		if n := wakes.Swap(0); n != r.wakes {
			t.Errorf("%s: woken %d times, want %d", r.name, n, r.wakes)
		}
	}
}
