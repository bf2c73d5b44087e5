package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
)

// The statement that moves the guards has COMMIT right behind it, so it looks for
// itself whether all of them are where they were locked.
func TestAHandlerThatWritesToItsGuardCommitsNothingAndItsEventIsParked(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "b", 1))
	b.upTo(log, b.config(), 2)
	log.publish(event("t", "a", 2), event("t", "b", 2))
	b.run(log.source(), b.config(), consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if err := b.apply("x")(ctx, tx, d); err != nil || d.Key == "b" {
			return err
		}
		_, err := tx.Exec(ctx, "update fenceline.guard set updated_at = now() where key = $1", d.Key)
		return err
	}))
	b.eventually("the other key goes on", func() bool { return b.seen.count(consumer.Parked) == 1 && b.seen.count(consumer.Applied) == 3 })
	b.want("a", "a/1")
	b.want("b", "b/1", "b/2")
	if !logged(b, "the guards are not where they were locked") {
		t.Error("the log does not say why")
	}
}

// Its connection is somebody else's by then.
func TestATransactionThatAHandlerHasKeptIsOver(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 2)...)
	var kept, nested pgx.Tx
	b.run(log.source(), b.config(), consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) (err error) {
		kept = tx
		if nested, err = tx.Begin(ctx); err != nil {
			return err
		}
		return b.apply("x")(ctx, nested, d)
	}))
	b.eventually("the events are applied", func() bool { return b.seen.count(consumer.Applied) == 2 })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for name, tx := range map[string]pgx.Tx{"the transaction": kept, "a savepoint": nested} {
		if _, err := tx.Exec(ctx, "select 1"); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s: %v, want %v", name, err, pgx.ErrTxClosed)
		}
		if rows, err := tx.Query(ctx, "select 1"); err == nil {
			rows.Close()
			t.Errorf("%s takes a query", name)
		}
	}
	log.publish(event("t", "a", 3))
	b.eventually("the consumer goes on", func() bool { return b.seen.count(consumer.Applied) == 3 })
}

// failures is a tracer that notes what has failed.
type failures struct {
	mu  sync.Mutex
	all []string
}

type tracedSQL struct{}

func (f *failures) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, tracedSQL{}, q.SQL)
}

func (f *failures) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	if q.Err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.all = append(f.all, fmt.Sprintf("%v: %v", ctx.Value(tracedSQL{}), q.Err))
	}
}

// Who traces or logs the pool's statements would see an error for each batch.
func TestATracerOfThePoolsIsToldOfNoFailureWhereThereIsNone(t *testing.T) {
	b := newBench(t)
	var failed failures
	b.connect(func(cfg *pgx.ConnConfig) { cfg.Tracer = &failed })
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "a", 3))
	b.upTo(log, b.config(), 2)
	log.publish(event("t", "a", 2))
	b.upTo(log, b.config(), 3)
	b.want("", effects("a", 1, 3)...)
	failed.mu.Lock()
	defer failed.mu.Unlock()
	if len(failed.all) > 0 {
		t.Errorf("%d statements have failed, the first one: %s", len(failed.all), failed.all[0])
	}
}

// A batch of many guards takes the way with a look in between.
func TestABatchOfMoreGuardsThanLookForThemselvesCommitsLikeAnyOther(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	const keys = 100
	for seq := range int64(3) {
		for k := range keys {
			log.publish(event("t", string(rune('A'+k%26))+time.Duration(k).String(), seq+1))
		}
	}
	b.upTo(log, b.config(), 3*keys)
	if got := b.one("select count(*) || ' ' || count(distinct key) || ' ' || max(seq) from applied"); got != "300 100 3" {
		t.Errorf("effects, keys, last: %s", got)
	}
	if got := b.one("select count(*) || ' ' || min(seq) || ' ' || max(seq) from fenceline.guard"); got != "100 3 3" {
		t.Errorf("guards, lowest, highest: %s", got)
	}
}
