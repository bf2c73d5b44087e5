package verify_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/verify"
)

const (
	topic      = "quakes"
	service    = "report"
	partitions = 3
)

// world is a producer's database, a log in memory, and a consumer's tables in
// the same database.
type world struct {
	testing.TB
	pool   *pgxpool.Pool
	fences *fencing.Fences
	log    *memoryLog
	leases map[string]*fencing.Lease
	steps  int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	pool := pgmigrated.Pool(t)
	fences, err := fencing.New(t.Context(), pool, fencing.Config{Holder: "test", AllowUnsafeDatabase: true})
	if err != nil {
		t.Fatal(err)
	}
	return &world{TB: t, pool: pool, fences: fences, log: &memoryLog{topics: map[string][][]verify.LogRecord{topic: make([][]verify.LogRecord, partitions)}}, leases: map[string]*fencing.Lease{}}
}

// append commits one event for each payload.
func (w *world) append(key string, payloads ...string) {
	w.Helper()
	lease := w.leases[key]
	if lease == nil {
		var err error
		if lease, err = w.fences.Acquire(w.Context(), key, fencing.LeaseConfig{TTL: time.Minute}); err != nil {
			w.Fatal(err)
		}
		w.leases[key] = lease
		w.Cleanup(func() { _ = lease.Release(context.Background()) })
	}
	for _, p := range payloads {
		w.steps++
		_, err := lease.Commit(w.Context(), fencing.Content{Step: fmt.Sprint(w.steps), Bytes: []byte(p)}, func(ctx context.Context, tx fencing.Tx) error {
			return outbox.Append(ctx, tx, outbox.Event{Topic: topic, Type: "t", Source: "s", AggregateType: "a", Payload: []byte(p), Headers: []outbox.Header{{Name: "x", Value: p}}})
		})
		if err != nil {
			w.Fatal(err)
		}
	}
}

// takeOver gives the key a new token.
func (w *world) takeOver(key string) {
	w.Helper()
	if err := w.leases[key].Release(w.Context()); err != nil {
		w.Fatal(err)
	}
	delete(w.leases, key)
}

// publish does what a relay would: everything goes to the log, in order, and
// the cursor with it.
func (w *world) publish() {
	w.Helper()
	for _, r := range w.rows() {
		if !w.log.has(r) {
			w.log.put(topic, r)
		}
	}
	w.exec(`delete from fenceline.relay_checkpoint`)
	w.cursor()
}

func (w *world) rows() []outbox.Record {
	w.Helper()
	rows, err := w.pool.Query(w.Context(), `select id, aggregatetype, type, payload, topic, key, epoch, token, seq, kind, coalesce(subject, ''), source, coalesce(contenttype, ''), coalesce(headers::text, '[]'), coalesce(history, 0), coalesce(prev_epoch, 0), coalesce(prev_seq, 0), created_at, pos
		from fenceline.outbox order by pos`)
	if err != nil {
		w.Fatal(err)
	}
	defer rows.Close()
	var all []outbox.Record
	for rows.Next() {
		var r outbox.Record
		var id [16]byte
		var kind, headers string
		var prev outbox.Prev
		if err := rows.Scan(&id, &r.AggregateType, &r.Type, &r.Payload, &r.Topic, &r.Key, &r.Epoch, &r.Token, &r.Seq, &kind, &r.Subject, &r.Source, &r.ContentType, &headers, &r.History, &prev.Epoch, &prev.Seq, &r.CreatedAt, &r.Pos); err != nil {
			w.Fatal(err)
		}
		r.ID, r.Kind, r.Stream = id, outbox.Kind(kind), r.Topic
		if prev != (outbox.Prev{}) {
			r.Prev = &prev
		}
		if r.Headers, err = outbox.DecodeHeaders([]byte(headers)); err != nil {
			w.Fatal(err)
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		w.Fatal(err)
	}
	return all
}

// consume gives the consumer a guard at the end of each stream that is in the
// log, and an offset at the log's end.
func (w *world) consume() {
	w.Helper()
	w.exec(`delete from fenceline.guard`)
	w.exec(`delete from fenceline.consumer_offset`)
	w.exec(`insert into fenceline.consumer_stream (consumer, stream, policy, start) values ($1, $2, 'strict', 'first-seen') on conflict do nothing`, service, topic)
	for p, log := range w.log.topics[topic] {
		next := w.log.start[topic]
		for _, l := range log {
			r := parse(w, topic, l)
			w.exec(`insert into fenceline.guard (consumer, stream, key, epoch, token, seq, settled) values ($1, $2, $3, $4, $5, $6, true)
				on conflict (consumer, stream, key) do update set epoch = excluded.epoch, token = excluded.token, seq = excluded.seq`, service, topic, r.Key, r.Epoch, r.Token, r.Seq)
			next = l.Offset + 1
		}
		w.exec(`insert into fenceline.consumer_offset (consumer, topic, partition, next_offset) values ($1, $2, $3, $4)`, service, topic, p, next)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := w.pool.Exec(w.Context(), sql, args...); err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
}

// as the owner of the tables would, triggers and all put aside.
func (w *world) tamper(sql string, args ...any) {
	w.Helper()
	tx, err := w.pool.Begin(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(w.Context(), "set local session_replication_role = replica"); err != nil {
		w.Fatal(err)
	}
	tag, err := tx.Exec(w.Context(), sql, args...)
	if err != nil {
		w.Fatalf("%s: %v", sql, err)
	}
	if tag.RowsAffected() == 0 {
		w.Fatalf("%s: nothing was changed", sql)
	}
	if err := tx.Commit(w.Context()); err != nil {
		w.Fatal(err)
	}
}

func (w *world) verify(change ...func(*verify.Config)) (*verify.Report, []verify.Finding) {
	w.Helper()
	var all []verify.Finding
	cfg := verify.Config{
		Producer: w.pool, Log: w.log, Dir: w.TempDir(),
		Consumers: []verify.Consumer{{Name: service, Pool: w.pool}},
		Found:     func(f verify.Finding) { all = append(all, f) },
	}
	for _, c := range change {
		c(&cfg)
	}
	report, err := verify.Run(w.Context(), cfg)
	if err != nil {
		w.Fatal(err)
	}
	if report.Total() != int64(len(all)) {
		w.Errorf("the report counts %d findings, %d were told", report.Total(), len(all))
	}
	return report, all
}

// kinds lists what was found, each once.
func kinds(all []verify.Finding) string {
	var names []string
	for _, f := range all {
		names = append(names, string(f.Kind))
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

func parse(t testing.TB, topic string, l verify.LogRecord) outbox.Record {
	t.Helper()
	r, err := outbox.ParseWire(topic, l.Key, l.Value, time.UnixMilli(l.TimestampMS), l.Headers)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// memoryLog is a log that a test can do anything to.
type memoryLog struct {
	topics map[string][][]verify.LogRecord
	start  map[string]int64
	cut    map[int]int64 // where partitions of the one topic begin
}

func (m *memoryLog) Spans(_ context.Context, topic string) ([]verify.Span, error) {
	logs, ok := m.topics[topic]
	if !ok {
		return nil, verify.ErrNoTopic
	}
	var spans []verify.Span
	for p, log := range logs {
		s := verify.Span{Start: m.start[topic] + m.cut[p], End: m.start[topic] + m.cut[p]}
		if n := len(log); n > 0 {
			s.End = log[n-1].Offset + 1
		}
		spans = append(spans, s)
	}
	return spans, nil
}

func (m *memoryLog) Read(_ context.Context, topic string, partition int, from, to int64, f func(verify.LogRecord) error) error {
	for _, l := range m.topics[topic][partition] {
		if l.Offset >= from && l.Offset < to {
			if err := f(l); err != nil {
				return err
			}
		}
	}
	return nil
}

func wire(r outbox.Record) verify.LogRecord {
	return verify.LogRecord{TimestampMS: r.CreatedAt.UnixMilli(), Key: []byte(r.Key), Value: outbox.WireValue(&r), Headers: outbox.AppendWireHeaders(nil, &r)}
}

func (m *memoryLog) put(topic string, r outbox.Record) {
	logs := m.topics[topic]
	p := outbox.Partition([]byte(r.Key), len(logs))
	l := wire(r)
	l.Offset = m.start[topic]
	if n := len(logs[p]); n > 0 {
		l.Offset = logs[p][n-1].Offset + 1
	}
	logs[p] = append(logs[p], l)
}

func (m *memoryLog) has(r outbox.Record) bool {
	want := wire(r)
	for _, log := range m.topics[r.Topic] {
		for _, l := range log {
			if bytes.Equal(l.Key, want.Key) && slices.EqualFunc(l.Headers, want.Headers, func(a, b outbox.WireHeader) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }) {
				return true
			}
		}
	}
	return false
}

// find gives the partition of a key and the index of the record with this seq
// there, of the newest life.
func (m *memoryLog) find(t testing.TB, key string, seq int64) (p, i int) {
	t.Helper()
	p = outbox.Partition([]byte(key), partitions)
	found := -1
	for i, l := range m.topics[topic][p] {
		if r := parse(t, topic, l); r.Key == key && r.Seq == seq {
			found = i
		}
	}
	if found < 0 {
		t.Fatalf("the log has no %s/%d", key, seq)
	}
	return p, found
}

// cursor stores a relay's cursor that is past everything.
func (w *world) cursor() {
	w.Helper()
	w.exec(`insert into fenceline.relay_checkpoint (n, epoch, token, s1, low, pair_low, pair_xid) values (1, 1, 1, pg_current_snapshot(), 0, 0, '1')`)
}
