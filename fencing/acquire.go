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
	// statement, behind the gate before the database ends its session.
	// Defaults to TTL.
	GateTimeout time.Duration
	// Wait is how long Acquire waits for a commit in progress of the previous
	// holder before it gives up with ErrBlocked. Defaults to TTL.
	Wait time.Duration
	// Holder overrides [Config.Holder]. Defaults to that.
	Holder string
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
	if c.Holder == "" {
		c.Holder = f.Holder
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
	case c.GateTimeout < 0:
		return &InvalidError{"gate timeout", fmt.Sprintf("is %v, want a positive duration", c.GateTimeout)}
	case c.Wait < 0:
		return &InvalidError{"wait", fmt.Sprintf("is %v, want a positive duration", c.Wait)}
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
// Errors: [*HeldError] if somebody has it, [*BlockedError] if a commit of the
// previous holder is in progress, [*RefusedError] matching ErrClosed,
// ErrHistory, [*InvalidError], or the database's.
func (f *Fences) Acquire(ctx context.Context, key string, cfg LeaseConfig) (*Lease, error) {
	cfg = cfg.withDefaults(f.cfg)
	if err := validateKey(key); err != nil {
		return nil, err
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	lease, err := f.acquire(ctx, key, cfg)
	// The answer may have been lost on the way: the same attempt gets it again.
	if err != nil && ctx.Err() == nil && !answered(err) {
		lease, err = f.acquire(ctx, key, cfg)
	}
	return lease, err
}

func (f *Fences) acquire(ctx context.Context, key string, cfg LeaseConfig) (*Lease, error) {
	// The trust in a lease is measured from before the question was asked: the
	// database set the expiry later than this.
	asked := time.Now()
	var (
		won          bool
		epoch, token *int64
		holder       string
		expires      time.Time
		remaining    time.Duration
	)
	err := f.call(ctx, func(row pgx.Row) error { return row.Scan(&won, &epoch, &token, &holder, &expires, &remaining) },
		f.sql.acquire, key, cfg.Holder, cfg.TTL, cfg.Attempt, cfg.Wait)
	if err != nil {
		if t := translate(err); t != err {
			return nil, t
		}
		return nil, fmt.Errorf("fencing: acquire %q: %w", key, err)
	}
	if !won {
		return nil, &HeldError{Key: key, Holder: holder, ExpiresAt: expires, Remaining: remaining}
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
