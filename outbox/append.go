package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/fenceline/fenceline/internal/gate"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Pass says which gate a transaction has passed.
type Pass = gate.Pass

// Tx is a transaction that has passed the gate of a key, or the batch of one
// that will: a fencing.Tx, a *fencing.Entered or a *fencing.Batch. Beside Gate
// it has one of
//
//	Queue(sql string, args ...any)
//	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
//
// of which Append prefers the first: its statement then goes into the round
// trip of COMMIT.
type Tx interface {
	// Gate says which gate it has passed.
	Gate() Pass
}

// queuer is a Tx that commits by itself and takes statements along.
type queuer interface {
	Queue(sql string, args ...any)
}

// executer is a Tx that somebody else commits.
type executer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// ErrNoPass: the transaction has not passed the gate of the key under which it
// wants to append. Append inside the callback of a commit, with its
// transaction.
var ErrNoPass = errors.New("outbox: the transaction has not passed the gate")

// Append adds events to the outbox inside the fenced transaction tx, in the
// given order. They are published if and only if tx commits. The key of each
// is the key of the gate that tx has passed; seq is dense per (topic, key).
//
// Events are checked at once: an [*InvalidEventError] says what could not be
// published, and then none of the call was appended. The statement itself runs
// with COMMIT where tx can queue, and else at once; a transaction without the
// pass gives ErrNoPass. One that has ended with its callback, and a batch that was
// built, give an error that matches pgx.ErrTxClosed, and nothing was appended.
func Append(ctx context.Context, tx Tx, events ...Event) error {
	pass := tx.Gate()
	checked := make([]Event, len(events))
	for i, e := range events {
		e = e.withDefaults()
		if err := e.validate(pass.Key); err != nil {
			return err
		}
		checked[i] = e
	}
	// One statement for each topic: events of different topics are in
	// different streams, between which there is no order to keep.
	for len(checked) > 0 {
		topic := checked[0].Topic
		same, rest := checked, []Event(nil)
		if other := slices.IndexFunc(checked, func(e Event) bool { return e.Topic != topic }); other >= 0 {
			same = slices.Clone(checked[:other])
			for _, e := range checked[other:] {
				if e.Topic == topic {
					same = append(same, e)
				} else {
					rest = append(rest, e)
				}
			}
		}
		if err := appendTopic(ctx, tx, pass, topic, same); err != nil {
			return err
		}
		checked = rest
	}
	return nil
}

func appendTopic(ctx context.Context, tx Tx, pass Pass, topic string, events []Event) error {
	call := gate.New(pass, topic, len(events))
	for _, e := range events {
		headers, err := encodeHeaders(e.Headers)
		if err != nil {
			return fmt.Errorf("outbox: encode headers: %w", err)
		}
		call.IDs, call.Aggregates, call.Types, call.Sources = append(call.IDs, pgtype.UUID{Bytes: e.ID, Valid: true}), append(call.Aggregates, e.AggregateType), append(call.Types, e.Type), append(call.Sources, e.Source)
		call.Subjects, call.ContentTypes = append(call.Subjects, text(e.Subject)), append(call.ContentTypes, text(e.ContentType))
		call.Headers, call.Payloads = append(call.Headers, headers), append(call.Payloads, e.Payload)
	}
	// append() of migrations/producer checks the pass and allots seq. One call
	// appends to one topic.
	sql := gate.InSchema(pass.Schema)
	if q, ok := tx.(queuer); ok {
		q.Queue(sql, call)
		if call.Refused != nil {
			return fmt.Errorf("outbox: append to %q: %w", topic, call.Refused)
		}
		return nil
	}
	x, ok := tx.(executer)
	if !ok {
		return fmt.Errorf("outbox: a %T can neither queue nor execute a statement", tx)
	}
	_, err := x.Exec(ctx, sql, call)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "FL007" {
		return fmt.Errorf("%w: %s: %w", ErrNoPass, pg.Message, err)
	}
	if err != nil {
		return fmt.Errorf("outbox: append to %q: %w", topic, err)
	}
	return nil
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// encodeHeaders is the form of the headers column: one JSON array of names and
// values in turn, which keeps order and repetition; null when there are none.
func encodeHeaders(headers []Header) (*string, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	flat := make([]string, 0, 2*len(headers))
	for _, h := range headers {
		flat = append(flat, h.Name, h.Value)
	}
	b, err := json.Marshal(flat)
	s := string(b)
	return &s, err
}

// DecodeHeaders reads the headers column of an outbox row; nil gives none.
func DecodeHeaders(column []byte) ([]Header, error) {
	if column == nil {
		return nil, nil
	}
	var flat []string
	if err := json.Unmarshal(column, &flat); err != nil {
		return nil, fmt.Errorf("outbox: the headers column is not an array of strings: %w", err)
	}
	if len(flat)%2 != 0 {
		return nil, fmt.Errorf("outbox: the headers column has %d strings, want names and values in turn", len(flat))
	}
	headers := make([]Header, 0, len(flat)/2)
	for i := 0; i < len(flat); i += 2 {
		headers = append(headers, Header{flat[i], flat[i+1]})
	}
	return headers, nil
}
