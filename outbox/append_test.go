package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

var ctx = context.Background()

// bed is a migrated database with a producer's fences.
type bed struct {
	*testing.T
	admin  *pgxpool.Pool
	pool   *pgxpool.Pool // a producer's
	fences *fencing.Fences
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dsn := pgmigrated.Migrated(t)
	b := &bed{T: t, admin: pgtest.Connect(t, dsn), pool: pgtest.Connect(t, pgmigrated.Login(t, dsn, schema.KindProducer))}
	var err error
	b.fences, err = fencing.New(ctx, b.pool, fencing.Config{AllowUnsafeDatabase: true})
	b.ok(err)
	return b
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) acquire(key string) *fencing.Lease {
	b.Helper()
	_, err := b.admin.Exec(ctx, "update fenceline.lease set expires_at = '-infinity' where key = $1", key)
	b.ok(err)
	lease, err := b.fences.Acquire(ctx, key, fencing.LeaseConfig{TTL: 5 * time.Minute})
	b.ok(err)
	b.Cleanup(func() { _ = lease.Release(ctx) })
	return lease
}

func (b *bed) commit(lease *fencing.Lease, step string, events ...outbox.Event) {
	b.Helper()
	b.ok(b.tryCommit(lease, step, events...))
}

func (b *bed) tryCommit(lease *fencing.Lease, step string, events ...outbox.Event) error {
	_, err := lease.Commit(ctx, fencing.Content{Step: step}, func(ctx context.Context, tx fencing.Tx) error {
		return outbox.Append(ctx, tx, events...)
	})
	return err
}

func event(topic string) outbox.Event { return outbox.Event{Topic: topic, Type: "t"} }

func events(topic string, n int) []outbox.Event {
	return slices.Repeat([]outbox.Event{event(topic)}, n)
}

// rows are the outbox's, in the order of pos, as the relay reads them.
func (b *bed) rows(where string, args ...any) (rs []outbox.Record) {
	b.Helper()
	rows, err := b.admin.Query(ctx, `select id, aggregatetype, type, topic, key, epoch, token, seq, kind, coalesce(subject, ''), source, coalesce(contenttype, ''),
		headers::text, history, prev_epoch, prev_seq, payload, created_at, pos from fenceline.outbox where `+where+" order by pos", args...)
	b.ok(err)
	rs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r outbox.Record, err error) {
		var headers *string
		var history, prevEpoch, prevSeq *int64
		err = row.Scan(&r.ID, &r.AggregateType, &r.Type, &r.Topic, &r.Key, &r.Epoch, &r.Token, &r.Seq, &r.Kind, &r.Subject, &r.Source, &r.ContentType,
			&headers, &history, &prevEpoch, &prevSeq, &r.Payload, &r.CreatedAt, &r.Pos)
		r.Stream = r.Topic
		if err == nil && headers != nil {
			r.Headers, err = outbox.DecodeHeaders([]byte(*headers))
		}
		if history != nil {
			r.History = *history
		}
		if prevEpoch != nil {
			r.Prev = &outbox.Prev{Epoch: *prevEpoch, Seq: *prevSeq}
		}
		return r, err
	})
	b.ok(err)
	return rs
}

func seqs(rs []outbox.Record) string {
	var s []string
	for _, r := range rs {
		s = append(s, fmt.Sprintf("%d:%d", r.Token, r.Seq))
	}
	return strings.Join(s, " ")
}

func TestSeqRunsOnAcrossTakeoversWithoutAHole(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	first := b.acquire("k")
	b.commit(first, "1", events("results", 2)...)
	if err := b.tryCommit(first, "undone", append(events("results", 3), outbox.Event{})...); err == nil {
		t.Fatal("an invalid event passed")
	}
	b.commit(first, "none")
	second := b.acquire("k")
	if err := b.tryCommit(first, "late", event("results")); !errors.Is(err, fencing.ErrStale) {
		t.Fatal(err)
	}
	b.commit(second, "2", event("results"))
	third := b.acquire("k")
	b.commit(third, "3", events("results", 2)...)
	rs := b.rows("key = 'k'")
	if got, want := seqs(rs), "1:1 1:2 2:3 3:4 3:5"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for i, r := range rs {
		if (r.History != 0) != (i == 0) || r.Prev != nil {
			t.Errorf("seq %d: history %d, prev %v", r.Seq, r.History, r.Prev)
		}
	}
	if rs[0].History > rs[0].Epoch {
		t.Errorf("history %d is above the epoch %d", rs[0].History, rs[0].Epoch)
	}
}

func TestTwoTopicsOfACommitAreTwoStreamsEachWithoutAHole(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	lease := b.acquire("k")
	b.commit(lease, "1", event("a"), event("b"), event("a"), event("b"), event("a"))
	b.commit(lease, "2", event("b"), event("a"))
	other := b.acquire("l")
	b.commit(other, "1", event("a"))
	for where, want := range map[string]string{
		"topic = 'a' and key = 'k'": "1:1 1:2 1:3 1:4", "topic = 'b' and key = 'k'": "1:1 1:2 1:3", "topic = 'a' and key = 'l'": "1:1",
	} {
		if got := seqs(b.rows(where)); got != want {
			t.Errorf("%s: %s, want %s", where, got, want)
		}
	}
}

func TestACommitMayAppendAThousandEventsOrNone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	lease := b.acquire("k")
	many := make([]outbox.Event, 1000)
	for i := range many {
		many[i] = event("results")
		many[i].Subject = fmt.Sprint(i)
	}
	b.commit(lease, "none")
	b.commit(lease, "one", outbox.Event{Topic: "results", Type: "t", Subject: "first"})
	b.commit(lease, "many", many...)
	rs := b.rows("key = 'k'")
	if len(rs) != 1001 {
		t.Fatalf("%d events", len(rs))
	}
	for i, r := range rs[1:] {
		if r.Seq != int64(i+2) || r.Subject != fmt.Sprint(i) {
			t.Fatalf("event %d has seq %d and subject %s", i, r.Seq, r.Subject)
		}
	}
	var heads int
	b.ok(b.admin.QueryRow(ctx, "select count(*) from fenceline.head").Scan(&heads))
	if heads != 1 {
		t.Errorf("%d heads for one stream", heads)
	}
}

func TestANewLifeBeginsAtOneAndRemembersWhereTheOldOneEnded(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	old := b.acquire("k")
	b.commit(old, "1", append(events("a", 3), event("b"))...)
	var since int64
	b.ok(b.admin.QueryRow(ctx, "select fenceline.history_bump()").Scan(&since))
	fresh := b.acquire("k")
	b.commit(fresh, "1", append(events("a", 2), event("c"))...)
	rs := b.rows("topic = 'a' and epoch = $1", fresh.Position().Epoch)
	if got := seqs(rs); got != "1:1 1:2" {
		t.Errorf("seq %s", got)
	}
	if want := (outbox.Prev{Epoch: old.Position().Epoch, Seq: 3}); rs[0].Prev == nil || *rs[0].Prev != want || rs[0].History != since || rs[1].History != 0 || rs[1].Prev != nil {
		t.Errorf("%+v", rs)
	}
	// A stream that the old life had not is without a memory; one that the new
	// life has not used yet keeps it.
	if rs := b.rows("topic = 'c'"); len(rs) != 1 || rs[0].Prev != nil || rs[0].History != since {
		t.Errorf("%+v", rs)
	}
	b.commit(fresh, "2", event("b"))
	if rs := b.rows("topic = 'b' and seq = 1 and epoch = $1", fresh.Position().Epoch); len(rs) != 1 || rs[0].Prev == nil || rs[0].Prev.Seq != 1 {
		t.Errorf("%+v", rs)
	}
}

func TestWhatWasAppendedIsWhatTheRelayReads(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	lease := b.acquire("kä")
	want := []outbox.Event{
		{ID: uuid.New(), Topic: "results", AggregateType: "order", Type: "t", Subject: "sä", Source: "src", ContentType: "text/plain", Payload: []byte{0, 255, '\n'},
			Headers: []outbox.Header{{Name: "z", Value: "1"}, {Name: "a", Value: "\t\"\\ \u0001 <&> ä \u2028"}, {Name: "z", Value: ""}, {Name: "z", Value: "1"}}},
		{ID: uuid.New(), Topic: "results", Type: "tombstone"},
		{ID: uuid.New(), Topic: "results", Type: "empty", Payload: []byte{}},
		{ID: uuid.New(), AggregateType: "order", Type: "by aggregate"},
	}
	b.commit(lease, "", want...)
	got := b.rows("true")
	if len(got) != len(want) {
		t.Fatalf("%d rows", len(got))
	}
	for i, e := range want {
		r := got[i]
		if r.ID != e.ID || r.Type != e.Type || r.Key != "kä" || !reflect.DeepEqual(r.Headers, e.Headers) || (r.Payload == nil) != (e.Payload == nil) || string(r.Payload) != string(e.Payload) || r.Kind != outbox.KindData {
			t.Errorf("%d: got %+v, want %+v", i, r, e)
		}
		if r.Token != lease.Position().Token || r.Epoch != lease.Position().Epoch {
			t.Errorf("%d: position of %+v", i, r)
		}
	}
	if r := got[0]; r.AggregateType != "order" || r.Subject != "sä" || r.Source != "src" || r.ContentType != "text/plain" {
		t.Errorf("%+v", r)
	}
	if r := got[1]; r.AggregateType != "results" || r.Subject != "" || r.Source != "fenceline" || r.ContentType != "application/json" {
		t.Errorf("defaults: %+v", r)
	}
	if r := got[3]; r.Topic != "outbox.event.order" {
		t.Errorf("topic by aggregate: %q", r.Topic)
	}
	// And all of it is a record that consumers accept.
	for _, r := range got {
		parsed, err := outbox.ParseWire(r.Topic, []byte(r.Key), outbox.WireValue(&r), r.CreatedAt, outbox.AppendWireHeaders(nil, &r))
		b.ok(err)
		if !parsed.CreatedAt.Equal(r.CreatedAt) || !reflect.DeepEqual(parsed.Headers, r.Headers) {
			t.Errorf("%+v", parsed)
		}
	}
	// Debezium's five columns, under Debezium's names.
	var aggregate string
	b.ok(b.admin.QueryRow(ctx, "select aggregateid from fenceline.outbox where id = $1 and aggregatetype = 'order' and type = 't' and payload is not null", want[0].ID).Scan(&aggregate))
	if aggregate != "kä" {
		t.Error(aggregate)
	}
}

func TestPosRisesInCommitOrderWithinAStreamAndXidIsThereBefore(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	lease := b.acquire("k")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				if err := b.tryCommit(lease, fmt.Sprintf("%d/%d", i, j), events("results", 3)...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	rs := b.rows("key = 'k'") // by pos
	if len(rs) != 120 {
		t.Fatalf("%d events", len(rs))
	}
	for i, r := range rs {
		if r.Seq != int64(i+1) {
			t.Fatalf("pos %d has seq %d, want %d", r.Pos, r.Seq, i+1)
		}
	}
	// The order of the columns is the order in which their defaults are made.
	var ordered bool
	b.ok(b.admin.QueryRow(ctx, `select x.attnum < p.attnum from pg_attribute x, pg_attribute p where x.attrelid = 'fenceline.outbox'::regclass and p.attrelid = x.attrelid and x.attname = 'xid' and p.attname = 'pos'`).Scan(&ordered))
	if !ordered {
		t.Error("xid is declared after pos")
	}
	var cache int64
	b.ok(b.admin.QueryRow(ctx, "select seqcache from pg_sequence where seqrelid = 'fenceline.outbox_pos'::regclass").Scan(&cache))
	if cache != 1 {
		t.Errorf("the sequence has CACHE %d", cache)
	}
}

func TestTheStoredShardIsThatOfGo(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	gen := rapid.SliceOfN(rapid.StringN(1, 60, 512).Filter(func(s string) bool { return !strings.Contains(s, "\x00") }), 500, 500)
	keys := append(gen.Example(1), "a", "ab", "abc", "abcd", "ä", "日本語", strings.Repeat("x", 512))
	rows, err := b.admin.Query(ctx, "select fenceline._shard(k) from unnest($1::text[]) with ordinality u(k, i) order by i", keys)
	b.ok(err)
	shards, err := pgx.CollectRows(rows, pgx.RowTo[int])
	b.ok(err)
	for i, key := range keys {
		if shards[i] != outbox.Shard(key) {
			t.Errorf("%q: %d in the database, %d here", key, shards[i], outbox.Shard(key))
		}
	}
	lease := b.acquire("日本語")
	b.commit(lease, "", event("results"))
	var stored int
	b.ok(b.admin.QueryRow(ctx, "select shard from fenceline.outbox").Scan(&stored))
	if stored != outbox.Shard("日本語") {
		t.Errorf("stored %d", stored)
	}
}
