package consumertest

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/fenceline/fenceline/outbox"
)

// firstLife is the epoch of a stream's first life: a clock reading in µs, as
// epochs are.
const firstLife = 1_764_000_000_000_000

// Stream makes the records of one key in one topic, each with the next
// position. It isn't for several goroutines at once.
type Stream struct {
	topic, key   string
	epoch, token int64
	seq          int64
	prev         *outbox.Prev
}

// NewStream begins the first life of a key in a topic.
func NewStream(topic, key string) *Stream {
	return &Stream{topic: topic, key: key, epoch: firstLife, token: 1}
}

// Event is the next event. A nil payload is a tombstone.
func (s *Stream) Event(eventType string, payload []byte) outbox.Record {
	s.seq++
	r := s.record()
	r.Type, r.Payload = eventType, payload
	return r
}

// Hole leaves out the next n events: they were published and are not delivered.
func (s *Stream) Hole(n int) { s.seq += int64(n) }

// Takeover makes the following events another holder's, with the next token.
func (s *Stream) Takeover() { s.token++ }

// Skip is the marker with which an operator gave the next n events up: they
// are never going to come.
func (s *Stream) Skip(n int) outbox.Record {
	from := s.seq + 1
	s.seq += int64(n)
	r := s.record()
	r.Kind, r.From, r.Type, r.Payload = outbox.KindSkip, from, "fenceline.skip", []byte{}
	if from == 1 {
		r.History, r.Prev = firstLife, s.prev
	}
	return r
}

// End is the end record of the life: the key was closed.
func (s *Stream) End() outbox.Record {
	s.seq++
	r := s.record()
	r.Kind, r.Type, r.Payload = outbox.KindEnd, "fenceline.end", []byte{}
	return r
}

// NewLife opens the key again: what follows has a larger epoch, and its first
// record names the last one of the life before.
func (s *Stream) NewLife() {
	if s.seq > 0 {
		s.prev = &outbox.Prev{Epoch: s.epoch, Seq: s.seq}
	}
	s.epoch, s.token, s.seq = s.epoch+1_000_000, 1, 0
}

func (s *Stream) record() outbox.Record {
	r := outbox.Record{
		// The same position has the same id in every run.
		ID:            uuid.NewSHA1(uuid.Nil, fmt.Appendf(nil, "%s/%s/%d/%d", s.topic, s.key, s.epoch, s.seq)),
		AggregateType: s.topic, Source: "consumertest", ContentType: "application/json",
		Topic: s.topic, Stream: s.topic, Key: s.key, Epoch: s.epoch, Token: s.token, Seq: s.seq, Kind: outbox.KindData,
		CreatedAt: time.UnixMicro(s.epoch).UTC(),
	}
	if s.seq == 1 {
		r.History, r.Prev = firstLife, s.prev
	}
	return r
}
