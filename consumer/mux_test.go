package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

func TestAMuxHandsAnEventToTheHandlerOfItsTypeAndRejectsWhatItDoesNotKnow(t *testing.T) {
	var m consumer.Mux
	var got string
	for _, eventType := range []string{"b", "a"} {
		m.On(eventType, func(_ context.Context, _ pgx.Tx, d consumer.Delivery) error { got += eventType + d.Key; return nil })
	}
	handle := func(eventType string) error {
		got = ""
		return m.Handle(context.Background(), nil, consumer.Delivery{Record: outbox.Record{Type: eventType, Key: "k"}})
	}
	for _, eventType := range m.Types() {
		if err := handle(eventType); err != nil || got != eventType+"k" {
			t.Errorf("%s: %q, %v", eventType, got, err)
		}
	}
	err := handle("c")
	if !consumer.IsRejected(err) || !errors.Is(err, consumer.ErrUnknownType) {
		t.Errorf("an unknown type: %v", err)
	}
	m.Fallback = consumer.Ignore
	if err := handle("c"); err != nil || got != "" {
		t.Errorf("with a fallback: %q, %v", got, err)
	}
}

func TestAMuxRefusesWhatCanOnlyBeAMistake(t *testing.T) {
	for name, mistake := range map[string]func(*consumer.Mux){
		"twice": func(m *consumer.Mux) { m.On("a", consumer.Ignore.Handle); m.On("a", consumer.Ignore.Handle) },
		"nil":   func(m *consumer.Mux) { m.On("a", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it was taken")
				}
			}()
			mistake(new(consumer.Mux))
		})
	}
}

func TestTheTraceContextIsTheProducersOrNone(t *testing.T) {
	h := func(pairs ...string) (hs []outbox.Header) {
		for i := 0; i < len(pairs); i += 2 {
			hs = append(hs, outbox.Header{Name: pairs[i], Value: pairs[i+1]})
		}
		return hs
	}
	for name, c := range map[string]struct {
		headers       []outbox.Header
		parent, state string
	}{
		"none":           {nil, "", ""},
		"both":           {h("traceparent", "00-1", "x", "y", "tracestate", "a=1"), "00-1", "a=1"},
		"folded case":    {h("TraceParent", "00-1"), "00-1", ""},
		"two parents":    {h("traceparent", "00-1", "traceparent", "00-2", "tracestate", "a=1"), "", ""},
		"state in parts": {h("traceparent", "00-1", "tracestate", "a=1", "tracestate", "b=2"), "00-1", "a=1,b=2"},
		"state alone":    {h("tracestate", "a=1"), "", ""},
	} {
		d := consumer.Delivery{Record: outbox.Record{Headers: c.headers}}
		if p, s := d.TraceContext(); p != c.parent || s != c.state {
			t.Errorf("%s: %q, %q", name, p, s)
		}
	}
}
