package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
)

func testReader(t *testing.T, pool *pgxpool.Pool, rows, bytes int) *reader {
	t.Helper()
	conn := readerConn(t, pool)
	sql := newStatements("fenceline")
	return &reader{conn: conn, sql: &sql, pid: conn.PgConn().PID(), rows: rows, bytes: bytes}
}

// drain reads one window to its end.
func drain(t *testing.T, r *reader, c cursor, low int64) (pages []chunk, end cursor) {
	t.Helper()
	ch, err := r.poll(bg, c, everything, bound{low: low})
	for {
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, ch)
		if ch.after.boundary() {
			return pages, ch.after
		}
		ch, err = r.next(bg, ch.after, everything)
	}
}

func TestAPageIsBoundedInEventsAndInBytes(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	p := newProducer(t, pool, "k")
	big := strings.Repeat("x", 800<<10)
	for range 12 {
		p.publish("a", big)
	}
	for range 4 {
		p.publish("a", slices.Repeat([]string{"small"}, 50)...)
	}
	r := testReader(t, pool, 60, 2<<20)
	pages, _ := drain(t, r, start(), 0)
	total := 0
	for i, page := range pages {
		weight := 0
		for _, row := range page.rows {
			if row.weight < len(row.Payload) {
				t.Errorf("a payload of %d bytes weighs %d", len(row.Payload), row.weight)
			}
			weight += row.weight
		}
		total += len(page.rows)
		if len(page.rows) > 60 || weight > 2<<20+900<<10 {
			t.Errorf("page %d has %d events, %d bytes", i, len(page.rows), weight)
		}
	}
	if total != 212 {
		t.Errorf("%d events read, not 212", total)
	}
}

// A straggler phase of several pages, and a window of several more, in which
// newer rows appear all the time.
func TestAWindowOfManyPagesIsReadOnceAndInOrder(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	r := testReader(t, pool, 3, 1<<20)
	old := []*work{newProducer(t, pool, "s1").begin().enter(), newProducer(t, pool, "s2").begin().enter()}
	for i := range 5 {
		for _, w := range old {
			w.append("a", fmt.Sprint("straggler ", i))
		}
	}
	low := query[int64](t, pool, "select last_value from fenceline.outbox_pos")
	query[uint64](t, pool, "select pg_current_xact_id()") // c
	p := newProducer(t, pool, "p")
	p.publish("a", "before")
	_, c := drain(t, r, start(), low)
	if c.low != low || len(c.s1.xip) < 2 {
		t.Fatalf("the window begins at %+v: the test would prove nothing", c)
	}
	for _, w := range old {
		w.commit()
	}
	for range 4 {
		p.publish("a", "new", "new")
	}
	later := newProducer(t, pool, "later").begin().enter().append("a", "not yet")

	var got []int64
	ch, err := r.poll(bg, c, everything, bound{low: low})
	for n := 0; ; n++ {
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			later.commit() // belongs to the next window, though its pos is among these
		}
		for _, row := range ch.rows {
			got = append(got, row.Pos)
		}
		if ch.after.boundary() {
			break
		}
		p.publish("a", "newer")
		ch, err = r.next(bg, ch.after, everything)
	}
	if len(got) != 18 || !slices.IsSorted(got) || got[9] > low || got[10] <= low {
		t.Errorf("positions %v, want 10 stragglers up to %d and then 8 new ones", got, low)
	}
	pages, _ := drain(t, r, ch.after, low)
	if pages[0].rows[0].Key != "later" {
		t.Errorf("the next window begins with %q", pages[0].rows[0].Key)
	}
}

func TestProgressInsideAWindowSurvivesARestart(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	for i := range 40 {
		newProducer(t, pool, fmt.Sprint("k", i)).publish("a", slices.Repeat([]string{"x"}, 5)...)
	}
	cfg := quick()
	cfg.PageSize, cfg.CheckpointEvery = 10, 1
	// Kafka takes what begins with the first 60 events and stands still; the relay is killed
	// behind a checkpoint that says so of some of them. Which of the partitions
	// goes first is left open: as long as one stands before the first page, a
	// checkpoint has no progress to store.
	gate := make(chan struct{})
	wait := blockUntil(gate)
	kafka.answer(func(ctx context.Context, b *Batch) error {
		if b.Records[0].Pos <= 60 {
			return nil
		}
		return wait(ctx, b)
	})
	var crashed atomic.Bool
	cfg.signals.crash = func(point string) bool {
		return point == "checkpointed" && !crashed.Load() &&
			query[int64](t, pool, "select coalesce(max(last_pos), 0) from fenceline.relay_checkpoint") >= 10 &&
			crashed.CompareAndSwap(false, true)
	}
	cfg.BatchRecords = 10
	var resumed atomic.Pointer[cursor]
	cfg.signals.loaded = func(c cursor) {
		if crashed.Load() && resumed.CompareAndSwap(nil, &c) {
			close(gate)
		}
	}
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "all is published", func() bool {
		kafka.mu.Lock()
		defer kafka.mu.Unlock()
		n, _, _ := firsts(t, kafka.logs["a"])
		return n == 200
	})
	r.end()
	c := resumed.Load()
	if c.boundary() || c.last < 10 {
		t.Fatalf("the second session began at %+v, not inside the window", c)
	}
	seen := map[int64]int{}
	for _, rec := range kafka.logs["a"] {
		seen[rec.Pos]++
	}
	for pos := range c.last {
		if seen[pos+1] != 1 {
			t.Errorf("pos %d, behind the stored progress of %d, was published %d times", pos+1, c.last, seen[pos+1])
		}
	}
}

// Its topic was chosen when it was appended, and no configuration of the relay can
// send it elsewhere: where that could change, positions of two streams would meet
// in one topic (X14 of the consumer's histories).
func TestAnEventComesOutAsItWasAppended(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	p := newProducer(t, pool, "schlüssel")
	w := p.begin().enter()
	w.exec(`select fenceline.append($1, $2, $3, $4, 'a', $5, '{agg,agg,agg}', '{t1,t2,t3}', '{sub,null,null}', '{src,src,src}', '{text/plain,null,null}',
		array['["traceparent","00-x","dup","1","dup",""]', null, null], array['\x00ff'::bytea, '', null])`,
		p.key, p.epoch, p.token, w.step, [][16]byte{{1}, {2}, {3}})
	w.commit()
	pages, _ := drain(t, testReader(t, pool, 10, 1<<20), start(), 0)
	rows := pages[0].rows
	if len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	a, b, c := rows[0], rows[1], rows[2]
	if a.ID != [16]byte{1} || a.AggregateType != "agg" || a.Type != "t1" || a.Subject != "sub" || a.Source != "src" || a.ContentType != "text/plain" ||
		a.Topic != "a" || a.Stream != "a" || a.Key != p.key || a.Epoch != p.epoch || a.Token != p.token || a.Seq != 1 || a.Kind != outbox.KindData ||
		a.History == 0 || a.Prev != nil || string(a.Payload) != "\x00\xff" || a.CreatedAt.IsZero() {
		t.Errorf("%+v", a)
	}
	if want := []outbox.Header{{Name: "traceparent", Value: "00-x"}, {Name: "dup", Value: "1"}, {Name: "dup", Value: ""}}; !slices.Equal(a.Headers, want) {
		t.Errorf("headers %v", a.Headers)
	}
	if b.Payload == nil || len(b.Payload) != 0 || c.Payload != nil || b.Subject != "" || b.Headers != nil {
		t.Errorf("an empty payload and a tombstone became %v and %v", b.Payload, c.Payload)
	}
}

// Memory is bounded whatever the backlog, also while nothing is acknowledged.
func TestABacklogIsNotReadFasterThanItIsAcknowledged(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	payload := strings.Repeat("x", 256<<10)
	p := newProducer(t, pool, "k")
	for range 40 {
		p.publish("a", payload)
	}
	var inFlight atomic.Int64
	gate := make(chan struct{})
	cfg := quick()
	cfg.MaxBytesInFlight, cfg.PageBytes, cfg.BatchRecords = 4<<20, 1<<20, 1
	cfg.signals.read = func(_ cursor, rows int) { inFlight.Add(int64(rows)) }
	cfg.Hooks.Published = func(_ string, _, records, _ int, _ time.Duration) { inFlight.Add(-int64(records)) }
	kafka.answer(blockUntil(gate))
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "the budget is used up", func() bool { return inFlight.Load() >= 12 })
	if n := inFlight.Load(); n > 17 {
		t.Errorf("%d events of 256 KiB in flight, with a budget of 4 MiB", n)
	}
	close(gate)
	eventually(t, "all is published", func() bool { return len(kafka.payloads("a")) >= 40 })
	r.end()
	if n := inFlight.Load(); n != 0 {
		t.Errorf("%d events are still counted as in flight", n)
	}
}
