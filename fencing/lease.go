package fencing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Lease is a held lease. Safe for use by many goroutines.
type Lease struct {
	f   *Fences
	cfg LeaseConfig

	ctx    context.Context
	cancel context.CancelCauseFunc
	line   *line // for its commits of the batch shape; nil where each has a connection of its own
	calls  *line // for those of the callback shape; nil where each has a transaction of its own

	mu      sync.Mutex
	pos     Position    // changes by rotation alone
	flight  flight      // the commits under pos
	trusted time.Time   // until when the holder may believe in it; monotonic clock
	due     time.Time   // of the next renewal
	timer   *time.Timer // ends the context at trusted
}

// hold makes the handle of a lease that, in the database, expires at the given
// local time or later.
func (f *Fences) hold(pos Position, cfg LeaseConfig, expires time.Time) *Lease {
	l := &Lease{f: f, pos: pos, cfg: cfg}
	l.line, l.calls = f.lines(cfg)
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.trusted = expires.Add(-cfg.Margin)
	l.due = expires.Add(-cfg.TTL).Add(cfg.RenewEvery)
	// Registered before its timer runs: otherwise a lease that ends at once
	// would be forgotten first and registered then, and be renewed for ever.
	l.timer = time.AfterFunc(cfg.TTL+time.Hour, l.expire)
	l.flight.since = time.Now()
	until := l.trusted // read before a renewal can move it
	f.renew(l)
	l.timer.Reset(time.Until(until))
	return l
}

// Position is the lease's place at the fence. It changes when the lease's token
// is rotated ([Lease.Rotate]): whoever keeps it for a retry by another process
// keeps that of the attempt, by committing with [Fences.Commit].
func (l *Lease) Position() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pos
}

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
		pos := l.Position()
		l.f.cfg.Logger.Warn("lease lost", "key", pos.Key, "epoch", pos.Epoch, "token", pos.Token, "holder", l.cfg.Holder, "reason", why)
	}
	l.end(ErrLeaseLost)
}

func (l *Lease) end(cause error) {
	l.cancel(cause)
	l.timer.Stop()
	l.f.forget(l)
	l.f.freed(l.key())
}

func (l *Lease) key() string { return l.pos.Key } // the key alone never changes

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
// expire: who campaigned for it first has it to itself for a moment. Its token
// stays the highest issued one until somebody acquires, and is never issued
// again. Release of a lease that is lost does nothing. It also works when ctx
// has ended, within 5 s, so that it can be deferred. In the callback of one of
// the lease's commits, which it would undo, it is ErrMisuse and does nothing.
func (l *Lease) Release(ctx context.Context) error {
	if err := l.f.notInside(ctx, "release", l.key()); err != nil {
		return err
	}
	lost := l.ctx.Err() != nil
	l.end(ErrReleased)
	if lost && context.Cause(l.ctx) == ErrReleased {
		return nil
	}
	return l.release(ctx, l.Position())
}

func (l *Lease) release(ctx context.Context, pos Position) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var released bool
	err := l.f.wait(ctx, 0, func(row pgx.Row) error { return row.Scan(&released) }, l.f.sql.release, pos.Key, pos.Epoch, pos.Token)
	l.f.freed(pos.Key) // the first time was before the database knew
	if err != nil {
		return fmt.Errorf("fencing: release %q: %w", pos.Key, translate(err))
	}
	return nil
}

// Commit is [Fences.Commit] under this lease. The callback's context also ends
// with the trust in the lease. A retry on a lease that is lost is answered like
// any other: by the receipt, if the first attempt has committed. So is a retry
// behind a rotation, of an attempt whose outcome was unknown. Where
// [LeaseConfig.CoalesceCallbacks] says so, it may share its transaction.
func (l *Lease) Commit(ctx context.Context, content Content, fn func(ctx context.Context, tx Tx) error) (Receipt, error) {
	pos, err := l.begin(ctx)
	if err != nil {
		return Receipt{}, err
	}
	defer l.finish()
	if receipt, err := l.askBefore(ctx, content, pos); err != errNotBefore {
		return receipt, err
	}
	receipt, err := l.commitAt(ctx, pos, content, fn)
	l.settled(content.Step, pos, receipt, err)
	return receipt, err
}

func (l *Lease) commitAt(ctx context.Context, pos Position, content Content, fn func(ctx context.Context, tx Tx) error) (Receipt, error) {
	if l.calls == nil || l.ctx.Err() != nil {
		return l.f.commit(ctx, pos, content, l.cfg.GateTimeout, l.ctx, fn)
	}
	if err := errors.Join(content.validate(), isFunc(fn != nil)); err != nil {
		return Receipt{}, err
	}
	m := &member{gate: Gate{pos, content}, timeout: l.cfg.GateTimeout, most: l.cfg.CoalesceCallbacks, fn: fn, lease: l.ctx, baton: make(chan baton), done: make(chan struct{}), single: make(chan struct{})}
	receipt, err := l.calls.join(ctx, m)
	return l.f.followed(ctx, m.gate, receipt, err)
}

// CommitBatch is [Fences.CommitBatch] under this lease, and shares the work:
// what is waiting to be committed under the lease, of different steps, goes into
// one transaction, up to [LeaseConfig.Coalesce] commits; with
// [Config.GroupCommit] also with those of other keys. Each has its own
// receipt and its own answer; one that fails takes no other with it. Which of
// several at once is first is open, and events of the key are in the order in
// which they commit.
func (l *Lease) CommitBatch(ctx context.Context, content Content, build func(b *Batch) error) (Receipt, error) {
	pos, err := l.begin(ctx)
	if err != nil {
		return Receipt{}, err
	}
	defer l.finish()
	if receipt, err := l.askBefore(ctx, content, pos); err != errNotBefore {
		return receipt, err
	}
	if l.ctx.Err() != nil {
		// Only a retry can still have an answer: it is asked without the batch.
		return l.f.commit(ctx, pos, content, l.cfg.GateTimeout, l.ctx, func(context.Context, Tx) error { return context.Cause(l.ctx) })
	}
	m, err := l.f.member(pos, content, l.cfg.GateTimeout, build)
	if err != nil {
		return Receipt{}, err
	}
	m.most = l.cfg.Coalesce
	var receipt Receipt
	if l.line != nil {
		receipt, err = l.line.join(ctx, m)
	} else {
		receipt, err = l.f.inTurn(ctx, m)
	}
	receipt, err = l.f.followed(ctx, m.gate, receipt, err)
	l.settled(content.Step, pos, receipt, err)
	return receipt, err
}
