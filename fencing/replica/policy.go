package replica

import (
	"fmt"
	"time"
)

// Policy is where a read may go, and what is done when no replica has got to
// the point. It is one of [Primary], [WaitThenPrimary], [WaitThenPending] and
// [MarkedStale]; the zero value is none. Config.Timeout bounds the whole read
// under each of them.
type Policy struct {
	kind kind
	wait time.Duration
}

type kind int

const (
	kindPrimary kind = iota + 1
	kindWaitThenPrimary
	kindWaitThenPending
	kindMarkedStale
)

// Primary reads from the primary.
func Primary() Policy { return Policy{kind: kindPrimary} }

// WaitThenPrimary waits for a replica to get to the point, at most for wait, and
// then reads from the primary. With no replica left to wait for it does so at
// once.
func WaitThenPrimary(wait time.Duration) Policy { return Policy{kindWaitThenPrimary, wait} }

// WaitThenPending waits for a replica to get to the point, at most for wait, and
// then answers [ErrPending]. It never loads the primary.
func WaitThenPending(wait time.Duration) Policy { return Policy{kindWaitThenPending, wait} }

// MarkedStale waits for a replica to get to the point, at most for wait, which
// may be 0, and then reads from a replica that hasn't, with Result.Stale set.
// Where no replica can be read at all it reads from the primary. Without a point
// every read from a replica counts as stale.
func MarkedStale(wait time.Duration) Policy { return Policy{kindMarkedStale, wait} }

// String names the policy.
func (p Policy) String() string {
	switch p.kind {
	case kindPrimary:
		return "primary"
	case kindWaitThenPrimary:
		return fmt.Sprintf("wait %v then primary", p.wait)
	case kindWaitThenPending:
		return fmt.Sprintf("wait %v then pending", p.wait)
	case kindMarkedStale:
		return fmt.Sprintf("wait %v then stale", p.wait)
	}
	return "none"
}

func (p Policy) validate(point Point) error {
	switch {
	case p.kind == 0:
		return &InvalidError{"policy", "is none: say where the read may go, with WaitThenPrimary for example"}
	case p.wait < 0:
		return &InvalidError{"policy", fmt.Sprintf("waits for %v, want none or a positive duration", p.wait)}
	case point == nil && (p.kind == kindWaitThenPrimary || p.kind == kindWaitThenPending):
		return &InvalidError{"point", "is none, and there is nothing to wait for: give a Position or a Generation, or read MarkedStale"}
	case point == nil:
		return nil
	}
	return point.validate()
}
