package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/outbox"
)

// Filter chooses what is listed.
type Filter struct {
	// Stream and Key choose those of one stream name, and of one key. Default to
	// any.
	Stream, Key string
	// All also lists what is done: discarded dead letters, quarantined records that
	// were dealt with. Defaults to false.
	All bool
	// After is the last one of an earlier answer: a stream, a position with its
	// kind, or a number in the quarantine. Defaults to the beginning.
	After   Position
	AfterID int64
	// Limit is how many to give at most. Defaults to 100.
	Limit int
}

func (f Filter) limit() int {
	if f.Limit <= 0 {
		return 100
	}
	return f.Limit
}

// Parked lists the streams that stand, in the order of their names.
func (o *Operator) Parked(ctx context.Context, f Filter) ([]Blocked, error) {
	return list(ctx, o, "streams that stand", scanBlocked, o.sql.blockedList, o.guard.cfg.Consumer, f.Stream, f.Key, f.After.Stream, f.After.Key, f.limit())
}

// Stored is a record that is parked, a dead letter or in quarantine, without
// what it says.
type Stored struct {
	// ID is its number in the quarantine, else 0.
	ID int64
	// Position is where it stands in its stream; of a quarantined record that
	// could not be read all of it is zero.
	Position
	// From is the first seq that it covers: of a skip marker.
	From int64
	// Topic, Partition and Offset say where it lies.
	Topic     string
	Partition int
	Offset    int64
	// EventID is the event's, where it could be read.
	EventID string
	// Reason is why it waits or was refused; empty for a dead letter.
	Reason Reason
	// Attempts is how often it was tried.
	Attempts int
	// Size is about how many bytes it takes.
	Size int64
	// At is when it was stored, ChangedAt when something last became of it.
	At, ChangedAt time.Time
	// Wanted is what an operator wants to be done and the consumer has not done
	// yet: retry, or admit.
	Wanted string
	// Outcome is what became of it in the end: of a dead letter "discarded", of a
	// quarantined record the outcome of its decision or "discarded".
	Outcome string
	// Erased says that an operator has erased what it says, or that it was not
	// kept.
	Erased bool
}

// StoredRecord is a stored record with what it says.
type StoredRecord struct {
	Stored
	// Error is what its handler said, or why it was refused.
	Error  string
	Record KafkaRecord
}

// Records lists parked records of a stream in the order in which they will be
// decided.
func (o *Operator) Records(ctx context.Context, key StreamKey, f Filter) ([]Stored, error) {
	return list(ctx, o, "parked records", scanStored, o.sql.parkedList, o.guard.cfg.Consumer, key.Stream, key.Key,
		f.After.Epoch, f.After.Seq, string(cmp.Or(f.After.Kind, outbox.KindData)), f.limit())
}

// Dead lists dead letters in the order of their positions.
func (o *Operator) Dead(ctx context.Context, f Filter) ([]Stored, error) {
	return list(ctx, o, "dead letters", scanStored, o.sql.deadList, o.guard.cfg.Consumer, f.Stream, f.Key, f.All,
		f.After.Stream, f.After.Key, f.After.Epoch, f.After.Seq, f.limit())
}

// Quarantine lists quarantined records in the order of their numbers.
func (o *Operator) Quarantine(ctx context.Context, f Filter) ([]Stored, error) {
	return list(ctx, o, "quarantined records", scanStored, o.sql.quarantineList, o.guard.cfg.Consumer, f.Stream, f.Key, f.All, f.AfterID, f.limit())
}

// ParkedRecord gives one parked record with what it says; needs the role
// fenceline_operator. The error matches pgx.ErrNoRows where there is none.
func (o *Operator) ParkedRecord(ctx context.Context, at Position) (StoredRecord, error) {
	return one(ctx, o, o.sql.parkedFull, o.guard.cfg.Consumer, at.Stream, at.Key, at.Epoch, at.Seq)
}

// DeadRecord is the same for a dead letter.
func (o *Operator) DeadRecord(ctx context.Context, at Position) (StoredRecord, error) {
	return one(ctx, o, o.sql.deadFull, o.guard.cfg.Consumer, at.Stream, at.Key, at.Epoch, at.Seq)
}

// QuarantinedRecord is the same for a quarantined record.
func (o *Operator) QuarantinedRecord(ctx context.Context, id int64) (StoredRecord, error) {
	return one(ctx, o, o.sql.quarantineFull, o.guard.cfg.Consumer, id)
}

// GuardInfo is a stream's guard and what is kept beside it.
type GuardInfo struct {
	Row
	Policy Policy
	Start  Start
	// Forgotten is the highest epoch of which guards of the stream's name were
	// removed.
	Forgotten int64
	// BlockedSince is zero where the stream does not stand.
	BlockedSince time.Time
	// Parked and Bytes are what is parked of it, or its dead letters. Unstored are
	// partitions of which something did not fit, as topic/number.
	Parked, Bytes int64
	Unstored      []string
	// Recheck says that the consumer has not yet done what an operator decided.
	Recheck   bool
	UpdatedAt time.Time
}

// Guard gives the guard of a stream. The error matches pgx.ErrNoRows for a
// stream that the consumer doesn't know, or has forgotten.
func (o *Operator) Guard(ctx context.Context, key StreamKey) (i GuardInfo, err error) {
	var missed string
	var since *time.Time
	err = o.pool.QueryRow(ctx, o.sql.guardRow, o.guard.cfg.Consumer, key.Stream, key.Key).Scan(
		&i.Epoch, &i.Token, &i.Seq, &missed, &i.EndSeq, &i.StartEpoch, &i.StartSeq, &i.Settled, &i.WaitingEpoch, &i.Blocked,
		&since, &i.Parked, &i.Bytes, &i.Unstored, &i.Recheck, &i.UpdatedAt, &i.Policy, &i.Start, &i.Forgotten)
	if err != nil {
		return i, fmt.Errorf("consumer: guard of %s: %w", key, err)
	}
	if since != nil {
		i.BlockedSince = *since
	}
	i.Missed, err = parseMissed(missed)
	return i, err
}

func scanStored(row pgx.CollectableRow) (s Stored, err error) {
	return s, row.Scan(s.columns()...)
}

func (s *Stored) columns() []any {
	return []any{&s.ID, &s.Stream, &s.Key, &s.Epoch, &s.Seq, &s.Kind, &s.From, &s.Topic, &s.Partition, &s.Offset, &s.EventID,
		&s.Reason, &s.Attempts, &s.Size, &s.At, &s.ChangedAt, &s.Wanted, &s.Outcome, &s.Erased}
}

func list[T any](ctx context.Context, o *Operator, what string, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) ([]T, error) {
	rows, err := o.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("consumer: list %s: %w", what, err)
	}
	l, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("consumer: list %s: %w", what, err)
	}
	return l, nil
}

func one(ctx context.Context, o *Operator, sql string, args ...any) (f StoredRecord, err error) {
	rows, err := o.pool.Query(ctx, sql, args...)
	if err != nil {
		return f, fmt.Errorf("consumer: read a record: %w", err)
	}
	f, err = pgx.CollectOneRow(rows, func(row pgx.CollectableRow) (f StoredRecord, err error) {
		var (
			headers [][]byte
			ms      int64
		)
		err = row.Scan(append(f.columns(), &f.Error, &headers, &f.Record.Key, &f.Record.Value, &ms)...)
		f.Record.Offset, f.Record.Time, f.Record.Headers = f.Offset, time.UnixMilli(ms), wireHeaders(headers)
		return f, err
	})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("consumer: read a record: %w", err)
	}
	return f, err
}
