package replica

import (
	"errors"
	"fmt"
	"strings"
)

// The answers of a read that are not data. Match them with errors.Is.
var (
	// ErrPending: what was asked for isn't there yet. No replica has got there
	// within the policy's time, or the generation that holds the key has no result
	// yet. The callback did not succeed; ask again later, or ask for [MarkedStale].
	ErrPending = errors.New("pending: what was asked for is not there yet")
	// ErrAhead: the primary itself is behind what was asked for. Commits were
	// lost (a restore, a failover), or the key was closed and swept since, or the
	// point comes from another database.
	ErrAhead = errors.New("the point is ahead of the primary")
	// ErrInvalid: an argument is out of range. The error is an [*InvalidError].
	ErrInvalid = errors.New("invalid argument")
)

// Why a server was not used. The error is a [*RefusedError].
var (
	// ErrBehind: the replica has not replayed up to the point.
	ErrBehind = errors.New("behind")
	// ErrNotReplica: the server that should be a replica is a primary: it was
	// promoted, or its connection string is the primary's.
	ErrNotReplica = errors.New("not a replica but a primary")
	// ErrNotPrimary: the server that should be the primary is a standby.
	ErrNotPrimary = errors.New("not a primary but a standby")
	// ErrOtherCluster: the server is of another cluster, or the connection leads
	// to another database.
	ErrOtherCluster = errors.New("another cluster or database")
	// ErrTimeline: the server is on another timeline than the position, or can't
	// prove that it is on the same.
	ErrTimeline = errors.New("not provably on the position's timeline")
	// ErrRecoveryConflict: the replica cancelled the read, since replay needed
	// what it was reading.
	ErrRecoveryConflict = errors.New("cancelled by a conflict with replay")
	// ErrUnavailable: the server could not be reached in time, or the connection
	// was lost.
	ErrUnavailable = errors.New("unavailable")
)

// RefusedError says why one server was not used.
type RefusedError struct {
	// Server is "primary", or "replica" and its index.
	Server string
	// Answer is the sentinel that the error matches.
	Answer error
	// Reason says more.
	Reason string
	// Cause is the error of the connection or the statement, if there is one.
	Cause error
}

// Error names the server, what is wrong, and the evidence.
func (e *RefusedError) Error() string {
	s := fmt.Sprintf("replica: %s: %v", e.Server, e.Answer)
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Cause != nil {
		s += fmt.Sprintf(": %v", e.Cause)
	}
	return s
}

// Unwrap gives the answer and the cause.
func (e *RefusedError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Answer}
	}
	return []error{e.Answer, e.Cause}
}

// ReadError is a read that gave no data.
type ReadError struct {
	// Answer is [ErrPending], [ErrAhead] or [ErrUnavailable].
	Answer error
	// Point is what was asked for; nil if nothing was.
	Point Point
	// Refusals are the servers that were not used, in the order in which they
	// were tried. errors.Is finds their answers too.
	Refusals []*RefusedError
}

// Error names the point, the answer, and each server with its reason.
func (e *ReadError) Error() string {
	var b strings.Builder
	b.WriteString("replica: read")
	if e.Point != nil {
		fmt.Fprintf(&b, " at %s", e.Point)
	}
	fmt.Fprintf(&b, ": %v", e.Answer)
	for _, r := range e.Refusals {
		b.WriteString("; " + strings.TrimPrefix(r.Error(), "replica: "))
	}
	return b.String()
}

// Unwrap gives the answer and the refusals.
func (e *ReadError) Unwrap() []error {
	all := []error{e.Answer}
	for _, r := range e.Refusals {
		all = append(all, r)
	}
	return all
}

// InvalidError says which argument is out of range and why.
type InvalidError struct {
	Field, Reason string
}

// Error implements error.
func (e *InvalidError) Error() string { return fmt.Sprintf("replica: %s %s", e.Field, e.Reason) }

// Unwrap gives ErrInvalid.
func (e *InvalidError) Unwrap() error { return ErrInvalid }
