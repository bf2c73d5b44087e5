package fencing

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Lease is a held lease. Safe for use by many goroutines.
type Lease struct {
	f   *Fences
	pos Position
	cfg LeaseConfig

	ctx    context.Context
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	trusted time.Time   // until when the holder may believe in it; monotonic clock
	due     time.Time   // of the next renewal
	timer   *time.Timer // ends the context at trusted
}

// hold makes the handle of a lease that, in the database, expires at the given
// local time or later.
func (f *Fences) hold(pos Position, cfg LeaseConfig, expires time.Time) *Lease {
	l := &Lease{f: f, pos: pos, cfg: cfg}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.trusted = expires.Add(-cfg.Margin)
	l.due = expires.Add(-cfg.TTL).Add(cfg.RenewEvery)
	// Registered before its timer runs: otherwise a lease that ends at once
	// would be forgotten first and registered then, and be renewed for ever.
	l.timer = time.AfterFunc(cfg.TTL+time.Hour, l.expire)
	f.renew(l)
	l.timer.Reset(time.Until(l.trusted))
	return l
}

// Position is the lease's place at the fence.
func (l *Lease) Position() Position { return l.pos }

// Holder is the name under which the lease is held.
func (l *Lease) Holder() string { return l.cfg.Holder }

// Context ends when the trust in the lease is over, before the lease can
// expire in the database, with [ErrLeaseLost] as its cause; or at Release,
// with [ErrReleased]. Work that only a holder should do takes this context.
// What protects its results is not the context but the gate: a process can be
// paused between any two instructions.
func (l *Lease) Context() context.Context { return l.ctx }

// expire is the timer's. A renewal may have moved the trust meanwhile.
func (l *Lease) expire() {
	l.mu.Lock()
	left := time.Until(l.trusted)
	if left > 0 {
		l.timer.Reset(left)
	}
	l.mu.Unlock()
	if left <= 0 {
		l.lose("its trust window is over")
	}
}

// lose ends the lease on this side.
func (l *Lease) lose(why string) {
	if l.ctx.Err() == nil {
		l.f.cfg.Logger.Warn("lease lost", "key", l.pos.Key, "epoch", l.pos.Epoch, "token", l.pos.Token, "holder", l.cfg.Holder, "reason", why)
	}
	l.end(ErrLeaseLost)
}

func (l *Lease) end(cause error) {
	l.cancel(cause)
	l.timer.Stop()
	l.f.forget(l)
}

// renewed extends the trust after a renewal that was asked for at the given
// time and that set the lease time anew.
func (l *Lease) renewed(asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A slow answer of an earlier renewal must not shorten a later one's.
	if t := asked.Add(l.cfg.TTL - l.cfg.Margin); t.After(l.trusted) {
		l.trusted = t
	}
	l.due = asked.Add(l.cfg.RenewEvery)
}

// postpone sets the next renewal after one that failed or found the lease
// busy: soon, since trust is running out, but not at once.
func (l *Lease) postpone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.due = time.Now().Add(max(10*time.Millisecond, l.cfg.RenewEvery/8))
}

func (l *Lease) nextDue() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.due
}

// Release gives the lease up, so that the next holder need not wait for it to
// expire. Its token stays the highest issued one until somebody acquires, and
// is never issued again. Release of a lease that is lost does nothing. It also
// works when ctx has ended, within 5 s, so that it can be deferred.
func (l *Lease) Release(ctx context.Context) error {
	lost := l.ctx.Err() != nil
	l.end(ErrReleased)
	if lost && context.Cause(l.ctx) == ErrReleased {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var released bool
	err := l.f.call(ctx, func(row pgx.Row) error { return row.Scan(&released) }, l.f.sql.release, l.pos.Key, l.pos.Epoch, l.pos.Token)
	if err != nil {
		return fmt.Errorf("fencing: release %q: %w", l.pos.Key, translate(err))
	}
	return nil
}

// Commit is [Fences.Commit] under this lease. The callback's context also ends
// with the trust in the lease. A retry on a lease that is lost is answered like
// any other: by the receipt, if the first attempt has committed.
func (l *Lease) Commit(ctx context.Context, content Content, fn func(ctx context.Context, tx Tx) error) (Receipt, error) {
	return l.f.commit(ctx, l.pos, content, l.cfg.GateTimeout, l.ctx, fn)
}
