package consumer

import (
	"context"
	"fmt"
	"strings"

	"github.com/fenceline/fenceline/outbox"
	"github.com/jackc/pgx/v5"
)

// Delivery is one copy of a record, as it came from Kafka or out of the park.
type Delivery struct {
	// Record is the record as parsed. Of a malformed one only Topic can be
	// relied on.
	outbox.Record
	// Partition and Offset say where this copy lies in Record.Topic.
	Partition int
	Offset    int64
	// Attempt counts the tries of this event from 1 on; it starts again at 1
	// when the process does, except for an event that was parked. It is for logs.
	Attempt int
	// Resumed says that the event waited in the park and that its turn has
	// come now.
	Resumed bool
	// Malformed is the error with which the record was refused by
	// [outbox.ParseWire]; nil for a good one. A malformed record is
	// quarantined, never handled.
	Malformed error
	// Failed tells [Guard.Apply] that the handler fails on this event for good,
	// and why: where the table says apply, the handler isn't called; a strict
	// stream parks the event and what follows it, a state stream writes a dead
	// letter. Everything else is decided as usual.
	Failed error
	// Raw is the record as Kafka has it. It is what parks, dead letters and
	// quarantine store, so that nothing of a record is lost; where it is empty
	// they store what Record says.
	Raw KafkaRecord

	origin origin
	id     int64 // in the quarantine
}

// origin is where a delivery comes from.
type origin int

const (
	fromKafka origin = iota
	fromPark
	fromDead
	fromQuarantine
)

// NewDelivery reads a Kafka record in this project's wire format, as
// Mapping(Wire).Delivery does. It never fails: a record that can't be read has
// Malformed set, and Apply then quarantines it.
func NewDelivery(p Partition, r KafkaRecord) Delivery { return Mapping(Wire).Delivery(p, r) }

// TraceContext gives the W3C trace context that the producer sent along, as it
// is: the headers traceparent and tracestate. Both are empty if there is none,
// or more than one, which could not be told apart.
func (d *Delivery) TraceContext() (traceparent, tracestate string) {
	parents, states := 0, 0
	for _, h := range d.Headers {
		switch {
		case strings.EqualFold(h.Name, "traceparent"):
			traceparent = h.Value
			parents++
		case strings.EqualFold(h.Name, "tracestate"):
			// The only header of the two that may be there in several parts.
			if states++; states > 1 {
				tracestate += ","
			}
			tracestate += h.Value
		}
	}
	if parents != 1 {
		return "", ""
	}
	return traceparent, tracestate
}

// Position says where the event stands in its stream.
func (d *Delivery) Position() Position {
	return Position{StreamKey{d.Stream, d.Key}, d.Epoch, d.Seq, d.kind()}
}

func (d *Delivery) kind() outbox.Kind { return kindOf(&d.Record) }

func kindOf(r *outbox.Record) outbox.Kind {
	if r.Kind == "" {
		return outbox.KindData
	}
	return r.Kind
}

// raw is what is stored of the record.
func (d *Delivery) raw() KafkaRecord {
	if d.Raw.Key != nil || d.Raw.Value != nil || d.Raw.Headers != nil {
		return d.Raw
	}
	return KafkaRecord{
		Offset:  d.Offset,
		Time:    d.CreatedAt,
		Key:     []byte(d.Key),
		Value:   outbox.WireValue(&d.Record),
		Headers: outbox.AppendWireHeaders(nil, &d.Record),
	}
}

// StreamKey names a stream: the topic its events were appended to, and their
// key. It has one guard per consumer.
type StreamKey struct {
	Stream, Key string
}

// String is stream and key, as in "quakes[ci]".
func (k StreamKey) String() string { return fmt.Sprintf("%s[%s]", k.Stream, k.Key) }

// Position is the place of a record in its stream, and what kind of record is
// there: a skip marker has the position of the last event that it gives up.
type Position struct {
	StreamKey
	Epoch, Seq int64
	Kind       outbox.Kind
}

// String is the position as in "quakes[ci] 1764444716000000/7", with the kind
// where it is not data.
func (p Position) String() string {
	s := fmt.Sprintf("%s %d/%d", p.StreamKey, p.Epoch, p.Seq)
	if p.Kind != outbox.KindData && p.Kind != "" {
		s += " " + string(p.Kind)
	}
	return s
}

// A Handler applies events to the consumer's own tables.
type Handler interface {
	// Handle applies one event, with statements of tx only: they commit
	// together with the guard, or not at all. It must neither commit nor roll
	// back tx. It can be called again for an event whose transaction did not
	// commit, so it must touch nothing else. An event that must be refused for
	// good is answered with [Reject]; any other error is taken as passing until
	// it has lasted.
	Handle(ctx context.Context, tx pgx.Tx, d Delivery) error
}

// HandlerFunc is a function as a [Handler].
type HandlerFunc func(ctx context.Context, tx pgx.Tx, d Delivery) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, tx pgx.Tx, d Delivery) error { return f(ctx, tx, d) }
