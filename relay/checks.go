package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
)

// SettingError says that the database is set up in a way that would break the
// relay's order or lose events. [Run] refuses to start.
type SettingError struct {
	// Name is what is set wrongly, Have how.
	Name, Have string
	// Remedy is what breaks, and what to do.
	Remedy string
}

// Error implements error.
func (e *SettingError) Error() string {
	return fmt.Sprintf("relay: %s is %s: %s", e.Name, e.Have, e.Remedy)
}

// check refuses a schema on which the rules of doc.go don't hold. The server's
// own settings are checked by package fencing.
func check(ctx context.Context, pool *pgxpool.Pool, cfg Config, sql *statements) error {
	if err := schema.Check(ctx, pool, cfg.Schema, schema.Producer); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	var (
		cache       int64
		persistence string
		unlogged    *string
		ordered     bool
	)
	if err := pool.QueryRow(ctx, sql.sequence).Scan(&cache, &persistence); err != nil {
		return fmt.Errorf("relay: check the sequence: %w", err)
	}
	name := cfg.Schema + ".outbox_pos"
	if cache != 1 {
		return &SettingError{"cache of sequence " + name, fmt.Sprint(cache),
			fmt.Sprintf("a later event of a stream could get the smaller position and be published first; run alter sequence %s cache 1", name)}
	}
	if persistence != "p" {
		return &SettingError{"sequence " + name, "unlogged", fmt.Sprintf("a crash would give positions out again; run alter sequence %s set logged", name)}
	}
	if err := pool.QueryRow(ctx, sql.table).Scan(&unlogged); err != nil {
		return fmt.Errorf("relay: check the outbox: %w", err)
	}
	if unlogged != nil {
		return &SettingError{"outbox table " + *unlogged, "unlogged", "a crash empties it, with the events that are not yet published; run alter table … set logged"}
	}
	if err := pool.QueryRow(ctx, sql.columns).Scan(&ordered); err != nil {
		return fmt.Errorf("relay: check the outbox: %w", err)
	}
	if !ordered {
		return &SettingError{"order of the columns of " + cfg.Schema + ".outbox", "pos before xid",
			"an event could get its position before its transaction id, and be passed over; create the table as the migrations do, with xid first"}
	}
	return nil
}
