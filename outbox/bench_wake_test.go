package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

// BenchmarkCommitsWithWakeUp gives the rate of commits that wake the relay, as a
// ratio to those that don't: the median of rounds in which both have a turn,
// with somebody who listens. Each worker has a key of its own.
func BenchmarkCommitsWithWakeUp(b *testing.B) {
	const workers, rounds, slice = 8, 15, 500 * time.Millisecond
	dsn := pgmigrated.Migrated(b)
	pool := pgtest.Connect(b, fmt.Sprintf("%s&pool_max_conns=%d", dsn, workers+2))
	waker, err := outbox.NewWaker(pool, outbox.WakerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer waker.Close()
	ear, err := pgx.Connect(ctx, dsn)
	if err != nil {
		b.Fatal(err)
	}
	defer ear.Close(ctx) //nolint:errcheck // the database goes
	if _, err := ear.Exec(ctx, "listen fenceline_wake"); err != nil {
		b.Fatal(err)
	}
	listening, stop := context.WithCancel(ctx)
	var heard atomic.Int64
	var ears sync.WaitGroup
	ears.Go(func() {
		for {
			if _, err := ear.WaitForNotification(listening); err != nil {
				return
			}
			heard.Add(1)
		}
	})
	arms := make([][]*fencing.Lease, 2)
	for i, cfg := range []fencing.Config{{AllowUnsafeDatabase: true}, {AllowUnsafeDatabase: true, Wake: waker.Wake}} {
		fences, err := fencing.New(ctx, pool, cfg)
		if err != nil {
			b.Fatal(err)
		}
		for w := range workers {
			lease, err := fences.Acquire(ctx, fmt.Sprintf("k%d/%d", i, w), fencing.LeaseConfig{TTL: 10 * time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			defer lease.Release(ctx) //nolint:errcheck // the database goes
			arms[i] = append(arms[i], lease)
		}
	}
	var step atomic.Int64
	turn := func(leases []*fencing.Lease) float64 {
		var n atomic.Int64
		var all sync.WaitGroup
		end := time.Now().Add(slice)
		for _, lease := range leases {
			all.Go(func() {
				for time.Now().Before(end) {
					content := fencing.Content{Step: fmt.Sprint(step.Add(1))}
					_, err := lease.Commit(ctx, content, func(ctx context.Context, tx fencing.Tx) error {
						return outbox.Append(ctx, tx, outbox.Event{Topic: "t", Type: "x"})
					})
					if err != nil {
						b.Error(err)
						return
					}
					n.Add(1)
				}
			})
		}
		all.Wait()
		return float64(n.Load())
	}
	for b.Loop() {
		var ratios []float64
		for round := range rounds {
			off, on := 0.0, 0.0
			if round%2 == 0 {
				off, on = turn(arms[0]), turn(arms[1])
			} else {
				on, off = turn(arms[1]), turn(arms[0])
			}
			ratios = append(ratios, on/off)
		}
		slices.Sort(ratios)
		b.ReportMetric(ratios[rounds/2], "on/off")
		b.ReportMetric(ratios[0], "least")
		b.ReportMetric(ratios[rounds-1], "most")
	}
	stop()
	ears.Wait()
	b.ReportMetric(float64(heard.Load()), "notifies")
}
