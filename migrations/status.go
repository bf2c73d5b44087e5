package migrations

import (
	"context"
	"fmt"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
)

// State is what became of a migration in a database.
type State string

// The states of a migration.
const (
	StateApplied State = "applied"
	StatePending State = "pending"
	StateChanged State = "changed" // applied from another file than this program's
	StateNewer   State = "newer"   // applied by a newer program; unknown to this one
)

// Applied is when and by whom a migration was applied.
type Applied struct {
	At time.Time // the database's clock; zero if pending
	By string    // the login; empty if pending
}

// MigrationStatus is the state of one migration.
type MigrationStatus struct {
	Version  int
	Name     string
	State    State
	Checksum string // what schema_version records, or the file's if pending
	Applied
}

// PartStatus is the state of one part.
type PartStatus struct {
	Part       Part
	Have       int    // the newest applied version, 0 for none
	Want       int    // the newest version this program knows
	Under      string // the name the schema was migrated under, if it was renamed since; else empty
	Migrations []MigrationStatus
}

// Status reports the state of parts, producer first; none means both. It
// changes nothing and takes no locks, so it also works on a standby. A schema
// that doesn't exist is not an error: everything is pending.
func (m *Migrator) Status(ctx context.Context, list ...Part) ([]PartStatus, error) {
	parts, err := m.parts(list)
	if err != nil {
		return nil, err
	}
	// One snapshot for both parts, while others migrate.
	tx, err := m.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, fmt.Errorf("migrations: begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if err := checkServer(ctx, tx); err != nil {
		return nil, err
	}
	found, err := m.inspect(ctx, tx)
	if err != nil {
		return nil, err
	}
	if found.versions {
		if err := m.readable(ctx, tx, found); err != nil {
			return nil, err
		}
	}
	var all []PartStatus
	for _, part := range parts {
		var rows []row
		if found.versions {
			if rows, err = m.rows(ctx, tx, part); err != nil {
				return nil, err
			}
		}
		all = append(all, m.partStatus(part, rows))
	}
	return all, nil
}

// readable makes schema_version readable: to a member of any of our roles it
// is; a migrator's login may have to become the owner first.
func (m *Migrator) readable(ctx context.Context, tx pgx.Tx, f found) error {
	const ask = `
select pg_catalog.has_schema_privilege(n.oid, 'USAGE') and pg_catalog.has_table_privilege(c.oid, 'SELECT')
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1::text and c.relname = 'schema_version'`
	var may bool
	if err := tx.QueryRow(ctx, ask, m.config.Schema).Scan(&may); err != nil {
		return fmt.Errorf("migrations: look for %q.schema_version: %w", m.config.Schema, err)
	}
	if may {
		return nil
	}
	_, err := tx.Exec(ctx, m.expand("set local role @owner@"))
	if sqlState(err) == insufficientPrivilege {
		statement := fmt.Sprintf("grant %s to %s;", schema.Quote(m.role(schema.KindMonitor)), schema.Quote(f.current))
		return &PrivilegeError{User: f.current, Missing: fmt.Sprintf("may not read %q.schema_version", m.config.Schema), Statements: []string{statement}}
	}
	return err
}

func (m *Migrator) partStatus(part Part, rows []row) PartStatus {
	status := PartStatus{Part: part, Want: m.newest(part)}
	for _, r := range rows {
		state := StateApplied
		if r.Version > m.newest(part) {
			state = StateNewer
		} else if m.compare(r) != nil {
			state = StateChanged
		}
		if r.SchemaName != m.config.Schema {
			status.Under = r.SchemaName
		}
		status.Have = r.Version
		status.Migrations = append(status.Migrations, MigrationStatus{r.Version, r.Name, state, r.Checksum, r.Applied})
	}
	for _, file := range m.migrated[part] {
		if file.Version > status.Have {
			status.Migrations = append(status.Migrations, MigrationStatus{Version: file.Version, Name: file.Name, State: StatePending, Checksum: file.Checksum})
		}
	}
	return status
}
