package gate

import (
	"context"
	"sync"

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

var appendSQL sync.Map // of schema

// InSchema is AppendSQL in a schema.
func InSchema(name string) string { return inSchema(name)[0] }

// inSchema is AppendSQL and appendOneSQL, which each append asks for.
func inSchema(name string) [2]string {
	if known, ok := appendSQL.Load(name); ok {
		return known.([2]string)
	}
	sql := [2]string{schema.Expand(AppendSQL, name), schema.Expand(appendOneSQL, name)}
	appendSQL.Store(name, sql)
	return sql
}

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
		return inSchema(a.Pass.Schema)[1], append([]any{a.Pass.Key, a.Pass.Epoch, a.Pass.Token, a.Pass.Step}, a.Event()...), nil
	}
	return sql, []any{a.Pass.Key, a.Pass.Epoch, a.Pass.Token, a.Pass.Step, a.Topic, a.IDs, a.Aggregates, a.Types, a.Subjects, a.Sources, a.ContentTypes, a.Headers, a.Payloads}, nil
}

// Join is the events of all calls, one call's behind the other's, under the first
// one's pass. All must be of one topic.
func Join(calls []*Append) *Append {
	if len(calls) == 1 {
		return calls[0]
	}
	n := 0
	for _, c := range calls {
		n += len(c.IDs)
	}
	all := New(calls[0].Pass, calls[0].Topic, n)
	for _, c := range calls {
		all.IDs, all.Aggregates, all.Types, all.Subjects = append(all.IDs, c.IDs...), append(all.Aggregates, c.Aggregates...), append(all.Types, c.Types...), append(all.Subjects, c.Subjects...)
		all.Sources, all.ContentTypes, all.Headers, all.Payloads = append(all.Sources, c.Sources...), append(all.ContentTypes, c.ContentTypes...), append(all.Headers, c.Headers...), append(all.Payloads, c.Payloads...)
	}
	return all
}

// New is a call without events yet, with room for n.
func New(pass Pass, topic string, n int) *Append {
	texts, values := make([]string, 3*n), make([]*string, 3*n) // a column behind the other
	return &Append{
		Pass: pass, Topic: topic, IDs: make([]pgtype.UUID, 0, n), Payloads: make([][]byte, 0, n),
		Aggregates: texts[:0:n], Types: texts[n : n : 2*n], Sources: texts[2*n : 2*n : 3*n],
		Subjects: values[:0:n], ContentTypes: values[n : n : 2*n], Headers: values[2*n : 2*n : 3*n],
	}
}
