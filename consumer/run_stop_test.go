package consumer_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

func TestAStopFinishesTheBatchThatIsBeingAppliedAndCommitsItsOffset(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 5)...)
	inside, goOn := make(chan struct{}), make(chan struct{})
	stop := b.run(log.source(), b.config(), consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if d.Seq == 3 {
			close(inside)
			wait(t, goOn)
		}
		return b.apply("x")(ctx, tx, d)
	}))
	<-inside
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	select {
	case err := <-stopped:
		t.Fatalf("Run returned in the middle of a batch: %v", err)
	case <-time.After(50 * time.Millisecond): // it must not return, however long we wait
	}
	close(goOn)
	if err := <-stopped; err != nil {
		t.Fatalf("a clean stop: %v", err)
	}
	b.want("", effects("a", 1, 5)...)
	if log.offset() != 5 || b.stored("t") != "5" {
		t.Errorf("kafka's offset %d, stored %s", log.offset(), b.stored("t"))
	}
}

// Given up whole it would begin anew after each rebalance, and where these come
// more often than it takes, never get on.
func TestABatchThatTakesLongIsCutAtTheStopAndNothingOfItIsDoneTwice(t *testing.T) {
	const n = 600
	for what, end := range map[string][]outbox.Record{
		"a batch":         events("t", "a", 2, n),
		"what was parked": append(events("t", "a", 3, n), event("t", "a", 2)),
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t)
			t.Cleanup(consumer.CutAtOnce()) // put back behind the runs
			log := newMemory("t")
			cfg := b.config()
			cfg.BatchSize, cfg.PollInterval, cfg.DrainTimeout = n, 10*time.Millisecond, time.Minute
			log.publish(event("t", "a", 1))
			log.publish(end...)
			var calls atomic.Int64
			inside, goOn := make(chan struct{}), make(chan struct{})
			var slow atomic.Bool
			slow.Store(true)
			h := consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
				if calls.Add(1); d.Seq == 4 {
					close(inside)
					wait(t, goOn)
				}
				if slow.Load() && d.Seq > 4 {
					time.Sleep(20 * time.Millisecond) // all of them take far longer than the cut
				}
				return b.apply("x")(ctx, tx, d)
			})
			stop := b.run(log.source(), cfg, h)
			<-inside
			stopped := make(chan error, 1)
			go func() { stopped <- stop() }()
			close(goOn)
			err := <-stopped
			if err != nil {
				t.Fatal(err)
			}
			did := int64(len(b.applied("")))
			if did < 4 || did >= n || calls.Load() != did {
				t.Errorf("%d of %d events are applied, the handler was called %d times: want some, and none in vain", did, n, calls.Load())
			}
			slow.Store(false)
			b.run(log.source(), cfg, h)
			b.eventually("the rest is applied", func() bool { return len(b.applied("")) == n })
			b.want("", effects("a", 1, n)...)
			if calls.Load() != n {
				t.Errorf("the handler was called %d times for %d events", calls.Load(), n)
			}
		})
	}
}

func TestAStopGivesABatchUpThatDoesNotEndAndLeavesNothingOfIt(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 5)...)
	inside := make(chan struct{})
	cfg := b.config()
	cfg.DrainTimeout = 50 * time.Millisecond
	cfg.Policy = consumer.State
	stop := b.run(log.source(), cfg, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if d.Seq == 3 {
			close(inside)
			<-ctx.Done()
			return ctx.Err()
		}
		return b.apply("x")(ctx, tx, d)
	}))
	<-inside
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.want("")
	if got := b.one("select count(*)::text from fenceline.dead"); got != "0" || log.offset() != consumer.NoOffset {
		t.Errorf("%s dead letters, kafka's offset %d", got, log.offset())
	}
}

func TestACommitIsNotCancelledByTheStop(t *testing.T) {
	b := newBench(t)
	b.exec(`create function slow() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(42); return null; end $$`)
	b.exec(`create constraint trigger slow after insert on applied deferrable initially deferred for each row execute function slow()`)
	held, err := b.pool.Acquire(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	if _, err := held.Exec(context.Background(), "select pg_advisory_lock(42)"); err != nil {
		t.Fatal(err)
	}
	log := newMemory("t")
	log.publish(event("t", "a", 1))
	cfg := b.config()
	cfg.DrainTimeout = time.Millisecond // only the COMMIT may go on
	stop := b.run(log.source(), cfg, b.apply("x"))
	pgtest.WaitTrue(t, b.pool, "select exists (select from pg_stat_activity where datname = current_database() and query ilike 'commit%' and wait_event = 'advisory')")
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	select {
	case err := <-stopped:
		t.Fatalf("Run returned while COMMIT was under way: %v", err)
	case <-time.After(100 * time.Millisecond): // it must not return, however long we wait
	}
	if _, err := held.Exec(context.Background(), "select pg_advisory_unlock(42)"); err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	b.want("", "a/1")
	if log.offset() != 1 {
		t.Errorf("kafka's offset is %d", log.offset())
	}
}

// The time of CommitTimeout begins when COMMIT is sent. Were it the batch's, one
// whose handlers take longer together would be rolled back at its end, and again.
func TestTheHandlersOfABatchMayTakeLongerThanACommit(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	cfg := b.config()
	cfg.CommitTimeout = 2 * time.Second
	calls := make(chan struct{}, 100)
	b.run(log.source(), cfg, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		calls <- struct{}{}
		time.Sleep(cfg.CommitTimeout/3 + 50*time.Millisecond) // it is the time that is tested
		return b.apply("x")(ctx, tx, d)
	}))
	b.eventually("the batch commits", func() bool { return b.seen.count(consumer.Applied) == 3 })
	if len(calls) != 3 {
		t.Errorf("the handler was called %d times for 3 events: a batch was rolled back", len(calls))
	}
}

func TestWhatCannotWorkIsRefusedAllAtOnceWithTheRemedy(t *testing.T) {
	h := consumer.HandlerFunc(func(context.Context, pgx.Tx, consumer.Delivery) error { return nil })
	err := consumer.Run(context.Background(), nil, nil, consumer.Config{
		Schema: `x";drop`, Policy: "loose", Start: "late", BatchSize: -1, HandlerTimeout: -1, RetryMin: time.Hour,
		Streams: map[string]consumer.StreamConfig{"s": {Policy: "x"}, "": {}},
	}, nil)
	for _, want := range []string{"no pool", "no source", "no handler", "no name", "Schema", `policy "loose"`, `start "late"`, "BatchSize", "HandlerTimeout", "RetryMax", `stream "s"`, "empty stream name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing from: %v", want, err)
		}
	}
	src := newMemory("t").source()
	err = consumer.Run(context.Background(), pgtest.Pool(t), src, consumer.Config{Name: "x"}, h)
	var ve *schema.VersionError
	if !errors.As(err, &ve) || ve.Problem != schema.Missing || !strings.Contains(err.Error(), "migrate up") {
		t.Errorf("without the schema: %v", err)
	}
	select {
	case <-src.closed:
	default:
		t.Error("Run did not close the source")
	}
}

func TestAStreamWhosePolicyWasChangedEndsRun(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1))
	b.upTo(log, b.config(), 1)
	log.publish(event("t", "a", 2))
	cfg := b.config()
	cfg.Policy = consumer.State
	if err := consumer.Run(context.Background(), b.pool, log.source(), cfg, b.apply("x")); !errors.Is(err, consumer.ErrStreamChanged) {
		t.Fatalf("%v", err)
	}
	b.want("", "a/1")
}
