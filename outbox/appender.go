package outbox

import "context"

// Appender appends with defaults of a producer's own. The zero value does what
// [Append] does.
//
//	events := outbox.Appender{Source: "/catalogue", Route: func(e outbox.Event) string { return "catalogue." + e.AggregateType }}
//	err := events.Append(ctx, tx, outbox.Event{AggregateType: "quake", Type: "quake.reported", Payload: body})
//
// The topic is decided here, once, and stored with the event: the relay never
// routes, since a rule that changes would move a stream in the middle of it. A
// producer that changes its rule begins new streams in the new topics.
type Appender struct {
	// Source is the CloudEvents source of events without one. Defaults to
	// "fenceline".
	Source string
	// Route gives the topic of events without one, from their other fields; the
	// empty text leaves it to the default. Defaults to [DebeziumTopic].
	Route func(e Event) string
}

// DebeziumTopic is how Debezium's outbox event router names topics by default:
// "outbox.event." and AggregateType. It is empty if that is.
func DebeziumTopic(e Event) string {
	if e.AggregateType == "" {
		return ""
	}
	return "outbox.event." + e.AggregateType
}

// Append is [Append] with the defaults of a.
func (a Appender) Append(ctx context.Context, tx Tx, events ...Event) error {
	with := make([]Event, len(events))
	for i, e := range events {
		if e.Source == "" {
			e.Source = a.Source
		}
		if e.Topic == "" && a.Route != nil {
			e.Topic = a.Route(e)
		}
		with[i] = e
	}
	return Append(ctx, tx, with...)
}
