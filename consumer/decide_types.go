package consumer

import (
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// Policy says what a hole in a stream means to its consumer.
type Policy string

const (
	// Strict applies every event of a stream in order and waits at a hole
	// until it is filled or an operator gives it up. For events that are
	// changes: leaving one out makes everything after it wrong. It is the
	// policy of the zero value.
	Strict Policy = "strict"
	// State applies an event if it is newer than all that were applied, and
	// passes over what is missing. For events that are snapshots.
	State Policy = "state"
)

// Start says where a strict stream begins for a consumer that has not seen it.
type Start string

const (
	// FromFirstSeen takes the first event that arrives as the beginning. It is
	// the start of the zero value.
	FromFirstSeen Start = "first-seen"
	// FromOrigin expects the stream's very first event, and waits for it.
	FromOrigin Start = "origin"
)

// Outcome is what becomes of a record.
type Outcome string

// The outcomes of a record.
const (
	// Applied: the handler is called and the guard moves in its transaction.
	Applied Outcome = "applied"
	// Absorbed: a marker that the guard has taken in.
	Absorbed Outcome = "absorbed"
	// Ignored: a marker that means nothing to this stream.
	Ignored Outcome = "ignored"
	// Duplicate: decided before, and applied if it is an event.
	Duplicate Outcome = "duplicate"
	// Stale: never to be applied: of an earlier life, or skipped, discarded,
	// passed over.
	Stale Outcome = "stale"
	// BeforeStart: from before the point where this consumer joined.
	BeforeStart Outcome = "before_start"
	// Parked: stored until what it waits for has come.
	Parked Outcome = "parked"
	// DeadLettered: its handler fails for good, and later events go on
	// (state).
	DeadLettered Outcome = "dead_lettered"
	// Quarantined: can't be placed, or is not believed. Stored by its offset.
	Quarantined Outcome = "quarantined"
)

// Reason says why a record was parked or quarantined. The reasons for a park
// are also those for which a guard is blocked.
type Reason string

// Reasons for a park.
const (
	// Gap: earlier events of the same life are missing.
	Gap Reason = "gap"
	// Life: it begins a new life, and nothing proves that the old one is
	// complete.
	Life Reason = "life"
	// Failing: its handler fails for good.
	Failing Reason = "failing"
	// InConflict: the key is blocked because a record contradicted the guard.
	InConflict Reason = "conflict"
)

// Reasons for a quarantine. A record that contradicts the guard has
// [InConflict].
const (
	// Malformed: headers missing, doubled, out of range or contradictory.
	Malformed Reason = "malformed"
	// Absurd: its epoch lies too far in the future.
	Absurd Reason = "absurd"
	// BeforeMemory: the guard of such an old life may have been forgotten.
	BeforeMemory Reason = "before_memory"
	// BeforeOrigin: older than the life that was taken for the first one.
	BeforeOrigin Reason = "before_origin"
)

// Input is all that a decision depends on.
type Input struct {
	// Row is the guard; nil if the stream has none.
	Row *Row
	// Forgotten is the highest epoch of which guards were removed in this
	// stream's topic; 0 if none were.
	Forgotten int64
	// Truncated says that part of the record's partition went unread.
	Truncated bool
	// Discarded says that an operator gave up this event's dead letter (state).
	Discarded bool
	Policy    Policy
	Start     Start
	Record    *outbox.Record
	// Malformed is the codec's error; the record is then not looked at.
	Malformed error
	// Now is the time on the consumer's database clock.
	Now time.Time
	// MaxAhead is how far an epoch may be ahead of Now. Defaults to 24 hours.
	MaxAhead time.Duration
}

// Decision is what becomes of a record, and what the guard is then.
type Decision struct {
	Outcome Outcome
	// Rule is the row of the table at [Decide] that matched, as in "4e".
	Rule string
	// Reason goes with Parked and Quarantined.
	Reason Reason
	// Row is the guard afterwards; nil if there is still none. Where the
	// outcome is Applied, it holds once the handler has succeeded.
	Row *Row
	// Changed says that Row differs from the guard before and must be written.
	Changed bool
	// Moved says that the guard's position has moved: parked records that the new
	// guard decides must be resolved, and Row.Blocked set anew.
	Moved bool
	// Alarm asks for an operator.
	Alarm bool
}
