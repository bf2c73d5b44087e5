package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// LeaseConfig configures one lease. TTL is required.
type LeaseConfig struct {
	// TTL is the lease time: how long after the holder's last sign of life
	// somebody else can take over. 100 ms to one day; there is no default.
	TTL time.Duration
	// Margin is how long before the lease can expire in the database the
	// holder stops trusting it. Defaults to a tenth of TTL.
	Margin time.Duration
	// RenewEvery is the time between renewals. Defaults to a third of TTL.
	RenewEvery time.Duration
	// GateTimeout bounds how long a commit may be idle, or busy in one
	// statement, behind the gate before the database ends its session; and how
	// long Rotate, HandOver and Close wait for the lease's own commits in
	// progress. At most one day. Defaults to TTL.
	GateTimeout time.Duration
	// Wait is how long Acquire waits for a commit in progress of the previous
	// holder before it gives up with ErrBlocked. Defaults to TTL.
	Wait time.Duration
	// Coalesce is how many commits of the batch shape that wait at the same
	// time may share a transaction; with [Config.GroupCommit] as many of this lease,
	// beside those of others. One with a statement that changes settings
	// (SET, set_config, …) goes alone. That is told by its text: where a function
	// or a view changes settings for what is behind it (a tenant, say), use 1,
	// which gives each commit its own. Defaults to 32.
	Coalesce int
	// CoalesceCallbacks is how many commits of the callback shape that wait at
	// the same time may share a transaction, counted as for Coalesce: their callbacks run one after the
	// other in it, and see what those before them have written or queued. Where one fails,
	// all are rolled back; the others run again, and the one again alone, so a
	// callback runs more than once as a matter of course, and its deadline may be
	// noticed as late as the company takes, which is bounded by a part of the
	// gate's timeout: slow ones go alone. So does a callback that changes settings
	// (as said at Coalesce) or takes the connection (Conn). For short callbacks of
	// a hot key. Defaults to 1: each has its own.
	CoalesceCallbacks int
	// Holder overrides [Config.Holder]. Defaults to that.
	Holder string
	// PollEvery is how often, at the most, Campaign asks again: so late it can
	// be told of a release in another process. It never waits for longer than
	// the lease can last. 1 ms to 1 min. Defaults to a fifth of TTL, at most 2 s.
	PollEvery time.Duration
	// ReserveFor is how long HandOver keeps the key for its successor. Up to
	// one day. Defaults to TTL.
	ReserveFor time.Duration
	// RotateAfter is after how many commits the lease's Commit rotates the token
	// by itself: receipts under a token that stays the newest can't be swept.
	// See [Lease.Rotate]. Negative means never. Defaults to 10,000; the
	// toolkit's own leases don't rotate.
	RotateAfter int
	// RotateEvery is the same by time, where there was a commit. Negative means
	// never. Defaults to one hour.
	RotateEvery time.Duration
	// Own makes the login that acquires first the owner of the key: no other
	// login can acquire or commit under it from then on. On a key that was
	// acquired before without an owner, Acquire refuses with ErrOwner; an
	// operator can assign it ([Operator.SetOwner]). Defaults to false.
	Own bool
	// Attempt identifies the acquire, so that it can be repeated after its
	// answer was lost, also by a process that was restarted: the same attempt
	// on a lease that has not expired gets the same token again. Defaults to a
	// random one, with which Acquire itself repeats once.
	Attempt uuid.UUID
}

func (c LeaseConfig) withDefaults(f Config) LeaseConfig {
	if c.Margin == 0 {
		c.Margin = c.TTL / 10
	}
	if c.RenewEvery == 0 {
		c.RenewEvery = c.TTL / 3
	}
	if c.GateTimeout == 0 {
		c.GateTimeout = c.TTL
	}
	if c.Wait == 0 {
		c.Wait = c.TTL
	}
	if c.Coalesce == 0 {
		c.Coalesce = 32
	}
	if c.CoalesceCallbacks == 0 {
		c.CoalesceCallbacks = 1
	}
	if c.Holder == "" {
		c.Holder = f.Holder
	}
	if c.PollEvery == 0 {
		c.PollEvery = min(c.TTL/5, 2*time.Second)
	}
	if c.ReserveFor == 0 {
		c.ReserveFor = c.TTL
	}
	if c.RotateAfter == 0 {
		c.RotateAfter = 10_000
	}
	if c.RotateEvery == 0 {
		c.RotateEvery = time.Hour
	}
	if f.System {
		c.RotateAfter, c.RotateEvery = -1, -1
	}
	if c.Attempt == uuid.Nil {
		c.Attempt = uuid.New()
	}
	return c
}

func (c LeaseConfig) validate() error {
	switch {
	case c.TTL < 100*time.Millisecond || c.TTL > 24*time.Hour:
		return &InvalidError{"lease time", fmt.Sprintf("is %v, want 100 ms to 24 h; 15 s is a good start", c.TTL)}
	case c.Margin < 0 || c.Margin >= c.TTL:
		return &InvalidError{"margin", fmt.Sprintf("is %v, want less than the lease time of %v", c.Margin, c.TTL)}
	case c.RenewEvery <= 0 || c.RenewEvery >= c.TTL-c.Margin:
		return &InvalidError{"renewal interval", fmt.Sprintf("is %v, want less than lease time minus margin, %v, or the lease would end between renewals", c.RenewEvery, c.TTL-c.Margin)}
	case c.GateTimeout < 0 || c.GateTimeout > 24*time.Hour:
		return &InvalidError{"gate timeout", fmt.Sprintf("is %v, want a positive duration of at most 24 h", c.GateTimeout)}
	case c.Wait < 0 || c.Wait > 24*time.Hour:
		return &InvalidError{"wait", fmt.Sprintf("is %v, want a positive duration of at most 24 h", c.Wait)}
	case c.PollEvery < time.Millisecond || c.PollEvery > time.Minute:
		return &InvalidError{"poll interval", fmt.Sprintf("is %v, want 1 ms to 1 min", c.PollEvery)}
	case c.ReserveFor < time.Millisecond || c.ReserveFor > 24*time.Hour:
		return &InvalidError{"time for a successor", fmt.Sprintf("is %v, want 1 ms to 24 h", c.ReserveFor)}
	case c.Coalesce < 0:
		return &InvalidError{"coalesce", fmt.Sprintf("is %d, want 1 or more commits", c.Coalesce)}
	case c.CoalesceCallbacks < 0:
		return &InvalidError{"coalesce callbacks", fmt.Sprintf("is %d, want 1 or more commits", c.CoalesceCallbacks)}
	case len(c.Holder) > 255 || !validText(c.Holder):
		return &InvalidError{"holder", "is not 1 to 255 bytes of UTF-8"}
	}
	return nil
}

// Acquire takes the lease of key if it is free or has expired; it tries once.
// With the lease, and in the same transaction, the key's fence advances: from
// the return of Acquire on, no earlier holder can commit under the key.
//
// The lease is renewed in the background until Release. Its context ends
// before anybody else can have it.
//
// A database that does not answer for LeaseConfig.Wait and 5 s is taken for gone,
// with the connection, and asked once more.
//
// Where the server waits for a synchronous standby, so does Acquire, also for a token
// that an attempt of before has got.
//
// Errors: [*HeldError] if somebody has it, [*BlockedError] if a commit of the
// previous holder is in progress, [*RefusedError] matching ErrClosed,
// ErrHistory, ErrOwner, [*InvalidError], ErrNotReplicated where that wait was cut short
// twice (the same Attempt asks for the token again), or the database's.
func (f *Fences) Acquire(ctx context.Context, key string, cfg LeaseConfig) (*Lease, error) {
	cfg = cfg.withDefaults(f.cfg)
	if err := errors.Join(validateKey(key), f.notInside(ctx, "acquire", key)); err != nil {
		return nil, err
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	lease, err := f.acquire(ctx, key, cfg, nil)
	// The answer may have been lost on the way: the same attempt gets it again.
	if err != nil && ctx.Err() == nil && !answered(err) {
		lease, err = f.acquire(ctx, key, cfg, nil)
	}
	return lease, err
}

// acquire tries once, and once more when it was blocked by a session that it
// could end. again is how soon the caller asks again if it is refused;
// nil if it doesn't.
func (f *Fences) acquire(ctx context.Context, key string, cfg LeaseConfig, again *time.Duration) (*Lease, error) {
	lease, err := f.acquireOnce(ctx, key, cfg, again)
	var blocked *BlockedError
	if errors.As(err, &blocked) && f.unblock(ctx, blocked, cfg.GateTimeout) {
		return f.acquireOnce(ctx, key, cfg, again)
	}
	return lease, err
}

func (f *Fences) acquireOnce(ctx context.Context, key string, cfg LeaseConfig, again *time.Duration) (*Lease, error) {
	// The trust in a lease is measured from before the question was asked: the
	// database set the expiry later than this.
	asked := time.Now()
	var (
		won          bool
		epoch, token *int64
		holder       string
		expires      time.Time
		remaining    time.Duration
		reserved     bool
		waited       *bool
	)
	limit := cfg.Wait + silence
	err := f.issue(ctx, limit, func(row pgx.Row) error {
		return row.Scan(&won, &epoch, &token, &holder, &expires, &remaining, &reserved, &waited)
	},
		f.sql.acquire, key, cfg.Holder, cfg.TTL, cfg.Attempt, cfg.Wait, cfg.Own, again)
	if (!won || waited == nil) && errors.Is(err, ErrNotReplicated) { // who waits was noted, and no more; or the warning was another one: there is no standby
		err = nil
	}
	if err != nil {
		if t := translate(err); t != err {
			return nil, t
		}
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("fencing: acquire %q: no answer, or no connection, for %v: %w", key, limit, err)
		}
		return nil, fmt.Errorf("fencing: acquire %q: %w", key, err)
	}
	if !won {
		return nil, &HeldError{Key: key, Holder: holder, ExpiresAt: expires, Remaining: remaining, Reserved: reserved}
	}
	return f.hold(Position{key, *epoch, *token}, cfg, asked.Add(remaining)), nil
}

// answered tells an answer of the database from a lost one: a connection that
// broke, or a session that was ended before or after its commit.
func answered(err error) bool {
	if errors.Is(err, ErrHeld) || errors.Is(err, ErrBlocked) || errors.Is(err, ErrClosed) {
		return true
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && !fatal(pg)
}
