package replica

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// turn is how long one of several replicas is waited for before the next is
// looked at: one that doesn't replay must not use up the time in which another
// would have got there.
const turn = 50 * time.Millisecond

// warnEvery is how often the same server is told of in the log.
const warnEvery = time.Minute

// avoid is how long a replica that was unavailable is tried last.
const avoid = 5 * time.Second

// reading is one call of Read.
type reading struct {
	*Reader
	point    Point
	policy   Policy
	read     func(ctx context.Context, tx pgx.Tx) error
	began    time.Time
	refusals []*RefusedError
}

func (r *reading) run(ctx context.Context) (Result, error) {
	if r.policy.kind == kindPrimary {
		return r.fromPrimary(ctx)
	}
	until := r.began.Add(r.policy.wait)
	left := r.order()
	var usable []*server // show data, if not yet what was asked for
	var last Result      // of the replica that was looked at last
	for len(left) > 0 {
		next := left[:0:0]
		for _, s := range left {
			end := until
			if slice := time.Now().Add(turn); len(left) > 1 && slice.Before(until) {
				end = slice
			}
			result, err := r.try(ctx, s, end, false)
			refused, ok := errors.AsType[*RefusedError](err)
			if !ok {
				return result, err
			}
			r.note(s, refused)
			last = result
			wait := errors.Is(refused, ErrBehind) || errors.Is(refused, ErrPending)
			if wait {
				next = append(next, s)
			}
			if (wait || errors.Is(refused, ErrTimeline)) && !slices.Contains(usable, s) {
				usable = append(usable, s)
			}
			if ctx.Err() != nil {
				break
			}
		}
		if left = next; !time.Now().Before(until) || ctx.Err() != nil {
			break
		}
	}
	switch r.policy.kind {
	case kindWaitThenPending:
		return Result{Pending: true, Shown: last.Shown, Waited: time.Since(r.began)}, r.failed(ctx, ErrPending)
	case kindMarkedStale:
		for _, s := range usable {
			result, err := r.try(ctx, s, until, true)
			refused, ok := errors.AsType[*RefusedError](err)
			if !ok {
				return result, err
			}
			r.note(s, refused)
		}
	}
	return r.fromPrimary(ctx)
}

// order gives the replicas in a random order, those last that were unavailable a
// moment ago: each read of a replica that is down costs up to ConnectTimeout.
func (r *reading) order() []*server {
	now := time.Now()
	all := slices.Clone(r.replicas)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	down := func(s *server) int {
		if now.Sub(time.Unix(0, s.failed.Load())) < avoid {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(all, func(a, b *server) int { return down(a) - down(b) })
	return all
}

// note keeps the newest refusal of each server, and tells of those that an
// operator can do something about.
func (r *reading) note(s *server, e *RefusedError) {
	r.refusals = slices.DeleteFunc(r.refusals, func(old *RefusedError) bool { return old.Server == e.Server })
	r.refusals = append(r.refusals, e)
	now := time.Now().UnixNano()
	if errors.Is(e, ErrUnavailable) {
		s.failed.Store(now)
	}
	if errors.Is(e, ErrBehind) || errors.Is(e, ErrPending) || errors.Is(e, ErrRecoveryConflict) {
		return // all in a day's work
	}
	if before := s.warned.Load(); now-before > int64(warnEvery) && s.warned.CompareAndSwap(before, now) {
		r.cfg.Logger.Warn("server not used for a read", "server", e.Server, "error", e)
	}
}

func (r *reading) failed(ctx context.Context, answer error) error {
	err := error(&ReadError{Answer: answer, Point: r.point, Refusals: r.refusals})
	if ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return err
}

func (r *reading) fromPrimary(ctx context.Context) (Result, error) {
	// Who takes stale data from a replica takes the primary's while they are
	// pending; but a primary that is behind what was asked for has lost it.
	result, err := r.try(ctx, r.primary, time.Time{}, r.policy.kind == kindMarkedStale)
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok {
		return result, err
	}
	r.note(r.primary, refused)
	for _, answer := range []error{ErrPending, ErrAhead} {
		if errors.Is(refused, answer) {
			return result, r.failed(ctx, answer)
		}
	}
	return result, r.failed(ctx, ErrUnavailable)
}

// try reads from one server, waiting for the point until the given time. A
// [*RefusedError] is that server's; any other error is the caller's own.
func (r *reading) try(ctx context.Context, s *server, until time.Time, stale bool) (Result, error) {
	conn, err := r.connect(ctx, s)
	if err != nil {
		return Result{Replica: s.index}, err
	}
	defer conn.Release()
	pause := time.Millisecond
	for {
		result, err := r.once(ctx, conn.Conn(), s, stale)
		refused, ok := errors.AsType[*RefusedError](err)
		if !ok || s.index < 0 || !errors.Is(refused, ErrBehind) && !errors.Is(refused, ErrPending) {
			return result, err
		}
		left := time.Until(until)
		if left <= 0 || ctx.Err() != nil {
			return result, err
		}
		if err := r.pause(ctx, conn.Conn(), s, min(pause, left), left); err != nil {
			return result, err
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// connect gives a connection of one server. A replica that is slow to give one
// counts as unavailable, so that time is left for another; the primary has all
// that is left.
func (r *reading) connect(ctx context.Context, s *server) (*pgxpool.Conn, error) {
	if s.index >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.cfg.ConnectTimeout)
		defer cancel()
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, refuse(s, ErrUnavailable, "no connection", err)
	}
	return conn, nil
}

// pause waits a little, or, where the server can wait itself, until it has
// replayed the position or left is over.
func (r *reading) pause(ctx context.Context, conn *pgx.Conn, s *server, little, left time.Duration) error {
	if p, ok := r.point.(Position); ok {
		if sql := sqlWait(int(s.version.Load()), p.LSN, left); sql != "" {
			if _, err := conn.Exec(ctx, sql); err != nil {
				if refused := serverFault(s, conn, err); refused != nil {
					return refused
				}
				return refuse(s, ErrUnavailable, "wait for the position", err)
			}
			return nil
		}
	}
	timer := time.NewTimer(little/2 + rand.N(little/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done(): // the caller looks
	}
	return nil
}

// tolerated tells whether data may be read as stale in spite of a refusal.
func tolerated(stale bool, s *server, refused *RefusedError) bool {
	return stale && (s.index >= 0 || errors.Is(refused, ErrPending))
}

// once checks and reads on one connection, without waiting.
func (r *reading) once(ctx context.Context, conn *pgx.Conn, s *server, stale bool) (result Result, err error) {
	result = Result{Replica: s.index, Waited: time.Since(r.began)}
	checks, cancel := ctx, context.CancelFunc(func() {})
	if s.index >= 0 { // a replica that hangs must not use up the primary's time
		checks, cancel = context.WithTimeout(ctx, r.cfg.ConnectTimeout)
	}
	defer cancel()

	// A position is checked before the snapshot is taken. In the snapshot's own
	// first statement it would come too late: the commit could be replayed
	// between the snapshot and the look at how far replay is.
	before, err := r.probe(checks, conn, s)
	if err != nil {
		return result, err
	}
	result.Position, result.Lag = before.position(), before.lag
	if refused := r.check(s, before); refused != nil {
		return result, refused
	}
	proven, refused := r.reached(s, before)
	if refused != nil && !tolerated(stale, s, refused) {
		return result, refused
	}

	tx, err := conn.BeginTx(checks, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return result, r.fault(s, conn, err)
	}
	defer func() { // also when ctx has ended; but a server that hangs must not keep the caller
		over, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.ConnectTimeout)
		defer cancel()
		_ = tx.Rollback(over)
	}()
	if g, ok := r.point.(Generation); ok {
		refused, err := r.generation(checks, tx, s, g, &result)
		if err != nil {
			return result, err
		}
		if refused != nil && !tolerated(stale, s, refused) {
			return result, refused
		}
		proven = refused == nil
	}
	// The snapshot exists now. It must be of the server that was checked, which a
	// pooler between transactions doesn't promise.
	var after state
	if err := after.scan(tx.QueryRow(checks, sqlServer)); err != nil {
		return result, r.fault(s, conn, err)
	}
	if after.server != before.server {
		return result, refuse(s, ErrBehind, "a pooler led to another server after the check", nil)
	}
	result.Proven = proven && r.point != nil
	result.Stale = stale && (s.index >= 0 && !result.Proven || result.Pending)

	cancel() // the checks are over, the callback has the whole of ctx
	if err := r.read(ctx, tx); err != nil {
		if refused := serverFault(s, conn, err); refused != nil && ctx.Err() == nil {
			return result, refused
		}
		return result, err
	}
	if err := tx.Commit(ctx); err != nil {
		if refused := serverFault(s, conn, err); refused != nil && ctx.Err() == nil {
			return result, refused
		}
		return result, fmt.Errorf("replica: a statement of the callback had failed, or it ended its transaction: %w", err)
	}
	return result, nil
}
