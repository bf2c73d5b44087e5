package e2e

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/kafkasource"
	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }

// chain is one of everything. All of it is in one database, as it may be.
type chain struct {
	t      *testing.T
	pool   *pgxpool.Pool
	fences *fencing.Fences
	addr   string
	topics []string
}

func newChain(t *testing.T, topics int) *chain {
	t.Helper()
	c := &chain{t: t, pool: pgmigrated.Pool(t), addr: kafkatest.Broker(t)}
	for range topics {
		c.topics = append(c.topics, kafkatest.Topic(t, c.addr, 3))
	}
	_, err := c.pool.Exec(t.Context(), "create table applied (n bigint generated always as identity, topic text, key text, payload text)")
	c.ok(err)
	c.fences, err = fencing.New(t.Context(), c.pool, fencing.Config{AllowUnsafeDatabase: true, Logger: quiet})
	c.ok(err)
	return c
}

var quiet = slog.New(slog.DiscardHandler)

func (c *chain) ok(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// start runs something until the test has ended, and wants a clean stop.
func (c *chain) start(what string, run func(ctx context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	c.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			c.t.Errorf("%s: %v", what, err)
		}
	})
}

func (c *chain) relay() {
	publisher, err := kafkapub.New(kafkapub.Config{Brokers: []string{c.addr}, Logger: quiet})
	c.ok(err)
	c.start("relay", func(ctx context.Context) error {
		err := relay.Run(ctx, c.pool, publisher, relay.Config{LeaseTTL: 5 * time.Second, CheckpointInterval: 20 * time.Millisecond, AllowUnsafeDatabase: true, Logger: quiet})
		return errors.Join(err, publisher.Close())
	})
}

func (c *chain) consume(start consumer.Start) {
	source, err := kafkasource.New(kafkasource.Config{
		Brokers: []string{c.addr}, Group: kafkatest.Name(c.t), Topics: c.topics, SessionTimeout: 6 * time.Second,
		HeartbeatInterval: 50 * time.Millisecond, RebalanceTimeout: 10 * time.Second, MaxWait: 50 * time.Millisecond, Logger: quiet,
	})
	c.ok(err)
	c.start("consumer", func(ctx context.Context) error {
		err := consumer.Run(ctx, c.pool, source, consumer.Config{Name: "c", Policy: consumer.Strict, Start: start, Logger: quiet},
			consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
				_, err := tx.Exec(ctx, "insert into applied (topic, key, payload) values ($1, $2, $3)", d.Stream, d.Key, string(d.Payload))
				return err
			}))
		return errors.Join(err, source.Close())
	})
}

func (c *chain) acquire(key string) *fencing.Lease {
	c.t.Helper()
	lease, err := c.fences.Acquire(c.t.Context(), key, fencing.LeaseConfig{TTL: time.Minute})
	c.ok(err)
	c.t.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease
}

// commit commits one event to each of the topics.
func (c *chain) commit(lease *fencing.Lease, payload string, topics ...string) {
	c.t.Helper()
	_, err := lease.Commit(c.t.Context(), fencing.Content{Step: payload, Type: "text/plain", Bytes: []byte(payload)}, func(ctx context.Context, tx fencing.Tx) error {
		for _, topic := range topics {
			if err := outbox.Append(ctx, tx, outbox.Event{Topic: topic, Type: "t", Payload: []byte(payload)}); err != nil {
				return err
			}
		}
		return nil
	})
	c.ok(err)
}

func (c *chain) one(sql string, args ...any) string {
	c.t.Helper()
	var v string
	if err := c.pool.QueryRow(c.t.Context(), sql, args...).Scan(&v); err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

const patience = 40 * time.Second

// until waits for the answer of a query.
func (c *chain) until(want, sql string, args ...any) {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got := c.one(sql, args...)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("not within %v: %s %v: got %s, want %s\n%s", patience, sql, args, got, want, c.state())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// state is what a failure is explained by.
func (c *chain) state() string {
	return c.one(`select coalesce((select string_agg(g::text, E'\n') from fenceline.guard g), 'no guards') || E'\nparked ' || (select count(*) from fenceline.parked)
		|| ' quarantine ' || (select count(*) from fenceline.quarantine) || ' outbox ' || (select string_agg(format('%s (%s,%s) %s', topic, epoch, seq, kind), ', ' order by pos) from fenceline.outbox)`)
}
