package consumer_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

const endOwnSession = `select pg_terminate_backend(pg_backend_pid())`

// What such an event does to the connection looks like an outage each time. If
// it were taken for one, the partition would stand at it for ever.
func TestAnEventThatTakesItsConnectionEachTimeIsGivenUpAndItsNeighboursAreNot(t *testing.T) {
	for name, fail := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"in its handler": func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, endOwnSession); return err },
		"without a word from the server": func(ctx context.Context, tx pgx.Tx) error {
			_ = tx.Conn().PgConn().Conn().Close()
			_, err := tx.Exec(ctx, "select 1")
			return err
		},
		"in its COMMIT": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into deadly values (1)")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.exec("create table deadly (id int)")
			b.exec(`create function die() returns trigger language plpgsql as $$ begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(60); return null; end $$`)
			b.exec("create constraint trigger die after insert on deadly deferrable initially deferred for each row execute function die()")
			log := newMemory("t")
			for seq := int64(1); seq <= 8; seq++ {
				log.publish(event("t", "a", seq), event("t", "b", seq))
			}
			cfg := b.config()
			cfg.Policy, cfg.LossLimit = consumer.State, 4
			var alone atomic.Int32
			b.run(log.source(), cfg, b.failing("a", 4, func(ctx context.Context, tx pgx.Tx) error {
				alone.Add(1)
				return fail(ctx, tx)
			}))
			b.eventually("everything is read", func() bool { return log.offset() == 16 })
			b.want("b", effects("b", 1, 8)...)
			b.want("a", slices.Delete(effects("a", 1, 8), 3, 4)...)
			if got := b.one("select string_agg(key || seq, ' ') || ' ' || min(error) from fenceline.dead"); !strings.HasPrefix(got, "a4 ") || !strings.Contains(got, "4 times in a row, while new ones worked") {
				t.Errorf("dead: %s", got)
			}
			// Each halving of the batch costs a few tries more, no more than that.
			if n := alone.Load(); n < 4 || n > 4*8 {
				t.Errorf("%d tries, want at least 4 and a bounded number", n)
			}
		})
	}
}

func TestAParkedEventThatTakesItsConnectionEachTimeIsGivenUp(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "a", 3), event("t", "a", 4), event("t", "b", 1), event("t", "a", 2), event("t", "b", 2))
	cfg := b.config()
	cfg.LossLimit = 3
	b.run(log.source(), cfg, b.failing("a", 3, func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, endOwnSession); return err }))
	b.eventually("everything is read", func() bool { return log.offset() == 6 })
	b.want("a", effects("a", 1, 2)...)
	b.want("b", effects("b", 1, 2)...)
	b.eventually("the event is given up", func() bool {
		return b.one(`select coalesce(string_agg(seq || ':' || reason, ' ' order by seq), '') from fenceline.parked`) == "3:failing 4:gap"
	})
}

func TestWhatComesBeforeAnEventThatFailsForAPassingReasonNeedNotWaitWithIt(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 9)...)
	var ok atomic.Bool
	b.run(log.source(), b.config(), b.failing("a", 6, func(ctx context.Context, tx pgx.Tx) error {
		if ok.Load() {
			return nil
		}
		_, err := tx.Exec(ctx, `do $$ begin raise exception 'x' using errcode = '40P01'; end $$`)
		return err
	}))
	b.eventually("what comes before it is committed", func() bool { return slices.Equal(b.applied(""), effects("a", 1, 5)) })
	ok.Store(true)
	b.eventually("everything is read", func() bool { return log.offset() == 9 })
	b.want("", effects("a", 1, 9)...)
}

func TestAConnectionToAServerThatTakesNoWritesAnyMoreIsNotUsedAgain(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 5)...)
	var mu sync.Mutex
	var pids []uint32
	b.run(log.source(), b.config(), b.failing("a", 3, func(ctx context.Context, tx pgx.Tx) error {
		mu.Lock()
		pids = append(pids, tx.Conn().PgConn().PID())
		n := len(pids)
		mu.Unlock()
		if n > 4 {
			return nil
		}
		_, err := tx.Exec(ctx, `do $$ begin raise exception 'cannot execute INSERT in a read-only transaction' using errcode = '25006'; end $$`)
		return err
	}))
	b.eventually("everything is read", func() bool { return log.offset() == 5 })
	b.want("", effects("a", 1, 5)...)
	mu.Lock()
	defer mu.Unlock()
	for i := range 4 {
		if slices.Contains(pids[i+1:], pids[i]) {
			t.Errorf("the session %d was used again after it had refused a write: %v", pids[i], pids)
		}
	}
}

func TestAHandlerThatHeedsNoContextLosesItsSessionAndHoldsUpNobodyElse(t *testing.T) {
	for name, hang := range map[string]func(t *testing.T, over <-chan struct{}, tx pgx.Tx) error{
		"in go": func(_ *testing.T, over <-chan struct{}, _ pgx.Tx) error { <-over; return nil },
		"in a statement": func(_ *testing.T, _ <-chan struct{}, tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), "select pg_sleep(600)")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer consumer.SetIdleGrace(time.Second)() // behind the runs' own cleanup
			b := newBench(t)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 3)...)
			inside, over := make(chan struct{}), make(chan struct{})
			cfg := b.config()
			cfg.HandlerTimeout = time.Second
			var once sync.Once
			release := sync.OnceFunc(func() { close(over) })
			stop := b.run(log.source(), cfg, b.failing("a", 2, func(_ context.Context, tx pgx.Tx) error {
				once.Do(func() { close(inside) })
				return hang(t, over, tx)
			}))
			defer func() { release(); _ = stop() }()
			<-inside
			// Another member has the partition by now, and waits for the guard.
			other := b.config()
			other.HandlerTimeout = patience
			second := b.run(log.source(), other, b.apply("y"))
			b.eventually("the other member has applied everything", func() bool { return len(b.applied("")) == 3 })
			b.want("", effects("a", 1, 3)...)
			release()
			if err := second(); err != nil {
				t.Error(err)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			b.want("", effects("a", 1, 3)...)
		})
	}
}

func TestAHandlerThatSucceedsBehindItsDeadlineHasFailed(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	cfg := b.config()
	cfg.HandlerTimeout, cfg.Attempts, cfg.Policy = 2*time.Second, 1, consumer.State
	b.run(log.source(), cfg, b.failing("a", 2, func(ctx context.Context, _ pgx.Tx) error { <-ctx.Done(); return nil }))
	b.eventually("everything is read", func() bool { return log.offset() == 3 })
	b.want("", "a/1", "a/3")
	if got := b.one("select min(error) from fenceline.dead"); !strings.Contains(got, "HandlerTimeout") {
		t.Errorf("the error that is kept: %q", got)
	}
}

// The server, or a proxy, bounds how long a transaction may take (as
// transaction_timeout does), and a batch takes longer: it is ended at another event
// each time.
func TestABatchThatIsTooLongForTheServersPatienceIsHalvedUntilItIsNot(t *testing.T) {
	const n = 40
	for what, recs := range map[string][]outbox.Record{
		"a batch":         events("t", "a", 1, n),
		"what was parked": append([]outbox.Record{event("t", "a", 1)}, append(events("t", "a", 3, n), event("t", "a", 2))...),
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(recs...)
			cfg := b.config()
			calls, ends := map[string]int{}, 0
			b.run(log.source(), cfg, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
				var id string
				if err := tx.QueryRow(ctx, "select pg_current_xact_id()::text").Scan(&id); err != nil {
					return err
				}
				if calls[id]++; calls[id] > 12+ends%2 {
					ends++
					_, err := tx.Exec(ctx, endOwnSession)
					return err
				}
				return b.apply("x")(ctx, tx, d)
			}))
			b.eventually("all are applied", func() bool { return len(b.applied("")) == n })
			b.want("", effects("a", 1, n)...)
		})
	}
}
