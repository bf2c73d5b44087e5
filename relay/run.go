package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
)

// Run publishes the outbox's events until ctx ends; then it stops reading,
// waits up to Config.Grace for requests in flight, stores its cursor, gives its
// lease up and returns nil.
//
// Of all instances on a schema one is active, the holder of the lease
// [LeaseKey]; the others stand by and take over. Run waits out lost
// connections, outages of the broker and a lost lease. It returns an error for
// what only an operator can change: a configuration that isn't valid (see
// [Config.Validate]), a schema of another version, a [*SettingError], a
// [*PoolerError], a missing right, a database that was restored
// (fencing.ErrHistory), a producer that was fenced ([ErrFenced]); and if the
// database can't be reached at the start.
//
// Run needs two connections of its own, taken out of the pool for good, besides
// one now and then for the lease. A login needs the role fenceline_relay. Both
// pool and publisher stay the caller's; after [ErrFenced] the publisher must
// be closed and a new one made.
func Run(ctx context.Context, pool *pgxpool.Pool, publisher Publisher, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	sql := newStatements(cfg.Schema)
	if err := check(ctx, pool, cfg); err != nil {
		return stopped(ctx, err)
	}
	fences, err := fencing.New(ctx, pool, fencing.Config{
		Schema: cfg.Schema, Holder: cfg.Name, System: true, AllowUnsafeDatabase: cfg.AllowUnsafeDatabase, Logger: cfg.Logger,
	})
	if err != nil {
		return stopped(ctx, fmt.Errorf("relay: %w", err))
	}
	r := &runner{pool: pool, pub: publisher, cfg: cfg, sql: &sql, fences: fences}
	for ctx.Err() == nil {
		lease, err := r.campaign(ctx)
		if err != nil {
			return stopped(ctx, err)
		}
		if err := r.hold(ctx, lease); err != nil {
			return err
		}
	}
	return nil
}

// stopped: an error that the end of ctx brings about is none.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

type runner struct {
	pool   *pgxpool.Pool
	pub    Publisher
	cfg    Config
	sql    *statements
	fences *fencing.Fences
	pins   pins
}

// campaign waits until the lease is ours.
func (r *runner) campaign(ctx context.Context) (*fencing.Lease, error) {
	const most = time.Second // a holder that stops gives the lease up: look often enough
	wait := patience(50*time.Millisecond, most)
	told, troubled := "", false
	for {
		lease, err := r.fences.Acquire(ctx, LeaseKey, fencing.LeaseConfig{TTL: r.cfg.LeaseTTL})
		if err == nil {
			return lease, nil
		}
		pause := wait.NextBackOff()
		var held *fencing.HeldError
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &held):
			if told != held.Holder {
				told = held.Holder
				r.cfg.Logger.Info("standing by: another relay is active", "holder", held.Holder, "expires_in", held.Remaining.Round(time.Millisecond))
			}
			// Not later than the lease can expire, so that a takeover after a
			// crash takes one lease time.
			pause = max(10*time.Millisecond, min(pause, held.Remaining))
			troubled = false
		case fatal(err):
			return nil, fmt.Errorf("relay: %w", err)
		case !troubled:
			troubled = true
			r.cfg.Logger.Warn("cannot ask for the relay's lease, trying again", "error", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

// hold is one turn as the active instance: sessions, one after the other, as
// long as the lease lasts. It returns nil when ctx or the lease has ended.
func (r *runner) hold(ctx context.Context, lease *fencing.Lease) error {
	pos, log := lease.Position(), r.cfg.Logger
	log.Info("relay is active", "name", r.cfg.Name, "epoch", pos.Epoch, "token", pos.Token)
	if h := r.cfg.Hooks.LeaseGained; h != nil {
		h(pos.Epoch, pos.Token)
	}
	wait := patience(50*time.Millisecond, 2*time.Second)
	var err error
	for ctx.Err() == nil && lease.Context().Err() == nil {
		began := time.Now()
		if err = r.session(ctx, lease); err == nil || fatal(err) || refusedToken(err) {
			break
		}
		if lease.Context().Err() != nil {
			break
		}
		log.Warn("session ended, beginning again from the stored cursor", "error", err)
		if time.Since(began) > 5*time.Second {
			wait.Reset()
		}
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-timer.C:
		case <-lease.Context().Done():
		case <-ctx.Done():
		}
		timer.Stop()
	}
	if ctx.Err() == nil && !fatal(err) {
		if err == nil {
			err = context.Cause(lease.Context())
		}
		log.Warn("relay is no longer active", "error", err)
		if h := r.cfg.Hooks.LeaseLost; h != nil {
			h(err)
		}
	}
	// Whatever the reason: if it is still ours, nobody has to wait for it.
	if e := lease.Release(ctx); e != nil {
		log.Warn("could not give the lease up; a standby takes over when it expires", "error", e)
	}
	if fatal(err) {
		return err
	}
	return nil
}

func (r *runner) session(ctx context.Context, lease *fencing.Lease) error {
	open, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })()
	s, err := openSession(open, r.pool, r.pub, r.cfg, r.sql, &r.pins, lease.Position())
	if err != nil {
		return stopped(ctx, err)
	}
	return s.run(ctx, lease.Context())
}

// refusedToken: the database says that another instance has taken over, though
// our own lease doesn't know it yet.
func refusedToken(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "FL003"
}
