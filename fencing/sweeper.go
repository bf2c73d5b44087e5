package fencing

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// RunSweeper sweeps until ctx ends, every cfg.Every give or take a tenth, and
// then returns nil. A sweep that fails is logged and tried again the next time;
// only what trying again can't help ends it with an error: a configuration that
// is wrong, a right that is missing, another history. It may run in several
// processes at once.
func (f *Fences) RunSweeper(ctx context.Context, cfg SweepConfig) error {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return err
	}
	if cfg.DryRun {
		return &InvalidError{"dry run", "is for a single Sweep, not for RunSweeper"}
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		began := time.Now()
		report, err := f.Sweep(ctx, cfg)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && lasting(err):
			return err
		case err != nil:
			f.cfg.Logger.Warn("sweep failed, trying again", "in", cfg.Every, "error", err)
		case report.Receipts+report.Tombstones+report.Turns > 0:
			f.cfg.Logger.Info("swept", "receipts", report.Receipts, "tombstones", report.Tombstones, "turns", report.Turns, "took", time.Since(began))
		}
		for _, k := range report.Kept {
			f.cfg.Logger.Debug("kept by the sweep", "what", k.What, "reason", k.Reason, "count", k.Count, "example", k.Example)
		}
		// Several sweepers that were started together drift apart.
		timer.Reset(cfg.Every*9/10 + rand.N(cfg.Every/5+1))
	}
}

// lasting tells an error that only an operator can end.
func lasting(err error) bool {
	if errors.Is(err, ErrHistory) || errors.Is(err, ErrInvalid) {
		return true
	}
	var pg *pgconn.PgError
	// A right that is missing; a schema or function that is not there.
	return errors.As(err, &pg) && (pg.Code == "42501" || pg.Code == "3F000" || pg.Code == "42883" || pg.Code == "42P01")
}
