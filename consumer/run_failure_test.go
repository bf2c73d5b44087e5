package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
)

var errPoison = errors.New("poison")

// failing is a handler that applies, and then fails on one position.
func (b *bench) failing(key string, seq int64, fail func(ctx context.Context, tx pgx.Tx) error) consumer.HandlerFunc {
	return func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if err := b.apply("x")(ctx, tx, d); err != nil {
			return err
		}
		if d.Key == key && d.Seq == seq {
			return fail(ctx, tx)
		}
		return nil
	}
}

func poison(context.Context, pgx.Tx) error { return errPoison }

func TestAStrictKeyWaitsBehindAPoisonEventWhileOthersFlow(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	for seq := int64(1); seq <= 6; seq++ {
		log.publish(event("t", "a", seq), event("t", "b", seq))
	}
	b.run(log.source(), b.config(), b.failing("a", 3, poison))
	b.eventually("everything is read", func() bool { return log.offset() == 12 })
	b.want("a", effects("a", 1, 2)...)
	b.want("b", effects("b", 1, 6)...)
	if got := b.one(`select string_agg(seq || ':' || reason, ' ' order by seq) from fenceline.parked where key = 'a'`); got != "3:failing 4:gap 5:gap 6:gap" {
		t.Errorf("parked: %s", got)
	}
	if got := b.one(`select error from fenceline.parked where seq = 3`); got != "poison" {
		t.Errorf("the error that is kept: %q", got)
	}
}

func TestAStateStreamDeadLettersAPoisonEventAndGoesOn(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 6)...)
	cfg := b.config()
	cfg.Policy = consumer.State
	b.run(log.source(), cfg, b.failing("a", 3, poison))
	b.eventually("everything is read", func() bool { return log.offset() == 6 })
	b.want("a", "a/1", "a/2", "a/4", "a/5", "a/6")
	if got := b.one(`select string_agg(seq || ':' || error, ' ') from fenceline.dead`); got != "3:poison" {
		t.Errorf("dead: %s", got)
	}
}

func TestAnErrorIsTriedAgainAndARejectionIsNot(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		tries int32
	}{
		{"an error", errPoison, 4},
		{"a rejection", consumer.Reject(errPoison), 1},
		{"a wrapped rejection", fmt.Errorf("worse: %w", consumer.Reject(errPoison)), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 5)...)
			cfg := b.config()
			cfg.Attempts = 4
			var tries atomic.Int32
			h := b.failing("a", 3, func(context.Context, pgx.Tx) error { tries.Add(1); return c.err })
			b.run(log.source(), cfg, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
				if want := tries.Load() + 1; d.Seq == 3 && d.Attempt != int(want) {
					t.Errorf("attempt %d, want %d", d.Attempt, want)
				}
				return h(ctx, tx, d)
			}))
			b.eventually("everything is read", func() bool { return log.offset() == 5 })
			b.want("", effects("a", 1, 2)...)
			if tries.Load() != c.tries {
				t.Errorf("%d tries, want %d", tries.Load(), c.tries)
			}
		})
	}
}

func TestAnErrorThatGoesAwayLeavesNoTrace(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 5)...)
	var tries atomic.Int32
	b.run(log.source(), b.config(), b.failing("a", 3, func(context.Context, pgx.Tx) error {
		if tries.Add(1) < 3 {
			return errPoison
		}
		return nil
	}))
	b.eventually("everything is read", func() bool { return log.offset() == 5 })
	b.want("", effects("a", 1, 5)...)
}

// Each of these ruins the transaction in another way. Whichever it is, only the
// event itself may suffer from it.
func TestOneEventsFailureNeverTouchesItsNeighboursWhateverItLooksLike(t *testing.T) {
	for name, fail := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"an error":                         poison,
		"a panic":                          func(context.Context, pgx.Tx) error { panic("poison") },
		"a statement that fails":           func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "select 1/0"); return err },
		"a statement whose error is eaten": func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "select 1/0"); return nil },
		"a constraint that COMMIT checks": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "insert into child values (1)")
			return err
		},
		"a handler that hangs":      func(ctx context.Context, _ pgx.Tx) error { <-ctx.Done(); return ctx.Err() },
		"a statement that hangs":    func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "select pg_sleep(60)"); return err },
		"a handler that commits":    func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		"a handler that rolls back": func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"rows that are left open":   leaveRowsOpen,
		"a statement while rows are open": func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, "select generate_series(1, 3)")
			if err != nil {
				return err
			}
			defer rows.Close()
			_, err = tx.Exec(ctx, "select 1")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.exec("create table parent (id int primary key)")
			b.exec("create table child (id int references parent deferrable initially deferred)")
			log := newMemory("t")
			for seq := int64(1); seq <= 8; seq++ {
				log.publish(event("t", "a", seq), event("t", "b", seq))
			}
			cfg := b.config()
			cfg.Policy = consumer.State
			cfg.Attempts = 2
			cfg.HandlerTimeout = 500 * time.Millisecond
			b.run(log.source(), cfg, b.failing("a", 4, fail))
			b.eventually("everything is read", func() bool { return log.offset() == 16 })
			b.want("b", effects("b", 1, 8)...)
			b.want("a", slices.Delete(effects("a", 1, 8), 3, 4)...)
			if got := b.one("select string_agg(key || seq, ' ') from fenceline.dead"); got != "a4" {
				t.Errorf("dead: %s", got)
			}
		})
	}
}

// leaveRowsOpen reads the first row of several, and says that all went well.
func leaveRowsOpen(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, "select generate_series(1, 3)")
	if err != nil {
		return err
	}
	var n int
	rows.Next()
	return rows.Scan(&n)
}

func TestTheErrorOfAHandlerThatLeavesRowsOpenNamesTheEventAndTheRemedy(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	ds := l.deliver(evs(0, 1, 3)...)
	err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := l.guard.Apply(ctx, tx, ds, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
			if d.Seq == 2 {
				return leaveRowsOpen(ctx, tx)
			}
			return nil
		}))
		return err
	})
	var h *consumer.HandlerError
	if !errors.As(err, &h) || h.Delivery.Seq != 2 || !errors.Is(err, consumer.ErrRowsOpen) || !consumer.IsRejected(err) || !strings.Contains(err.Error(), "close the rows") {
		t.Errorf("%v", err)
	}
}

func TestAHandlerThatEndsItsGoroutineEndsRunWithAnErrorThatNamesTheEvent(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := consumer.Run(ctx, b.pool, log.source(), b.config(), b.failing("a", 2, func(context.Context, pgx.Tx) error {
		runtime.Goexit()
		return nil
	}))
	if !errors.Is(err, consumer.ErrExited) || !strings.Contains(err.Error(), event("t", "a", 2).Key) || !strings.Contains(err.Error(), "t.Fatal") {
		t.Fatalf("Run: %v", err)
	}
	b.want("")
	b.eventually("its connection is given back", func() bool { return b.pool.Stat().AcquiredConns() == 0 })
}

func TestAPassingFailureIsTriedForAsLongAsItTakesAndNeverDeadLettered(t *testing.T) {
	for name, sql := range map[string]string{
		"serialisation":     `do $$ begin raise exception 'x' using errcode = '40001'; end $$`,
		"deadlock":          `do $$ begin raise exception 'x' using errcode = '40P01'; end $$`,
		"read-only standby": `do $$ begin raise exception 'x' using errcode = '25006'; end $$`,
		"disk full":         `do $$ begin raise exception 'x' using errcode = '53100'; end $$`,
		"session ended":     `select pg_terminate_backend(pg_backend_pid())`,
		"connection lost":   "", // without a word from the server
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 5)...)
			cfg := b.config()
			cfg.Attempts = 1
			var tries atomic.Int32
			b.run(log.source(), cfg, b.failing("a", 3, func(ctx context.Context, tx pgx.Tx) error {
				if tries.Add(1) > 8 {
					return nil
				}
				if sql == "" {
					_ = tx.Conn().PgConn().Conn().Close()
				}
				_, err := tx.Exec(ctx, sql)
				return err
			}))
			b.eventually("everything is applied", func() bool { return log.offset() == 5 })
			b.want("", effects("a", 1, 5)...)
			if got := b.one("select (select count(*) from fenceline.dead) || ' ' || (select count(*) from fenceline.parked)"); got != "0 0" {
				t.Errorf("dead and parked: %s", got)
			}
		})
	}
}

func TestSessionsThatAreEndedInTheMiddleLoseNothingAndDeadLetterNothing(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	const n = 1000
	for seq := int64(1); seq <= n; seq++ {
		log.publish(event("t", "a", seq), event("t", "b", seq))
	}
	cfg := b.config()
	cfg.BatchSize = 10
	cfg.Policy = consumer.State // the policy that would dead-letter
	b.run(log.source(), cfg, b.apply("x"))
	b.eventually("it has begun", func() bool { return len(b.applied("")) > 0 })
	killed := 0
	for end := time.Now().Add(patience); len(b.applied("")) < 2*n && time.Now().Before(end); {
		var k int
		// Only sessions in the middle of a batch.
		err := b.pool.QueryRow(context.Background(), `
			select count(pg_terminate_backend(pid)) from pg_stat_activity
			 where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null`).Scan(&k)
		if err != nil {
			t.Fatal(err)
		}
		if killed += k; killed > 25 {
			break
		}
	}
	b.eventually("everything is read", func() bool { return log.offset() == 2*n })
	if killed == 0 {
		t.Error("no session was ended in the middle of a batch")
	}
	b.want("a", effects("a", 1, n)...)
	b.want("b", effects("b", 1, n)...)
	if got := b.one("select count(*)::text from fenceline.dead"); got != "0" {
		t.Errorf("%s dead letters", got)
	}
}

func TestAParkedEventThatFailsWhenItsTurnComesDoesNotHoldUpWhatMadeItItsTurn(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "a", 3), event("t", "a", 4), event("t", "b", 1), event("t", "a", 2), event("t", "b", 2))
	b.run(log.source(), b.config(), b.failing("a", 3, poison))
	b.eventually("everything is read", func() bool { return log.offset() == 6 })
	b.want("a", effects("a", 1, 2)...)
	b.want("b", effects("b", 1, 2)...)
	if got := b.one(`select string_agg(seq || ':' || reason, ' ' order by seq) from fenceline.parked`); got != "3:failing 4:gap" {
		t.Errorf("parked: %s", got)
	}
}

func TestAMalformedRecordIsQuarantinedAndThePartitionGoesOn(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1))
	log.raw(consumer.KafkaRecord{Key: []byte("a"), Value: []byte("no headers")})
	log.publish(event("t", "a", 2))
	b.run(log.source(), b.config(), b.apply("x"))
	b.eventually("everything is read", func() bool { return log.offset() == 3 })
	b.want("", effects("a", 1, 2)...)
	if b.seen.count(consumer.Quarantined) != 1 || !logged(b, "offset=1") {
		t.Errorf("%d quarantined", b.seen.count(consumer.Quarantined))
	}
}

func TestARightThatIsMissingEndsRunAndIsBlamedOnNoEvent(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	b.exec("alter table fenceline.guard rename to guard_gone")
	cfg := b.config()
	cfg.Policy = consumer.State
	err := consumer.Run(context.Background(), b.pool, log.source(), cfg, b.apply("x"))
	if err == nil {
		t.Fatal("Run returned nil")
	}
	if got := b.one("select count(*)::text from fenceline.dead"); got != "0" || log.offset() != consumer.NoOffset {
		t.Errorf("%s dead letters, offset %d", got, log.offset())
	}
}

// What the statement has committed can't be taken back; but it happens once,
// and is said.
func TestAHandlerThatEndsItsTransactionByAStatementIsParkedAtOnce(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "a", 2), event("t", "b", 1))
	calls := atomic.Int64{}
	b.run(log.source(), b.config(), b.failing("a", 1, func(ctx context.Context, tx pgx.Tx) error {
		calls.Add(1)
		_, err := tx.Exec(ctx, "commit")
		return err
	}))
	b.eventually("everything is read", func() bool { return log.offset() == 3 })
	b.want("b", effects("b", 1, 1)...)
	if got := b.one(`select string_agg(seq || ':' || reason, ' ' order by seq) from fenceline.parked where key = 'a'`); got != "1:failing 2:gap" {
		t.Errorf("parked: %s", got)
	}
	if got := b.one(`select error from fenceline.parked where seq = 1`); !strings.Contains(got, "neither commit nor roll back") {
		t.Errorf("the error that is kept: %q", got)
	}
	if calls.Load() != 1 {
		t.Errorf("the handler was called %d times for it, want once", calls.Load())
	}
}

// It is of the same class as a full disk, and has another cause: that statement
// exceeds it each time.
func TestAnEventThatExceedsALimitOfTheServersIsAtFaultItself(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "b", 1), event("t", "a", 2))
	b.run(log.source(), b.config(), consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if d.Key == "b" {
			if _, err := tx.Exec(ctx, "set local temp_file_limit = '64kB'; set local work_mem = '64kB'"); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "select count(*) from (select n from generate_series(1, 100000) n order by md5(n::text)) s"); err != nil {
				return err
			}
		}
		return b.apply("x")(ctx, tx, d)
	}))
	b.eventually("it is parked, and the rest applied", func() bool { return b.seen.count(consumer.Parked) == 1 && b.seen.count(consumer.Applied) == 2 })
	b.want("", "a/1", "a/2")
}
