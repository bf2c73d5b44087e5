package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/fenceline/fenceline/cmd/demo-consumer/readmodel"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/migrations"
	"github.com/jackc/pgx/v5/pgxpool"
)

const program = "demo-consumer"

func main() {
	os.Exit(config.Main(program, "Demo-consumer counts earthquake reports per seismic network.", []config.Command{
		{Name: "migrate", Summary: "create the guard's tables and its own", Run: migrate},
		{Name: "run", Summary: "apply events until told to stop", Run: run},
		{Name: "report", Summary: "print the read model", Run: report},
	}, os.Args[1:], os.Stdout, os.Stderr))
}

// database is what every command needs.
type database struct {
	postgres config.Postgres
	log      config.Log
	own      string
}

func (d *database) register(s *config.Set) {
	d.postgres.Register(s)
	s.String(&d.own, "model-schema", "MODEL_SCHEMA", "quake_report", "schema of this service's own tables", config.Check(schema.Validate))
	d.log.Register(s)
}

func (d *database) open(ctx context.Context) (*pgxpool.Pool, *readmodel.Model, error) {
	model, err := readmodel.New(d.own)
	if err != nil {
		return nil, nil, err
	}
	pool, err := d.postgres.Open(ctx, program)
	return pool, model, err
}

func migrate(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var d database
	s := config.New(program+" migrate", "Creates the consumer's part of fenceline's schema, and this service's own tables.")
	d.register(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	pool, model, err := d.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	m, err := migrations.New(pool, migrations.Config{Schema: d.postgres.Schema, Logger: d.log.Logger(stderr)})
	if err != nil {
		return err
	}
	if _, err := m.Up(ctx, migrations.UpOptions{Parts: []migrations.Part{migrations.Consumer}}); err != nil {
		return err
	}
	return model.Create(ctx, pool)
}

func report(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var d database
	s := config.New(program+" report", "Prints the reports of each network: how many, the largest, the last update.")
	d.register(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	pool, model, err := d.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	networks, err := model.Read(ctx, pool)
	if err != nil {
		return hint(err)
	}
	return readmodel.Print(stdout, networks)
}

// hint adds the remedy to an error about the read model's table.
func hint(err error) error {
	if errors.Is(err, readmodel.ErrMissing) {
		return fmt.Errorf("%w: run \"%s migrate\" (and check -postgres and -model-schema), or grant this login usage on the schema and select, insert, update on its table", err, program)
	}
	return err
}
