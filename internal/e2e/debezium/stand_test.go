//go:build debezium

package debezium

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/kafkasource"
	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/devstack/kafkaconnect"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }

const (
	patience = 2 * time.Minute
	slot     = "fenceline_outbox" // in connector.properties
	role     = "fenceline_debezium"
	password = "it's of the test"
)

var quiet = slog.New(slog.DiscardHandler)

// stand is one of everything, with nothing running yet.
type stand struct {
	t      *testing.T
	dsn    string
	pool   *pgxpool.Pool
	fences *fencing.Fences
	addr   string
	topics []string
}

func newStand(t *testing.T, topics int) *stand {
	t.Helper()
	if !kafkatest.Real(t) {
		t.Fatal("needs Apache Kafka: run it with make test-debezium")
	}
	s := &stand{t: t, dsn: pgmigrated.Migrated(t), addr: kafkatest.Broker(t)}
	for range topics {
		s.topics = append(s.topics, kafkatest.Topic(t, s.addr, 3))
	}
	// Debezium's own: without it the connector would wait for it, and everything
	// behind it. It is the same for all tests.
	made, err := kafkatest.Admin(t, s.addr).CreateTopic(t.Context(), 1, -1, nil, "__debezium-heartbeat.fenceline")
	if err != nil && !errors.Is(made.Err, kerr.TopicAlreadyExists) {
		t.Fatal(err)
	}
	s.pool, err = pgxpool.New(t.Context(), s.dsn)
	s.ok(err)
	t.Cleanup(s.pool.Close)
	t.Cleanup(s.clear)
	s.exec("create table applied (n bigint generated always as identity, id uuid, topic text, key text, epoch bigint, token bigint, seq bigint, type text, source text, subject text, contenttype text, headers text[], payload bytea, created_at timestamptz)")
	s.exec(strings.ReplaceAll(file(t, "setup.sql"), ":'password'", "'"+strings.ReplaceAll(password, "'", "''")+"'"))
	s.fences, err = fencing.New(t.Context(), s.pool, fencing.Config{AllowUnsafeDatabase: true, Logger: quiet})
	s.ok(err)
	return s
}

// file is one of those that users take.
func file(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "debezium", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// clear takes away what belongs to the server and not to the database.
func (s *stand) clear() {
	ctx := context.Background()
	for _, sql := range []string{
		"select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = '" + slot + "' and active_pid is not null",
		"drop publication if exists fenceline_outbox", "drop owned by " + role, "drop role " + role,
	} {
		if _, err := s.pool.Exec(ctx, sql); err != nil {
			s.t.Error(err)
		}
	}
	deadline := time.Now().Add(patience)
	for {
		_, err := s.pool.Exec(ctx, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1", slot)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Error(err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *stand) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *stand) exec(sql string, args ...any) {
	s.t.Helper()
	if len(args) == 0 { // several statements
		conn, err := s.pool.Acquire(s.t.Context())
		s.ok(err)
		defer conn.Release()
		_, err = conn.Conn().PgConn().Exec(s.t.Context(), sql).ReadAll()
		s.ok(err)
		return
	}
	_, err := s.pool.Exec(s.t.Context(), sql, args...)
	s.ok(err)
}

func (s *stand) one(sql string, args ...any) string {
	s.t.Helper()
	var v string
	if err := s.pool.QueryRow(s.t.Context(), sql, args...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// until waits for the answer of a query.
func (s *stand) until(want, sql string, args ...any) {
	s.t.Helper()
	got := ""
	s.eventually(func() bool { got = s.one(sql, args...); return got == want }, func() string {
		return fmt.Sprintf("%s %v: got %s, want %s\n%s", sql, args, got, want, s.state())
	})
}

func (s *stand) eventually(so func() bool, what func() string) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s", patience, what())
		}
	}
}

// state is what a failure is explained by.
func (s *stand) state() string {
	return s.one(`select 'outbox ' || (select count(*) from fenceline.outbox) || ' applied ' || (select count(*) from applied) || ' parked ' || (select count(*) from fenceline.parked)
		|| ' quarantine ' || (select count(*) || ' ' || coalesce(min(error), '') from fenceline.quarantine) || ' slot ' || coalesce((select x::text from pg_replication_slots x where slot_name = '` + slot + `'), 'none')
		|| E'\n' || coalesce((select string_agg(g::text, E'\n') from (select * from fenceline.guard limit 40) g), 'no guards')`)
}

// connect starts Debezium with the files of the documentation; more are lines
// that win over those of the connector's.
func (s *stand) connect(more ...string) *kafkaconnect.Worker {
	s.t.Helper()
	u, err := url.Parse(s.dsn)
	s.ok(err)
	w, err := kafkaconnect.Start(s.t.Context(), kafkaconnect.Config{
		Worker:    file(s.t, "worker.properties"),
		Connector: file(s.t, "connector.properties") + "\n" + strings.Join(more, "\n") + "\n",
		Env:       []string{"KAFKA=" + s.addr, "PGHOST=" + u.Hostname(), "PGPORT=" + u.Port(), "PGUSER=" + role, "PGPASSWORD=" + password, "PGDATABASE=" + strings.TrimPrefix(u.Path, "/")},
		Progress:  func(text string) { s.t.Log(text) },
	})
	s.ok(err)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Log(w.Log())
		}
		if err := w.Stop(context.Background()); err != nil {
			s.t.Error(err)
		}
	})
	return w
}

// start runs something until stop is called or the test has ended, and wants a
// clean stop.
func (s *stand) start(what string, run func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("%s: %v", what, err)
		}
	})
	s.t.Cleanup(stop)
	return stop
}

func (s *stand) relay() (stop func()) {
	publisher, err := kafkapub.New(kafkapub.Config{Brokers: []string{s.addr}, Logger: quiet})
	s.ok(err)
	return s.start("relay", func(ctx context.Context) error {
		err := relay.Run(ctx, s.pool, publisher, relay.Config{LeaseTTL: 5 * time.Second, CheckpointInterval: 20 * time.Millisecond, AllowUnsafeDatabase: true, Logger: quiet})
		return errors.Join(err, publisher.Close())
	})
}

// outcomes counts what became of the records.
type outcomes struct {
	mu sync.Mutex
	n  map[consumer.Outcome]int
}

func (o *outcomes) count(what consumer.Outcome) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n[what]
}

func (o *outcomes) Committed(c consumer.Committed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range c.Results {
		o.n[r.Outcome]++
	}
}

func (*outcomes) Failing(consumer.Failure) {}
func (*outcomes) Alarm(consumer.Alarm)     {}

// consume runs a strict consumer from the origin, to which a hole is a hole.
func (s *stand) consume() *outcomes {
	s.t.Helper()
	source, err := kafkasource.New(kafkasource.Config{Brokers: []string{s.addr}, Group: kafkatest.Name(s.t), Topics: s.topics, HeartbeatInterval: 50 * time.Millisecond, MaxWait: 50 * time.Millisecond, Logger: quiet})
	s.ok(err)
	o := &outcomes{n: map[consumer.Outcome]int{}}
	s.start("consumer", func(ctx context.Context) error {
		err := consumer.Run(ctx, s.pool, source, consumer.Config{
			Name: "c", Policy: consumer.Strict, Start: consumer.FromOrigin, Mapping: consumer.Debezium(consumer.DebeziumConfig{}), Observer: o, Logger: quiet,
		}, consumer.HandlerFunc(apply))
		return errors.Join(err, source.Close())
	})
	return o
}

func apply(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
	var headers []string
	for _, h := range d.Headers {
		headers = append(headers, h.Name, h.Value)
	}
	_, err := tx.Exec(ctx, `insert into applied (id, topic, key, epoch, token, seq, type, source, subject, contenttype, headers, payload, created_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''), nullif($10, ''), $11, $12, $13)`,
		d.ID, d.Stream, d.Key, d.Epoch, d.Token, d.Seq, d.Type, d.Source, d.Subject, d.ContentType, headers, d.Payload, d.CreatedAt)
	return err
}

func (s *stand) acquire(key string, ttl time.Duration) *fencing.Lease {
	s.t.Helper()
	lease, err := s.fences.Campaign(s.t.Context(), key, fencing.LeaseConfig{TTL: ttl})
	s.ok(err)
	s.t.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease
}

// commit commits events under a lease.
func (s *stand) commit(lease *fencing.Lease, step string, events ...outbox.Event) {
	s.t.Helper()
	s.ok(commit(s.t.Context(), lease, step, events...))
}

func commit(ctx context.Context, lease *fencing.Lease, step string, events ...outbox.Event) error {
	_, err := lease.Commit(ctx, fencing.Content{Step: step, Type: "text/plain", Bytes: []byte(step)}, func(ctx context.Context, tx fencing.Tx) error {
		for _, e := range events {
			if err := outbox.Append(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// published is how many records the topics have.
func (s *stand) published() int64 {
	s.t.Helper()
	ends, err := kafkatest.Admin(s.t, s.addr).ListEndOffsets(s.t.Context(), s.topics...)
	s.ok(err)
	var n int64
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}

// same: what was applied is what was committed, each event once and each
// stream in order, every column of it.
func (s *stand) same() {
	s.t.Helper()
	s.until("0", "select ((select count(*) from fenceline.outbox where kind = 'data') - (select count(*) from applied))::text")
	for what, sql := range map[string]string{
		"parked or quarantined": "select count(*)::text from (select from fenceline.parked union all select from fenceline.quarantine) x",
		"applied twice":         "select count(*)::text from (select from applied group by topic, key, epoch, seq having count(*) > 1) x",
		"out of order":          "select count(*)::text from applied a join applied b on (a.topic, a.key) = (b.topic, b.key) and a.n < b.n and (a.epoch, a.seq) > (b.epoch, b.seq)",
		"not alike": `select count(*) || coalesce(': ' || min(o::text) || ' is ' || min(a::text), '') from fenceline.outbox o full join applied a on (a.topic, a.key, a.epoch, a.seq) = (o.topic, o.key, o.epoch, o.seq)
			where o.kind is distinct from 'end' and (o.id, o.token, o.type, o.source, o.subject, o.contenttype, o.payload, o.created_at, coalesce(o.headers, '[]'))
			  is distinct from (a.id, a.token, a.type, a.source, a.subject, a.contenttype, a.payload, a.created_at, to_jsonb(coalesce(a.headers, '{}')))`,
	} {
		if got := s.one(sql); got != "0" {
			s.t.Errorf("%s: %s", what, got)
		}
	}
}
