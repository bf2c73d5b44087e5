package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// produceCommand works through the reports in an installation that is up:
// migrations applied, relay and consumer running.
func produceCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var (
		postgres config.Postgres
		log      config.Log
		cfg      childConfig
		pause    time.Duration
		input    string
	)
	s := config.New("demo produce", "Commits the reports under leases, one after the other, until all are done. Several can run at once.")
	postgres.Register(s)
	s.String(&cfg.Topic, "topic", "TOPIC", "quakes", "topic of the events")
	s.String(&cfg.WorkSchema, "work-schema", "WORK_SCHEMA", "quake_work", "schema of the results, created where missing", config.Check(schema.Validate))
	s.Duration(&cfg.LeaseTTL, "lease-ttl", "LEASE_TTL", 15*time.Second, 100*time.Millisecond, 24*time.Hour, "lease time")
	s.Duration(&pause, "every", "EVERY", 20*time.Millisecond, 0, time.Hour, "time between two reports")
	s.String(&input, "input", "", "", "read the reports from this file instead of the embedded ones")
	log.Register(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	reports, err := readInput(input)
	if err != nil {
		return err
	}
	pool, err := postgres.Open(ctx, "demo produce")
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := createResults(ctx, pool, cfg.WorkSchema); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	cfg.Schema, cfg.Name = postgres.Schema, fmt.Sprintf("demo-producer/%s/%d", host, os.Getpid())
	// An idle relay is told of each commit, and need not find out by looking.
	waker, err := outbox.NewWaker(pool, outbox.WakerConfig{Schema: postgres.Schema})
	if err != nil {
		return err
	}
	defer waker.Close()
	w, err := newWorker(ctx, cfg, pool, reports, waker.Wake)
	if err != nil {
		return err
	}
	w.pause = pause
	logger := log.Logger(stderr)
	logger.Info("producing", "reports", len(reports), "topic", cfg.Topic)
	n, err := w.work(ctx, slices.Sorted(maps.Keys(w.reports)), len(reports))
	logger.Info("done", "committed", n.Committed)
	if ctx.Err() != nil {
		return nil // stopped when asked to
	}
	return err
}
