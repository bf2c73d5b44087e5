package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/dbcheck"
	"github.com/fenceline/fenceline/internal/schema"
)

// SettingError says that the database or its server is set up in a way that would
// break the relay's order or lose events. [Run] refuses to start.
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

// check refuses a database on which the rules of doc.go don't hold.
func check(ctx context.Context, pool *pgxpool.Pool, cfg Config) error {
	if err := schema.Check(ctx, pool, cfg.Schema, schema.Producer); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	err := dbcheck.Check(ctx, pool, cfg.Schema, !cfg.AllowUnsafeDatabase)
	var p *dbcheck.Problem
	switch {
	case errors.As(err, &p):
		return (*SettingError)(p)
	case err != nil:
		return fmt.Errorf("relay: %w", err)
	}
	return direct(ctx, pool)
}
