package consumer

import (
	"errors"
	"fmt"
)

var (
	// ErrIsolation is returned for a transaction that is not READ COMMITTED.
	// Under a stricter level the guard's lock doesn't show what was committed
	// while waiting for it. Begin the transaction with
	// pgx.TxOptions{IsoLevel: pgx.ReadCommitted}.
	ErrIsolation = errors.New("consumer: the transaction is not READ COMMITTED")
	// ErrStreamChanged is matched by every [*StreamChangedError].
	ErrStreamChanged = errors.New("consumer: the stream has guards of another policy or start")
)

// StreamChangedError says that a stream is configured otherwise than when its
// first guard was written. What the guards remember means something else
// under another policy, so it can't be changed under way: go back to the old
// setting, or take a new consumer name, which reads everything anew.
type StreamChangedError struct {
	Consumer, Stream       string
	HavePolicy, WantPolicy Policy
	HaveStart, WantStart   Start
}

// Error implements error.
func (e *StreamChangedError) Error() string {
	return fmt.Sprintf("consumer: stream %q of consumer %q has guards for policy %s, start %s, but is configured as %s, %s: restore the setting or use a new consumer name",
		e.Stream, e.Consumer, e.HavePolicy, e.HaveStart, e.WantPolicy, e.WantStart)
}

// Is makes errors.Is(err, ErrStreamChanged) true.
func (e *StreamChangedError) Is(target error) bool { return target == ErrStreamChanged }

// HandlerError says which event a handler failed on. The transaction has been
// rolled back. If Delivery.Resumed is set, the event was not one of those handed to
// Apply but a parked one whose turn had come: to go on without it, call
// [Guard.Fail] in a transaction of its own. Otherwise call Apply again with
// that delivery's Failed set.
type HandlerError struct {
	// Index is the place of the delivery among those handed to Apply: of the
	// one that was being decided, if the event came out of the park.
	Index    int
	Delivery Delivery
	Err      error
}

// Error implements error.
func (e *HandlerError) Error() string {
	from := ""
	if e.Delivery.Resumed {
		from = " (out of the park)"
	}
	return fmt.Sprintf("consumer: handler failed on %s%s: %v", e.Delivery.Position(), from, e.Err)
}

// Unwrap returns the handler's own error.
func (e *HandlerError) Unwrap() error { return e.Err }

// PanicError is a handler's panic, as the error of the event that caused it.
type PanicError struct {
	// Value is what was handed to panic, Stack the goroutine's stack there.
	Value any
	Stack []byte
}

// Error implements error.
func (e *PanicError) Error() string {
	return fmt.Sprintf("consumer: the handler panicked: %v", e.Value)
}

// ErrRowsOpen is matched by the error of an event whose handler has left rows
// (or the results of a batch) open, or has sent a statement while they were:
// nothing more can be sent on the connection then, and nothing be committed. It
// counts as rejected, see [Reject].
var ErrRowsOpen = errors.New("consumer: the handler left rows open")

type rowsOpenError struct{ err error } // err may be nil

func (e *rowsOpenError) Error() string {
	s := ErrRowsOpen.Error() + ", so that nothing more could be sent on its transaction: close the rows (or the batch's results) before the next statement and before returning"
	if e.err != nil {
		s += ": " + e.err.Error()
	}
	return s
}

func (e *rowsOpenError) Is(target error) bool { return target == ErrRowsOpen }
func (e *rowsOpenError) Unwrap() error        { return e.err }

// Reject marks a handler's error as lasting: trying again can't help, as when
// the event contradicts what is in the database. A strict stream then parks
// the event and what follows of its key until an operator has decided; a
// state stream writes a dead letter and goes on. Reject(nil) is nil.
func Reject(err error) error {
	if err == nil {
		return nil
	}
	return &rejectedError{err}
}

// IsRejected tells whether err comes from [Reject].
func IsRejected(err error) bool {
	var r *rejectedError
	return errors.As(err, &r)
}

type rejectedError struct{ err error }

func (e *rejectedError) Error() string { return e.err.Error() }
func (e *rejectedError) Unwrap() error { return e.err }
