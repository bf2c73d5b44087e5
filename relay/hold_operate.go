package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
)

// Operator decides what the relay can't: what becomes of held streams and of
// topics that are gone. It sets a state in the database, and the relay that is
// active, or the next one, acts. So it needs no Kafka and no running relay.
// Reading needs the role fenceline_monitor, deciding fenceline_operator.
type Operator struct {
	pool *pgxpool.Pool
	name string
}

// NewOperator checks that the schema (empty for "fenceline") is there and that
// this library and it go together.
func NewOperator(ctx context.Context, pool *pgxpool.Pool, name string) (*Operator, error) {
	if name == "" {
		name = schema.Default
	}
	if err := schema.Check(ctx, pool, name, schema.Producer); err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	return &Operator{pool, name}, nil
}

// ErrNotPossible is matched by the error of a decision that doesn't go together
// with how things are. Nothing was changed.
var ErrNotPossible = errors.New("relay: not possible")

// NotPossibleError says why a decision is refused, and what can be done. It
// matches [ErrNotPossible].
type NotPossibleError struct {
	// Reason is what stands in the way.
	Reason string
	// Remedy is what to do instead; may be empty.
	Remedy string
}

// Error implements error.
func (e *NotPossibleError) Error() string {
	if e.Remedy == "" {
		return fmt.Sprintf("%v: %s", ErrNotPossible, e.Reason)
	}
	return fmt.Sprintf("%v: %s. %s", ErrNotPossible, e.Reason, e.Remedy)
}

// Is makes it match ErrNotPossible.
func (e *NotPossibleError) Is(target error) bool { return target == ErrNotPossible }

func decided(what string, err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && (pg.Code == "FL020" || pg.Code == "FL011"):
		return &NotPossibleError{singular(pg.Message), pg.Hint}
	}
	return fmt.Errorf("relay: %s: %w", what, err)
}

// By says who decides and why. It is kept with the decision.
type By struct {
	// Who is a name of 1 to 255 bytes. Required.
	Who string
	// Why is in their words; may be empty.
	Why string
}

// HeldState is what was decided about a held stream.
type HeldState string

const (
	// StateHeld: nothing; it waits for an operator.
	StateHeld HeldState = "held"
	// StateRetry: the relay publishes it again, from the refused record on.
	StateRetry HeldState = "retry"
	// StateSkip: the relay publishes a skip marker instead of the record, and
	// then what follows.
	StateSkip HeldState = "skip"
)

// HeldInfo is a held stream and what was decided about it.
type HeldInfo struct {
	// HeldStream is the stream and why it is held.
	HeldStream
	// State is what was decided; AskedBy, AskedAt and Why are by whom, when and
	// why last, empty and zero if never.
	State   HeldState
	AskedBy string
	AskedAt time.Time
	Why     string
	// SkipTo is the last seq that the newest skip gave up; 0 if there was none.
	SkipTo int64
}

// HeldFilter chooses held streams. The zero value chooses all.
type HeldFilter struct {
	// Topic and Key choose by topic, by key, or one stream. Default to any.
	Topic, Key string
	// Limit is how many to give at most. Defaults to 1,000.
	Limit int
}

// Held lists held streams, those that have been held longest first.
func (o *Operator) Held(ctx context.Context, f HeldFilter) ([]HeldInfo, error) {
	if f.Limit <= 0 {
		f.Limit = 1000
	}
	all, err := listHeld(ctx, o.pool, o.name, f)
	if err != nil {
		return nil, fmt.Errorf("relay: list held streams: %w", err)
	}
	return all, nil
}

func listHeld(ctx context.Context, q querier, name string, f HeldFilter) ([]HeldInfo, error) {
	rows, err := q.Query(ctx, schema.Expand(`select topic, key, pos, epoch, seq, reason, detail, since, state, coalesce(asked_by, ''), asked_at, coalesce(why, ''), coalesce(skip_to, 0)
		from @schema@.relay_held where ($1 = '' or topic = $1) and ($2 = '' or key = $2) order by since, topic, key limit nullif($3::bigint, 0)`, name), f.Topic, f.Key, f.Limit)
	all := []HeldInfo{}
	if err == nil {
		var h HeldInfo
		var asked *time.Time
		_, err = pgx.ForEachRow(rows, []any{&h.Topic, &h.Key, &h.Pos, &h.Epoch, &h.Seq, &h.Reason, &h.Detail, &h.Since, &h.State, &h.AskedBy, &asked, &h.Why, &h.SkipTo}, func() error {
			h := h
			if asked != nil {
				h.AskedAt = *asked
			}
			all = append(all, h)
			return nil
		})
	}
	return all, err
}

// HeldEvent is what can be said of the record at which a stream is held without
// reading its payload.
type HeldEvent struct {
	// Known is false if the record is not in the outbox (any more).
	Known bool
	// ID, Type, Subject, Source, ContentType, Kind and CreatedAt are as appended.
	ID, Type, Subject, Source, ContentType, Kind string
	CreatedAt                                    time.Time
	// Verdict is "skipped" or "retired", and VerdictAt since when; empty and zero
	// if it was not given up.
	Verdict   string
	VerdictAt time.Time
	// Waiting is the number of the stream's records that wait, this one
	// included. More says that counting stopped at 100,000.
	Waiting int64
	More    bool
}

// HeldEvent looks at the record at which a stream is held.
func (o *Operator) HeldEvent(ctx context.Context, h HeldStream) (HeldEvent, error) {
	e := HeldEvent{Known: true}
	var verdictAt *time.Time
	err := o.pool.QueryRow(ctx, schema.Expand(`select id::text, type, coalesce(subject, ''), source, coalesce(contenttype, ''), kind, created_at, coalesce(verdict, ''), verdict_at
		from @schema@.outbox where topic = $1 and key = $2 and epoch = $3 and seq = $4`, o.name), h.Topic, h.Key, h.Epoch, h.Seq).
		Scan(&e.ID, &e.Type, &e.Subject, &e.Source, &e.ContentType, &e.Kind, &e.CreatedAt, &e.Verdict, &verdictAt)
	if errors.Is(err, pgx.ErrNoRows) {
		e, err = HeldEvent{}, nil
	}
	if err == nil {
		err = o.pool.QueryRow(ctx, schema.Expand(`select count(*) from (select from @schema@.outbox where topic = $1 and key = $2 and (epoch, seq) >= ($3, $4) and pos >= $5 limit $6) w`, o.name),
			h.Topic, h.Key, h.Epoch, h.Seq, h.Pos, countLimit).Scan(&e.Waiting)
	}
	if err != nil {
		return e, fmt.Errorf("relay: look at a held record: %w", err)
	}
	if verdictAt != nil {
		e.VerdictAt = *verdictAt
	}
	e.More = e.Waiting >= countLimit
	return e, nil
}

// Retry asks the relay to publish a held stream again, from the refused record
// on; if that is refused once more, the stream is held once more. It is safe at
// any time. New is false if it was asked for already.
//
// A record that was skipped can't be retried: the answer is then a
// [*NotPossibleError].
func (o *Operator) Retry(ctx context.Context, topic, key string, by By) (isNew bool, err error) {
	err = write(ctx, o.pool, schema.Expand(`select @schema@.relay_held_retry($1, $2, $3, nullif($4, ''))`, o.name), []any{topic, key, by.Who, by.Why}, &isNew)
	return isNew, decided("retry a held stream", err)
}

// Skipped is the range of events that a skip gave up.
type Skipped struct {
	// From and To are the first seq and the last.
	From, To int64
	// BeforeEnd says that the range stops before the end record of its epoch,
	// though it was to go further.
	BeforeEnd bool
}

// Skip gives up the record at which a stream is held and those behind it up to
// seq through, 0 for that record alone. The verdict is final and stands when Skip
// returns; the relay then publishes a marker in their place and goes on.
// Consumers are told that the events will not come. An end record can't be
// skipped, and nothing can while a retry is under way: [*NotPossibleError].
func (o *Operator) Skip(ctx context.Context, topic, key string, through int64, by By) (Skipped, error) {
	var s Skipped
	var to *int64
	if through != 0 {
		to = &through
	}
	err := write(ctx, o.pool, schema.Expand(`select first, last, stopped_at_end from @schema@.relay_held_skip($1, $2, $3, $4, nullif($5, ''))`, o.name), []any{topic, key, to, by.Who, by.Why},
		&s.From, &s.To, &s.BeforeEnd)
	return s, decided("skip a record", err)
}
