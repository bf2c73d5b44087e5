package outbox

import (
	"time"

	"github.com/google/uuid"
)

// What a skip marker says of itself where an event says what happened.
const (
	skipType   = "fenceline.skip"
	skipSource = "fenceline"
)

// Skip returns the marker that stands for the events from … last.Seq of last's
// stream and epoch, which an operator gave up at the time at. From is at most
// last.Seq, and is 1 only if last.Seq is: the first event of a life has a marker
// of its own, since history and prev are known to it alone.
//
// The same arguments give the same marker, byte for byte, whenever and by
// whomever it is published. It takes over where the events stand, and nothing
// of what they say: neither type, subject, time nor headers, since any of these
// can be what the broker refuses. Its ID is made of last's and of from.
func Skip(last *Record, from int64, at time.Time) Record {
	return Record{
		ID:            uuid.NewSHA1(last.ID, appendPadded([]byte("skip/"), from)),
		AggregateType: last.AggregateType,
		Type:          skipType,
		Source:        skipSource,
		Topic:         last.Topic,
		Stream:        last.Stream,
		Key:           last.Key,
		Epoch:         last.Epoch,
		Token:         last.Token,
		Seq:           last.Seq,
		Kind:          KindSkip,
		From:          from,
		History:       last.History,
		Prev:          last.Prev,
		Payload:       []byte{},
		CreatedAt:     at,
		Pos:           last.Pos,
	}
}
