package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
)

// Operator looks at leases and histories, and mends them. Reading needs the
// role fenceline_monitor, changing fenceline_operator. Unlike [New] it accepts a
// database whose settings break promises, since that is when it is needed.
type Operator struct {
	pool *pgxpool.Pool
	sql  operatorStatements
}

// NewOperator checks that the schema (empty for "fenceline") is there and that
// this library and it go together.
func NewOperator(ctx context.Context, pool *pgxpool.Pool, name string) (*Operator, error) {
	if pool == nil {
		return nil, errNoPool
	}
	if name == "" {
		name = schema.Default
	}
	if err := schema.Check(ctx, pool, name, schema.Producer); err != nil {
		return nil, fmt.Errorf("fencing: %w", err)
	}
	return &Operator{pool, newOperatorStatements(name)}, nil
}

// LeaseState is where a lease is.
type LeaseState string

const (
	// LeaseHeld: nobody else can acquire it.
	LeaseHeld LeaseState = "held"
	// LeaseExpired: its holder was not heard of in time. Until somebody acquires, it
	// can still renew, and commit.
	LeaseExpired LeaseState = "expired"
	// LeaseReserved: given up, and kept for Successor until ReservedUntil.
	LeaseReserved LeaseState = "reserved"
	// LeaseFree: given up, or ended.
	LeaseFree LeaseState = "free"
)

// LeaseInfo is one lease as the database has it.
type LeaseInfo struct {
	// Position is the one under which it was granted last, Holder to whom.
	Position Position
	Holder   string
	State    LeaseState
	// ExpiresAt is on the database's clock; zero where it was given up.
	ExpiresAt time.Time
	// Remaining is the time until then on that clock; negative if it is over.
	Remaining time.Duration
	// Successor alone can acquire until ReservedUntil; empty and zero if anybody can.
	Successor     string
	ReservedUntil time.Time
	// Waiter campaigns for it and was refused first; empty if nobody was lately.
	Waiter string
	// Owner is the login that alone may acquire and commit; empty for every
	// producer.
	Owner string
	// System says that it is one of the toolkit's own.
	System bool
}

// LeaseFilter chooses leases.
type LeaseFilter struct {
	// Prefix is what their keys begin with. Defaults to any.
	Prefix string
	// After is a key behind which to begin, in the order of the keys' bytes: the
	// last one of an earlier answer. Defaults to the beginning.
	After string
	// System chooses the toolkit's own leases, and not the users'. Defaults to false.
	System bool
	// Limit is how many to give at most. Defaults to 1,000.
	Limit int
}

// Leases lists leases in the order of their keys, the users' or the toolkit's
// own.
func (o *Operator) Leases(ctx context.Context, filter LeaseFilter) ([]LeaseInfo, error) {
	if filter.Limit <= 0 {
		filter.Limit = 1000
	}
	rows, err := o.pool.Query(ctx, o.sql.leases, filter.Prefix, filter.After, filter.System, filter.Limit)
	if err != nil {
		return nil, fmt.Errorf("fencing: list leases: %w", err)
	}
	leases, err := pgx.CollectRows(rows, scanLease)
	if err != nil {
		return nil, fmt.Errorf("fencing: list leases: %w", err)
	}
	return leases, nil
}

func scanLease(row pgx.CollectableRow) (i LeaseInfo, err error) {
	var expires, reserved *time.Time
	var remaining *float64
	err = row.Scan(&i.Position.Key, &i.Position.Epoch, &i.Position.Token, &i.Holder, &i.State, &expires, &remaining, &i.Successor, &reserved, &i.Waiter, &i.Owner, &i.System)
	if expires != nil {
		i.ExpiresAt, i.Remaining = *expires, time.Duration(*remaining*float64(time.Second))
	}
	if reserved != nil {
		i.ReservedUntil = *reserved
	}
	return i, err
}

// Turn is a step that changed who holds a key.
type Turn struct {
	// Position is that of the holder; after the step, if the step has moved it.
	Position Position
	// Why is acquire, release, advance, handover, rotate, expire, owner, open or
	// close.
	Why string
	// Holder is whose position it is; empty with an advance. With owner, whose
	// key it is now.
	Holder string
	// Whom: the successor of a handover or release, the operator of an expire.
	Whom string
	// Login is with which the step was made; empty for steps of before it was
	// recorded.
	Login string
	// At is the time on the database's clock.
	At time.Time
}

// KeyInfo is everything about who holds a key.
type KeyInfo struct {
	// Lease is the managed lease, as it was granted last; nil if there was none:
	// nobody has acquired the key, or its lease lives elsewhere.
	Lease *LeaseInfo
	// Fence is the highest position issued: what commits are compared with. Its
	// token is 0 as long as nobody has acquired or advanced in this life of the
	// key; a Lease is then one of an earlier life.
	Fence Position
	// ClosedAt is when this life of the key ended; zero if it goes on.
	ClosedAt time.Time
	// Owner as in LeaseInfo.
	Owner string
	// Turns are the latest, newest first.
	Turns []Turn
}

// Show tells who holds a key and who did, with at most turns (0 for 20) of the
// latest steps. The error matches ErrUnknownKey, and pgx.ErrNoRows, for a key
// that has no fence.
func (o *Operator) Show(ctx context.Context, key string, turns int) (info KeyInfo, err error) {
	if err := validateKey(key); err != nil {
		return KeyInfo{}, err
	}
	if turns <= 0 {
		turns = 20
	}
	var closed *time.Time
	info.Fence.Key = key
	b := &pgx.Batch{}
	b.Queue(o.sql.fence, key).QueryRow(func(row pgx.Row) error {
		return row.Scan(&info.Fence.Epoch, &info.Fence.Token, &closed, &info.Owner)
	})
	b.Queue(o.sql.lease, key).Query(func(rows pgx.Rows) error {
		leases, err := pgx.CollectRows(rows, scanLease)
		if len(leases) > 0 {
			info.Lease = &leases[0]
		}
		return err
	})
	b.Queue(o.sql.turns, key, turns).Query(func(rows pgx.Rows) error {
		info.Turns, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Turn, err error) {
			t.Position.Key = key
			return t, row.Scan(&t.Position.Epoch, &t.Position.Token, &t.Why, &t.Holder, &t.Whom, &t.Login, &t.At)
		})
		return err
	})
	err = o.pool.SendBatch(ctx, b).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		return KeyInfo{}, &wrappedError{fmt.Sprintf("fencing: show %q: %v", key, ErrUnknownKey), ErrUnknownKey, err}
	}
	if err != nil {
		return KeyInfo{}, fmt.Errorf("fencing: show %q: %w", key, err)
	}
	if closed != nil {
		info.ClosedAt = *closed
	}
	return info, nil
}

// Expire ends the lease of a key now, or what it is reserved for, and notes that
// who has done it. Anybody can acquire then; the holder learns of it at its next
// renewal. The fence is left alone: until somebody has acquired, the old holder
// can still commit. It returns who held it under which position; false if there
// was nothing to end: it is free, or was never acquired (then holder is empty).
// Of a key that there is nothing of the error matches ErrUnknownKey.
func (o *Operator) Expire(ctx context.Context, key, who string) (holder string, pos Position, ended bool, err error) {
	if err := validateKey(key); err != nil {
		return "", Position{}, false, err
	}
	var h *string
	var epoch, token *int64
	if err := o.change(ctx, func(row pgx.Row) error { return row.Scan(&ended, &epoch, &token, &h) }, o.sql.expire, key, who); err != nil {
		return "", Position{}, false, fmt.Errorf("fencing: expire the lease of %q: %w", key, translate(err))
	}
	if h == nil {
		return "", Position{Key: key}, false, o.known(ctx, key)
	}
	return *h, Position{key, *epoch, *token}, ended, nil
}

// known says ErrUnknownKey of a key without a fence.
func (o *Operator) known(ctx context.Context, key string) error {
	var there bool
	if err := o.pool.QueryRow(ctx, o.sql.known, key).Scan(&there); err != nil {
		return fmt.Errorf("fencing: look for key %q: %w", key, err)
	}
	if !there {
		return fmt.Errorf("fencing: key %q: %w", key, ErrUnknownKey)
	}
	return nil
}

// SetOwner assigns a key to a login, which alone can acquire and commit under it
// from then on; to every producer if login is empty. A commit in progress is
// waited for. A lease that another login holds goes on without being of use:
// see [Operator.Expire].
func (o *Operator) SetOwner(ctx context.Context, key, login, who string) error {
	if err := validateKey(key); err != nil {
		return err
	}
	var owner *string
	if login != "" {
		owner = &login
	}
	if err := o.change(ctx, nothing, o.sql.setOwner, key, owner, who); err != nil {
		return fmt.Errorf("fencing: assign %q: %w", key, translate(err))
	}
	return nil
}

// change runs a function that mends something, in a transaction like those of
// [Fences]: what it does behind a lock rests on READ COMMITTED, and the login of a
// person may be set to write nothing, or to wait for nothing, unless told so. What was
// decided is on the disk when it is told: a crash must not make a key everybody's again.
func (o *Operator) change(ctx context.Context, read func(pgx.Row) error, sql string, args ...any) error {
	return pgx.BeginTxFunc(ctx, o.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, patientSQL+", "+durableSQL); err != nil {
			return err
		}
		return read(tx.QueryRow(ctx, sql, args...))
	})
}

// nothing reads the answer of a function that gives none.
func nothing(row pgx.Row) error { return row.Scan(nil) }
