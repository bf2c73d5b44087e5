package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/migrations"
	"github.com/fenceline/fenceline/outbox"
)

// What the guard costs, as ratios within one run: rates by themselves say more
// about the machine. The arms take turns in short slices on one durable server
// of their own; a round's ratio is to the same round's plain slice, and the
// median of the rounds is printed, with the smallest and the largest.
// docs/performance.md has the numbers and the command.
const (
	benchBatch = 500
	benchSlice = 700 * time.Millisecond
)

// track is the server and what is applied on it. A handler's work is one insert
// for each event, a round trip of its own, as most handlers' is.
type track struct {
	testing.TB
	server *devstack.Postgres
	pool   *pgxpool.Pool
	guard  *consumer.Guard
	seqs   map[string]int64
}

func newTrack(tb testing.TB) *track {
	tb.Helper()
	server := pgtest.Server(tb, devstack.PostgresConfig{Durable: true, Settings: map[string]string{"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}})
	tr := &track{TB: tb, server: server, pool: pgtest.Connect(tb, server.DSN("postgres")), seqs: map[string]int64{}}
	m, err := migrations.New(tr.pool, migrations.Config{})
	if err == nil {
		_, err = m.Up(tb.Context(), migrations.UpOptions{Parts: []migrations.Part{migrations.Consumer}})
	}
	tr.must(err)
	tr.exec("create table effect (key text, seq bigint, at timestamptz default now())")
	tr.exec("create table plain_offset (partition int primary key, next_offset bigint)")
	tr.exec("insert into plain_offset values (0, 0)")
	tr.guard, err = consumer.NewGuard(consumer.GuardConfig{Consumer: "bench"})
	tr.must(err)
	return tr
}

func (tr *track) must(err error) {
	tr.Helper()
	if err != nil {
		tr.Fatal(err)
	}
}

func (tr *track) exec(sql string) {
	tr.Helper()
	_, err := tr.pool.Exec(tr.Context(), sql)
	tr.must(err)
}

// next is a batch of the next events of keys first..first+n-1, each key once, or
// of one hot key.
func (tr *track) next(prefix string, first, keys, n int) (recs []consumer.KafkaRecord) {
	for i := range n {
		key := prefix + strconv.Itoa((first+i)%keys)
		tr.seqs[key]++
		r := event("t", key, tr.seqs[key])
		r.Payload = make([]byte, 200)
		recs = append(recs, consumer.KafkaRecord{Time: r.CreatedAt, Key: []byte(key), Value: r.Payload, Headers: outbox.AppendWireHeaders(nil, &r)})
	}
	return recs
}

func handleBench(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
	_, err := tx.Exec(ctx, "insert into effect (key, seq) values ($1, $2)", d.Key, d.Seq)
	return err
}

func deliveriesOf(recs []consumer.KafkaRecord) []consumer.Delivery {
	ds := make([]consumer.Delivery, len(recs))
	for i, r := range recs {
		ds[i] = consumer.NewDelivery(consumer.Partition{Topic: "t"}, r)
	}
	return ds
}

// plain applies without a guard, and stores its offset.
func (tr *track) plain(recs []consumer.KafkaRecord) {
	tr.must(pgx.BeginFunc(tr.Context(), tr.pool, func(tx pgx.Tx) error {
		for _, d := range deliveriesOf(recs) {
			if err := handleBench(tr.Context(), tx, d); err != nil {
				return err
			}
		}
		_, err := tx.Exec(tr.Context(), "update plain_offset set next_offset = next_offset + $1 where partition = 0", len(recs))
		return err
	}))
}

// guarded does what Run does in a transaction; every outcome must be want.
func (tr *track) guarded(recs []consumer.KafkaRecord, want consumer.Outcome) {
	tr.must(pgx.BeginTxFunc(tr.Context(), tr.pool, readCommitted, func(tx pgx.Tx) error {
		results, err := tr.guard.Apply(tr.Context(), tx, deliveriesOf(recs), consumer.HandlerFunc(handleBench))
		if err != nil {
			return err
		}
		for _, r := range results {
			if r.Outcome != want {
				return fmt.Errorf("%s is %s, want %s", r.Position, r.Outcome, want)
			}
		}
		_, err = tr.guard.Progress(tr.Context(), tx, consumer.Read{Partition: consumer.Partition{Topic: "t"}, From: 0, Next: int64(len(recs))}, results)
		return err
	}))
}

// slice is what an arm has done in one: events a second, and the processor time
// of server and client for each, which other load on the machine disturbs least.
type slice struct{ rate, server, client float64 }

func (s slice) String() string {
	return fmt.Sprintf("%.0f events/s (server %.1f, client %.1f µs)", s.rate, s.server, s.client)
}

// slice runs one arm. The batches are made before the clock runs; the client's
// time has that in it, which is the same for all.
func (tr *track) slice(n int, batch func() []consumer.KafkaRecord, do func([]consumer.KafkaRecord)) slice {
	var took time.Duration
	events := 0.0
	server, client := tr.serverCPU(), clientCPU()
	for end := time.Now().Add(benchSlice); time.Now().Before(end); {
		recs := batch()
		began := time.Now()
		do(recs)
		took += time.Since(began)
		events += float64(n)
	}
	micros := func(d time.Duration) float64 { return d.Seconds() * 1e6 / events }
	return slice{events / took.Seconds(), micros(tr.serverCPU() - server), micros(clientCPU() - client)}
}

// serverCPU is what the server's processes have used, as far as the system tells.
func (tr *track) serverCPU() (total time.Duration) {
	parent := strconv.Itoa(tr.server.PID())
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		if fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(fields) > 1 && fields[1] == parent {
			total += ranFor("/proc/" + e.Name() + "/schedstat")
		}
	}
	return total
}

// ranFor is what a process of one thread, or a thread, has used.
func ranFor(schedstat string) time.Duration {
	stat, err := os.ReadFile(schedstat)
	if err != nil {
		return 0 // it has ended
	}
	ns, _, _ := strings.Cut(string(stat), " ")
	n, _ := strconv.ParseInt(ns, 10, 64)
	return time.Duration(n)
}

// clientCPU is the same of this process.
func clientCPU() (total time.Duration) {
	threads, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, t := range threads {
		total += ranFor(t)
	}
	return total
}

// ratios are those of each round: of the rates, and of the processor time, which
// is what would be left of the rate on a machine with nothing else to do.
type ratios struct{ rate, cpu []float64 }

func (r *ratios) add(is, of slice) {
	r.rate = append(r.rate, is.rate/of.rate)
	r.cpu = append(r.cpu, (of.server+of.client)/(is.server+is.client))
}

func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("FENCELINE_BENCH_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return 5
}

// report prints the median of the rounds' ratios, and whether it is enough.
func report(b *testing.B, name string, r ratios, least float64) {
	b.Helper()
	median := func(v []float64) string {
		slices.Sort(v)
		return fmt.Sprintf("%.2f (%.2f to %.2f)", v[len(v)/2], v[0], v[len(v)-1])
	}
	b.Logf("%s: %s by the rate, %s by processor time, at least %.2f wanted", name, median(r.rate), median(r.cpu), least)
	b.ReportMetric(r.rate[len(r.rate)/2], strconv.FormatFloat(least, 'g', -1, 64)+"-wanted-ratio")
	b.ReportMetric(0, "ns/op")
}

func applied(f func([]consumer.KafkaRecord, consumer.Outcome)) func([]consumer.KafkaRecord) {
	return func(recs []consumer.KafkaRecord) { f(recs, consumer.Applied) }
}

func BenchmarkGuardedAgainstPlain(b *testing.B) {
	tr := newTrack(b)
	const keys = 10_000
	at := 0
	batch := func() []consumer.KafkaRecord { at += benchBatch; return tr.next("k", at, keys, benchBatch) }
	for range keys / benchBatch { // every key has a guard
		tr.guarded(batch(), consumer.Applied)
	}
	tr.exec("vacuum analyze fenceline.guard")
	var found ratios
	for range rounds() {
		plain := tr.slice(benchBatch, func() []consumer.KafkaRecord { return tr.next("p", 0, keys, benchBatch) }, tr.plain)
		guarded := tr.slice(benchBatch, batch, applied(tr.guarded))
		b.Logf("plain %s, guarded %s", plain, guarded)
		found.add(guarded, plain)
	}
	report(b, "guarded to plain, batches of 500, 10,000 keys", found, 0.9)
}

func BenchmarkBatchAgainstOneByOne(b *testing.B) {
	tr := newTrack(b)
	const keys = 1000
	at := 0
	batch := func() []consumer.KafkaRecord { at += benchBatch; return tr.next("k", at, keys, benchBatch) }
	one := func() []consumer.KafkaRecord { return tr.next("o", 0, 1, 1) }
	var found ratios
	for range rounds() {
		alone := tr.slice(1, one, applied(tr.guarded))
		together := tr.slice(benchBatch, batch, applied(tr.guarded))
		b.Logf("one by one %s, in batches %s", alone, together)
		found.add(together, alone)
	}
	report(b, "batches of 500 to one transaction for each event", found, 20)
}

func BenchmarkRejectingARewind(b *testing.B) {
	tr := newTrack(b)
	const keys = 1000
	at := 0
	var old [][]consumer.KafkaRecord
	batch := func() []consumer.KafkaRecord { at += benchBatch; return tr.next("k", at, keys, benchBatch) }
	var found ratios
	for range rounds() {
		old = old[:0]
		apply := tr.slice(benchBatch, func() []consumer.KafkaRecord { old = append(old, batch()); return old[len(old)-1] }, applied(tr.guarded))
		i := 0
		again := func() []consumer.KafkaRecord { i++; return old[i%len(old)] }
		reject := tr.slice(benchBatch, again, func(recs []consumer.KafkaRecord) { tr.guarded(recs, consumer.Duplicate) })
		b.Logf("applied %s, rejected %s", apply, reject)
		found.add(reject, apply)
	}
	report(b, "rejecting what was applied to applying it", found, 3)
}

// One guard row is updated by every batch, while somebody's snapshot keeps its
// old versions from being removed.
func BenchmarkOneHotKeyUnderAHeldSnapshot(b *testing.B) {
	tr := newTrack(b)
	hold := 10 * time.Second
	if os.Getenv("FENCELINE_LONG") != "" {
		hold = time.Minute
	}
	hot := func() []consumer.KafkaRecord { return tr.next("hot", 0, 1, benchBatch) }
	for range 20 {
		tr.guarded(hot(), consumer.Applied)
	}
	held, err := tr.pool.BeginTx(b.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	tr.must(err)
	defer held.Rollback(context.Background())
	_, err = held.Exec(b.Context(), "select count(*) from fenceline.guard")
	tr.must(err)
	for end := time.Now().Add(hold); time.Now().Before(end); {
		tr.guarded(hot(), consumer.Applied)
	}
	var found ratios
	for range rounds() {
		plain := tr.slice(benchBatch, func() []consumer.KafkaRecord { return tr.next("p", 0, 1, benchBatch) }, tr.plain)
		guarded := tr.slice(benchBatch, hot, applied(tr.guarded))
		b.Logf("plain %s, guarded %s", plain, guarded)
		found.add(guarded, plain)
	}
	report(b, fmt.Sprintf("one hot key, a snapshot held for %v", hold), found, 0.8)
}
