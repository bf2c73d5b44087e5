package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/migrations"
)

const migrateUsage = `Usage:
  relay migrate up|down|status|print [flags]

"relay migrate up -help" prints the flags of up, and so on.
`

func migrateHelp(_ context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) == 0:
		fmt.Fprint(stderr, migrateUsage)
		return &config.UsageError{Err: errors.New("relay migrate: a command is missing")}
	case args[0] == "-h" || args[0] == "-help" || args[0] == "--help":
		fmt.Fprint(stdout, migrateUsage)
		return nil
	}
	return &config.UsageError{Err: fmt.Errorf("relay migrate: unknown command %s: there are up, down, status and print", config.Shown(args[0]))}
}

// migration is what the migrate commands share.
type migration struct {
	postgres config.Postgres
	log      config.Log
	part     string
}

func (m *migration) register(s *config.Set, parts string) {
	m.postgres.Register(s)
	m.log.Register(s)
	values := []string{"producer", "consumer"}
	if parts == "both" {
		values = append(values, "both")
	}
	opts := []config.Option{config.Check(config.OneOf(values...))}
	def := parts
	if parts == "" {
		opts = append(opts, config.Required())
	}
	s.String(&m.part, "part", "PART", def, "part of the schema: "+strings.Join(values, ", "), opts...)
}

func (m *migration) parts() []migrations.Part {
	if m.part == "both" {
		return []migrations.Part{migrations.Producer, migrations.Consumer}
	}
	return []migrations.Part{migrations.Part(m.part)}
}

// with runs f with a migrator on the configured database.
func (m *migration) with(ctx context.Context, stderr io.Writer, f func(*migrations.Migrator) error) error {
	pool, err := m.postgres.Open(ctx, "relay migrate")
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := migrations.New(pool, migrations.Config{Schema: m.postgres.Schema, Logger: m.log.Logger(stderr)})
	if err != nil {
		return err
	}
	return f(migrator)
}

func migrateUp(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var (
		m      migration
		to     int
		dryRun bool
	)
	s := config.New("relay migrate up", "Creates the schema, or changes it to what this version needs. It can be run at any time, and by several at once.")
	m.register(s, "both")
	s.Int(&to, "to", "", 0, 0, 9999, "version to stop at, with -part; 0 for the newest")
	s.Bool(&dryRun, "dry-run", "", "run everything in one transaction and roll it back")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	if to != 0 && m.part == "both" {
		return &config.UsageError{Err: errors.New("relay migrate up: -to needs -part producer or -part consumer, since each has its own versions")}
	}
	return m.with(ctx, stderr, func(g *migrations.Migrator) error {
		steps, err := g.Up(ctx, migrations.UpOptions{Parts: m.parts(), To: to, DryRun: dryRun})
		report(stdout, steps, dryRun, err)
		return err
	})
}

func migrateDown(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var (
		m             migration
		to            int
		force, dryRun bool
	)
	s := config.New("relay migrate down", "Undoes migrations of one part, newest first. It refuses where rows would be lost.")
	m.register(s, "")
	s.Int(&to, "to", "", 0, 0, 9999, "version that remains; 0 removes the part")
	s.Bool(&force, "force", "", "go ahead where data will be lost")
	s.Bool(&dryRun, "dry-run", "", "run everything in one transaction and roll it back")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return m.with(ctx, stderr, func(g *migrations.Migrator) error {
		steps, err := g.Down(ctx, migrations.DownOptions{Part: migrations.Part(m.part), To: to, Force: force, DryRun: dryRun})
		report(stdout, steps, dryRun, err)
		var loss *migrations.DataLossError
		if errors.As(err, &loss) {
			return fmt.Errorf("%w: add -force to go ahead", err)
		}
		return err
	})
}

func report(out io.Writer, steps []migrations.Step, dryRun bool, err error) {
	for _, step := range steps {
		fmt.Fprintln(out, step)
	}
	switch {
	case err != nil:
	case dryRun:
		fmt.Fprintln(out, "dry run: rolled back, nothing was changed")
	case len(steps) == 0:
		fmt.Fprintln(out, "nothing to do")
	}
}

func migrateStatus(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var m migration
	s := config.New("relay migrate status", "Lists the migrations of each part and whether they are applied.")
	m.register(s, "both")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return m.with(ctx, stderr, func(g *migrations.Migrator) error {
		parts, err := g.Status(ctx, m.parts()...)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "MIGRATION\tSTATE\tAPPLIED\tBY")
		for _, p := range parts {
			for _, x := range p.Migrations {
				at := "-"
				if !x.At.IsZero() {
					at = x.At.UTC().Format(time.RFC3339)
				}
				fmt.Fprintf(w, "%s/%03d_%s\t%s\t%s\t%s\n", p.Part, x.Version, x.Name, x.State, at, dash(x.By))
			}
			if p.Under != "" {
				fmt.Fprintf(w, "%s was migrated as schema %s and renamed since: rename it back\n", p.Part, p.Under)
			}
		}
		return w.Flush()
	})
}

func migratePrint(_ context.Context, args []string, stdout, _ io.Writer) error {
	var (
		name, part, direction string
		version               int
	)
	s := config.New("relay migrate print", "Prints the SQL of one migration with everything filled in, for review or for another tool.")
	s.String(&name, "schema", "SCHEMA", schema.Default, "schema to fill in", config.Check(schema.Validate))
	s.String(&part, "part", "PART", "", "part of the schema: producer or consumer", config.Required(), config.Check(config.OneOf("producer", "consumer")))
	s.Int(&version, "version", "", 1, 1, 9999, "number of the migration")
	s.String(&direction, "direction", "", "up", "up or down", config.Check(config.OneOf("up", "down")))
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	g, err := migrations.New(nil, migrations.Config{Schema: name})
	if err != nil {
		return err
	}
	return g.Print(stdout, migrations.Part(part), version, migrations.Direction(direction))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
