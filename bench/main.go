package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
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

// bench is a run.
type bench struct {
	*stack
	size size
	only string
	// command is how somebody else would start the same run.
	command string
	say     func(string, ...any)
}

// picked: the arm is wanted, or is the one that ratios are to.
func (b *bench) picked(name, reference string) bool {
	return b.only == "" || name == reference || slices.ContainsFunc(strings.Split(b.only, ","), func(t string) bool { return strings.Contains(name, t) })
}

// sections in the order of the page.
var sections = []struct {
	id      string
	measure func(*bench, context.Context) (*figures, error)
}{
	{"drain", (*bench).drain},
	{"latency", (*bench).latency},
	{"commit", (*bench).commit},
	{"wake", (*bench).wake},
	{"apply", (*bench).apply},
	{"scaling", (*bench).scaling},
	{"held", (*bench).held},
	{"outage", (*bench).outage},
	{"duplicates", (*bench).duplicates},
	{"wal", (*bench).wal},
	{"growth", (*bench).growth},
}

func run() error {
	var all []string
	for _, s := range sections {
		all = append(all, s.id)
	}
	var (
		short  = flag.Bool("quick", false, "few events and rounds: some ten minutes, for a first look")
		tiny   = flag.Bool("smoke", false, "less than a minute: a few arms, whose ratios are printed; it fails only if one can't run or its output is wrong")
		only   = flag.String("only", "", "run the arms whose names contain one of these texts, separated by commas, and those that ratios are to")
		what   = flag.String("sections", strings.Join(all, ","), "what to measure, separated by commas")
		rounds = flag.Int("rounds", 0, "rounds of the drain, the commit and the wake section (default 5, with -quick 2)")
		events = flag.Int("events", 0, "events of a drain (default 200000, with -quick 30000)")
		rate   = flag.Int("rate", 1000, "events a second of the latency section")
		out    = flag.String("out", "results", "folder for results.json, the page and its plots")
		from   = flag.String("from", "", "measure nothing, and write the page of this results.json to -out")
	)
	flag.Parse()
	if *from != "" {
		r, err := readReport(*from)
		if err != nil {
			return err
		}
		return r.publish(*out)
	}
	b := &bench{size: full(), only: *only}
	switch {
	case *tiny:
		b.size, b.only = smoke(), smokeArms
		*what = smokeSections
	case *short:
		b.size = quick()
	}
	if *rounds > 0 {
		b.size.Rounds = *rounds
	}
	if *events > 0 {
		b.size.Drain.Events = *events
	}
	b.size.Latency.rate = *rate
	wanted := strings.Split(*what, ",")
	for _, id := range wanted {
		if !slices.Contains(all, id) {
			return fmt.Errorf("there is no section %q; there are %s", id, strings.Join(all, ", "))
		}
	}
	b.command = "make bench"
	var args []string
	flag.Visit(func(f *flag.Flag) {
		if f.Name != "out" { // where it was written to says nothing
			args = append(args, strings.TrimSuffix("-"+f.Name+"="+f.Value.String(), "=true"))
		}
	})
	if len(args) > 0 {
		b.command += " ARGS='" + strings.Join(args, " ") + "'"
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return b.run(ctx, wanted, *out, *tiny)
}

// run measures the sections, and saves what there is after each of them: an
// hour's figures are not lost for the last one's failure. With insist it is an
// error, too, if an arm didn't run or its output is wrong.
func (b *bench) run(ctx context.Context, wanted []string, out string, insist bool) (err error) {
	began := time.Now()
	b.say = func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	if b.stack, err = startStack(ctx, b.say); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	b.say("PostgreSQL %s and Apache Kafka are up", b.postgres.Version())
	r := newReport(b.stack, b.command, b.size.Name)
	var failed []error
	for _, s := range sections {
		if !slices.Contains(wanted, s.id) {
			continue
		}
		f, err := s.measure(b, ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.say("%s can't be measured: %v", s.id, err)
			r.Failed[s.id] = err.Error()
			failed = append(failed, fmt.Errorf("%s: %w", s.id, err))
			continue
		}
		r.Sections = append(r.Sections, f)
		if insist {
			fmt.Print(f.ratios())
			failed = append(failed, f.sound())
		}
		r.Took = time.Since(began).Round(time.Second).String()
		if err := r.save(out); err != nil {
			return err
		}
	}
	if !insist {
		fmt.Print(r.markdown())
	}
	b.say("the page is %s/benchmark.md, the figures are %s/results.json", out, out)
	return errors.Join(failed...)
}
