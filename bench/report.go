package main

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	Time     time.Time `json:"time"`
	Machine  string    `json:"machine"`
	Postgres string    `json:"postgres"`
	Kafka    string    `json:"kafka"`
	Rounds   int       `json:"rounds"`
	Drain    *section  `json:"drain,omitempty"`
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
	return b.String()
}

// plot draws the ratios as bars.
func (r *report) plot(file string) error {
	p := plot.New()
	p.Title.Text = "Drain rate, relative to " + r.Drain.Reference
	p.X.Min = 0
	var values plotter.Values
	var names []string
	for i := len(r.Drain.Arms) - 1; i >= 0; i-- { // the first on top
		a := r.Drain.Arms[i]
		if a.Error != "" || !a.Verdict.ok() {
			continue
		}
		values, names = append(values, a.Ratio.Median), append(names, a.Name)
	}
	bars, err := plotter.NewBarChart(values, vg.Points(14))
	if err != nil {
		return err
	}
	bars.Horizontal = true
	p.Add(plotter.NewGrid(), bars)
	p.NominalY(names...)
	return p.Save(9*vg.Inch, vg.Length(len(names)+2)*0.4*vg.Inch, file)
}
