package fencing

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fenceline/fenceline/internal/gate"
	"github.com/jackc/pgx/v5/pgconn"
)

// appends joins the calls of outbox.Append of commits that share a transaction
// into one for each topic, behind everything else: appending is most of what
// they cost, and nothing that a login may do can tell the difference. The order
// of events is that of the commits, and of the calls of each. An error of a
// joined call is nobody's by name; asked again alone, it is.
type appends struct {
	group      bool           // of several keys
	calls      []*gate.Append // of a group
	topics     []string       // in the order of their first calls
	topicCalls map[string][]*gate.Append
}

// sent is what is to be sent for the calls that were taken.
func (a *appends) sent(f *Fences) []statement {
	if len(a.calls) > 0 {
		return []statement{f.appendGroup(a.calls)}
	}
	var statements []statement
	for _, topic := range a.topics {
		statements = append(statements, statement{sql: f.sql.append, args: []any{gate.Join(a.topicCalls[topic])}})
	}
	return statements
}

// along is the append that a gate takes along in the call of a batch of its own:
// the first one, where it is of a single event. Its index is -1 for none. That
// event then comes before everything else that is queued, which nothing that a
// login may do can tell.
func (f *Fences) along(queued []statement) (at int, event []any) {
	for i, s := range queued {
		if s.sql != f.sql.append || len(s.args) != 1 {
			continue
		}
		if call, ok := s.args[0].(*gate.Append); ok && call.One() {
			return i, call.Event()
		}
		break
	}
	return -1, nil
}

// tookAlong gives the error of a commit whose gate took the statement at along
// with it the words that it would have had otherwise.
func (f *Fences) tookAlong(along int, o outcome, key string, err error) error {
	if s, ok := errors.AsType[*StatementError](err); ok {
		if s.Index >= along {
			s.Index++
		}
		return err
	}
	if pg, ok := errors.AsType[*pgconn.PgError](o.err); ok && o.fate == refused && o.at == gateAt && strings.HasPrefix(pg.TableName, "outbox") {
		return fmt.Errorf("fencing: commit of %q: nothing was written: %w", key, &StatementError{along, f.sql.append, o.err})
	}
	return err
}

// take takes a statement that is such a call.
func (a *appends) take(f *Fences, s statement) bool {
	if s.sql != f.sql.append || len(s.args) != 1 {
		return false
	}
	call, ok := s.args[0].(*gate.Append)
	if !ok {
		return false
	}
	if a.group {
		a.calls = append(a.calls, call)
		return true
	}
	if a.topicCalls == nil {
		a.topicCalls = map[string][]*gate.Append{}
	}
	if a.topicCalls[call.Topic] == nil {
		a.topics = append(a.topics, call.Topic)
	}
	a.topicCalls[call.Topic] = append(a.topicCalls[call.Topic], call)
	return true
}
