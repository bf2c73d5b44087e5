package migrations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// applyNext applies the next pending migration of a part together with its row
// in schema_version, and returns nil if there is none up to version to.
func (m *Migrator) applyNext(ctx context.Context, tx pgx.Tx, part Part, to int) (*Step, error) {
	if err := m.prepare(ctx, tx); err != nil {
		return nil, err
	}
	applied, err := m.applied(ctx, tx, part)
	if err != nil {
		return nil, err
	}
	if len(applied) >= to {
		return nil, nil
	}
	next := m.migrated[part][len(applied)]
	step := Step{part, next.Version, next.Name, Up}

	before, err := m.tables(ctx, tx)
	if err != nil {
		return nil, err
	}
	if err := m.execute(ctx, tx, step, next.up); err != nil {
		return nil, err
	}
	seeds, err := m.seeded(ctx, tx, before)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, m.expand(insertVersion), string(part), next.Version, next.Name, next.Checksum, next.MinLibrary, m.config.Schema, string(seeds)); err != nil {
		return nil, fmt.Errorf("migrations: record %s: %w", step, err)
	}
	return &step, nil
}

// onTheWay are the tables that a commit has locked when it has passed its gate, and
// the one that it comes to behind it.
var onTheWay = []string{"history", "receipt", "outbox"}

// lockFirst is the statement that locks what a template alters of them in that order;
// empty where it alters one at most. In the order of the file's statements, a step
// and a commit between its gate and its events could wait for each other, and one of
// the two would be ended.
func lockFirst(template string) string {
	var tables []string
	for _, name := range onTheWay {
		if regexp.MustCompile(`(?i)alter\s+table\s+@schema@\.` + name + `\s`).MatchString(template) {
			tables = append(tables, "@schema@."+name)
		}
	}
	if len(tables) < 2 {
		return ""
	}
	return "lock table " + strings.Join(tables, ", ") + " in access exclusive mode;\n"
}

// execute runs one template, as the owner, and leaves the transaction as it
// was: a migration's own `set local` ends with it.
func (m *Migrator) execute(ctx context.Context, tx pgx.Tx, step Step, template string) error {
	if lock := lockFirst(template); lock != "" {
		if _, err := tx.Exec(ctx, m.expand(lock)); err != nil {
			return fmt.Errorf("migrations: lock the tables of %s: %w", step, err)
		}
	}
	text := m.expand(template)
	// Without arguments pgx uses the simple protocol, which takes a whole file.
	if _, err := tx.Exec(ctx, text); err != nil {
		failure := &StepError{Step: step, Err: err}
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Position > 0 {
			at := []rune(text)[:min(int(pg.Position), len([]rune(text)))]
			failure.Line = 1 + strings.Count(string(at), "\n")
		}
		return failure
	}
	return m.become(ctx, tx)
}

// row is a row of schema_version.
type row struct {
	Part       Part
	Version    int
	Name       string
	Checksum   string
	SchemaName string
	Applied
}

// rows reads what schema_version records of a part, in order.
func (m *Migrator) rows(ctx context.Context, tx pgx.Tx, part Part) ([]row, error) {
	result, err := tx.Query(ctx, m.expand(selectVersions), string(part))
	if err != nil {
		return nil, fmt.Errorf("migrations: read %q.schema_version: %w", m.config.Schema, err)
	}
	rows, err := pgx.CollectRows(result, func(r pgx.CollectableRow) (row row, err error) {
		return row, r.Scan(&row.Part, &row.Version, &row.Name, &row.Checksum, &row.SchemaName, &row.At, &row.By)
	})
	if err != nil {
		return nil, fmt.Errorf("migrations: read %q.schema_version: %w", m.config.Schema, err)
	}
	return rows, nil
}

// applied returns what is applied of a part, having made sure that it is what
// this program's files say.
func (m *Migrator) applied(ctx context.Context, tx pgx.Tx, part Part) ([]row, error) {
	rows, err := m.rows(ctx, tx, part)
	if err != nil {
		return nil, err
	}
	for i, r := range rows {
		if r.SchemaName != m.config.Schema {
			// The functions' bodies are text that still contains the old name.
			return nil, &VersionError{Part: part, Schema: m.config.Schema, Problem: schema.Renamed, Have: len(rows), Want: m.newest(part), Under: r.SchemaName}
		}
		if r.Version != i+1 {
			return nil, fmt.Errorf("migrations: %q.schema_version has %s migration %d, but not %d; someone removed rows by hand: restore them", m.config.Schema, part, r.Version, i+1)
		}
		if r.Version > m.newest(part) {
			continue // of a newer library; ours may still run, or Check says otherwise
		}
		if err := m.compare(r); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// compare returns a *ChangedError if r was applied from another file than ours.
func (m *Migrator) compare(r row) error {
	file := m.migrated[r.Part][r.Version-1]
	switch {
	case r.Name != file.Name:
		return &ChangedError{Migration: file.String(), Applied: fmt.Sprintf("the name %q", r.Name), File: fmt.Sprintf("the name %q", file.Name)}
	case r.Checksum != file.Checksum:
		return &ChangedError{Migration: file.String(), Applied: r.Checksum, File: file.Checksum}
	}
	return nil
}

// table is one table of the schema with its columns' names by number.
type table struct {
	Name    string
	Columns map[int16]string
}

func (m *Migrator) tables(ctx context.Context, tx pgx.Tx) (map[uint32]table, error) {
	rows, err := tx.Query(ctx, columns, m.config.Schema)
	if err != nil {
		return nil, fmt.Errorf("migrations: list the tables of %q: %w", m.config.Schema, err)
	}
	tables := map[uint32]table{}
	var oid uint32
	var name, column string
	var number int16
	_, err = pgx.ForEachRow(rows, []any{&oid, &name, &number, &column}, func() error {
		if _, seen := tables[oid]; !seen {
			tables[oid] = table{Name: name, Columns: map[int16]string{}}
		}
		tables[oid].Columns[number] = column
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("migrations: list the tables of %q: %w", m.config.Schema, err)
	}
	return tables, nil
}

// quoted returns a table's qualified name.
func (m *Migrator) quoted(name string) string {
	return schema.Quote(m.config.Schema) + "." + schema.Quote(name)
}

// seeded returns, as JSON, the digest of each row in the tables that were not
// there before: what the migration itself inserted. Down doesn't take those for
// data, as long as they are what they were.
func (m *Migrator) seeded(ctx context.Context, tx pgx.Tx, before map[uint32]table) ([]byte, error) {
	after, err := m.tables(ctx, tx)
	if err != nil {
		return nil, err
	}
	seeds := map[string][]string{}
	for oid, t := range after {
		if _, old := before[oid]; old {
			continue
		}
		rows, err := tx.Query(ctx, "select "+rowDigest+" from "+m.quoted(t.Name)+" as "+rowAlias+" order by 1")
		if err != nil {
			return nil, fmt.Errorf("migrations: read the rows of %s: %w", m.quoted(t.Name), err)
		}
		digests, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("migrations: read the rows of %s: %w", m.quoted(t.Name), err)
		}
		if len(digests) > 0 {
			seeds[t.Name] = digests
		}
	}
	return json.Marshal(seeds)
}

// The alias is one that no column has, since a column would win.
const (
	rowAlias  = `"(row)"`
	rowDigest = `pg_catalog.md5(` + rowAlias + `::text)`
)
