package fencing

import "github.com/fenceline/fenceline/internal/gate"

// appends joins the calls of outbox.Append of commits that share a transaction
// into one for each topic, behind everything else: appending is most of what
// they cost, and nothing that a login may do can tell the difference. The order
// of events is that of the commits, and of the calls of each. An error of a
// joined call is nobody's by name; asked again alone, it is.
type appends struct {
	statements []statement
	topics     map[string]int // where in statements
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
	i, ok := a.topics[call.Topic]
	if !ok {
		if a.topics == nil {
			a.topics = map[string]int{}
		}
		a.topics[call.Topic] = len(a.statements)
		a.statements = append(a.statements, s)
		return true
	}
	joined := a.statements[i].args[0].(*gate.Append).With(call)
	a.statements[i].args = []any{joined}
	return true
}
