package fencing

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// HandOver gives the lease to the holder of the given name (its [Config.Holder]
// or LeaseConfig.Holder): for [LeaseConfig.ReserveFor] only that one can acquire
// it, afterwards anyone. It waits for the handle's commits in progress first, as
// long as ctx and the gate's timeout last, and begins none meanwhile; then the
// lease's context ends, with ErrReleased.
//
// Until the successor has acquired, the token is still the highest issued one:
// the successor's acquire is the takeover.
//
// Errors: ErrLeaseLost if the lease is over, ErrReleased if it was given up
// before, [*InvalidError]; ctx's, a [*BlockedError] if the commits in progress
// did not end, and ErrMisuse in the callback of one of them (the lease is still
// held then); or the database's: then the lease is not renewed any more, and
// whether it was handed over shows in who acquires next.
func (l *Lease) HandOver(ctx context.Context, holder string) error {
	if holder == "" || len(holder) > 255 || !validText(holder) {
		return &InvalidError{"successor", "is not 1 to 255 bytes of UTF-8"}
	}
	if err := l.f.notInside(ctx, "hand over", l.key()); err != nil {
		return err
	}
	d, err := l.drain(ctx)
	if err != nil {
		return fmt.Errorf("fencing: hand over %q: %w", l.key(), err)
	}
	defer l.resume(d, nil)
	pos := l.Position()
	l.end(ErrReleased)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var ok bool
	err = l.f.wait(ctx, 0, func(row pgx.Row) error { return row.Scan(&ok) }, l.f.sql.handOver, pos.Key, pos.Epoch, pos.Token, holder, l.cfg.ReserveFor)
	l.f.freed(pos.Key) // the successor may be another holder of this process
	switch {
	case err != nil:
		return fmt.Errorf("fencing: hand over %q: %w", pos.Key, translate(err))
	case !ok:
		return fmt.Errorf("fencing: hand over %q: %w", pos.Key, ErrLeaseLost)
	}
	return nil
}
