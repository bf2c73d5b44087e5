package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// A Source is membership in a Kafka consumer group. It is all that [Run] knows
// of Kafka; package kafkasource has the implementation.
type Source interface {
	// Next blocks until this member has partitions (or knows that it has
	// none) and returns them. The generation before it must have been
	// released. An outage after the first generation is waited out; an error
	// means that an operator must act, or that ctx has ended.
	Next(ctx context.Context) (Generation, error)
	// Close leaves the group, and releases the generation if there is one: call
	// it when nothing works on it any more. A member that is about to leave should
	// not release its generation before, or it joins the next one first. It may
	// be called more than once.
	Close() error
}

// A Generation is the time between two rebalances: a set of partitions that
// the group gave to this member.
type Generation interface {
	// Context ends when the partitions may be given to another member. What is
	// in flight then should be finished soon or be given up: the group waits
	// for Release.
	Context() context.Context
	// Assigned lists the partitions. It may be empty.
	Assigned() []Assignment
	// Partitions gives the number of partitions that each topic has, also of
	// those that are other members'.
	Partitions() map[string]int
	// Bounds gives the first offset that the log of p still has, and the
	// offset after its last record.
	Bounds(ctx context.Context, p Partition) (start, end int64, err error)
	// Fetch reads records of p from offset on, in order: whole batches until
	// maxBytes are reached, but at least one batch where there is one. It waits a
	// little for the first record and then returns none. It answers an offset
	// that the log doesn't have with a [*OffsetError] and a batch that can't be
	// read with a [*BatchError]; any other error is an outage.
	Fetch(ctx context.Context, p Partition, offset int64, maxBytes int) (Fetched, error)
	// Commit stores the offsets to read next in the group. It fails once
	// another member may have the partitions; that needs no action.
	Commit(ctx context.Context, next map[Partition]int64) error
	// Release says that nothing works on these partitions any more. It ends
	// the generation.
	Release()
}

// Partition names a partition of a topic.
type Partition struct {
	Topic string
	ID    int
}

// String is the topic and the partition, as in "quakes/3".
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.ID) }

// Assignment is a partition and where the group says to go on.
type Assignment struct {
	Partition
	// Committed is the offset to read next according to the group, or
	// [NoOffset].
	Committed int64
}

// NoOffset stands for an offset that was never committed, or that expired.
const NoOffset int64 = -1

// Fetched is the answer to one fetch.
type Fetched struct {
	// Records are in offset order, none below the offset asked for. Control
	// records and records of aborted transactions are left out.
	Records []KafkaRecord
	// Next is the offset to fetch from next. It can lie beyond the last
	// record, also when there is none: what is left out takes offsets too.
	Next int64
	// LogStart is the first offset that the log still has.
	LogStart int64
	// HighWatermark is the offset after the last replicated record.
	HighWatermark int64
}

// KafkaRecord is a record as Kafka has it: untrusted bytes.
type KafkaRecord struct {
	Offset int64
	Time   time.Time
	Key    []byte
	// Value is nil for a tombstone, which is not the same as empty.
	Value   []byte
	Headers []outbox.WireHeader
}

// OffsetError says that the log does not have an offset: it was cut below it
// (retention, deleted records), or it ends before it (the topic was created
// anew, an offset was reset).
type OffsetError struct {
	Partition Partition
	// Offset is the one asked for; Start and End are what the log has.
	Offset, Start, End int64
}

// Error implements error.
func (e *OffsetError) Error() string {
	return fmt.Sprintf("consumer: %s: offset %d is outside of the log, which has %d to %d", e.Partition, e.Offset, e.Start, e.End)
}

// BatchError says that a record batch can't be read: it is damaged, too large,
// or made in a way that this library doesn't know. Reading it again gives the
// same, so nothing behind it is read until somebody acts.
type BatchError struct {
	Partition Partition
	// Offset is where the batch begins.
	Offset int64
	Reason string
}

// Error implements error.
func (e *BatchError) Error() string {
	return fmt.Sprintf("consumer: %s: the batch at offset %d can't be read: %s", e.Partition, e.Offset, e.Reason)
}
