package fencing_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/migrations"
	"github.com/fenceline/fenceline/outbox"
)

// What a fenced commit costs, as ratios to a plain transaction of the same rows
// in the same run: rates by themselves say more about the machine. Each round
// gives every arm a short slice; a round's ratio is to the same round's plain
// slice; the median of the rounds is printed, with the smallest and the largest.
// docs/performance.md has the numbers and the command.
const (
	benchWorkers = 16
	benchKeys    = 1000
)

// bench is a durable server of its own (fsync and full_page_writes on), and
// both sides of the comparison on it.
type bench struct {
	testing.TB
	server *devstack.Postgres
	plain  *pgxpool.Pool // a superuser's, who may write the outbox directly
	fences *fencing.Fences
	pool   *pgxpool.Pool
	leases []*fencing.Lease
	group  []*fencing.Lease // of a process that lets commits of different keys share transactions
	n      atomic.Int64
}

func newBench(t testing.TB, keys int) *bench {
	t.Helper()
	b := &bench{TB: t, server: pgtest.Server(t, devstack.PostgresConfig{Durable: true, Settings: map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min",
	}})}
	dsn := b.server.DSN("postgres")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	b.plain = benchPool(t, dsn)
	conn, err := pgx.Connect(ctx, dsn)
	must(err)
	migrator, err := migrations.New(conn, migrations.Config{Logger: quiet()})
	must(err)
	_, err = migrator.Up(ctx, migrations.UpOptions{})
	must(errors.Join(err, conn.Close(ctx)))
	_, err = b.plain.Exec(ctx, "create table public.result (id bigint generated always as identity primary key, key text not null, note text); grant all on public.result to public")
	must(err)
	u, err := url.Parse(pgmigrated.Login(t, dsn, schema.KindProducer))
	must(err)
	b.pool = benchPool(t, u.String())
	b.fences, err = fencing.New(ctx, b.pool, fencing.Config{Holder: "bench", Logger: quiet()})
	must(err)
	group, err := fencing.New(ctx, b.pool, fencing.Config{Holder: "bench", Logger: quiet(), GroupCommit: benchEnv("FENCELINE_BENCH_LANES", 2)})
	must(err)
	b.group = make([]*fencing.Lease, keys)
	for i := range b.group {
		b.group[i], err = group.Acquire(ctx, fmt.Sprintf("group/%04d", i), fencing.LeaseConfig{TTL: time.Hour, CoalesceCallbacks: 32})
		must(err)
	}
	b.leases = make([]*fencing.Lease, keys)
	for i := range b.leases {
		cfg := fencing.LeaseConfig{TTL: time.Hour}
		if i == 0 { // the hot one
			cfg.CoalesceCallbacks = 32
		}
		b.leases[i], err = b.fences.Acquire(ctx, fmt.Sprintf("bench/%04d", i), cfg)
		must(err)
	}
	t.Cleanup(func() {
		for _, l := range slices.Concat(b.leases, b.group) {
			_ = l.Release(ctx)
		}
	})
	return b
}

func benchPool(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = int32(benchEnv("FENCELINE_BENCH_CONNS", benchWorkers) + 2)
	cfg.MinConns = int32(benchEnv("FENCELINE_BENCH_CONNS", benchWorkers))
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

var (
	benchPayload = []byte(strings.Repeat("x", 200))
	insertResult = "insert into public.result (key, note) values ($1, $2)"
	insertOutbox = "insert into fenceline.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, source, contenttype) values ($1, 'results', $2, 'result', $3, 'results', $2, 7, 1, 1, $4, 'fenceline', 'application/json')"
)

// arm is one way to commit a business row and an outbox row.
type arm struct {
	name    string
	commit  func(b *bench, n int64) error
	workers int // how many commit at a time, by default benchWorkers
}

// by is the same arm with so many workers.
func (a arm) by(workers int, as string) arm { return arm{a.name + as, a.commit, workers} }

func (b *bench) lease(n int64) *fencing.Lease { return b.leases[n%int64(len(b.leases))] }

func benchContent(n int64) fencing.Content {
	return fencing.Content{Step: strconv.FormatInt(n, 10), Type: "application/json", Bytes: benchPayload}
}

func benchEvent() outbox.Event {
	return outbox.Event{Topic: "results", Type: "result", Payload: benchPayload}
}

var (
	// The denominator: four round trips, as most programs do it.
	plainFour = arm{name: "plain, four round trips", commit: func(b *bench, n int64) error {
		key := b.lease(n).Position().Key
		return pgx.BeginFunc(ctx, b.plain, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, insertResult, key, "x"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, insertOutbox, uuid.Must(uuid.NewV7()), key, benchPayload, n+2)
			return err
		})
	}}
	plainPipelined = arm{name: "plain, pipelined", commit: func(b *bench, n int64) error {
		key := b.lease(n).Position().Key
		batch := &pgx.Batch{}
		batch.Queue("begin")
		batch.Queue(insertResult, key, "x")
		batch.Queue(insertOutbox, uuid.Must(uuid.NewV7()), key, benchPayload, n+2)
		batch.Queue("commit")
		return b.plain.SendBatch(ctx, batch).Close()
	}}
	callback = arm{name: "callback", commit: func(b *bench, n int64) error {
		_, err := b.lease(n).Commit(ctx, benchContent(n), benchWrite)
		return err
	}}
	batched = arm{name: "batch", commit: func(b *bench, n int64) error {
		_, err := b.lease(n).CommitBatch(ctx, benchContent(n), fill)
		return err
	}}
	groupedCallback = arm{name: "callback, group commit", commit: func(b *bench, n int64) error {
		_, err := b.group[n%int64(len(b.group))].Commit(ctx, benchContent(n), benchWrite)
		return err
	}}
	grouped = arm{name: "batch, group commit", commit: func(b *bench, n int64) error {
		_, err := b.group[n%int64(len(b.group))].CommitBatch(ctx, benchContent(n), fill)
		return err
	}}
	hotAlone = arm{name: "one hot key, alone", commit: func(b *bench, n int64) error {
		_, err := b.fences.CommitBatch(ctx, b.leases[0].Position(), benchContent(n), fill)
		return err
	}}
	hotCoalesced = arm{name: "one hot key, coalesced", commit: func(b *bench, n int64) error {
		_, err := b.leases[0].CommitBatch(ctx, benchContent(n), fill)
		return err
	}}
	hotCallbackAlone = arm{name: "one hot key, callback", commit: func(b *bench, n int64) error {
		_, err := b.fences.Commit(ctx, b.leases[0].Position(), benchContent(n), benchWrite)
		return err
	}}
	hotCallback = arm{name: "one hot key, callbacks coalesced", commit: func(b *bench, n int64) error {
		_, err := b.leases[0].Commit(ctx, benchContent(n), benchWrite)
		return err
	}}
)

func benchWrite(ctx context.Context, tx fencing.Tx) error {
	if _, err := tx.Exec(ctx, insertResult, tx.Gate().Key, "x"); err != nil {
		return err
	}
	return outbox.Append(ctx, tx, benchEvent())
}

func fill(b *fencing.Batch) error {
	b.Queue(insertResult, b.Gate().Key, "x")
	return outbox.Append(ctx, b, benchEvent())
}

// slice runs an arm with all workers for a time.
func (b *bench) slice(a arm, d time.Duration) sample {
	b.Helper()
	before, begin := b.serverCPU(), time.Now()
	var done atomic.Int64
	var wg sync.WaitGroup
	for range cmp.Or(a.workers, benchWorkers) {
		wg.Go(func() {
			for time.Since(begin) < d {
				if err := a.commit(b, b.n.Add(1)); err != nil {
					b.Errorf("%s: %v", a.name, err)
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	n := float64(done.Load())
	return sample{n / time.Since(begin).Seconds(), (b.serverCPU() - before).Seconds() * 1e6 / n}
}

// sample is what a slice has shown: commits per second, and the server's CPU
// time for each, which other load on the machine disturbs least.
type sample struct{ rate, cpu float64 }

// serverCPU is what the server's processes have used, as far as the system tells.
func (b *bench) serverCPU() (total time.Duration) {
	parent := strconv.Itoa(b.server.PID())
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 12 && fields[1] == parent {
			user, _ := strconv.Atoi(fields[11])
			system, _ := strconv.Atoi(fields[12])
			total += time.Duration(user+system) * 10 * time.Millisecond
		}
	}
	return total
}

// compare runs the arms in rounds, and returns the samples of each round.
func (b *bench) compare(arms []arm, rounds int, d time.Duration) [][]sample {
	// The first change of a page after a checkpoint logs the whole page. One
	// checkpoint comes before everything, then each arm meets its pages once, and
	// none follows (the server's settings put it off): a checkpoint in each round
	// would charge the first arm to touch a page with what all of them use.
	if _, err := b.plain.Exec(ctx, "checkpoint"); err != nil {
		b.Fatal(err)
	}
	for _, a := range arms {
		b.slice(a, 2*d) // plan caches, and the tables' pages
	}
	var out [][]sample
	for range rounds {
		var round []sample
		for _, a := range arms {
			round = append(round, b.slice(a, d))
		}
		out = append(out, round)
	}
	return out
}

// spread is the median of some numbers, with the smallest and the largest.
type spread struct{ median, min, max float64 }

func spreadOf(numbers []float64) spread {
	slices.Sort(numbers)
	return spread{numbers[len(numbers)/2], numbers[0], numbers[len(numbers)-1]}
}

func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", s.median, s.min, s.max) }

// column takes one number of each round.
func column(rounds [][]sample, f func(round []sample) float64) spread {
	var numbers []float64
	for _, round := range rounds {
		numbers = append(numbers, f(round))
	}
	return spreadOf(numbers)
}

func benchEnv(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// long says that the suites run at full length.
func longRun() bool { return os.Getenv("FENCELINE_LONG") != "" }

func BenchmarkCommitAgainstAPlainTransaction(tb *testing.B) {
	b := newBench(tb, benchKeys)
	arms := []arm{plainFour, plainPipelined,
		plainPipelined.by(1, ", one session"), // the most that commits can reach of which each waits for the flush of the one before
		plainFour.by(64, ", 64 callers"),
		callback, groupedCallback, batched, grouped, grouped.by(32, ", 32 callers"),
		hotAlone, hotCoalesced, hotCoalesced.by(32, ", 32 callers"), hotCoalesced.by(64, ", 64 callers"), hotCallbackAlone, hotCallback}
	rounds := b.compare(arms, benchEnv("FENCELINE_BENCH_ROUNDS", 7), time.Second)
	var out strings.Builder
	fmt.Fprintf(&out, "PostgreSQL %s, %d workers, %d keys, %d rounds\n", b.server.Version(), benchWorkers, benchKeys, len(rounds))
	fmt.Fprintf(&out, "%-36s %-20s %-20s %-10s %s\n", "", "to four round trips", "to pipelined", "commits/s", "server CPU µs")
	for i, a := range arms {
		ratio := column(rounds, func(r []sample) float64 { return r[i].rate / r[0].rate })
		fmt.Fprintf(&out, "%-36s %-20s %-20s %-10.0f %.0f\n", a.name, ratio, column(rounds, func(r []sample) float64 { return r[i].rate / r[1].rate }),
			column(rounds, func(r []sample) float64 { return r[i].rate }).median, column(rounds, func(r []sample) float64 { return r[i].cpu }).median)
		if i > 1 {
			tb.ReportMetric(ratio.median, strings.NewReplacer(" ", "-", ",", "").Replace(a.name)+"/plain")
		}
	}
	fmt.Print("\n", out.String()) // a benchmark's log is cut after ten lines
}
