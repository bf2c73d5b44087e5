package fencing

import (
	"github.com/fenceline/fenceline/internal/gate"
	"github.com/fenceline/fenceline/internal/schema"
)

// The statements of this package are calls of the functions of
// migrations/producer: what carries correctness, each lock and each predicate
// with its reason, is there. A producer's login has no right but to call them.
type statements struct {
	begin, commit string

	acquire, renew, release, enter, enterOne, enterMany, enterGroup, setResult, append, appendGroup, stillPassed, advance, handOver, rotate, follow string
}

func newStatements(name string, system bool) statements {
	x := func(template string) string { return schema.Expand(template, name) }
	s := statements{
		// Whatever the pool's default is: the check needs READ COMMITTED.
		begin:       "begin isolation level read committed, read write",
		commit:      "commit",
		acquire:     x("select won, epoch, token, holder, expires_at, remaining, reserved, case when won then " + waitedSQL + " end from @schema@.acquire($1, $2, $3, $4, $5, $6, $7)"),
		renew:       x("select key, epoch, token, ok from @schema@.renew($1, $2, $3, $4)"),
		release:     x("select @schema@.release($1, $2, $3)"),
		enter:       x("select @schema@.enter($1, $2, $3, $4, $5, $6, $7)"),
		enterOne:    x("select @schema@.enter($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)"),
		enterMany:   x("select @schema@.enter_many($1, $2, $3, $4, $5, $6, $7)"),
		enterGroup:  x("select @schema@.enter_group($1, $2, $3, $4, $5, $6, $7)"),
		setResult:   x("select @schema@.set_result($1, $2, $3, $4, $5)"),
		append:      x(gate.AppendSQL),
		appendGroup: x("select @schema@.append_group($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"),
		// Fails when the transaction is not the one that passed the gate: with an
		// error, since a result would be read after COMMIT.
		stillPassed: x("select 1 / @schema@.in_gate($1)::int"),
		advance:     x("select epoch, token, " + waitedSQL + " from @schema@.advance($1, $2)"),
		handOver:    x("select @schema@.hand_over($1, $2, $3, $4, $5)"),
		rotate:      x("select epoch, token, " + waitedSQL + " from @schema@.rotate($1, $2, $3, $4, $5)"),
		follow:      x("select @schema@.history_follow()"),
	}
	if system {
		s.acquire = x("select won, epoch, token, holder, expires_at, remaining, reserved, case when won then " + waitedSQL + " end from @schema@.relay_acquire($1, $2, $3, $4, $5, $6, $7)")
		s.renew = x("select key, epoch, token, ok from @schema@.relay_renew($1, $2, $3, $4)")
		s.release = x("select @schema@.relay_release($1, $2, $3)")
		s.handOver = x("select @schema@.relay_hand_over($1, $2, $3, $4, $5)")
	}
	return s
}
