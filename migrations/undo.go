package migrations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

// countedRows is where counting stops: the count is made under a lock that
// keeps everyone out, and the answer is the same from the first row on.
const countedRows = 100_000

// undoLast undoes the last applied migration of a part above options.To
// together with its row in schema_version, and returns nil if there is none.
func (m *Migrator) undoLast(ctx context.Context, tx pgx.Tx, options DownOptions) (*Step, error) {
	found, err := m.inspect(ctx, tx)
	if err != nil || !found.versions {
		return nil, err
	}
	if err := m.prepare(ctx, tx); err != nil {
		return nil, err
	}
	applied, err := m.applied(ctx, tx, options.Part)
	if err != nil {
		return nil, err
	}
	if len(applied) > m.newest(options.Part) {
		return nil, &VersionError{Part: options.Part, Schema: m.config.Schema, Problem: schema.LibraryTooOld, Have: m.newest(options.Part), Want: len(applied)}
	}
	if len(applied) <= options.To {
		return nil, nil
	}
	last := m.migrated[options.Part][len(applied)-1]
	step := Step{options.Part, last.Version, last.Name, Down}

	if !options.Force {
		losses, err := m.losses(ctx, tx, step, last)
		if err != nil {
			return nil, err
		}
		if len(losses) > 0 {
			return nil, &DataLossError{Migration: last.String(), Losses: losses}
		}
	}
	if err := m.execute(ctx, tx, step, last.down); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, m.expand(deleteVersion), string(step.Part), step.Version); err != nil {
		return nil, fmt.Errorf("migrations: record %s: %w", step, err)
	}
	return &step, m.removeSchema(ctx, tx)
}

// removeSchema removes what prepare made, roles excepted, once neither part is
// left. The schema stays if somebody else put something into it.
func (m *Migrator) removeSchema(ctx context.Context, tx pgx.Tx) error {
	var rows bool
	if err := tx.QueryRow(ctx, m.expand(`select exists (select from @schema@.schema_version)`)).Scan(&rows); err != nil || rows {
		return err
	}
	if _, err := tx.Exec(ctx, m.expand(`drop table @schema@.schema_version`)); err != nil {
		return fmt.Errorf("migrations: drop %q.schema_version: %w", m.config.Schema, err)
	}
	err := inSavepoint(ctx, tx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, m.expand(`drop schema @schema@ restrict`))
		return err
	})
	if err != nil && sqlState(err) != dependentObjects {
		return fmt.Errorf("migrations: drop schema %q: %w", m.config.Schema, err)
	}
	return nil
}

// errTrial ends the trial that losses makes.
var errTrial = errors.New("migrations: trial")

// losses returns what a down step would destroy. It doesn't parse the step: it
// runs it in a savepoint, looks which tables and columns are gone, and takes it
// back. Then it locks the tables before it counts, since taking back the
// savepoint gave its locks up, and a row that is committed between the count
// and the drop would be lost unseen.
func (m *Migrator) losses(ctx context.Context, tx pgx.Tx, step Step, last *migration) ([]Loss, error) {
	before, err := m.tables(ctx, tx)
	if err != nil {
		return nil, err
	}
	var after map[uint32]table
	err = inSavepoint(ctx, tx, func(tx pgx.Tx) error {
		if err := m.execute(ctx, tx, step, last.down); err != nil {
			return err
		}
		if after, err = m.tables(ctx, tx); err != nil {
			return err
		}
		return errTrial
	})
	if !errors.Is(err, errTrial) {
		return nil, err
	}

	var losses []Loss
	for oid, t := range before {
		left, stays := after[oid]
		if !stays {
			losses = append(losses, Loss{Table: t.Name})
			continue
		}
		for number, column := range t.Columns {
			if _, stays := left.Columns[number]; !stays {
				losses = append(losses, Loss{Table: t.Name, Column: column})
			}
		}
	}
	slices.SortFunc(losses, func(a, b Loss) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Column, b.Column))
	})

	var seeds map[string][]string
	if err := tx.QueryRow(ctx, m.expand(selectSeeds), string(last.Part), last.Version).Scan(&seeds); err != nil {
		return nil, fmt.Errorf("migrations: read what %s seeded: %w", last, err)
	}
	carried := carriedBy(last.down)
	losses = slices.DeleteFunc(losses, func(l Loss) bool { return slices.Contains(carried, strings.TrimSuffix(l.Table+"."+l.Column, ".")) })
	for i := range losses {
		if err := m.count(ctx, tx, &losses[i], seeds); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(losses, func(l Loss) bool { return l.Rows == 0 }), nil
}

// noLoss begins the line in which a down file says what goes without a loss:
// tables, and columns as table.column, that it carries over into what remains,
// or that hold nothing beyond the moment.
const noLoss = "-- no loss: "

func carriedBy(down string) []string {
	for line := range strings.Lines(down) {
		if names, ok := strings.CutPrefix(line, noLoss); ok {
			return strings.Split(strings.TrimSpace(names), ", ")
		}
		if !strings.HasPrefix(line, "--") {
			break
		}
	}
	return nil
}

// count locks a table that is about to lose something and counts its rows that
// matter.
func (m *Migrator) count(ctx context.Context, tx pgx.Tx, loss *Loss, seeds map[string][]string) error {
	name := loss.Table
	loss.Table = m.quoted(name)
	if _, err := tx.Exec(ctx, "lock table "+loss.Table+" in access exclusive mode"); err != nil {
		return fmt.Errorf("migrations: lock %s: %w", loss.Table, err)
	}
	where, args := rowDigest+" <> all($1::text[])", []any{append([]string{}, seeds[name]...)}
	if loss.Column != "" {
		where, args = rowAlias+"."+schema.Quote(loss.Column)+" is not null", nil
	} else if len(seeds[name]) == 0 {
		where, args = "true", nil
	}
	query := fmt.Sprintf("select count(*) from (select from %s as %s where %s limit %d) as counted", loss.Table, rowAlias, where, countedRows+1)
	if err := tx.QueryRow(ctx, query, args...).Scan(&loss.Rows); err != nil {
		return fmt.Errorf("migrations: count the rows of %s: %w", loss.Table, err)
	}
	if loss.More = loss.Rows > countedRows; loss.More {
		loss.Rows = countedRows
	}
	return nil
}
