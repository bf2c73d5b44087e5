package replica

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config configures [New]. The zero value is usable.
type Config struct {
	// Schema is the schema that the migrations were applied to. Defaults to
	// "fenceline".
	Schema string
	// Timeout bounds a read: waiting, connecting, and the callback. Defaults to
	// 10 s.
	Timeout time.Duration
	// ConnectTimeout is how long a replica may take to give a connection, or to
	// answer a check, before it counts as unavailable. Defaults to 1 s.
	ConnectTimeout time.Duration
	// Observe is told of each read: where it came from, or why there was none. For
	// metrics. Defaults to nobody.
	Observe func(Result, error)
	// Logger receives why a replica isn't used, other than for being behind.
	// Defaults to slog.Default.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	if c.Schema == "" {
		c.Schema = schema.Default
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func (c Config) validate() error {
	if err := schema.Validate(c.Schema); err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	if c.Timeout < 0 || c.ConnectTimeout < 0 {
		return &InvalidError{"timeout", fmt.Sprintf("is %v (connect: %v), want positive durations", c.Timeout, c.ConnectTimeout)}
	}
	return nil
}

// Reader reads from a primary and its replicas. It is safe for use by many
// goroutines.
type Reader struct {
	cfg      Config
	primary  *server
	replicas []*server
	fence    string // SQL
	system   int64  // the cluster's identifier
	database int64  // the database's OID, which is the same on every replica
}

// server is one server, by its pool.
type server struct {
	name  string
	index int // in replicas; -1 for the primary
	pool  *pgxpool.Pool
	// When it was last found unavailable and last told of in the log, in Unix
	// nanoseconds, and its version number.
	failed, warned, version atomic.Int64
	strict                  atomic.Bool // see ask
}

// New checks that the schema is there, and that each server that can be reached
// is what it is said to be: a connection string of the primary among the
// replicas is an error that matches [ErrNotReplica], a standby as primary
// [ErrNotPrimary], a replica of something else [ErrOtherCluster]. A replica that
// can't be reached now is looked at when it is used. The pools stay the
// caller's; for what their login needs see the package's introduction.
func New(ctx context.Context, primary *pgxpool.Pool, replicas []*pgxpool.Pool, cfg Config) (*Reader, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if primary == nil {
		return nil, &InvalidError{"primary", "is nil"}
	}
	r := &Reader{cfg: cfg, primary: &server{name: "primary", index: -1, pool: primary}, fence: sqlFence(cfg.Schema)}
	for i, pool := range replicas {
		if pool == nil {
			return nil, &InvalidError{"replicas", fmt.Sprintf("have nil at %d", i)}
		}
		r.replicas = append(r.replicas, &server{name: fmt.Sprintf("replica %d", i), index: i, pool: pool})
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	if err := schema.Check(ctx, primary, cfg.Schema, schema.Producer); err != nil {
		return nil, fmt.Errorf("replica: %w", err)
	}
	var first state
	if err := first.scan(primary.QueryRow(ctx, sqlServer)); err != nil {
		return nil, refuse(r.primary, ErrUnavailable, "", err)
	}
	r.system, r.database = first.system, first.database
	if err := r.check(r.primary, first); err != nil {
		return nil, err
	}
	for _, s := range r.replicas {
		if err := r.look(ctx, s); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// look checks a replica at the start, if it can be reached.
func (r *Reader) look(ctx context.Context, s *server) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.ConnectTimeout)
	defer cancel()
	var found state
	conn, err := s.pool.Acquire(ctx)
	if err == nil {
		err = s.ask(ctx, conn.Conn(), func(b *pgx.Batch) {
			b.Queue(sqlServer).QueryRow(func(row pgx.Row) error { return found.scan(row) })
		})
		conn.Release()
	}
	if err != nil {
		s.failed.Store(time.Now().UnixNano())
		r.cfg.Logger.Warn("replica can't be reached now", "server", s.name, "error", err)
		return nil
	}
	if refused := r.check(s, found); refused != nil {
		return refused
	}
	return nil
}

// Result says where a read came from and what it is worth.
type Result struct {
	// Replica is the index of the replica that was read; -1 is the primary. It
	// means nothing beside an error.
	Replica int
	// Proven says that the data include the point. It is false for a read without
	// a point, for one that is Stale, and for a Position on the primary after a
	// failover: of two timelines nobody can tell there.
	Proven bool
	// Stale says that the data may be of before the point. Under [MarkedStale]
	// only.
	Stale bool
	// Pending says that the current generation of the key has no result yet.
	// Beside ErrPending, or together with Stale.
	Pending bool
	// Shown is the key's generation as the server showed it; zero where no
	// Generation was asked for, or the key isn't there.
	Shown Generation
	// Closed says that this life of the key has ended.
	Closed bool
	// Position is how far the server had got before the read began: replayed on
	// a replica, flushed on the primary. Timeline is 0 where a replica can't tell.
	Position Position
	// Lag is how long ago the last transaction that the replica had replayed was
	// committed, on the two servers' clocks. It also grows while the primary
	// commits nothing. 0 on the primary, and where nothing was replayed yet.
	Lag time.Duration
	// Waited is the time until the read began, and Refusals are the servers that
	// were not used.
	Waited   time.Duration
	Refusals []*RefusedError
}

// FromPrimary tells whether the primary was read.
func (r Result) FromPrimary() bool { return r.Replica < 0 }

// Read runs read in a read-only REPEATABLE READ transaction on a server that
// shows at least point, which may be nil for [Primary] and [MarkedStale]. The
// callback may run more than once, on different servers, and its last run is the
// one that counts: it sets its variables anew each time, and touches nothing
// but its transaction, which it does not end.
//
// An error of the callback comes back as it is, and is not retried, except where
// the server failed: a lost connection, or a conflict with replay. Otherwise the
// error is a [*ReadError] that matches [ErrPending], [ErrAhead] or
// [ErrUnavailable], or, for an argument, one that matches [ErrInvalid] or
// [ErrOtherCluster]; and nothing that the callback read is to be used.
func (r *Reader) Read(ctx context.Context, point Point, policy Policy, read func(ctx context.Context, tx pgx.Tx) error) (Result, error) {
	if err := policy.validate(point); err != nil {
		return Result{}, err
	}
	if policy.wait >= r.cfg.Timeout {
		return Result{}, &InvalidError{"policy", fmt.Sprintf("waits for %v, and Config.Timeout is %v: leave time to read", policy.wait, r.cfg.Timeout)}
	}
	if p, ok := point.(Position); ok && p.System != r.system {
		return Result{}, &RefusedError{Server: "the position", Answer: ErrOtherCluster, Reason: fmt.Sprintf("its system identifier is %d, this cluster's is %d", p.System, r.system)}
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	one := &reading{Reader: r, point: point, policy: policy, read: read, began: time.Now()}
	result, err := one.run(ctx)
	result.Refusals = one.refusals
	if r.cfg.Observe != nil {
		r.cfg.Observe(result, err)
	}
	return result, err
}
