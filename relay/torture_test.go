package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Writers do everything that writers do: stragglers of seconds, rollbacks,
// savepoints, prepared transactions, writes long before the gate, several keys
// in one commit. An unrelated transaction is open all the time. The broker
// loses answers and goes away, a topic comes and goes. The relay is killed at
// every point. At the end each committed event is in the log, and first copies
// are in order and without holes.
func TestTorture(t *testing.T) {
	t.Parallel()
	length := 6 * time.Second
	if testing.Short() {
		length = 2 * time.Second
	}
	if os.Getenv("FENCELINE_LONG") != "" {
		length = 5 * time.Minute
	}
	_, pool := ownServer(t, map[string]string{"max_prepared_transactions": "20"})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

	kafka := newMemory(t, "a", "b", "c")
	chance := &dice{r: rand.New(rand.NewPCG(seed, 0))}
	kafka.before = func(ctx context.Context, b *Batch) error {
		if chance.one(20) {
			return errAway
		}
		if chance.one(5) {
			time.Sleep(time.Duration(chance.n(3000)) * time.Microsecond)
		}
		return nil
	}
	kafka.after = func(*Batch) error {
		if chance.one(20) {
			return errAway
		}
		return nil
	}
	var calm atomic.Bool // no more faults: let it come to an end
	var crashes, midWindow, forks, joins, stragglers atomic.Int64
	cfg := quick()
	cfg.PageSize, cfg.BatchRecords, cfg.CheckpointEvery = 10, 5, 20
	cfg.signals.crash = func(string) bool {
		if !calm.Load() && chance.one(250) {
			crashes.Add(1)
			return true
		}
		return false
	}
	cfg.signals.loaded = func(c cursor) {
		if !c.boundary() {
			midWindow.Add(1)
		}
	}
	cfg.Hooks.Forked = func(string, string) { forks.Add(1) }
	cfg.Hooks.Joined = func(string) { joins.Add(1) }
	r := startRelay(t, pool, kafka, cfg)

	ctx, cancel := context.WithTimeout(bg, length)
	defer cancel()
	var keys []*producer
	for i := range 40 {
		keys = append(keys, newProducer(t, pool, fmt.Sprintf("k%02d", i)))
	}
	if _, err := pool.Exec(bg, "create table unrelated (v int)"); err != nil {
		t.Fatal(err)
	}
	open, err := pool.Begin(bg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Exec(bg, "insert into unrelated values (0)"); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	prepared := make(chan string, 15)
	for i := range 8 {
		writers.Add(1)
		go func() {
			defer writers.Done()
			w := &tortureWriter{r: rand.New(rand.NewPCG(seed, uint64(i+1))), keys: keys, prepared: prepared, stragglers: &stragglers}
			w.run(ctx, t, pool)
		}()
	}
	finished := make(chan struct{})
	go func() { // commits what was prepared, later
		defer close(finished)
		for gid := range prepared {
			time.Sleep(time.Duration(chance.n(400)) * time.Millisecond)
			if _, err := pool.Exec(bg, "commit prepared '"+gid+"'"); err != nil {
				t.Error(err)
			}
		}
	}()
	for ctx.Err() == nil { // a topic comes and goes
		time.Sleep(300 * time.Millisecond)
		kafka.remove("c")
		time.Sleep(100 * time.Millisecond)
		kafka.create("c", 3)
	}
	writers.Wait()
	close(prepared)
	<-finished
	if err := open.Rollback(bg); err != nil {
		t.Error(err)
	}
	calm.Store(true)
	kafka.mu.Lock()
	kafka.before, kafka.after = nil, nil
	kafka.mu.Unlock()

	total := query[int](t, pool, "select count(*) from fenceline.outbox")
	eventually(t, "everything is published", func() bool {
		kafka.mu.Lock()
		defer kafka.mu.Unlock()
		n := 0
		seen := map[int64]bool{}
		for _, log := range kafka.logs {
			for _, r := range log {
				if !seen[r.Pos] {
					seen[r.Pos] = true
					n++
				}
			}
		}
		return n >= total
	})
	r.end()

	again := 0
	next := map[streamKey]int64{}
	for topic := range kafka.logs {
		_, copies, n := firsts(t, kafka.logs[topic])
		again += copies
		for k, seq := range n {
			next[k] = seq
		}
	}
	rows, err := pool.Query(bg, "select topic, key, max(seq), count(*) from fenceline.outbox group by 1, 2")
	if err != nil {
		t.Fatal(err)
	}
	var topic, key string
	var last, count int64
	if _, err := pgx.ForEachRow(rows, []any{&topic, &key, &last, &count}, func() error {
		if got := next[streamKey{topic, key}]; got != last || count != last {
			t.Errorf("%s/%s: published up to %d of %d", topic, key, got, last)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d events, %d copies, %d kills, %d sessions began inside a window, %d stragglers, %d forks, %d joins",
		total, again, crashes.Load(), midWindow.Load(), stragglers.Load(), forks.Load(), joins.Load())
	if crashes.Load() == 0 || total == 0 {
		t.Error("nothing was tortured")
	}
}

// dice is a random source for several goroutines.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) one(in int) bool { return d.n(in) == 0 }

type tortureWriter struct {
	r          *rand.Rand
	keys       []*producer
	prepared   chan<- string
	stragglers *atomic.Int64
}

func (w *tortureWriter) run(ctx context.Context, t *testing.T, pool *pgxpool.Pool) {
	conn, err := pgx.ConnectConfig(bg, pool.Config().ConnConfig)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close(bg) }()
	for ctx.Err() == nil {
		if err := w.once(ctx, conn); err != nil {
			t.Error(err)
			return
		}
	}
}

func (w *tortureWriter) once(ctx context.Context, conn *pgx.Conn) error {
	var failed error
	exec := func(sql string, args ...any) {
		if failed == nil {
			_, failed = conn.Exec(bg, sql, args...)
		}
	}
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	exec("begin")
	if w.r.IntN(3) == 0 { // the transaction id is older than the gate
		exec("insert into unrelated values (1)")
		pause(time.Duration(w.r.IntN(10)) * time.Millisecond)
	}
	first := w.r.IntN(len(w.keys))
	keys := w.keys[first : first+1]
	if w.r.IntN(8) == 0 && first+1 < len(w.keys) {
		keys = w.keys[first : first+2] // in the order of keys
	}
	for _, p := range keys {
		step := fmt.Sprint(steps.Add(1))
		exec("select fenceline.enter($1, $2, $3, $4, 'sha256', $5, interval '5 min')", p.key, p.epoch, p.token, step, make([]byte, 32))
		for range 1 + w.r.IntN(3) {
			topic := string(rune('a' + w.r.IntN(3)))
			n := 1 + w.r.IntN(4)
			ids, texts, null, data := make([]uuid.UUID, n), make([]string, n), make([]*string, n), make([][]byte, n)
			for i := range n {
				ids[i], texts[i], data[i] = uuid.New(), "t", []byte("x")
			}
			add := func() {
				exec("select fenceline.append($1, $2, $3, $4, $5, $6, $7, $7, $8, $7, $8, $8, $9)", p.key, p.epoch, p.token, step, topic, ids, texts, null, data)
			}
			if w.r.IntN(10) == 0 {
				exec("savepoint s")
				add()
				if w.r.IntN(2) == 0 {
					exec("rollback to s")
				} else {
					exec("release s")
				}
			}
			add()
		}
	}
	switch w.r.IntN(200) {
	case 0:
		w.stragglers.Add(1)
		pause(time.Duration(500+w.r.IntN(1500)) * time.Millisecond)
	case 1, 2, 3, 4:
		pause(time.Duration(w.r.IntN(50)) * time.Millisecond)
	}
	switch w.r.IntN(100) {
	case 0, 1, 2, 3:
		exec("rollback")
		return failed
	case 4:
		gid := uuid.NewString()
		exec("prepare transaction '" + gid + "'")
		if failed == nil {
			w.prepared <- gid
		}
		return failed
	}
	exec("commit")
	return failed
}
