package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/quakes"
)

func main() {
	if isChild() {
		os.Exit(childMain())
	}
	args := os.Args[1:]
	if len(args) == 0 || strings.HasPrefix(args[0], "-") && args[0] != "-version" && args[0] != "--version" {
		args = append([]string{"story"}, args...)
	}
	os.Exit(config.Main("demo", "Demo shows fenceline's whole story on real earthquake reports.", []config.Command{
		{Name: "story", Summary: "tell the story (what \"demo\" alone does)", Run: storyCommand},
		{Name: "produce", Summary: "commit reports under leases in an installation that is up already", Run: produceCommand},
	}, args, os.Stdout, os.Stderr))
}

func storyCommand(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		s     settings
		input string
		keep  bool
	)
	set := config.New("demo", "Tells the whole story and checks its facts. Without flags it starts its own PostgreSQL and broker and needs nothing else. \"demo help\" lists the other commands.")
	set.String(&s.Postgres, "postgres", "POSTGRES_DSN", "", "use this PostgreSQL, in schemas of its own that are removed at the end, instead of an embedded one", config.Secret(), config.Check(config.CheckDSN))
	set.List(&s.Brokers, "kafka", "KAFKA_BROKERS", "", "use this Kafka, with a topic and a group of its own that are removed at the end, instead of an in-process broker", config.Check(config.CheckBrokers))
	set.String(&input, "input", "", "", "read the reports from this file, one JSON object a line, instead of the embedded ones")
	set.Bool(&keep, "keep", "", "leave everything running at the end, until Ctrl-C, and print how to look at it")
	if err := config.Parse(set, args, stdout); err != nil {
		return err
	}
	if err := canPause(); err != nil {
		return err
	}
	reports, err := readInput(input)
	if err != nil {
		return err
	}
	if input != "" {
		if input, err = filepath.Abs(input); err != nil { // the children have another working directory
			return err
		}
	}
	out := newPrinter(stdout)
	err = tell(ctx, s, reports, input, out, keep)
	switch {
	case err == nil || errors.Is(err, config.ErrReported):
		return err
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		var left *leftError
		if errors.As(err, &left) {
			return fmt.Errorf("interrupted; %w", left)
		}
		return errors.New("interrupted; everything was stopped and removed")
	default:
		out.fail(err.Error())
		return config.ErrReported
	}
}

func readInput(file string) ([]quakes.Report, error) {
	if file == "" {
		return quakes.All()
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, &config.UsageError{Err: fmt.Errorf("demo: -input: %w", err)}
	}
	defer f.Close() //nolint:errcheck // only read
	reports, err := quakes.Read(f)
	if err != nil {
		return nil, fmt.Errorf("-input %s: %w", file, err)
	}
	if len(reports) == 0 {
		return nil, fmt.Errorf("-input %s: there is no report in it: want one JSON object a line, as in internal/quakes/quakes.ndjson", file)
	}
	return reports, nil
}
