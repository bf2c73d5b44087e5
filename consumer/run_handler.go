package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// HandlerTimeoutError says that a handler took longer than
// Config.HandlerTimeout. It counts as a failure of the event, although the
// connection is lost with it: an event that hangs for ever must not be tried
// for ever.
type HandlerTimeoutError struct {
	After time.Duration
	// Err is what the handler returned.
	Err error
}

// Error implements error.
func (e *HandlerTimeoutError) Error() string {
	return fmt.Sprintf("consumer: the handler exceeded Config.HandlerTimeout (%v): %v", e.After, e.Err)
}

// Unwrap gives the handler's error.
func (e *HandlerTimeoutError) Unwrap() error { return e.Err }

// ErrNotYours is returned to a handler that commits or rolls back the
// transaction that it was lent, or begins another one in it. What it has done
// must stand or fall with the guard.
var ErrNotYours = errors.New("consumer: a handler must neither commit nor roll back the transaction that it was given: return nil or an error instead")

// ErrExited is matched by the error with which [Run] ends when a handler (or
// another function of the configuration) has ended its goroutine instead of
// returning: by runtime.Goexit, as t.Fatal and t.FailNow of package testing do.
// Nothing of its transaction was committed. Return an error instead.
var ErrExited = errors.New("consumer: a handler has ended its goroutine (runtime.Goexit, as t.Fatal does) instead of returning")

// errExited names the event, where one is known.
func (r *runner) errExited() error {
	if at := r.exited.Load(); at != nil {
		return fmt.Errorf("%w: that of %s; return an error, and call t.Fatal where the test waits", ErrExited, *at)
	}
	return fmt.Errorf("%w: the mapping, the observer or the sink of dead letters", ErrExited)
}

// bounded is a handler whose context ends, and whose transaction isn't its own.
type bounded struct {
	Handler
	timeout time.Duration
	exited  *atomic.Pointer[Position] // is told of the event whose handler didn't return
}

// Handle implements Handler.
func (b bounded) Handle(ctx context.Context, tx pgx.Tx, d Delivery) (err error) {
	hctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	lent := lend(tx)
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
			return
		}
		at := d.Position() // neither returned nor panicked: the goroutine exits
		b.exited.Store(&at)
	}()
	err = b.Handler.Handle(hctx, lent, d)
	returned = true
	switch {
	case ended(hctx) && ctx.Err() == nil:
		// Also when it says that it has succeeded: by then the server may have
		// ended its session, and which event that was would not be known.
		if err == nil {
			err = hctx.Err()
		}
		return &HandlerTimeoutError{b.timeout, err}
	case lent.tried != "":
		// Also when it has swallowed the error: it believes that what it wrote is
		// committed, or gone.
		return Reject(fmt.Errorf("%w (it sent %.60q)", ErrNotYours, lent.tried))
	}
	return err
}
