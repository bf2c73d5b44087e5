package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/migrations"
	"github.com/fenceline/fenceline/outbox"
)

// bench is a consumer's database with one business table, in which every
// effect leaves a row: an event that is applied twice shows.
type bench struct {
	t    *testing.T
	pool *pgxpool.Pool
	log  syncBuffer
	seen recorder
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newBench(t *testing.T) *bench {
	t.Helper()
	dsn := pgtest.Clone(t, "consumer-run", func(ctx context.Context, dsn string) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		m, err := migrations.New(conn, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		if _, err := m.Up(ctx, migrations.UpOptions{Parts: []migrations.Part{migrations.Consumer}}); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, `create table applied (n bigint generated always as identity, key text, epoch bigint, seq bigint, by text)`)
		return err
	})
	b := &bench{t: t, pool: pgtest.Connect(t, dsn)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(b.log.String())
		}
	})
	return b
}

// connect has the consumer under test connect in another way.
func (b *bench) connect(edit func(*pgx.ConnConfig)) {
	b.t.Helper()
	cfg := b.pool.Config()
	edit(cfg.ConnConfig)
	pool, err := pgxpool.NewWithConfig(b.t.Context(), cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(pool.Close)
	b.pool = pool
}

// config is quick to retry.
func (b *bench) config() consumer.Config {
	return consumer.Config{
		Name: "test", Attempts: 3, RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond, OffsetInterval: 10 * time.Millisecond,
		Observer: &b.seen, Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
	}
}

// apply is the handler: one row for each event.
func (b *bench) apply(by string) consumer.HandlerFunc {
	return func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		_, err := tx.Exec(ctx, "insert into applied (key, epoch, seq, by) values ($1, $2, $3, $4)", d.Key, d.Epoch, d.Seq, by)
		return err
	}
}

// run starts Run. The returned function stops it and gives its error.
func (b *bench) run(source consumer.Source, cfg consumer.Config, h consumer.Handler) (stop func() error) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx, b.pool, source, cfg, h) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return errors.New("Run did not return")
		}
	})
	b.t.Cleanup(func() {
		if err := stop(); err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	return stop
}

// patience is longer than anything takes, also on a busy machine.
const patience = 30 * time.Second

// eventually waits until the condition holds.
func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			b.t.Fatalf("not within %v: %s (%d effects)", patience, what, len(b.applied("")))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// wait blocks a handler until it may go on, or the test has ended.
func wait(t *testing.T, goOn <-chan struct{}) {
	select {
	case <-goOn:
	case <-t.Context().Done():
	}
}

// applied lists the effects in order, as "key/seq", of one key or of all.
func (b *bench) applied(key string) []string {
	b.t.Helper()
	rows, err := b.pool.Query(context.Background(), "select key || '/' || seq from applied where $1 in ('', key) order by n", key)
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// want fails unless exactly these effects are there, in this order.
func (b *bench) want(key string, effects ...string) {
	b.t.Helper()
	if got := b.applied(key); !slices.Equal(got, effects) {
		b.t.Errorf("applied %v, want %v", got, effects)
	}
}

func (b *bench) one(sql string, args ...any) string {
	b.t.Helper()
	var v string
	if err := b.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(context.Background(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// stored is the offset in the consumer's database.
func (b *bench) stored(topic string) string {
	b.t.Helper()
	return b.one("select coalesce(sum(next_offset)::text, 'none') from fenceline.consumer_offset where topic = $1", topic)
}

// recorder counts what the observer is told.
type recorder struct {
	mu       sync.Mutex
	outcomes map[consumer.Outcome]int
	failures []consumer.Failure
	alarms   []consumer.Alarm
}

func (r *recorder) Committed(c consumer.Committed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.outcomes == nil {
		r.outcomes = map[consumer.Outcome]int{}
	}
	for _, res := range c.Results {
		r.outcomes[res.Outcome]++
	}
}

func (r *recorder) Failing(f consumer.Failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, f)
}

func (r *recorder) Alarm(a consumer.Alarm) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alarms = append(r.alarms, a)
}

func (r *recorder) count(o consumer.Outcome) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcomes[o]
}

func (r *recorder) alarmed(k consumer.AlarmKind) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.alarms {
		if a.Kind == k {
			n++
		}
	}
	return n
}

// testEpoch is the one life of the tests' keys.
const testEpoch = 1_764_000_000_000_000

// event is the record of a position, the same each time.
func event(topic, key string, seq int64) outbox.Record {
	id := uuid.NewSHA1(uuid.Nil, fmt.Appendf(nil, "%s/%s/%d", topic, key, seq))
	r := outbox.Record{
		ID: id, AggregateType: topic, Type: "test.happened", Source: "test", ContentType: "text/plain",
		Topic: topic, Stream: topic, Key: key, Epoch: testEpoch, Token: 1, Seq: seq, Kind: outbox.KindData,
		Payload: fmt.Appendf(nil, "%s/%d", key, seq), CreatedAt: time.UnixMilli(1_764_000_000_000),
	}
	if seq == 1 {
		r.History = 1
	}
	return r
}

// events is a range of a key's events.
func events(topic, key string, from, to int64) (recs []outbox.Record) {
	for seq := from; seq <= to; seq++ {
		recs = append(recs, event(topic, key, seq))
	}
	return recs
}

// effects is what events leave in the table when all of them are applied.
func effects(key string, from, to int64) (out []string) {
	for seq := from; seq <= to; seq++ {
		out = append(out, fmt.Sprintf("%s/%d", key, seq))
	}
	return out
}

func logged(b *bench, part string) bool { return strings.Contains(b.log.String(), part) }

// failsWith runs a consumer that must end with an error.
func (b *bench) failsWith(log *memory, cfg consumer.Config, want error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := consumer.Run(ctx, b.pool, log.source(), cfg, b.apply("x")); !errors.Is(err, want) {
		b.t.Fatalf("Run: %v, want %v", err, want)
	}
}

// failed counts the failures of which the text speaks.
func (r *recorder) failed(text string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.failures {
		if f.Err != nil && strings.Contains(f.Err.Error(), text) {
			n++
		}
	}
	return n
}
