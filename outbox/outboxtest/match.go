package outboxtest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

// Querier is what reads the outbox: a pool, a connection or a transaction. Its
// login must be allowed to read payloads: a superuser's, or one with the role
// fenceline_relay.
type Querier interface {
	// Query runs a statement.
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Match says which events are meant. Fields that are left out match any.
type Match struct {
	// Schema is the schema of the outbox. Defaults to "fenceline".
	Schema string
	// Topic, Key, Type and Subject are those of the event.
	Topic, Key, Type, Subject string
	// Payload, if not nil, is compared byte by byte.
	Payload []byte
	// Header, if its name is not empty, must be among the event's headers.
	Header outbox.Header
}

func (m Match) matches(r outbox.Record) bool {
	is := func(want, have string) bool { return want == "" || want == have }
	return is(m.Topic, r.Topic) && is(m.Key, r.Key) && is(m.Type, r.Type) && is(m.Subject, r.Subject) &&
		(m.Payload == nil || r.Payload != nil && bytes.Equal(m.Payload, r.Payload)) &&
		(m.Header.Name == "" || slices.Contains(r.Headers, m.Header))
}

// String names the fields that count.
func (m Match) String() string {
	var b []string
	for _, f := range []struct{ name, value string }{{"topic", m.Topic}, {"key", m.Key}, {"type", m.Type}, {"subject", m.Subject}} {
		if f.value != "" {
			b = append(b, fmt.Sprintf("%s %q", f.name, f.value))
		}
	}
	if m.Payload != nil {
		b = append(b, fmt.Sprintf("payload %.200q", m.Payload))
	}
	if m.Header.Name != "" {
		b = append(b, fmt.Sprintf("header %s: %.100q", m.Header.Name, m.Header.Value))
	}
	if len(b) == 0 {
		return "any event"
	}
	return "an event with " + strings.Join(b, ", ")
}

const eventsSQL = `select id, aggregatetype, type, payload, topic, key, epoch, token, seq, kind, coalesce(subject, ''), source, coalesce(contenttype, ''), headers::text, pos, created_at
from @schema@.outbox where kind = 'data' order by pos`

// Events gives the events of the outbox that match, in the order of their
// appends: those that q sees, so of its own transaction also what is not
// committed. End records are left out.
func Events(ctx context.Context, q Querier, m Match) ([]outbox.Record, error) {
	all, err := read(ctx, q, m.Schema)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(r outbox.Record) bool { return !m.matches(r) }), nil
}

func read(ctx context.Context, q Querier, name string) ([]outbox.Record, error) {
	if name == "" {
		name = schema.Default
	}
	if err := schema.Validate(name); err != nil {
		return nil, fmt.Errorf("outboxtest: %w", err)
	}
	rows, err := q.Query(ctx, schema.Expand(eventsSQL, name))
	if err == nil {
		var all []outbox.Record
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r outbox.Record, err error) {
			var headers *string
			var kind string
			err = row.Scan((*[16]byte)(&r.ID), &r.AggregateType, &r.Type, &r.Payload, &r.Topic, &r.Key, &r.Epoch, &r.Token, &r.Seq, &kind, &r.Subject, &r.Source, &r.ContentType, &headers, &r.Pos, &r.CreatedAt)
			r.Stream, r.Kind = r.Topic, outbox.Kind(kind)
			if err == nil && headers != nil {
				r.Headers, err = outbox.DecodeHeaders([]byte(*headers))
			}
			return r, err
		})
		if err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("outboxtest: read the outbox (the login needs the right to read payloads): %w", err)
}

// RequireAppended fails the test unless exactly one event matches, and returns
// it.
func RequireAppended(t testing.TB, q Querier, m Match) outbox.Record {
	t.Helper()
	all, err := read(context.WithoutCancel(t.Context()), q, m.Schema)
	if err != nil {
		t.Fatal(err)
	}
	return one(t, all, m)
}

// RequireNotAppended fails the test if an event matches.
func RequireNotAppended(t testing.TB, q Querier, m Match) {
	t.Helper()
	all, err := read(context.WithoutCancel(t.Context()), q, m.Schema)
	if err != nil {
		t.Fatal(err)
	}
	none(t, all, m)
}

func one(t testing.TB, all []outbox.Record, m Match) outbox.Record {
	t.Helper()
	var found []outbox.Record
	for _, r := range all {
		if m.matches(r) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 1:
		return found[0]
	case 0:
		t.Fatalf("outboxtest: %s was not appended. In the outbox: %s\nA commit sends its events with COMMIT: look after it has returned, or inside a transaction of Enter.", m, list(all))
	default:
		t.Fatalf("outboxtest: %d events match %s: %s\nMatch more of its fields, or use Events for several.", len(found), m, list(found))
	}
	return outbox.Record{}
}

func none(t testing.TB, all []outbox.Record, m Match) {
	t.Helper()
	for _, r := range all {
		if m.matches(r) {
			t.Fatalf("outboxtest: %s was appended: %s", m, list([]outbox.Record{r}))
		}
	}
}

// list names events, a few of them.
func list(records []outbox.Record) string {
	const most = 20
	if len(records) == 0 {
		return "nothing"
	}
	var b strings.Builder
	for i, r := range records {
		if i == most {
			fmt.Fprintf(&b, "\n  and %d more", len(records)-most)
			break
		}
		fmt.Fprintf(&b, "\n  topic %q, key %q, type %q, subject %q, payload %.60q", r.Topic, r.Key, r.Type, r.Subject, r.Payload)
	}
	return b.String()
}
