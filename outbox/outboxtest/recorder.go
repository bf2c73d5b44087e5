package outboxtest

import (
	"sync"
	"testing"

	"github.com/fenceline/fenceline/internal/gate"
	"github.com/fenceline/fenceline/outbox"
)

// Recorder takes the place of a transaction that has passed the gate of Key, for
// code that appends to an outbox.Tx and needs nothing else of it. What is
// appended is checked as always, and kept; it has no positions. The zero value
// is usable.
type Recorder struct {
	// Key is the key of the gate. Defaults to "key".
	Key string

	mu     sync.Mutex
	events []outbox.Record
}

// Gate implements outbox.Tx.
func (r *Recorder) Gate() outbox.Pass {
	key := r.Key
	if key == "" {
		key = "key"
	}
	return outbox.Pass{Schema: "fenceline", Key: key, Epoch: 1, Token: 1}
}

// Queue is what Append calls. Statements that are none of its own are ignored.
func (r *Recorder) Queue(_ string, args ...any) {
	for _, arg := range args {
		if a, ok := arg.(*gate.Append); ok {
			r.keep(a)
		}
	}
}

func (r *Recorder) keep(a *gate.Append) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	for i := range a.IDs {
		e := outbox.Record{
			ID: a.IDs[i].Bytes, Topic: a.Topic, Stream: a.Topic, Key: a.Pass.Key, Kind: outbox.KindData, AggregateType: a.Aggregates[i], Type: a.Types[i],
			Subject: text(a.Subjects[i]), Source: a.Sources[i], ContentType: text(a.ContentTypes[i]), Payload: a.Payloads[i],
		}
		if a.Headers[i] != nil {
			e.Headers, _ = outbox.DecodeHeaders([]byte(*a.Headers[i])) // Append has made it
		}
		r.events = append(r.events, e)
	}
}

// Events are those that were appended, in order within each topic.
func (r *Recorder) Events() []outbox.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]outbox.Record{}, r.events...)
}

// RequireAppended fails the test unless exactly one event matches, and returns
// it.
func (r *Recorder) RequireAppended(t testing.TB, m Match) outbox.Record {
	t.Helper()
	return one(t, r.Events(), m)
}

// RequireNotAppended fails the test if an event matches.
func (r *Recorder) RequireNotAppended(t testing.TB, m Match) {
	t.Helper()
	none(t, r.Events(), m)
}
