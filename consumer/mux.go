package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// Mux is a [Handler] that hands an event to the handler of its type. The zero
// value is ready to use. Register everything before it is used.
//
//	var m consumer.Mux
//	m.On("quake.reported", model.Reported)
//	m.On("quake.withdrawn", model.Withdrawn)
//	err := consumer.Run(ctx, pool, source, cfg, &m)
//
// An event of another type goes to Fallback. Without one it is rejected with an
// [*UnknownTypeError]: a type that a service doesn't know may be one that it has
// not learned yet, and leaving that out is a hole. A strict stream waits at it,
// and goes on when the service was taught and the event is retried; a state
// stream writes a dead letter. Whoever means to leave types out says so, with
// Fallback: consumer.Ignore.
type Mux struct {
	// Fallback is for the types that no handler is registered for. Defaults to
	// one that rejects.
	Fallback Handler

	handlers map[string]HandlerFunc
}

// On registers the handler of a type. It panics when the type has one already,
// or h is nil: both are mistakes in the program.
func (m *Mux) On(eventType string, h HandlerFunc) {
	if h == nil {
		panic("consumer: Mux.On: no handler for type " + eventType)
	}
	if _, twice := m.handlers[eventType]; twice {
		panic("consumer: Mux.On: two handlers for type " + eventType)
	}
	if m.handlers == nil {
		m.handlers = make(map[string]HandlerFunc)
	}
	m.handlers[eventType] = h
}

// Types lists the types that have a handler, sorted.
func (m *Mux) Types() []string { return slices.Sorted(maps.Keys(m.handlers)) }

// Handle implements [Handler].
func (m *Mux) Handle(ctx context.Context, tx pgx.Tx, d Delivery) error {
	h, ok := m.handlers[d.Type]
	switch {
	case ok:
		return h(ctx, tx, d)
	case m.Fallback != nil:
		return m.Fallback.Handle(ctx, tx, d)
	}
	return Reject(&UnknownTypeError{d.Type})
}

// Ignore is a handler that does nothing: the event counts as applied.
var Ignore Handler = HandlerFunc(func(context.Context, pgx.Tx, Delivery) error { return nil })

// ErrUnknownType is matched by every [*UnknownTypeError].
var ErrUnknownType = errors.New("consumer: no handler for this type of event")

// UnknownTypeError says that a [Mux] has no handler for an event's type.
type UnknownTypeError struct{ Type string }

// Error implements error.
func (e *UnknownTypeError) Error() string {
	return fmt.Sprintf("consumer: no handler for events of type %.100q: register one and retry the event, or set a fallback", e.Type)
}

// Is makes errors.Is(err, ErrUnknownType) true.
func (e *UnknownTypeError) Is(target error) bool { return target == ErrUnknownType }
