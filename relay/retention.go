package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/pgsession"
	"github.com/fenceline/fenceline/internal/schema"
)

// RetentionConfig says how long published events are kept in the outbox, where
// they can be published again. The zero value is usable.
type RetentionConfig struct {
	// Keep is how long: a partition goes when its newest event is older, and
	// everything in it is published. Defaults to 7 days.
	Keep time.Duration

	// RotateAge is the age of a partition's first event at which the next
	// partition begins: what goes at once. Defaults to a seventh of Keep, at
	// least a minute.
	RotateAge time.Duration

	// RotateBytes is the size, with indexes, at which the next partition begins
	// before that. Defaults to 10 GiB.
	RotateBytes int64

	// Every is the time between two passes of a relay that runs. Defaults to one
	// minute.
	Every time.Duration

	// LockTimeout is how long one try to drop a partition, or to switch to the
	// next, waits for the lock that it needs; commits with events wait behind it. At least 1 ms. Defaults
	// to 50 ms.
	LockTimeout time.Duration

	// Tries is how often a pass tries for each of them. Defaults to 10.
	Tries int

	// DeleteBatch is how many rows one transaction looks at where the outbox is
	// a plain table, from which published events are deleted one by one.
	// Defaults to 2000.
	DeleteBatch int
}

func (c RetentionConfig) withDefaults() RetentionConfig {
	if c.Keep == 0 {
		c.Keep = 7 * 24 * time.Hour
	}
	if c.RotateAge == 0 {
		c.RotateAge = max(c.Keep/7, time.Minute)
	}
	if c.RotateBytes == 0 {
		c.RotateBytes = 10 << 30
	}
	if c.Every == 0 {
		c.Every = time.Minute
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = 50 * time.Millisecond
	}
	if c.Tries == 0 {
		c.Tries = 10
	}
	if c.DeleteBatch == 0 {
		c.DeleteBatch = 2000
	}
	return c
}

// Validate reports everything that is wrong with c, each with the remedy.
func (c RetentionConfig) Validate() error {
	c = c.withDefaults()
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("relay: retention: "+format, args...))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"keep", c.Keep}, {"rotate age", c.RotateAge}, {"every", c.Every}} {
		if d.value < 0 {
			bad("%s is %v: use a positive duration, or leave it out for the default", d.name, d.value)
		}
	}
	if c.LockTimeout < time.Millisecond || c.LockTimeout > 10*time.Second {
		bad("lock timeout is %v: use 1ms to 10s; commits wait for as long", c.LockTimeout)
	}
	if c.RotateBytes < 0 {
		bad("rotate bytes is %d: use a positive number, or leave it out for the default", c.RotateBytes)
	}
	if c.Tries < 0 || c.DeleteBatch < 0 || c.DeleteBatch > 1_000_000 {
		bad("tries %d, delete batch %d: use positive numbers, a batch up to 1,000,000", c.Tries, c.DeleteBatch)
	}
	return errors.Join(errs...)
}

// Why a partition of the outbox is kept.
const (
	// KeptActive: appends go there.
	KeptActive = "active"
	// KeptYoung: its newest event is not old enough.
	KeptYoung = "young"
	// KeptUnpublished: some relay's cursor, or the fork of a refused topic, has
	// not passed all of it.
	KeptUnpublished = "unpublished"
	// KeptHeld: events of a held stream are in it. They are in no danger, but
	// nothing else in it goes either: resume or skip the stream.
	KeptHeld = "held"
	// KeptBusy: transactions that write to the outbox left no moment for the
	// lock. The next pass tries again; one that is open for long is in
	// the output of "relay status".
	KeptBusy = "busy"
)

// Partition is a partition of the outbox.
type Partition struct {
	// Name is the table's, Number what is in the high bits of its positions.
	Name   string
	Number int64
	// Low is its first position, High the first behind it.
	Low, High int64
	// Bytes is its size with indexes.
	Bytes int64
	// Active says that appends go there.
	Active bool
	// First and Last are when its first and last event were appended; zero if
	// it is empty.
	First, Last time.Time
	// Kept is why it would be kept if nothing but the question asked mattered;
	// empty if it can go.
	Kept string
}

// RetentionReport is what a pass has done.
type RetentionReport struct {
	// Rotated says that a new partition has begun.
	Rotated bool
	// Dropped are the partitions that are gone, Deleted the number of events
	// that were deleted where the outbox is a plain table.
	Dropped []string
	Deleted int64
	// Overdue are the partitions that are old enough and had to be kept.
	Overdue []Partition
}

// Retain makes one pass: it begins the next partition of the outbox if the
// present one is due, and drops those of which everything is published and
// older than Keep; from a plain table it deletes. A relay with Config.Retention
// does this by itself. It may run anywhere and any number of times at once, and
// can be cut off at any point. A login needs the role fenceline_relay or
// fenceline_operator. An empty name stands for "fenceline".
//
// What was done is in the report, also with an error. In a database that was
// restored that is fencing.ErrHistory.
func Retain(ctx context.Context, pool *pgxpool.Pool, name string, cfg RetentionConfig) (RetentionReport, error) {
	if name == "" {
		name = schema.Default
	}
	if err := cfg.Validate(); err != nil {
		return RetentionReport{}, err
	}
	if err := schema.Check(ctx, patient{pool}, name, schema.Producer); err != nil {
		return RetentionReport{}, fmt.Errorf("relay: %w", err)
	}
	p := &pass{pool: pool, cfg: cfg.withDefaults(), schema: name}
	if err := p.run(ctx); err != nil {
		return p.report, named(fmt.Errorf("relay: retention: %w", err))
	}
	return p.report, nil
}

type pass struct {
	pool   *pgxpool.Pool
	cfg    RetentionConfig
	schema string
	report RetentionReport
}

func (p *pass) sql(s string) string { return schema.Expand(s, p.schema) }

func (p *pass) run(ctx context.Context) error {
	parts, err := p.list(ctx)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return p.delete(ctx)
	}
	if err := p.rotate(ctx); err != nil {
		return err
	}
	now, err := p.now(ctx)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if !part.Active && part.Kept != KeptYoung && part.Kept != KeptActive {
			if err := p.drop(ctx, part, now); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pass) now(ctx context.Context) (now time.Time, err error) {
	return now, patient{p.pool}.QueryRow(ctx, "select clock_timestamp()").Scan(&now)
}

func (p *pass) list(ctx context.Context) ([]Partition, error) {
	conn, err := pgsession.Acquire(ctx, p.pool, answerWithin)
	if err != nil {
		return nil, fmt.Errorf("list the partitions: %w", err)
	}
	defer conn.Release()
	return partitions(ctx, conn, p.schema, p.cfg.Keep)
}

// rotate takes the steps there are: create and switch, each a transaction.
func (p *pass) rotate(ctx context.Context) error {
	wait := patience(20*time.Millisecond, time.Second)
	for try := 1; ; {
		var step *string
		if err := write(ctx, p.pool, p.sql("select @schema@.outbox_rotate($1, $2, $3)"), []any{p.cfg.RotateAge, p.cfg.RotateBytes, p.cfg.LockTimeout}, &step); err != nil {
			return fmt.Errorf("rotate: %w", err)
		}
		switch {
		case step == nil:
			return nil
		case *step == "switched":
			p.report.Rotated = true
			return nil
		case *step == KeptBusy:
			if try++; try > p.cfg.Tries {
				return nil // the next pass goes on with it; the present partition has room
			}
			if err := pause(ctx, wait.NextBackOff()); err != nil {
				return err
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drop tries until it has the lock. Between two tries commits get their turn.
func (p *pass) drop(ctx context.Context, part Partition, now time.Time) error {
	wait := patience(20*time.Millisecond, time.Second)
	for try := 1; ; try++ {
		if part.Kept == "" || try > 1 {
			if err := write(ctx, p.pool, p.sql("select @schema@.outbox_drop($1, $2, $3)"), []any{part.Number, p.cfg.Keep, p.cfg.LockTimeout}, &part.Kept); err != nil {
				return fmt.Errorf("drop %s: %w", part.Name, err)
			}
		}
		switch {
		case part.Kept == "dropped":
			p.report.Dropped = append(p.report.Dropped, part.Name)
			return nil
		case part.Kept == "gone", part.Kept == KeptYoung, part.Kept == KeptActive:
			return nil
		case part.Kept != KeptBusy || try >= p.cfg.Tries:
			if part.Last.IsZero() || now.Sub(part.Last) >= p.cfg.Keep {
				p.report.Overdue = append(p.report.Overdue, part)
			}
			return nil
		}
		if err := pause(ctx, wait.NextBackOff()); err != nil {
			return err
		}
	}
}

// delete is for an outbox that is a plain table.
func (p *pass) delete(ctx context.Context) error {
	after := int64(0)
	for {
		var deleted int64
		var last *int64
		if err := write(ctx, p.pool, p.sql("select deleted, last from @schema@.outbox_delete($1, $2, $3)"), []any{p.cfg.Keep, after, p.cfg.DeleteBatch}, &deleted, &last); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		p.report.Deleted += deleted
		if last == nil {
			return nil
		}
		after = *last
	}
}

func partitions(ctx context.Context, q interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, name string, keep time.Duration) ([]Partition, error) {
	rows, err := q.Query(ctx, schema.Expand("select name, number, lo, hi, bytes, active, first_at, last_at, coalesce(kept, '') from @schema@.outbox_partitions($1)", name), keep)
	if err != nil {
		return nil, fmt.Errorf("list the partitions: %w", err)
	}
	parts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Partition, err error) {
		var first, last *time.Time
		err = row.Scan(&p.Name, &p.Number, &p.Low, &p.High, &p.Bytes, &p.Active, &first, &last, &p.Kept)
		if first != nil && last != nil {
			p.First, p.Last = *first, *last
		}
		return p, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the partitions: %w", err)
	}
	return parts, nil
}

// Outbox is what the outbox takes up.
type Outbox struct {
	// Partitions are in the order of positions; none if it is a plain table.
	// Their Kept is for events that are kept for no time at all.
	Partitions []Partition
	// Bytes is the size of all of them, with indexes.
	Bytes int64
	// Runway is how many events can be appended before a position would be in
	// no partition, and appends would fail. It is renewed by each rotation.
	Runway int64
	// Now is the time on the database's clock.
	Now time.Time
}

// ReadOutbox reads how large the outbox is and what keeps its partitions. A
// login needs the role fenceline_monitor. An empty name stands for "fenceline".
func ReadOutbox(ctx context.Context, pool *pgxpool.Pool, name string) (Outbox, error) {
	if name == "" {
		name = schema.Default
	}
	if err := schema.Check(ctx, pool, name, schema.Producer); err != nil {
		return Outbox{}, fmt.Errorf("relay: %w", err)
	}
	parts, err := partitions(ctx, pool, name, 0)
	if err != nil {
		return Outbox{}, fmt.Errorf("relay: read the outbox's size: %w", err)
	}
	o := Outbox{Partitions: parts}
	var last, plain int64
	err = pool.QueryRow(ctx, schema.Expand("select coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0), pg_total_relation_size('@schema_name@.outbox'), clock_timestamp()", name)).
		Scan(&last, &plain, &o.Now)
	if err != nil {
		return Outbox{}, fmt.Errorf("relay: read the outbox's size: %w", err)
	}
	o.Bytes = plain // of a partitioned table, nothing
	o.Runway = 1<<63 - 1 - last
	if len(parts) > 0 {
		o.Runway = runway(parts, last)
	}
	for _, p := range parts {
		o.Bytes += p.Bytes
	}
	return o, nil
}

// runway counts the positions behind last that are in partitions without a gap.
func runway(parts []Partition, last int64) int64 {
	next := last + 1
	parts = slices.Clone(parts)
	slices.SortFunc(parts, func(a, b Partition) int { return int(min(1, max(-1, a.Low-b.Low))) })
	for _, p := range parts {
		if p.Low <= next && next < p.High {
			next = p.High
		}
	}
	return next - last - 1
}
