package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// flight is what a lease knows of its own commits, so that its token can be
// rotated and the lease be handed over with none under way. Guarded by the
// lease's mu.
type flight struct {
	aloft     int       // commits in progress
	draining  *drain    // not nil: none may begin
	committed int       // under the present token
	since     time.Time // of the present token
	again     time.Time // not before: an automatic rotation has failed
	asking    bool      // the database is asked for the next token
	// unsettled are the steps whose outcome is unknown, with the position of the
	// attempt: behind a rotation they are asked for there.
	unsettled map[string]Position
}

// drain is a time in which no commit begins.
type drain struct {
	idle chan struct{} // closed when none is in progress
	over chan struct{} // closed at the end
	err  error         // of what was done meanwhile, to be read after over
}

// begin waits for the end of a drain, and counts a commit in. Where the token
// is due, it starts the rotation first.
func (l *Lease) begin(ctx context.Context) (Position, error) {
	if err := l.f.notInside(ctx, "commit of", l.key()); err != nil {
		return Position{}, err
	}
	for {
		l.mu.Lock()
		if l.flight.draining == nil && l.tokenIsDue(time.Now()) {
			d := l.startDrain()
			go l.rotate(d)
		}
		d := l.flight.draining
		if d == nil {
			l.flight.aloft++
			pos := l.pos
			l.mu.Unlock()
			return pos, nil
		}
		l.mu.Unlock()
		select {
		case <-d.over:
		case <-ctx.Done():
			return Position{}, fmt.Errorf("fencing: commit of %q: waiting for the rotation of its token, nothing was written: %w", l.key(), context.Cause(ctx))
		}
	}
}

// finish counts a commit out.
func (l *Lease) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flight.aloft--
	if d := l.flight.draining; d != nil && l.flight.aloft == 0 {
		close(d.idle)
	}
}

// startDrain is called with mu held and no drain under way.
func (l *Lease) startDrain() *drain {
	d := &drain{idle: make(chan struct{}), over: make(chan struct{})}
	if l.flight.aloft == 0 {
		close(d.idle)
	}
	l.flight.draining = d
	return d
}

// resume ends a drain.
func (l *Lease) resume(d *drain, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.err = err
	l.flight.draining = nil
	close(d.over)
}

// drain waits until no commit is in progress, and lets none begin until resume.
// The wait is bounded: a callback that waits for it, with a context by which it
// can't be told (see inside), would keep it waiting as long as the lease lasts.
// The gate's timeout is the bound since it is how long a callback may leave its
// session idle, and one that waits here does.
func (l *Lease) drain(ctx context.Context) (*drain, error) {
	timeout := time.NewTimer(l.cfg.GateTimeout)
	defer timeout.Stop()
	for {
		l.mu.Lock()
		before := l.flight.draining
		var d *drain
		if before == nil {
			d = l.startDrain()
		}
		l.mu.Unlock()
		if d != nil {
			select {
			case <-d.idle:
				if err := context.Cause(l.ctx); err != nil {
					l.resume(d, err)
					return nil, err
				}
				return d, nil
			case <-ctx.Done():
				l.resume(d, context.Cause(ctx))
				return nil, context.Cause(ctx)
			case <-l.ctx.Done():
				l.resume(d, context.Cause(l.ctx))
				return nil, context.Cause(l.ctx)
			case <-timeout.C:
				err := l.notDrained()
				l.resume(d, err)
				return nil, err
			}
		}
		select {
		case <-before.over:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// notDrained says that the commits in progress did not end in time.
func (l *Lease) notDrained() error {
	return &BlockedError{Key: l.key(), Own: l.cfg.GateTimeout}
}

// settled keeps or clears what is known of a step's attempt at pos, and counts
// what has committed. An error that says nothing of an earlier attempt leaves
// that as it is.
func (l *Lease) settled(step string, pos Position, receipt Receipt, err error) {
	refused := gateRefusal(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil, errors.Is(err, ErrNotReplicated):
		if !receipt.Replayed && pos == l.pos {
			l.flight.committed++
		}
		delete(l.flight.unsettled, step)
	case refused != nil:
		// Stale says of the attempt at this position that it did not commit. Any
		// other refusal does not: a conflict says that it did, with the content
		// that a later call may bring again.
		if refused.Answer == ErrStale && l.flight.unsettled[step] == pos {
			delete(l.flight.unsettled, step)
		}
	case errors.Is(err, ErrUnknownOutcome):
		if l.flight.unsettled == nil {
			l.flight.unsettled = map[string]Position{}
		}
		l.flight.unsettled[step] = pos
	}
}

// errNotBefore: nothing is left of an earlier attempt.
var errNotBefore = errors.New("no earlier attempt has committed")

// askBefore asks for an attempt of the step whose outcome is unknown and whose
// token was rotated away since. The rotation has waited for what was under way,
// so the answer is final: stale says that the attempt did not commit, and that
// it can't any more.
func (l *Lease) askBefore(ctx context.Context, content Content, now Position) (Receipt, error) {
	l.mu.Lock()
	before, ok := l.flight.unsettled[content.Step]
	l.mu.Unlock()
	if !ok || before == now {
		return Receipt{}, errNotBefore
	}
	receipt, err := l.f.commit(ctx, before, content, l.cfg.GateTimeout, nil, func(context.Context, Tx) error {
		return fmt.Errorf("fencing: commit of %q: the gate let a token pass that is not the newest", before.Key)
	})
	l.settled(content.Step, before, receipt, err)
	if errors.Is(err, ErrStale) {
		return Receipt{}, errNotBefore
	}
	return receipt, err
}
