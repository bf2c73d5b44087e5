package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
)

// report is everything that was measured. Its JSON names are relied on by
// whoever compares two runs: add some, change none.
type report struct {
	Time     time.Time       `json:"time"`
	Machine  string          `json:"machine"`
	Postgres string          `json:"postgres"`
	Kafka    string          `json:"kafka"`
	Rounds   int             `json:"rounds"`
	Drain    *section        `json:"drain,omitempty"`
	Latency  *latencySection `json:"latency,omitempty"`
	Commit   *commitSection  `json:"commit,omitempty"`
}

type commitSection struct {
	Reference string          `json:"reference"`
	Keys      int             `json:"keys"`
	Workers   int             `json:"workers"`
	Loads     []string        `json:"load_average_by_round"`
	Arms      []*commitResult `json:"arms"`
}

type commitResult struct {
	Name   string `json:"name"`
	Note   string `json:"note"`
	Rate   spread `json:"commits_per_second"`
	Ratio  spread `json:"ratio"`
	Server spread `json:"postgres_cpu_us_per_commit"`
}

type latencySection struct {
	Rate    int              `json:"events_per_second"`
	Seconds float64          `json:"seconds"`
	Loads   []string         `json:"load_average_by_round"`
	Arms    []*latencyResult `json:"arms"`
}

type latencyResult struct {
	Name       string `json:"name"`
	Note       string `json:"note"`
	Error      string `json:"error,omitempty"`
	P50        spread `json:"p50_ms"`
	P99        spread `json:"p99_ms"`
	Max        spread `json:"max_ms"`
	AckP50     spread `json:"p50_from_acknowledgement_ms"`
	AckP99     spread `json:"p99_from_acknowledgement_ms"`
	Missing    int    `json:"missing"`
	Client     spread `json:"client_cpu_us_per_event"`
	IdleClient spread `json:"idle_client_percent_of_a_core"`
	IdleServer spread `json:"idle_postgres_percent_of_a_core"`
	Peak       spread `json:"peak_mib"`
	samples    []*latencySample
}

type section struct {
	Workload  workload     `json:"workload"`
	Reference string       `json:"reference"`
	Loads     []string     `json:"load_average_by_round"`
	Arms      []*armResult `json:"arms"`
}

type armResult struct {
	Name    string   `json:"name"`
	Note    string   `json:"note"`
	Error   string   `json:"error,omitempty"`
	Rate    spread   `json:"events_per_second"`
	Ratio   spread   `json:"ratio"`
	Client  spread   `json:"client_cpu_us_per_event"`
	Server  spread   `json:"postgres_cpu_us_per_event"`
	Broker  spread   `json:"kafka_cpu_us_per_event"`
	Peak    spread   `json:"peak_mib"`
	Verdict verdict  `json:"verdict"`
	samples []sample // by round; a zero rate where it failed
}

func newReport(s *stack, rounds int) *report {
	model := "?"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimLeft(strings.TrimSpace(v), ": ")
				break
			}
		}
	}
	return &report{Time: time.Now().UTC().Truncate(time.Second), Machine: fmt.Sprintf("%d × %s, %s/%s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, runtime.Version()),
		Postgres: s.postgres.Version(), Kafka: apachekafka.Version, Rounds: rounds}
}

// drain runs the arms in turn, round after round.
func (r *report) drain(ctx context.Context, d *drainer, arms []*arm) error {
	sec := &section{Workload: d.w, Reference: drainReference}
	r.Drain = sec
	for _, a := range arms {
		sec.Arms = append(sec.Arms, &armResult{Name: a.name, Note: a.note})
	}
	for round := range r.Rounds {
		sec.Loads = append(sec.Loads, load())
		for i, a := range arms {
			res := sec.Arms[i]
			if res.Error != "" {
				continue
			}
			sm, err := d.run(ctx, a)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				res.Error = err.Error()
				d.say("round %d  %-30s failed: %v", round+1, a.name, err)
				continue
			}
			res.samples = append(res.samples, sm)
			res.Verdict.add(sm.Verdict)
			d.say("round %d  %-30s %9.0f events/s  lost %d, inverted %d, copies %d", round+1, a.name, sm.Rate, sm.Verdict.Lost, sm.Verdict.Inverted, sm.Verdict.Copies)
		}
	}
	return sec.summarise()
}

// latency runs the arms in turn, round after round, at one rate.
func (r *report) latency(ctx context.Context, s *stack, arms []*latencyArm, tm timing, say func(string, ...any)) error {
	sec := &latencySection{Rate: tm.rate, Seconds: tm.length.Seconds()}
	r.Latency = sec
	for _, a := range arms {
		sec.Arms = append(sec.Arms, &latencyResult{Name: a.name, Note: a.note})
	}
	n := 0
	for round := range r.Rounds {
		sec.Loads = append(sec.Loads, load())
		for i, a := range arms {
			res := sec.Arms[i]
			if res.Error != "" {
				continue
			}
			n++
			sm, err := s.latency(ctx, a, n, tm, say)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				res.Error = err.Error()
				say("round %d  %-26s failed: %v", round+1, a.name, err)
				continue
			}
			res.samples = append(res.samples, sm)
			res.Missing += sm.Missing
			say("round %d  %-26s p50 %.1f ms, p99 %.1f ms; from the acknowledgement %.1f and %.1f; idle %.1f %% and %.1f %% of a core; missing %d", round+1, a.name,
				sm.Intended[0], sm.Intended[1], sm.Acknowledged[0], sm.Acknowledged[1], sm.IdleClient, sm.IdleServer, sm.Missing)
		}
	}
	for _, a := range sec.Arms {
		over := func(f func(*latencySample) float64) spread {
			var v []float64
			for _, sm := range a.samples {
				v = append(v, f(sm))
			}
			return spreadOf(v)
		}
		a.P50, a.P99, a.Max = over(func(s *latencySample) float64 { return s.Intended[0] }), over(func(s *latencySample) float64 { return s.Intended[1] }), over(func(s *latencySample) float64 { return s.Intended[2] })
		a.AckP50, a.AckP99 = over(func(s *latencySample) float64 { return s.Acknowledged[0] }), over(func(s *latencySample) float64 { return s.Acknowledged[1] })
		a.Client = over(func(s *latencySample) float64 { return s.Client })
		a.IdleClient, a.IdleServer = over(func(s *latencySample) float64 { return s.IdleClient }), over(func(s *latencySample) float64 { return s.IdleServer })
		a.Peak = over(func(s *latencySample) float64 { return float64(s.Peak) / (1 << 20) })
	}
	return nil
}

// commit runs the arms in turn, round after round, on one database.
func (r *report) commit(ctx context.Context, s *stack, arms []*commitArm, slice time.Duration, say func(string, ...any)) (err error) {
	dsn, err := s.database(ctx, "commits")
	if err != nil {
		return err
	}
	defer s.pool.Exec(context.WithoutCancel(ctx), "drop database if exists commits with (force)")
	c, err := newCommitter(ctx, dsn)
	if err != nil {
		return err
	}
	defer c.close()
	sec := &commitSection{Reference: commitReference, Keys: commitKeys, Workers: commitWorkers}
	r.Commit = sec
	samples := make([][]commitSample, len(arms))
	for round := -1; round < r.Rounds; round++ { // the first is for plans and caches
		if round >= 0 {
			sec.Loads = append(sec.Loads, load())
		}
		for i, a := range arms {
			sm, err := c.slice(ctx, s, a, slice)
			if err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			if round >= 0 {
				samples[i] = append(samples[i], sm)
				say("round %d  %-34s %7.0f commits/s  %5.0f µs", round+1, a.name, sm.rate, sm.server)
			}
		}
	}
	for i, a := range arms {
		var rate, ratio, server []float64
		for n, sm := range samples[i] {
			rate, server = append(rate, sm.rate), append(server, sm.server)
			ratio = append(ratio, sm.rate/samples[0][n].rate)
		}
		sec.Arms = append(sec.Arms, &commitResult{Name: a.name, Note: a.note, Rate: spreadOf(rate), Ratio: spreadOf(ratio), Server: spreadOf(server)})
	}
	return nil
}

func (s *section) summarise() error {
	var base []sample
	for _, a := range s.Arms {
		if a.Name == s.Reference {
			base = a.samples
		}
	}
	if len(base) == 0 {
		return errors.New("the reference arm gave nothing")
	}
	for _, a := range s.Arms {
		var rate, ratio, client, server, broker, peak []float64
		for i, sm := range a.samples {
			rate = append(rate, sm.Rate)
			if i < len(base) && base[i].Rate > 0 {
				ratio = append(ratio, sm.Rate/base[i].Rate)
			}
			client, server, broker = append(client, sm.Client), append(server, sm.Postgres), append(broker, sm.Kafka)
			peak = append(peak, float64(sm.Peak)/(1<<20))
		}
		a.Rate, a.Ratio, a.Client, a.Server, a.Broker, a.Peak = spreadOf(rate), spreadOf(ratio), spreadOf(client), spreadOf(server), spreadOf(broker), spreadOf(peak)
	}
	return nil
}

func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Machine: %s. PostgreSQL %s, Apache Kafka %s, %s. %d rounds; each figure is the median, with the smallest and the largest.\n\n", r.Machine, r.Postgres, r.Kafka, r.Time.Format(time.DateOnly), r.Rounds)
	if s := r.Drain; s != nil {
		fmt.Fprintf(&b, "## Draining a backlog\n\n%d events of %d keys, payloads of %d bytes, %d partitions; load average %s.\n\n", s.Workload.Events, s.Workload.Keys, s.Workload.Payload, partitions, strings.Join(s.Loads, ", "))
		fmt.Fprintf(&b, "| | of %s | events/s | CPU µs an event: client, PostgreSQL, Kafka | peak MiB | lost, inverted, copies |\n| --- | --- | --- | --- | --- | --- |\n", s.Reference)
		for _, a := range s.Arms {
			if a.Error != "" {
				fmt.Fprintf(&b, "| %s | did not run: %.120s | | | | |\n", a.Name, strings.ReplaceAll(a.Error, "\n", " "))
				continue
			}
			strike := ""
			if !a.Verdict.ok() {
				strike = "~~"
			}
			fmt.Fprintf(&b, "| %s | %s%.2f (%.2f–%.2f)%s | %s%.0f%s | %.1f, %.1f, %.1f | %.0f | %d, %d, %d |\n", a.Name, strike, a.Ratio.Median, a.Ratio.Min, a.Ratio.Max, strike, strike, a.Rate.Median, strike,
				a.Client.Median, a.Server.Median, a.Broker.Median, a.Peak.Median, a.Verdict.Lost, a.Verdict.Inverted, a.Verdict.Copies)
		}
		b.WriteString("\n")
		for _, a := range s.Arms {
			fmt.Fprintf(&b, "- **%s**: %s.\n", a.Name, a.Note)
		}
	}
	if s := r.Latency; s != nil {
		fmt.Fprintf(&b, "\n## From commit to consumer\n\n%d events a second for %.0f s in an open loop; load average %s. The time begins when an event was due to be committed, so that one that had to wait its turn counts with the waiting; beside it, from when its commit was acknowledged. Idle is relay and PostgreSQL while nothing happens, in percent of a core.\n\n", s.Rate, s.Seconds, strings.Join(s.Loads, ", "))
		b.WriteString("| | p50 ms | p99 ms | from the acknowledgement: p50, p99 | CPU µs an event | idle %: relay, PostgreSQL | peak MiB | missing |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
		for _, a := range s.Arms {
			if a.Error != "" {
				fmt.Fprintf(&b, "| %s | did not run: %.120s | | | | | | |\n", a.Name, strings.ReplaceAll(a.Error, "\n", " "))
				continue
			}
			fmt.Fprintf(&b, "| %s | %.1f (%.1f–%.1f) | %.1f (%.1f–%.1f) | %.1f, %.1f | %.0f | %.1f, %.1f | %.0f | %d |\n", a.Name, a.P50.Median, a.P50.Min, a.P50.Max, a.P99.Median, a.P99.Min, a.P99.Max,
				a.AckP50.Median, a.AckP99.Median, a.Client.Median, a.IdleClient.Median, a.IdleServer.Median, a.Peak.Median, a.Missing)
		}
		b.WriteString("\n")
		for _, a := range s.Arms {
			fmt.Fprintf(&b, "- **%s**: %s.\n", a.Name, a.Note)
		}
	}
	if s := r.Commit; s != nil {
		fmt.Fprintf(&b, "\n## Committing\n\nA business row and an outbox row, %d workers, %d keys; load average %s.\n\n", s.Workers, s.Keys, strings.Join(s.Loads, ", "))
		fmt.Fprintf(&b, "| | of %q | commits/s | PostgreSQL CPU µs |\n| --- | --- | --- | --- |\n", s.Reference)
		for _, a := range s.Arms {
			fmt.Fprintf(&b, "| %s | %.2f (%.2f–%.2f) | %.0f | %.0f |\n", a.Name, a.Ratio.Median, a.Ratio.Min, a.Ratio.Max, a.Rate.Median, a.Server.Median)
		}
		b.WriteString("\n")
		for _, a := range s.Arms {
			fmt.Fprintf(&b, "- **%s**: %s.\n", a.Name, a.Note)
		}
	}
	return b.String()
}

// plots draws each section: ratios as bars, latencies as bars for each percentile.
func (r *report) plots(dir string) error {
	var errs []error
	if r.Drain != nil {
		var bars []bar
		for _, a := range r.Drain.Arms {
			if a.Error == "" && a.Verdict.ok() {
				bars = append(bars, bar{a.Name, a.Ratio.Median})
			}
		}
		errs = append(errs, plotBars(filepath.Join(dir, "drain.svg"), "Drain rate, relative to "+r.Drain.Reference, bars, false))
	}
	if r.Latency != nil {
		var bars []bar
		for _, a := range r.Latency.Arms {
			if a.Error == "" && a.Missing == 0 {
				bars = append(bars, bar{a.Name + ", p50", a.P50.Median}, bar{a.Name + ", p99", a.P99.Median})
			}
		}
		errs = append(errs, plotBars(filepath.Join(dir, "latency.svg"), fmt.Sprintf("From commit to consumer at %d events a second, ms (logarithmic)", r.Latency.Rate), bars, true))
	}
	if r.Commit != nil {
		var bars []bar
		for _, a := range r.Commit.Arms {
			bars = append(bars, bar{a.Name, a.Ratio.Median})
		}
		errs = append(errs, plotBars(filepath.Join(dir, "commit.svg"), "Commits, relative to "+r.Commit.Reference, bars, false))
	}
	return errors.Join(errs...)
}

type bar struct {
	name  string
	value float64
}

func plotBars(file, title string, bars []bar, logarithmic bool) error {
	p := plot.New()
	p.Title.Text = title
	var values plotter.Values
	var names []string
	for i := len(bars) - 1; i >= 0; i-- { // the first on top
		values, names = append(values, bars[i].value), append(names, bars[i].name)
	}
	if len(values) == 0 {
		return nil
	}
	if logarithmic {
		// Bars have no beginning on a logarithmic axis, so the values are taken
		// to their logarithm, and the axis is marked with what they were.
		for i, v := range values {
			values[i] = math.Log10(max(v, 1))
		}
		p.X.Tick.Marker = powersOfTen{}
	}
	chart, err := plotter.NewBarChart(values, vg.Points(12))
	if err != nil {
		return err
	}
	chart.Horizontal = true
	p.Add(plotter.NewGrid(), chart)
	p.X.Min = 0
	p.NominalY(names...)
	return p.Save(9*vg.Inch, vg.Length(len(names)+3)*0.3*vg.Inch, file)
}

// powersOfTen marks an axis of logarithms.
type powersOfTen struct{}

// Ticks implements plot.Ticker.
func (powersOfTen) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(low); e <= math.Ceil(high); e++ {
		ticks = append(ticks, plot.Tick{Value: e, Label: fmt.Sprintf("%g", math.Pow(10, e))})
	}
	return ticks
}
