package fencing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// Campaign waits until the lease of key is ours, or ctx ends. It is
// [Fences.Acquire] tried again: when the lease can have expired at the latest, after PollEvery
// at the latest, and at once when this process gives it up.
//
// The waiters of a process queue, in the order in which they came, and only the
// first asks the database; where the key is kept for another one of them by name,
// that one does. Among processes, the first that was refused is kept
// in the lease's row; a release reserves the key for it until it will have asked
// again, so that a holder that comes back at once does not win for ever. After a
// holder that died, whoever asks first wins.
//
// It goes on through lost connections and failovers, also where a server is gone
// and nobody says so (see Acquire), and returns what asking again can't change:
// [*RefusedError] matching ErrClosed, ErrHistory, ErrOwner, [*InvalidError],
// missing rights. When ctx ends the error matches its cause, and ErrHeld, saying by
// whom, if that was the last answer.
func (f *Fences) Campaign(ctx context.Context, key string, cfg LeaseConfig) (*Lease, error) {
	cfg = cfg.withDefaults(f.cfg) // one attempt throughout: an answer that was lost is given again
	if err := errors.Join(validateKey(key), f.notInside(ctx, "campaign for", key)); err != nil {
		return nil, err
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	me := f.join(key, cfg.Holder)
	defer f.leave(me)
	var last error
	over := func() error {
		if last == nil {
			return fmt.Errorf("fencing: campaign for %q: %w", key, context.Cause(ctx))
		}
		return fmt.Errorf("fencing: campaign for %q: %w (last answer: %w)", key, context.Cause(ctx), last)
	}
	select {
	case <-me.turn:
	case <-ctx.Done():
		return nil, over()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	troubled := false
	for {
		if ctx.Err() != nil {
			return nil, over()
		}
		lease, err := f.acquire(ctx, key, cfg, &cfg.PollEvery)
		if err == nil {
			return lease, nil
		}
		var held *HeldError
		pause := cfg.poll()
		switch {
		case errors.As(err, &held) && held.Reserved && f.pass(me, held.Holder):
			last, troubled = err, false
			select {
			case <-me.turn:
			case <-ctx.Done():
			}
			continue
		case errors.As(err, &held):
			pause = max(time.Millisecond, min(pause, held.Remaining))
			troubled = false
		case errors.Is(err, ErrBlocked):
			// It has waited: the commit in progress may end at any moment.
			pause = min(pause, 10*time.Millisecond)
		case ctx.Err() == nil && !passing(err):
			return nil, err
		case ctx.Err() == nil && !troubled:
			troubled = true
			f.cfg.Logger.Warn("cannot ask for the lease, trying again", "key", key, "error", err)
		}
		if ctx.Err() == nil {
			last = err
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-me.freed:
		case <-ctx.Done():
		}
	}
}

// poll is the pause between two questions: at random, so that many waiters
// neither ask at the same moments nor in the same order each time.
func (c LeaseConfig) poll() time.Duration {
	return c.PollEvery/2 + rand.N(c.PollEvery/2+1)
}

// passing says of an error that asking again can help: a connection that broke,
// a server that starts, stops, or is in recovery, a conflict of transactions.
func passing(err error) bool {
	var pg *pgconn.PgError
	var refused *RefusedError
	switch {
	case errors.As(err, &refused), errors.Is(err, ErrInvalid):
		return false
	case !errors.As(err, &pg): // the connection's
		return true
	}
	switch {
	case pg.Code == "25006", pg.Code == "55P03", pgsession.Recovering(pg): // read only, as after a failover; a lock
		return true
	case len(pg.Code) == 5:
		class := pg.Code[:2]
		return class == "08" || class == "40" || class == "53" || class == "57" || class == "XX"
	}
	return false
}

// contest is who campaigns for a key in this process, in the order in which they
// came. The first one has the turn: it asks the database.
type contest struct {
	queue []*contender
	// freed wakes who has the turn.
	freed chan struct{}
}

type contender struct {
	*contest
	key, holder string
	turn        chan struct{} // something is in it when the turn has come
}

func (f *Fences) join(key, holder string) *contender {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.contests[key]
	if c == nil {
		c = &contest{freed: make(chan struct{}, 1)}
		f.contests[key] = c
	}
	me := &contender{c, key, holder, make(chan struct{}, 1)}
	if c.queue = append(c.queue, me); len(c.queue) == 1 {
		me.turn <- struct{}{}
	}
	return me
}

// leave gives the turn on, if there is one to give.
func (f *Fences) leave(me *contender) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(me.queue, me)
	me.queue = slices.Delete(me.queue, i, i+1)
	switch {
	case len(me.queue) == 0:
		delete(f.contests, me.key)
	case i == 0:
		me.queue[0].turn <- struct{}{}
	}
}

// pass gives the turn to the first one of this name, for whom the key is kept, if
// it is in the line: it would stand behind who can't have the key, until nobody is
// kept it for. Who gives it is next.
func (f *Fences) pass(me *contender, holder string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(me.queue, func(c *contender) bool { return c.holder == holder })
	if i < 1 {
		return false
	}
	next := me.queue[i]
	me.queue = slices.Insert(slices.Delete(me.queue, i, i+1), 0, next)
	next.turn <- struct{}{}
	return true
}

// freed tells the first in line that this process has given the lease up.
func (f *Fences) freed(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.contests[key]; l != nil {
		select {
		case l.freed <- struct{}{}:
		default:
		}
	}
}
