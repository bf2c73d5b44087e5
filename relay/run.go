package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// Run publishes the outbox's events until ctx ends; then it stops reading,
// waits up to Config.Grace for requests in flight, stores its cursors, gives its
// shards up and returns nil.
//
// The work is divided into outbox.Shards parts, which all instances on a schema
// share evenly: one that starts gets its part from the others, those of one that
// stops or dies go to them. Run waits out lost connections, outages of the
// broker and lost leases. It returns an error for what only an operator can
// change: a configuration that isn't valid (see [Config.Validate]), a schema of
// another version, a [*SettingError], a [*PoolerError], a missing right, a
// database that was restored (fencing.ErrHistory), a producer that was fenced
// ([ErrFenced]); and if the database can't be reached at the start.
//
// Run needs three connections of its own, taken out of the pool for good,
// besides a few now and then for the leases. A login needs the role
// fenceline_relay. Both pool and publisher stay the caller's; after [ErrFenced]
// the publisher must be closed and a new one made. Where the server waits for a
// synchronous standby, [fencing.WatchNotices] on the pool's configuration keeps a
// shard from being held under a token that the standby has not.
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
	asked := ctx
	ctx, fail := context.WithCancelCause(asked)
	defer fail(nil)
	r := &runner{pool: pool, pub: publisher, cfg: cfg, sql: &sql, beside: startBeside(ctx, pool, fences, cfg, fail), share: newShare(pool, fences, cfg, &sql)}
	defer r.beside.stop()
	sharing, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { r.share.run(sharing) })
	defer r.share.leave(ctx)
	defer done.Wait()
	defer stop()
	if err := r.run(ctx); err != nil {
		return named(err)
	}
	if asked.Err() == nil { // and yet it has ended: for what goes on beside
		return named(context.Cause(ctx))
	}
	cfg.Logger.Info("relay stopped", "name", cfg.Name)
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
	beside *beside
	share  *share
}

// run is sessions, one after the other, each with the shards that are ours by
// then. It returns nil when ctx has ended.
func (r *runner) run(ctx context.Context) error {
	wait := patience(50*time.Millisecond, 2*time.Second)
	var had shardSet
	for ctx.Err() == nil {
		leases, err := r.share.begin(ctx)
		if err != nil {
			return stopped(ctx, err)
		}
		has := r.tell(leases, had, nil)
		if len(leases) == 0 {
			had = 0
			select {
			case <-r.share.changed:
			case <-ctx.Done():
			}
			continue
		}
		had = has
		began := time.Now()
		err = r.session(ctx, leases)
		if err == nil {
			wait.Reset()
			continue // ctx has ended, or shards have changed hands
		}
		if fatal(err) {
			return err
		}
		if key, refused := refusedToken(err); refused {
			r.share.lose(ctx, key)
		}
		r.cfg.Logger.Warn("session ended, beginning again from the stored cursors", "error", err)
		if had = r.tell(r.alive(leases), had, err); time.Since(began) > 5*time.Second {
			wait.Reset()
		}
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

func (r *runner) alive(leases []*fencing.Lease) []*fencing.Lease {
	return slices.DeleteFunc(slices.Clone(leases), func(l *fencing.Lease) bool { return l.Context().Err() != nil })
}

// tell says what has become of the instance's share.
func (r *runner) tell(leases []*fencing.Lease, had shardSet, why error) (has shardSet) {
	for _, l := range leases {
		if n, ok := shardOf(l.Position().Key); ok {
			has = has.with(n)
		}
	}
	if has == had {
		return has
	}
	r.cfg.Logger.Info("shards of this instance", "name", r.share.holder, "count", has.len(), "of", outbox.Shards, "shards", has.list())
	if h := r.cfg.Hooks.Shards; h != nil {
		h(has.list())
	}
	switch {
	case had == 0:
		if h := r.cfg.Hooks.LeaseGained; h != nil {
			pos := leases[0].Position()
			h(pos.Epoch, pos.Token)
		}
	case has == 0 && why != nil:
		if h := r.cfg.Hooks.LeaseLost; h != nil {
			h(why)
		}
	}
	return has
}

// session runs one until it fails, ctx ends, or shards change hands: the last
// two give nil.
func (r *runner) session(ctx context.Context, leases []*fencing.Lease) error {
	open, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	own := make([]fencing.Position, len(leases))
	for i, l := range leases {
		own[i] = l.Position()
		defer context.AfterFunc(l.Context(), func() { cancel(context.Cause(l.Context())) })()
	}
	s, err := openSession(open, r.pool, r.pub, r.cfg, r.sql, own)
	if err != nil {
		return stopped(ctx, err)
	}
	s.beside = r.beside
	until, stop := untilSaid(ctx, r.share.changed)
	defer stop()
	return s.run(until, leases)
}

// untilSaid gives a context that ends when something is said, too. Once stop has
// returned nobody hears it here any more: who waits without leases must not have
// their first ones told to a session that is over.
func untilSaid(ctx context.Context, said <-chan struct{}) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-said:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-over
	}
}

// refusedToken: the database says that another instance has taken a shard over,
// though our own lease doesn't know it yet. key is empty if it isn't known which.
func refusedToken(err error) (key string, refused bool) {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "FL003" {
		return "", false
	}
	var detail struct{ Key string }
	_ = json.Unmarshal([]byte(pg.Detail), &detail) // without it: all of them
	return detail.Key, true
}
