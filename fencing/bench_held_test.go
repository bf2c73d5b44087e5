package fencing_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
)

// The rate before and after somebody's snapshot was held for a while, with
// commits all along, on many keys and on one. A plain slice beside each takes
// out what the machine did meanwhile.
func BenchmarkCommitUnderAHeldSnapshot(tb *testing.B) {
	hold := 10 * time.Second
	if longRun() {
		hold = time.Minute
	}
	hold = time.Duration(benchEnv("FENCELINE_BENCH_HOLD_SECONDS", int(hold/time.Second))) * time.Second
	var out strings.Builder
	fmt.Fprintf(&out, "%-26s %-10s %-10s %-14s %-24s %s\n", "snapshot held for "+hold.String(), "free/s", "held/s", "held/free", "held/free, by plain's", "server CPU µs, free and held")
	for _, c := range []struct {
		keys int
		arm  arm
	}{{benchKeys, batched}, {1, hotAlone}, {1, hotCoalesced}} {
		b := newBench(tb, c.keys)
		b.slice(c.arm, 2*time.Second)
		b.slice(plainFour, time.Second)
		measure := func() (fenced, plain sample) {
			var f, p []float64
			var cpu []float64
			for range 4 {
				x, y := b.slice(c.arm, time.Second), b.slice(plainFour, time.Second/2)
				f, p, cpu = append(f, x.rate), append(p, y.rate), append(cpu, x.cpu)
			}
			return sample{spreadOf(f).median, spreadOf(cpu).median}, sample{spreadOf(p).median, 0}
		}
		free, plainFree := measure()
		snapshot, err := b.plain.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			tb.Fatal(err)
		}
		if _, err := snapshot.Exec(ctx, "select count(*) from pg_class"); err != nil {
			tb.Fatal(err)
		}
		for begin := time.Now(); time.Since(begin) < hold; {
			b.slice(c.arm, time.Second)
		}
		held, plainHeld := measure()
		var dead string
		err = b.plain.QueryRow(ctx, `select string_agg(relname || ' ' || n_dead_tup, ', ' order by relname) from pg_stat_user_tables
			where schemaname = 'fenceline' and relname in ('fence', 'lease', 'receipt', 'head', 'outbox_0')`).Scan(&dead)
		if err != nil {
			tb.Fatal(err)
		}
		_ = snapshot.Rollback(ctx)
		name := fmt.Sprintf("%d keys, %s", c.keys, c.arm.name)
		normalised := held.rate / free.rate / (plainHeld.rate / plainFree.rate)
		fmt.Fprintf(&out, "%-26s %-10.0f %-10.0f %-14.2f %-24.2f %.0f, %.0f\n   dead rows: %s\n", name, free.rate, held.rate, held.rate/free.rate, normalised, free.cpu, held.cpu, dead)
		tb.ReportMetric(normalised, strings.NewReplacer(" ", "-", ",", "").Replace(name)+"/free")
	}
	tb.Log("\n" + out.String())
}

// How long a takeover takes while the old holder's process commits as fast as
// it can, beside how long those commits take.
func BenchmarkTakeoverUnderLoad(tb *testing.B) {
	b := newBench(tb, 1)
	key := b.leases[0].Position().Key
	other, err := fencing.New(ctx, b.pool, fencing.Config{Holder: "other", Logger: quiet()})
	if err != nil {
		tb.Fatal(err)
	}
	var current atomic.Pointer[fencing.Lease]
	current.Store(b.leases[0])
	var mu sync.Mutex
	var commits, takeovers []float64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range benchWorkers {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				begin := time.Now()
				_, err := current.Load().CommitBatch(ctx, benchContent(b.n.Add(1)), fill)
				if err == nil { // the rest was stale
					mu.Lock()
					commits = append(commits, time.Since(begin).Seconds()*1000)
					mu.Unlock()
				}
			}
		})
	}
	for range benchEnv("FENCELINE_BENCH_TAKEOVERS", 200) {
		if _, err := b.plain.Exec(ctx, "update fenceline.lease set expires_at = clock_timestamp() - interval '1 s' where key = $1", key); err != nil {
			tb.Fatal(err)
		}
		begin := time.Now()
		lease, err := other.Acquire(ctx, key, fencing.LeaseConfig{TTL: time.Hour})
		if err != nil {
			tb.Fatal(err)
		}
		takeovers = append(takeovers, time.Since(begin).Seconds()*1000)
		current.Store(lease)
		b.leases = append(b.leases, lease)
		b.plain.QueryRow(ctx, "select pg_sleep(0.02)").Scan(nil) //nolint:errcheck // some load between two takeovers
	}
	close(stop)
	wg.Wait()
	slices.Sort(commits)
	slices.Sort(takeovers)
	at := func(n []float64, q float64) float64 { return n[min(len(n)-1, int(q*float64(len(n))))] }
	tb.ReportMetric(at(takeovers, .99)/at(commits, .99), "takeover-p99/commit-p99")
	tb.Logf("\n%-12s %-10s %s\n%-12s %-10.2f %.2f\n%-12s %-10.2f %.2f", "ms", "p50", "p99", "commit", at(commits, .5), at(commits, .99), "takeover", at(takeovers, .5), at(takeovers, .99))
}

// How many statements the renewal of a thousand leases takes.
func BenchmarkRenewalOfAThousandLeases(tb *testing.B) {
	b := newBench(tb, 0)
	if _, err := b.plain.Exec(ctx, "create table public.renewals (n int); create function public.count() returns trigger language plpgsql security definer as $$ begin insert into public.renewals values (1); return null; end $$; create trigger count after update on fenceline.lease for each statement execute function public.count()"); err != nil {
		tb.Fatal(err)
	}
	for i := range 1000 {
		lease, err := b.fences.Acquire(ctx, fmt.Sprint("renewed/", i), fencing.LeaseConfig{TTL: 6 * time.Second})
		if err != nil {
			tb.Fatal(err)
		}
		b.leases = append(b.leases, lease)
	}
	if _, err := b.plain.Exec(ctx, "truncate public.renewals"); err != nil {
		tb.Fatal(err)
	}
	const window = 8 * time.Second
	time.Sleep(window)
	var n int
	if err := b.plain.QueryRow(ctx, "select count(*) from public.renewals").Scan(&n); err != nil {
		tb.Fatal(err)
	}
	tb.ReportMetric(float64(n)/window.Seconds(), "statements/s")
	for _, l := range b.leases {
		if l.Context().Err() != nil {
			tb.Fatal("a lease was lost")
		}
	}
}
