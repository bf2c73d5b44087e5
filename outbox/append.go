package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fenceline/fenceline/internal/gate"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Pass says which gate a transaction has passed.
type Pass = gate.Pass

// Tx is a transaction that has passed the gate of a key: a fencing.Tx is one.
// If it also has
//
//	Queue(sql string, args ...any)
//
// then Append puts its statement there, into the round trip of COMMIT.
type Tx interface {
	pgx.Tx
	// Gate says which gate it has passed.
	Gate() Pass
}

// queuer is a Tx that commits by itself and takes statements along.
type queuer interface {
	Queue(sql string, args ...any)
}

// ErrNoPass: the transaction has not passed the gate of the key under which it
// wants to append. Append inside the callback of a commit, with its
// transaction.
var ErrNoPass = errors.New("outbox: the transaction has not passed the gate")

// appendSQL calls append() of migrations/producer, where the pass is checked
// and seq is allotted. One call appends to one topic.
const appendSQL = "select @schema@.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"

// Append adds events to the outbox inside the fenced transaction tx, in the
// given order. They are published if and only if tx commits. The key of each
// is the key of the gate that tx has passed; seq is dense per (topic, key).
//
// Events are checked at once: an [*InvalidEventError] says what could not be
// published, and then none of the call was appended. The statement itself runs
// with COMMIT where tx can queue, and else at once; a transaction without the
// pass gives ErrNoPass.
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
		var same, rest []Event
		for _, e := range checked {
			if e.Topic == topic {
				same = append(same, e)
			} else {
				rest = append(rest, e)
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
	n := len(events)
	ids := make([]uuid.UUID, n)
	aggregates, types, sources := make([]string, n), make([]string, n), make([]string, n)
	subjects, contentTypes, headers := make([]*string, n), make([]*string, n), make([]*string, n)
	payloads := make([][]byte, n)
	for i, e := range events {
		ids[i], aggregates[i], types[i], sources[i] = e.ID, e.AggregateType, e.Type, e.Source
		subjects[i], contentTypes[i], payloads[i] = text(e.Subject), text(e.ContentType), e.Payload
		encoded, err := encodeHeaders(e.Headers)
		if err != nil {
			return fmt.Errorf("outbox: encode headers: %w", err)
		}
		headers[i] = encoded
	}
	sql := schema.Expand(appendSQL, pass.Schema)
	args := []any{pass.Key, pass.Epoch, pass.Token, pass.Step, topic, ids, aggregates, types, subjects, sources, contentTypes, headers, payloads}
	if q, ok := tx.(queuer); ok {
		q.Queue(sql, args...)
		return nil
	}
	_, err := tx.Exec(ctx, sql, args...)
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
