package outbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/outbox/outboxtest"
)

func TestTheTopicIsGivenOrDerivedWhenTheEventIsAppended(t *testing.T) {
	t.Parallel()
	route := func(e outbox.Event) string {
		if e.AggregateType == "" {
			return ""
		}
		return "catalogue." + e.AggregateType + "." + strings.ReplaceAll(e.Type, " ", "-")
	}
	for name, c := range map[string]struct {
		appender      outbox.Appender
		event         outbox.Event
		topic, source string
	}{
		"given":                   {outbox.Appender{Route: route}, outbox.Event{Topic: "quakes", AggregateType: "quake", Type: "x"}, "quakes", "fenceline"},
		"Debezium's by default":   {outbox.Appender{}, outbox.Event{AggregateType: "quake", Type: "x"}, "outbox.event.quake", "fenceline"},
		"by a rule":               {outbox.Appender{Route: route}, outbox.Event{AggregateType: "quake", Type: "was reported"}, "catalogue.quake.was-reported", "fenceline"},
		"no source":               {outbox.Appender{Source: "/catalogue"}, outbox.Event{Topic: "quakes", Type: "x"}, "quakes", "/catalogue"},
		"with source":             {outbox.Appender{Source: "/catalogue"}, outbox.Event{Topic: "quakes", Type: "x", Source: "/mine"}, "quakes", "/mine"},
		"the rule has no answer":  {outbox.Appender{Route: route}, outbox.Event{Type: "x"}, "", ""},
		"the rule gives nonsense": {outbox.Appender{Route: func(outbox.Event) string { return "no topic" }}, outbox.Event{AggregateType: "quake", Type: "x"}, "", ""},
	} {
		r := &outboxtest.Recorder{}
		err := c.appender.Append(t.Context(), r, c.event)
		if c.topic == "" {
			var invalid *outbox.InvalidEventError
			if !errors.As(err, &invalid) || invalid.Field != "topic" {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if e := r.Events()[0]; e.Topic != c.topic || e.Stream != c.topic || e.Source != c.source {
			t.Errorf("%s: topic %q, source %q", name, e.Topic, e.Source)
		}
	}
}
