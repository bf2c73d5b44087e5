package outbox

import (
	"time"

	"github.com/google/uuid"
)

// Kind says what a record is: an event, or one of the two markers that the
// toolkit itself writes into a stream. Handlers only ever see [KindData].
type Kind string

const (
	// KindData is an event that a producer appended.
	KindData Kind = "data"
	// KindSkip stands in for a range of events that an operator gave up: a
	// strict consumer passes the range instead of waiting for it.
	KindSkip Kind = "skip"
	// KindEnd is the last record of a stream in one life of its key.
	KindEnd Kind = "end"
)

// Header is a header that the producer wants to travel with its event, such
// as the W3C traceparent. Names and order are kept.
type Header struct {
	Name, Value string
}

// Prev is the last position of a stream's previous life, carried by the
// record with which the next life begins. A strict consumer takes it as proof
// that nothing of the old life is missing.
type Prev struct {
	Epoch, Seq int64
}

// Record is an event as it is stored in the outbox and as it travels. The
// stream of a record is (Stream, Key); its position in it is (Epoch, Token,
// Seq), compared in that order.
type Record struct {
	// ID identifies the event; every copy of it carries the same one.
	ID uuid.UUID
	// AggregateType, Type, Source, Subject and ContentType are what the
	// producer said of the event.
	AggregateType, Type, Source, Subject, ContentType string
	// Topic is the Kafka topic that this copy goes to or came from.
	Topic string
	// Stream is the topic that the event was appended to. A copy that is
	// published again, or mirrored under another name, keeps it.
	Stream string
	// Key is the fenced key under which the event was appended, and the key of
	// its Kafka record.
	Key string
	// Epoch is the life of the key, Token the fencing token under which the
	// event was committed, Seq its dense number within (stream, epoch), from 1.
	Epoch, Token, Seq int64
	// Kind is what the record is.
	Kind Kind
	// From is, on a skip marker, the first seq of the range From..Seq that was
	// given up. Zero otherwise.
	From int64
	// History is set on the records with which a life of a stream begins: the
	// time in µs at which the database's present history began.
	History int64
	// Prev is set on such a record where the producer remembers the stream's
	// previous life.
	Prev *Prev
	// Headers are the producer's own.
	Headers []Header
	// Payload is the event's data as handed to Append. Nil is a tombstone,
	// which is not the same as empty.
	Payload []byte
	// CreatedAt is the time of the append on the database's clock, to the
	// microsecond; the Kafka timestamp is the same in milliseconds.
	CreatedAt time.Time
	// Pos is the row's place in the outbox, in which the relay reads. It does
	// not travel: zero on a record that came from Kafka.
	Pos int64
}

// First is the lowest seq that the record covers: Seq, or the start of the
// range of a skip marker.
func (r *Record) First() int64 {
	if r.Kind == KindSkip {
		return r.From
	}
	return r.Seq
}
