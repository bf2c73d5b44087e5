package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if name := os.Getenv(envArm); name != "" {
		if err := child(name); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	var (
		quick  = flag.Bool("quick", false, "few events and rounds: minutes, for a first look")
		only   = flag.String("only", "", "run the arms whose names contain one of these texts, separated by commas, and the reference")
		rounds = flag.Int("rounds", 0, "rounds of each section (default 7, with -quick 3)")
		events = flag.Int("events", 0, "events of a drain (default 200000, with -quick 30000)")
		what   = flag.String("sections", "drain,latency,commit", "what to measure, separated by commas: drain, latency, commit")
		rate   = flag.Int("rate", 1000, "events a second of the latency section")
		out    = flag.String("out", "results", "directory for JSON, Markdown and plots")
	)
	flag.Parse()
	pick := func(v *int, short, long int) {
		switch {
		case *v != 0:
		case *quick:
			*v = short
		default:
			*v = long
		}
	}
	pick(rounds, 3, 7)
	pick(events, 30_000, 200_000)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	s, err := startStack(ctx, say)
	if err != nil {
		return err
	}
	say("PostgreSQL %s and Apache Kafka are up", s.postgres.Version())
	r := newReport(s, *rounds)
	d := &drainer{stack: s, say: say, w: workload{Events: *events, Keys: 1000, Payload: 512, Transaction: 1000}, workers: map[string]*warmWorker{}}
	sections := strings.Split(*what, ",")
	if slices.Contains(sections, "drain") {
		err = r.drain(ctx, d, pickArms(*only))
	}
	err = errors.Join(err, d.close())
	if err == nil && slices.Contains(sections, "latency") {
		tm := timing{rate: *rate, length: 20 * time.Second, warm: 10 * time.Second, idle: 10 * time.Second}
		if *quick {
			tm.length, tm.warm, tm.idle = 5*time.Second, 5*time.Second, 5*time.Second
		}
		err = r.latency(ctx, s, pickLatency(*only), tm, say)
	}
	if err == nil && slices.Contains(sections, "commit") {
		err = r.commit(ctx, s, pickCommit(*only), time.Second, say)
	}
	err = errors.Join(err, s.stop())
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	page := r.markdown()
	fmt.Print(page)
	return errors.Join(
		os.WriteFile(filepath.Join(*out, "results.json"), text, 0o644),
		os.WriteFile(filepath.Join(*out, "results.md"), []byte(page), 0o644),
		r.plots(*out),
	)
}

func pickArms(only string) []*arm {
	var all []*arm
	for i := range drainArms {
		a := &drainArms[i]
		wanted := only == "" || a.name == drainReference || slices.ContainsFunc(strings.Split(only, ","), func(t string) bool { return strings.Contains(a.name, t) })
		if wanted {
			all = append(all, a)
		}
	}
	return all
}

func pickLatency(only string) []*latencyArm {
	var all []*latencyArm
	for i := range latencyArms {
		a := &latencyArms[i]
		if only == "" || slices.ContainsFunc(strings.Split(only, ","), func(t string) bool { return strings.Contains(a.name, t) }) {
			all = append(all, a)
		}
	}
	return all
}

func pickCommit(only string) []*commitArm {
	var all []*commitArm
	for i := range commitArms {
		a := &commitArms[i]
		if only == "" || a.name == commitReference || slices.ContainsFunc(strings.Split(only, ","), func(t string) bool { return strings.Contains(a.name, t) }) {
			all = append(all, a)
		}
	}
	return all
}
