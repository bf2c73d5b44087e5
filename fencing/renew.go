package fencing

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// renew adds a lease to those that the renewer looks after, and starts the
// renewer if there is none. One goroutine and one statement renew all leases
// of the process that are due, however many they are.
func (f *Fences) renew(l *Lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leases[l] = struct{}{}
	if !f.renewing {
		f.renewing = true
		go f.renewer()
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *Fences) forget(l *Lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.leases, l)
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// renewer ends when there is no lease left.
func (f *Fences) renewer() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next, some := f.dueLeases(time.Now())
		if !some {
			return
		}
		if len(due) > 0 {
			f.renewOnce(due)
			continue
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-f.wake:
		}
	}
}

// dueLeases gives the leases to renew now, those that are nearly due among
// them so that they share the statement; or else when the next one is due.
func (f *Fences) dueLeases(now time.Time) (due []*Lease, next time.Time, some bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.leases) == 0 {
		f.renewing = false
		return nil, time.Time{}, false
	}
	soon := false
	for l := range f.leases {
		d := l.nextDue()
		if next.IsZero() || d.Before(next) {
			next = d
		}
		soon = soon || !d.After(now)
	}
	if !soon {
		return nil, next, true
	}
	for l := range f.leases {
		if !l.nextDue().After(now.Add(l.cfg.RenewEvery / 4)) {
			due = append(due, l)
		}
	}
	return due, next, true
}

// renewOnce asks for one renewal of all of them. A renewal that fails or hangs
// changes nothing while trust remains: each lease's own timer ends it.
func (f *Fences) renewOnce(leases []*Lease) {
	n := len(leases)
	keys, epochs, tokens, ttls := make([]string, n), make([]int64, n), make([]int64, n), make([]time.Duration, n)
	asking := make(map[Position][]*Lease, n) // handles of one attempt have one position
	patience := f.patience()
	for i, l := range leases {
		pos := l.Position()
		keys[i], epochs[i], tokens[i], ttls[i] = pos.Key, pos.Epoch, pos.Token, l.cfg.TTL
		asking[pos] = append(asking[pos], l)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The trust counts from before the question: the database sets the expiry
	// later than this.
	asked := time.Now()
	type answer struct {
		Position
		OK bool
	}
	var answers []answer
	err := f.queryBehind(ctx, 0, []string{localSQL}, func(rows pgx.Rows) (err error) {
		answers, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a answer, err error) {
			return a, row.Scan(&a.Key, &a.Epoch, &a.Token, &a.OK)
		})
		return err
	}, f.sql.renew, keys, epochs, tokens, ttls)
	if err != nil {
		answers = nil // what was not committed is not renewed
		f.cfg.Logger.Warn("renewal failed, trying again while trust remains", "leases", n, "error", err)
		if ctx.Err() != nil && patience >= silenceOfRenewal {
			// Nobody has answered: the trust would not last for asking each of the others.
			f.distrust()
		}
	}
	for _, a := range answers {
		for _, l := range asking[a.Position] {
			switch {
			case a.OK:
				l.renewed(asked)
			case l.movedOn(a.Position):
				l.postpone() // a rotation has overtaken the question: ask again
			default:
				l.lose("the database says that somebody else has it, or that it was released")
			}
		}
		delete(asking, a.Position)
	}
	// Those without an answer were busy, or the renewal failed.
	for _, handles := range asking {
		for _, l := range handles {
			l.postpone()
		}
	}
}

// localSQL has a renewal wait for the disk alone, and for no standby: while that one is
// restarted commits wait, and whoever holds a lease should still hold it when they go
// on. What is lost with a primary is another history, in which no lease counts before
// an operator has spoken; where he confirms it, a lease may end there by a renewal
// sooner than its holder believes, whose commits the fence refuses as always.
const localSQL = `select set_config('synchronous_commit', 'local', true) where current_setting('synchronous_commit') <> 'off'`

// silenceOfRenewal is for how long a renewal must have been waited for in vain before
// the pool's other idle connections are taken to be as dead as that one. It has less
// time than the pool gives whoever else asks (see connection).
const silenceOfRenewal = time.Second

// patience is how long a renewal is waited for: not longer than until the next
// one would be due for any of the process's leases. Then another connection is
// tried, while trust still remains.
func (f *Fences) patience() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := 5 * time.Second
	for l := range f.leases {
		d = min(d, l.cfg.RenewEvery)
	}
	return d
}
