package outbox

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
)

// MaxRecordBytes is the largest record that can be appended, as encoded for
// Kafka: key, headers and payload. 900 KiB leave room below the brokers'
// default max.message.bytes of 1 MiB.
const MaxRecordBytes = 900 << 10

// Event is what a producer appends. Type is required, and Topic or
// AggregateType.
type Event struct {
	// ID identifies the event. Defaults to a new UUIDv7.
	ID uuid.UUID
	// Topic is the Kafka topic. The event is in the stream (topic, key of the
	// fence) from now on, wherever copies of it go. Defaults to
	// what an [Appender] derives, or [DebeziumTopic].
	Topic string
	// AggregateType is what kind of thing the key is. Defaults to Topic.
	AggregateType string
	// Type is what happened, such as "quake.reported".
	Type string
	// Subject is what it happened to, within the key. Optional.
	Subject string
	// Source is the CloudEvents source: who says so. Defaults to "fenceline".
	Source string
	// ContentType is the content type of Payload. Defaults to
	// "application/json".
	ContentType string
	// Headers travel with the event, such as traceparent. Names must be
	// printable ASCII; those that begin with "ce_", and content-type, are ours.
	Headers []Header
	// Payload is the data. Nil is a tombstone, which is not the same as empty.
	Payload []byte
}

// InvalidEventError is returned by [Append] for an event that could not be
// published, or not read on the other side. Nothing of the call was appended;
// roll back.
type InvalidEventError struct {
	// Field is the field of the event at fault.
	Field string
	// Reason says what is wrong and what is allowed.
	Reason string
}

// Error implements error.
func (e *InvalidEventError) Error() string {
	return fmt.Sprintf("outbox: event %s %s", e.Field, e.Reason)
}

// IsTopic tells whether Kafka takes the name for a topic: 1 to 249 of
// a-z A-Z 0-9 . _ -, and neither "." nor "..". So is every stream named, since
// it is the topic that its events were appended to.
func IsTopic(name string) bool {
	if name == "" || len(name) > 249 || name == "." || name == ".." {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

func (e Event) withDefaults() Event {
	if e.ID == uuid.Nil {
		e.ID = uuid.Must(uuid.NewV7()) // fails only where the system has no randomness
	}
	if e.Topic == "" {
		e.Topic = DebeziumTopic(e)
	}
	if e.AggregateType == "" {
		e.AggregateType = e.Topic
	}
	if e.Source == "" {
		e.Source = "fenceline"
	}
	if e.ContentType == "" {
		e.ContentType = "application/json"
	}
	return e
}

func (e Event) validate(key string) error {
	if e.Topic == "" {
		return &InvalidEventError{"topic", "is empty: set Topic, or AggregateType to derive it from"}
	}
	if !IsTopic(e.Topic) {
		return &InvalidEventError{"topic", fmt.Sprintf("%.60q is not one that Kafka takes: 1 to 249 of a-z A-Z 0-9 . _ -", e.Topic)}
	}
	for _, f := range []struct {
		name, value string
		limit       int
		required    bool
	}{
		{"type", e.Type, 255, true}, {"aggregate type", e.AggregateType, 255, true}, {"source", e.Source, 1024, true},
		{"subject", e.Subject, 1024, false}, {"content type", e.ContentType, 255, true},
	} {
		switch {
		case f.value == "" && f.required:
			return &InvalidEventError{f.name, "is empty"}
		case len(f.value) > f.limit:
			return &InvalidEventError{f.name, fmt.Sprintf("has %d bytes, want at most %d", len(f.value), f.limit)}
		case !cleanText(f.value):
			return &InvalidEventError{f.name, "must be UTF-8 without NUL, CR and LF"}
		}
	}
	for i, h := range e.Headers {
		field := fmt.Sprintf("header %d", i)
		switch {
		case !headerName(h.Name):
			return &InvalidEventError{field, fmt.Sprintf("has the name %.40q, want 1 to 255 printable ASCII characters without space and colon", h.Name)}
		case reservedHeader(h.Name):
			return &InvalidEventError{field, fmt.Sprintf("has the name %q, which is ours: ce_* and content-type come from the event's fields", h.Name)}
		case !cleanText(h.Value):
			return &InvalidEventError{field, fmt.Sprintf("%q has a value that is not UTF-8 without NUL, CR and LF", h.Name)}
		}
	}
	if e.isSmall(key) {
		return nil
	}
	if n := max(e.encodedSize(key), e.storedSize(key)); n > MaxRecordBytes {
		return &InvalidEventError{"payload", fmt.Sprintf("makes a record of %d bytes with key and headers, want at most %d: put large data elsewhere and send a reference", n, MaxRecordBytes)}
	}
	return nil
}

// isSmall says that the event's size is no question, which spares encoding the
// headers of nearly all events: payload and headers leave room for all the rest,
// whose lengths are bounded.
func (e Event) isSmall(key string) bool {
	n := len(e.Payload) + 3*len(key)
	for _, h := range e.Headers {
		n += maxEscaped * (len(h.Name) + len(h.Value) + maxFrame)
	}
	return n < MaxRecordBytes-maxOthers
}

const (
	maxEscaped = 6        // \u0001, the longest that JSON makes of a byte
	maxFrame   = 10       // two lengths, or the quotes and what separates
	maxOthers  = 16 << 10 // topic, and the fields that validate bounds
)

// storedSize is what the check of the outbox table counts, so that what passes
// here passes there. It is the smaller one, unless headers are large and need
// escapes.
func (e Event) storedSize(key string) int {
	n := 2*len(key) + len(e.Topic) + len(e.Type) + len(e.Source) + len(e.Subject) + len(e.Payload)
	for _, h := range e.Headers {
		n += jsonSize(h.Name) + jsonSize(h.Value)
	}
	return n
}

// jsonSize is the size of a string in the database's JSON text, with its
// quotes and what separates it from the next one.
func jsonSize(s string) int {
	n := len(s) + 4
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"', c == '\\', c == '\b', c == '\f', c == '\n', c == '\r', c == '\t':
			n++
		case c < ' ':
			n += 5
		}
	}
	return n
}

// encodedSize is the size of the event's Kafka record, rounded up: every
// varint is counted with the most bytes that it can take.
func (e Event) encodedSize(key string) int {
	r := Record{
		ID: e.ID, Type: e.Type, Source: e.Source, Subject: e.Subject, ContentType: e.ContentType, Topic: e.Topic, Stream: e.Topic, Key: key,
		// With all that a record can carry at the start of a life.
		History: 1, Prev: &Prev{1, 1}, Headers: e.Headers, Payload: e.Payload,
	}
	return EncodedSize(&r)
}

// EncodedSize is an upper bound for the bytes that a record takes in a Kafka
// record batch (format version 2): the record alone, without the batch's 61
// bytes of header.
func EncodedSize(r *Record) int {
	const varint = 5 // lengths below 2^34
	n := 3*varint + 1 + 10 + varint + len(r.Key) + varint + len(WireValue(r))
	for _, h := range AppendWireHeaders(nil, r) {
		n += 2*varint + len(h.Key) + len(h.Value)
	}
	return n
}

func cleanText(s string) bool { return utf8.ValidString(s) && !strings.ContainsAny(s, "\x00\r\n") }

func headerName(s string) bool {
	if len(s) < 1 || len(s) > 255 {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' || s[i] == ':' {
			return false
		}
	}
	return true
}
