package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Rotate moves the lease to the next token and keeps it: receipts under a token
// that stays the newest could never be swept. The handle's commits in progress
// end first, and those that come meanwhile wait. It returns the new position.
//
// Commit does this by itself, after LeaseConfig.RotateAfter commits or
// RotateEvery. What it means for callers:
//
//   - A step is remembered under its token. The same step again behind a
//     rotation is another commit, as it is behind a takeover; except for a step
//     whose outcome was unknown, which the handle asks for under the old token.
//   - A commit by the old position is stale from then on.
//
// Errors: those of the database; [*BlockedError] if a commit by plain position
// is in progress, or one of the handle's own for longer than the gate's timeout;
// ErrMisuse if it is called in the callback of one; ErrLeaseLost, ErrReleased or
// a [*RefusedError] matching ErrStale or ErrClosed when the lease is over. When
// ctx ends the rotation goes on by itself.
func (l *Lease) Rotate(ctx context.Context) (Position, error) {
	if l.f.cfg.System {
		return Position{}, &wrappedError{"fencing: the toolkit's own leases have no receipts, so their tokens are not rotated", ErrMisuse, nil}
	}
	if err := l.f.notInside(ctx, "rotate the token of", l.key()); err != nil {
		return Position{}, err
	}
	for {
		l.mu.Lock()
		d := l.flight.draining
		ours := d == nil
		if ours {
			d = l.startDrain()
			go l.rotate(d)
		}
		l.mu.Unlock()
		select {
		case <-d.over:
		case <-ctx.Done():
			return Position{}, fmt.Errorf("fencing: rotate the token of %q: %w", l.key(), context.Cause(ctx))
		}
		if ours {
			return l.Position(), d.err
		}
	}
}

// tokenIsDue says whether Commit should rotate first. Only a token under which there
// are receipts need go, and only that of a lease that goes on: what is asked for
// under one that is over waits for no other commit. Called with mu held.
func (l *Lease) tokenIsDue(now time.Time) bool {
	f := &l.flight
	if f.committed == 0 || now.Before(f.again) || l.ctx.Err() != nil {
		return false
	}
	return l.cfg.RotateAfter > 0 && f.committed >= l.cfg.RotateAfter || l.cfg.RotateEvery > 0 && now.Sub(f.since) >= l.cfg.RotateEvery
}

// rotate is a goroutine of its own, so that it comes to an end whatever becomes
// of who has asked for it: in between, nobody knows under which token to commit.
func (l *Lease) rotate(d *drain) {
	timeout := time.NewTimer(l.cfg.GateTimeout) // as in drain
	defer timeout.Stop()
	select {
	case <-d.idle:
	case <-l.ctx.Done():
		l.resume(d, fmt.Errorf("fencing: rotate the token of %q: %w", l.key(), context.Cause(l.ctx)))
		return
	case <-timeout.C:
		err := l.notDrained()
		l.mu.Lock()
		l.flight.again = time.Now().Add(l.cfg.TTL)
		l.mu.Unlock()
		l.f.cfg.Logger.Warn("rotation of a token failed, going on under the old one", "key", l.key(), "error", err)
		l.resume(d, err)
		return
	}
	l.mu.Lock()
	old := l.pos
	l.flight.asking = true
	l.mu.Unlock()
	fresh, err := l.askRotation(old)
	l.mu.Lock()
	l.flight.asking = false
	if err == nil {
		l.pos.Epoch, l.pos.Token = fresh.Epoch, fresh.Token // not the key, which is read without the lock
		l.flight.committed, l.flight.since = 0, time.Now()
	} else {
		l.flight.again = time.Now().Add(l.cfg.TTL)
	}
	l.mu.Unlock()
	switch {
	case errors.Is(err, ErrStale), errors.Is(err, ErrClosed):
		l.lose("its token could not be rotated: " + err.Error())
	case err != nil && l.ctx.Err() == nil:
		l.f.cfg.Logger.Warn("rotation of a token failed, going on under the old one", "key", old.Key, "error", err)
	case err == nil && context.Cause(l.ctx) == ErrReleased:
		// Released meanwhile, under the old token: the new one has the lease.
		_ = l.release(context.Background(), fresh)
	}
	l.resume(d, err)
}

// askRotation asks until there is an answer, or no trust left: a rotation whose
// answer was lost is asked for again by its id.
func (l *Lease) askRotation(old Position) (Position, error) {
	id := uuid.New()
	for {
		if l.ctx.Err() != nil {
			return Position{}, fmt.Errorf("fencing: rotate the token of %q: %w", old.Key, context.Cause(l.ctx))
		}
		// Not ended by the lease's context: a Release must know what it was.
		ctx, cancel := context.WithTimeout(context.Background(), l.cfg.Wait+silence)
		fresh := Position{Key: old.Key}
		var waited *bool
		err := l.f.issue(ctx, 0, func(row pgx.Row) error { return row.Scan(&fresh.Epoch, &fresh.Token, &waited) }, l.f.sql.rotate, old.Key, old.Epoch, old.Token, id, l.cfg.Wait)
		cancel()
		if err == nil || waited == nil && errors.Is(err, ErrNotReplicated) { // in the last case the warning was another one: there is no standby
			return fresh, nil
		}
		if t := translate(err); t != err {
			return Position{}, t
		}
		err = fmt.Errorf("fencing: rotate the token of %q: %w", old.Key, err)
		if answered(err) {
			return Position{}, err
		}
		timer := time.NewTimer(l.cfg.poll())
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			timer.Stop()
		}
	}
}

// movedOn says of a renewal's answer for pos that the lease is, or is about to
// be, under another token.
func (l *Lease) movedOn(pos Position) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pos != pos || l.flight.asking
}
