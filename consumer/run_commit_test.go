package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
)

// A deferred constraint speaks at COMMIT, where nothing says which event of the
// transaction it means: the one that arrived, or one that went on behind it.
func TestAnEventOutOfTheParkThatFailsAtCommitIsBlamedAndNotTheOneThatMadeItsTurn(t *testing.T) {
	b := newBench(t)
	b.exec("create table parent (id bigint primary key)")
	b.exec("create table child (id bigint references parent deferrable initially deferred)")
	log := newMemory("t")
	cfg := b.config()
	cfg.PollInterval = 10 * time.Millisecond
	h := consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if d.Seq == 4 {
			if _, err := tx.Exec(ctx, "insert into child values (4)"); err != nil {
				return err
			}
		}
		return b.apply("x")(ctx, tx, d)
	})
	log.publish(event("t", "a", 1), event("t", "a", 3), event("t", "a", 4), event("t", "a", 5))
	b.run(log.source(), cfg, h)
	b.eventually("three wait", func() bool { return b.seen.count(consumer.Parked) == 3 })
	log.publish(event("t", "a", 2), event("t", "b", 1))
	failing := func() string {
		return b.one("select coalesce(string_agg(seq || ' ' || reason, ', ' order by seq), '') from fenceline.parked")
	}
	b.eventually("the fourth fails for good", func() bool { return failing() == "4 failing, 5 gap" })
	b.eventually("the other key goes on", func() bool { return len(b.applied("b")) == 1 })
	b.want("a", "a/1", "a/2", "a/3")
	if got := b.one("select error from fenceline.parked where seq = 4"); !logged(b, "child_id_fkey") || got == "" {
		t.Errorf("its error is %q", got)
	}
	// When the reason is gone, an operator lets it be tried again.
	b.exec("insert into parent values (4)")
	op, err := consumer.NewOperator(t.Context(), b.pool, consumer.OperatorConfig{Consumer: cfg.Name})
	if err != nil {
		t.Fatal(err)
	}
	if err := op.Retry(t.Context(), consumer.StreamKey{Stream: "t", Key: "a"}, note); err != nil {
		t.Fatal(err)
	}
	b.eventually("all are applied", func() bool { return len(b.applied("a")) == 5 })
	b.want("a", effects("a", 1, 5)...)
}
