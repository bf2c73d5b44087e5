package gate

import (
	"context"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// AppendSQL is the call by which outbox appends, for schema.Expand; its one
// argument is an *Append. Whoever queues it has the pass checked where it runs,
// which fencing counts on.
const AppendSQL = "select @schema@.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"

// appendOneSQL takes its place for a single event.
const appendOneSQL = "select @schema@.append_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)"

// Append is the arguments of one call: the pass, and the events of one topic
// as columns. Package fencing joins the calls of commits that share a
// transaction.
type Append struct {
	Pass         Pass
	Topic        string
	IDs          []pgtype.UUID // a type that also goes without asking the server for the parameters' types
	Aggregates   []string
	Types        []string
	Subjects     []*string
	Sources      []string
	ContentTypes []*string
	Headers      []*string
	Payloads     [][]byte

	// Refused is why the call was not queued, set by the Queue that was given it:
	// Queue returns nothing, and may be behind a wrapper of the caller's. Nil if it
	// was.
	Refused error
}

var _ pgx.QueryRewriter = (*Append)(nil)

// One says that the call appends a single event, which goes without arrays.
func (a *Append) One() bool { return len(a.IDs) == 1 }

// Event is that event, as enter and append_one take it: from the topic on.
func (a *Append) Event() []any {
	return []any{a.Topic, a.IDs[0], a.Aggregates[0], a.Types[0], a.Subjects[0], a.Sources[0], a.ContentTypes[0], a.Headers[0], a.Payloads[0]}
}

// RewriteQuery spreads the arguments out where pgx sends the call.
func (a *Append) RewriteQuery(_ context.Context, _ *pgx.Conn, sql string, _ []any) (string, []any, error) {
	if a.One() {
		return schema.Expand(appendOneSQL, a.Pass.Schema), append([]any{a.Pass.Key, a.Pass.Epoch, a.Pass.Token, a.Pass.Step}, a.Event()...), nil
	}
	return sql, []any{a.Pass.Key, a.Pass.Epoch, a.Pass.Token, a.Pass.Step, a.Topic, a.IDs, a.Aggregates, a.Types, a.Subjects, a.Sources, a.ContentTypes, a.Headers, a.Payloads}, nil
}

// With is a's events and then b's, under a's pass. Both must be of one topic.
func (a *Append) With(b *Append) *Append {
	return &Append{
		Pass: a.Pass, Topic: a.Topic,
		IDs: join(a.IDs, b.IDs), Aggregates: join(a.Aggregates, b.Aggregates), Types: join(a.Types, b.Types),
		Subjects: join(a.Subjects, b.Subjects), Sources: join(a.Sources, b.Sources), ContentTypes: join(a.ContentTypes, b.ContentTypes),
		Headers: join(a.Headers, b.Headers), Payloads: join(a.Payloads, b.Payloads),
	}
}

// join does not write behind the end of a, which its owner may use.
func join[T any](a, b []T) []T { return append(a[:len(a):len(a)], b...) }
