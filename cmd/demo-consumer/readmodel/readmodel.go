package readmodel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/quakes"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// EventType is the type of the events that this service understands.
const EventType = "quake.reported"

// Model is the read model in one schema.
type Model struct {
	table  string
	schema string
}

// New names the schema, which is the service's own, beside fenceline's.
func New(name string) (*Model, error) {
	if err := schema.Validate(name); err != nil {
		return nil, fmt.Errorf("readmodel: %w", err)
	}
	return &Model{table: schema.Quote(name) + ".network", schema: schema.Quote(name)}, nil
}

// DB is a pool, a connection or a transaction.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Create makes schema and table where they are missing.
func (m *Model) Create(ctx context.Context, db DB) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("readmodel: create: %w", err)
	}
	defer tx.Rollback(ctx)
	// Two that create at once would collide in the catalogue.
	_, err = tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended($1, 0))", "readmodel "+m.schema)
	if err == nil {
		_, err = tx.Exec(ctx, "create schema if not exists "+m.schema)
	}
	if err == nil {
		_, err = tx.Exec(ctx, `create table if not exists `+m.table+` (
			net         text primary key,
			reports     bigint not null,
			largest     double precision not null,
			last_update timestamptz not null)`)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil {
		return fmt.Errorf("readmodel: create: %w", err)
	}
	return nil
}

// ErrMissing says that the table isn't there, or not for this login.
var ErrMissing = errors.New("readmodel: the read model's table can't be used")

// Check looks whether the table can be used, so that its absence is told at the
// start and not by the first event.
func (m *Model) Check(ctx context.Context, db DB) error {
	_, err := m.Read(ctx, db)
	return err
}

// Handle applies one report. It counts blindly: an event that came twice, late
// or out of order would be counted wrongly, so none of these may get here.
func (m *Model) Handle(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
	report, err := quakes.Parse(d.Payload)
	if err != nil {
		return consumer.Reject(err)
	}
	if report.Net != d.Key {
		return consumer.Reject(fmt.Errorf("readmodel: report of network %q under key %q", report.Net, d.Key))
	}
	_, err = tx.Exec(ctx, `insert into `+m.table+` as n (net, reports, largest, last_update) values ($1, 1, $2, $3)
		on conflict (net) do update set reports = n.reports + 1, largest = greatest(n.largest, excluded.largest), last_update = greatest(n.last_update, excluded.last_update)`,
		report.Net, report.Magnitude, report.UpdatedAt())
	return err
}

// Network is one row.
type Network struct {
	Net        string    `json:"net"`
	Reports    int64     `json:"reports"`
	Largest    float64   `json:"largest"`
	LastUpdate time.Time `json:"lastUpdate"`
}

// Read gives all networks, those with most reports first.
func (m *Model) Read(ctx context.Context, db DB) ([]Network, error) {
	rows, err := db.Query(ctx, "select net, reports, largest, last_update from "+m.table+" order by reports desc, net")
	var networks []Network
	if err == nil {
		networks, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Network])
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000" || pg.Code == "42501") { // no table, no schema, no right
		return nil, fmt.Errorf("%w: %s", ErrMissing, pg.Message)
	}
	if err != nil {
		return nil, fmt.Errorf("readmodel: %w", err)
	}
	return networks, nil
}

// Count is the read model that a plain count over the reports gives.
func Count(reports []quakes.Report) map[string]Network {
	counted := map[string]Network{}
	for _, r := range reports {
		n, seen := counted[r.Net]
		n.Net = r.Net
		n.Reports++
		if !seen || r.Magnitude > n.Largest {
			n.Largest = r.Magnitude
		}
		if r.UpdatedAt().After(n.LastUpdate) {
			n.LastUpdate = r.UpdatedAt()
		}
		counted[r.Net] = n
	}
	return counted
}

// Print writes the networks as a table.
func Print(w io.Writer, networks []Network) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "network\treports\tlargest\tlast update\t")
	total := int64(0)
	for _, n := range networks {
		total += n.Reports
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%s\t\n", n.Net, n.Reports, n.Largest, n.LastUpdate.UTC().Format(time.RFC3339))
	}
	fmt.Fprintf(t, "all\t%d\t\t\t\n", total)
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
