package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
	"github.com/fenceline/fenceline/internal/devstack/kafkaconnect"
)

// report is everything that was measured. Its JSON names are relied on by
// whoever compares two runs: add some, change none.
type report struct {
	Time     time.Time         `json:"time"`
	Took     string            `json:"took"`
	Command  string            `json:"command"`
	Size     string            `json:"size"`
	Commit   string            `json:"revision,omitempty"`
	Machine  string            `json:"machine"`
	Postgres string            `json:"postgres"`
	Kafka    string            `json:"kafka"`
	Peers    map[string]string `json:"peers"`
	Settings map[string]string `json:"postgres_settings"`
	Sections []*figures        `json:"sections"`
	// Failed are the sections that could not be measured, and why.
	Failed map[string]string `json:"failed,omitempty"`
}

func newReport(s *stack, command, size string) *report {
	r := &report{Time: time.Now().UTC().Truncate(time.Second), Command: command, Size: size, Machine: machine(), Postgres: s.postgres.Version(), Kafka: apachekafka.Version,
		Peers: map[string]string{"Debezium": kafkaconnect.Version}, Settings: postgresSettings, Failed: map[string]string{}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			switch m.Path {
			case "github.com/segmentio/kafka-go", "github.com/twmb/franz-go", "github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-sql/v4", "github.com/ThreeDotsLabs/watermill-kafka/v3":
				r.Peers[m.Path[strings.Index(m.Path, "/")+1:]] = m.Version
			}
		}
		for _, v := range info.Settings {
			if v.Key == "vcs.revision" {
				r.Commit = v.Value
			}
		}
	}
	return r
}

func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.TrimLeft(strings.TrimSpace(v), ": ")
				break
			}
		}
	}
	memory := int64(0)
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
				memory = number(strings.TrimSuffix(strings.TrimSpace(v), " kB")) >> 20
			}
		}
	}
	return fmt.Sprintf("%d × %s, %d GiB, %s/%s, %s", runtime.NumCPU(), model, memory, runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func (r *report) section(id string) *figures {
	for _, f := range r.Sections {
		if f.ID == id {
			return f
		}
	}
	return nil
}

// save writes the JSON and the page to a folder.
func (r *report) save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	return r.publish(dir)
}

// publish writes the page, benchmark.md, and its plots in a folder beside it.
func (r *report) publish(dir string) error {
	plots := filepath.Join(dir, plotFolder)
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	for _, f := range r.Sections {
		if err := f.plots(plots); err != nil {
			return fmt.Errorf("plot %s: %w", f.ID, err)
		}
	}
	return os.WriteFile(filepath.Join(dir, "benchmark.md"), []byte(r.markdown()), 0o644)
}

// plotFolder is where the page looks for its plots.
const plotFolder = "benchmark"

func readReport(file string) (*report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}
