package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/pgpooler"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// pooler is in transaction mode, and gives each transaction another session.
func (b *bench) pooler(reset bool) *pgpooler.Pooler {
	b.t.Helper()
	dsn := b.pool.Config().ConnString()
	p, err := pgpooler.Listen(pgpooler.Config{Backends: []string{dsn, dsn, dsn}, Reset: reset})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestAConsumerMayBeBehindAPoolerInTransactionMode(t *testing.T) {
	for _, mode := range []string{"exec", "cache_describe", "simple_protocol"} {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, wiped %v", mode, reset), func(t *testing.T) {
				b := newBench(t)
				log := newMemory("t")
				log.publish(event("t", "a", 1), event("t", "b", 1), event("t", "a", 3), event("t", "b", 2), event("t", "a", 2))
				log.raw(consumer.KafkaRecord{Value: []byte("no event")})
				b.runAs(pgtest.Connect(t, b.pooler(reset).DSN("default_query_exec_mode="+mode)), log.source(), b.config(), b.apply("x"))
				b.eventually("all are applied", func() bool { return b.seen.count(consumer.Applied) == 5 && b.seen.count(consumer.Quarantined) == 1 })
				b.want("a", effects("a", 1, 3)...)
				b.want("b", effects("b", 1, 2)...)
			})
		}
	}
}

// pgx prepares unless it is told otherwise. What the pooler loses of that is waited
// out, with the remedy, whether it is ours or the handler's.
func TestAPoolerThatForgetsPreparedStatementsIsBlamedOnNoEvent(t *testing.T) {
	b := newBench(t)
	p := b.pooler(false)
	err := consumer.Run(t.Context(), pgtest.Connect(t, p.DSN("")), newMemory("t").source(), b.config(), b.apply("x"))
	if err == nil || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
		t.Errorf("Run: %v, want the remedy", err)
	}

	var prepares atomic.Bool
	cfg, err := pgxpool.ParseConfig(p.DSN("default_query_exec_mode=exec"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if prepares.Load() {
			c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	log := newMemory("t")
	log.publish(event("t", "a", 1))
	config := b.config()
	config.Attempts = 1 // what is blamed on an event parks it
	var own atomic.Int64
	b.runAs(pool, log.source(), config, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if d.Seq == 3 && own.Add(1) < 3 {
			return &pgconn.PgError{Severity: "ERROR", Code: "26000", Message: `prepared statement "stmtcache_0" does not exist`}
		}
		return b.apply("x")(ctx, tx, d)
	}))
	b.eventually("it has begun", func() bool { return b.seen.count(consumer.Applied) == 1 })
	prepares.Store(true)
	pool.Reset()
	log.publish(event("t", "a", 2))
	b.eventually("it is told what helps", func() bool { return b.seen.failed("default_query_exec_mode=exec") > 0 })
	prepares.Store(false)
	pool.Reset()
	log.publish(event("t", "a", 3))
	b.eventually("all are applied", func() bool { return b.seen.count(consumer.Applied) == 3 })
	if n := b.seen.count(consumer.Parked); n != 0 {
		t.Errorf("%d events are parked for it", n)
	}
}
