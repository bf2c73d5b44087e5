package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/dbcheck"
	"github.com/fenceline/fenceline/internal/schema"
)

// Operator looks at what a consumer could not apply, and decides about it.
// Reading needs the role fenceline_monitor, the text of errors and all changes
// fenceline_operator, which is not the consumer's: a consumer can give up
// nothing by itself.
//
// An operator applies nothing, since the handler is the consumer's. What it
// decides is written under the guard's lock, in one transaction with its audit:
// no record of the stream can be decided at the same time, one that arrives
// afterwards is decided on what the operator has decided. What can be applied
// then is left to the consumer, which looks at [Guard.Pending] every few seconds.
type Operator struct {
	pool  *pgxpool.Pool
	guard *Guard
	sql   operatorStatements
}

// OperatorConfig says whose operator it is. Only Consumer is required.
type OperatorConfig struct {
	// Consumer is the consumer's name. Required.
	Consumer string
	// Schema is where the consumer's part of the migrations was installed.
	// Defaults to "fenceline".
	Schema string
	// Mapping is the consumer's. Defaults to [Wire].
	Mapping Mapping
	// MaxAhead is the consumer's. Defaults to 24 hours.
	MaxAhead time.Duration
}

// Note is who does something, and why. Both are required, and are audited with
// the login and the time.
type Note struct{ Who, Why string }

// ErrRefused is matched by every [*RefusedError].
var ErrRefused = errors.New("consumer: refused")

// RefusedError says that an operator's wish can't be carried out. Nothing was
// changed.
type RefusedError struct {
	// Action is what was to be done, What with what.
	Action, What string
	// Reason says why not, and what would be possible.
	Reason string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("consumer: %s of %s is refused: %s", e.Action, e.What, e.Reason)
}

// Is makes errors.Is(err, ErrRefused) true.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// NewOperator checks that the schema is there and that this library and it go
// together.
func NewOperator(ctx context.Context, pool *pgxpool.Pool, cfg OperatorConfig) (*Operator, error) {
	g, err := NewGuard(GuardConfig{Consumer: cfg.Consumer, Schema: cfg.Schema, Mapping: cfg.Mapping, MaxAhead: cfg.MaxAhead})
	if err != nil {
		return nil, err
	}
	if err := schema.Check(ctx, pool, g.cfg.Schema, schema.Consumer); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	if err := dbcheck.Encoding(ctx, pool); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	return &Operator{pool, g, newOperatorStatements(g.cfg.Schema)}, nil
}

// ErrUnknown is matched by what [Operator.Known] says of a consumer that has
// never read anything.
var ErrUnknown = errors.New("consumer: no such consumer")

// Known is nil where the consumer has ever read something into this schema.
// Where it has not, every list is empty, which would look as if all were well:
// the error, which matches ErrUnknown, says so.
func (o *Operator) Known(ctx context.Context) error {
	var known bool
	switch err := o.pool.QueryRow(ctx, o.sql.known, o.guard.cfg.Consumer).Scan(&known); {
	case err != nil:
		return fmt.Errorf("consumer: look for %q: %w", o.guard.cfg.Consumer, err)
	case !known:
		return fmt.Errorf("%w: %q has never read anything into schema %s of this database: check its name (that of consumer.Config) and the database", ErrUnknown, o.guard.cfg.Consumer, o.guard.cfg.Schema)
	}
	return nil
}

// errLooked rolls back what was only tried.
var errLooked = errors.New("consumer: only looked at")

// act does something to a stream under its guard's lock, and audits it, in one
// transaction. f gives the lines of the audit.
func (o *Operator) act(ctx context.Context, action string, key StreamKey, note Note, f func(b *batch, e *entry) ([]AuditEntry, error)) error {
	if err := note.check(action); err != nil {
		return err
	}
	if key.Stream == "" || len(key.Stream) > maxStreamBytes || !storable(key.Stream) || key.Key == "" || len(key.Key) > maxKeyBytes || !storable(key.Key) {
		return &RefusedError{action, fmt.Sprintf("%.100q", key.String()), "it is no name of a stream and a key"}
	}
	return o.tx(ctx, func(tx pgx.Tx) error {
		b := newBatch(ctx, o.guard, tx, nil)
		b.operator, b.settings = true, make(map[string]StreamConfig)
		if err := b.load([]StreamKey{key}, nil); err != nil {
			return err
		}
		e := b.entries[key]
		entries, err := f(b, e)
		if err != nil {
			return err
		}
		if err := b.finish(); err != nil {
			return err
		}
		return o.audit(ctx, tx, action, note, entries)
	})
}

func (n Note) check(action string) error {
	switch {
	case n.Who == "" || n.Why == "":
		return &RefusedError{action, "anything", "who does it and why are needed, since both are audited"}
	case len(n.Who) > 1000 || len(n.Why) > 4096 || !storable(n.Who) || !storable(n.Why):
		return &RefusedError{action, "anything", "who and why must be UTF-8 without NUL, at most 1,000 and 4,096 bytes"}
	}
	return nil
}

func (o *Operator) tx(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, o.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, durableSQL); err != nil {
			return fmt.Errorf("consumer: %w", err)
		}
		return f(tx)
	})
}

// AuditEntry is one thing that an operator did.
type AuditEntry struct {
	ID int64
	At time.Time
	// Action is retry, discard, adopt, erase, admit, accept or accept_topic.
	Action string
	// Who and Why were given; Login is with which it came.
	Who, Why, Login string
	// StreamKey, Epoch, FromSeq and ToSeq are of a stream; ToSeq below FromSeq is
	// an empty range.
	StreamKey
	Epoch, FromSeq, ToSeq int64
	// Topic, Partition, FromOffset and ToOffset are of a partition. An offset that
	// isn't known is NoOffset.
	Topic                string
	Partition            int
	FromOffset, ToOffset int64
	// Detail is what else there is to know, as JSON.
	Detail string
}

func (o *Operator) audit(ctx context.Context, tx pgx.Tx, action string, note Note, entries []AuditEntry) error {
	var b pgx.Batch
	for _, a := range entries {
		if a.Detail == "" {
			a.Detail = "{}"
		}
		var stream, key, topic *string
		var epoch, from, to, fromOffset, toOffset *int64
		var partition *int
		if a.Stream != "" {
			stream, key, epoch, from, to = &a.Stream, &a.Key, &a.Epoch, &a.FromSeq, &a.ToSeq
		}
		if a.Topic != "" {
			topic, partition = &a.Topic, &a.Partition
			if a.FromOffset != NoOffset {
				fromOffset = &a.FromOffset
			}
			if a.ToOffset != NoOffset {
				toOffset = &a.ToOffset
			}
		}
		b.Queue(o.sql.audit, o.guard.cfg.Consumer, action, note.Who, note.Why, stream, key, epoch, from, to, topic, partition, fromOffset, toOffset, a.Detail)
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("consumer: audit: %w", err)
	}
	return nil
}

// Audit lists what operators did, newest first; of one stream, if it is given.
// A limit of 0 stands for 100.
func (o *Operator) Audit(ctx context.Context, key StreamKey, limit int) ([]AuditEntry, error) {
	if limit <= 0 {
		limit = 100
	}
	rows, err := o.pool.Query(ctx, o.sql.audits, o.guard.cfg.Consumer, key.Stream, key.Key, limit)
	if err != nil {
		return nil, fmt.Errorf("consumer: read the audit: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a AuditEntry, err error) {
		return a, row.Scan(&a.ID, &a.At, &a.Action, &a.Who, &a.Why, &a.Login, &a.Stream, &a.Key, &a.Epoch, &a.FromSeq, &a.ToSeq,
			&a.Topic, &a.Partition, &a.FromOffset, &a.ToOffset, &a.Detail)
	})
	if err != nil {
		return nil, fmt.Errorf("consumer: read the audit: %w", err)
	}
	return list, nil
}
