package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/fenceline/fenceline/outbox"
)

// Publisher is the relay's way to Kafka, and all that the relay knows of it.
// The kafkapub package implements it; tests script it.
//
// It is narrow on purpose. The relay decides what is sent, in which order and
// what follows from a refusal; a publisher makes one attempt at a time and
// reports what the broker said of it, without retries, queues or goroutines
// that outlive the call's answer. Whether an attempt is idempotent, or part of
// a Kafka transaction, is the publisher's own affair: nothing here depends on
// it, so that either can stand behind this interface.
//
// Methods may be called from several goroutines at once.
type Publisher interface {
	// Describe asks the broker about a topic; it never answers from a cache
	// and never creates the topic. The error is a [*TopicError] when the
	// broker answered that the topic can't be used; any other error means that
	// there was no answer: ask again later.
	Describe(ctx context.Context, topic string) (Topic, error)

	// Produce makes one attempt to append b to its partition. At most one call
	// may run for a (topic, partition) at a time; a second one is refused with
	// an error and sends nothing. Between two calls for the same partition the
	// caller goes on with the next batch only after nil.
	//
	// The answer is one of:
	//
	//   - nil: all of the batch is in the log, acknowledged by all in-sync
	//     replicas, in the order of Records. Forget the batch.
	//   - a [*RefusedError]: the broker refuses records for what they are. This
	//     attempt appended nothing. Make new batches of what remains: without
	//     the records that are named, or, if none are, in two halves.
	//   - a [*TopicError]: the broker refuses the topic. This attempt appended
	//     nothing. Send the same batch again once the topic is usable.
	//   - an error that matches [ErrFenced]: another producer has taken the
	//     place of this one. Stop, and close the publisher.
	//   - any other error, a cancelled context included: nothing is known. All
	//     of the batch may be in the log, or none, or it may yet arrive. Send
	//     the same *Batch again, for as long as it takes: its bytes are the
	//     same each time, and nothing of the partition may overtake it.
	Produce(ctx context.Context, b *Batch) error

	// Close ends the publisher, its connections and its goroutines. Calls in
	// progress are interrupted; the outcome of such a Produce is unknown.
	Close() error
}

// Rights is what a [Publisher] can have besides: it knows beforehand whether the
// broker would take records. [Examine] asks it; the relay itself doesn't, since
// rights can change at any time.
type Rights interface {
	// MayWrite asks the broker whether this login may write to a topic that
	// exists. known is false if the broker doesn't tell. An error means that
	// there was no answer.
	MayWrite(ctx context.Context, topic string) (may, known bool, err error)
}

// Topic is what the broker says of a topic.
type Topic struct {
	// Name is the topic's name.
	Name string
	// Partitions is the number of its partitions, those without a leader
	// included.
	Partitions int
	// CleanupPolicy is the cleanup.policy in force: "delete", "compact" or
	// "compact,delete". The relay refuses a topic that is compacted.
	CleanupPolicy string
	// MaxMessageBytes is the max.message.bytes in force: the largest batch, in
	// bytes as sent, that the topic takes.
	MaxMessageBytes int
}

// Batch is one produce request's worth of records of one partition, in the
// order in which they are to stand in the log.
//
// The publisher freezes a batch at its first Produce: from then on its fields
// must not change, nor the memory that its records refer to, and the same
// bytes go out at each further attempt. To send other records, or the same
// ones cut differently, make a new Batch.
type Batch struct {
	// Topic and Partition say where the batch goes. The partition is the
	// relay's choice (outbox.Partition of the key): no publisher makes one.
	Topic     string
	Partition int
	// Records are the records, at least one.
	Records []outbox.Record
	// Frozen belongs to the publisher. Leave it alone; nil in a new batch.
	Frozen any
}

// ErrFenced is matched by the error of Produce when the broker refuses this
// producer itself, because a later one has taken its place. Attempts of which
// nothing was known before may be in the log. A publisher never recovers from
// it: stop publishing, close it, and find out whether the work is still yours
// before another one is opened.
var ErrFenced = errors.New("relay: producer is fenced")

// RefusedError is the answer of Produce when the broker refuses records of the
// batch for what they are: too large, an invalid key or timestamp. Sending them
// again won't help; their neighbours are refused only for being in the same
// batch. Nothing of the attempt was appended.
type RefusedError struct {
	// Indexes are the refused records' places in Batch.Records, ascending.
	// Nil: the broker doesn't say which. Split the batch until it does, or
	// until one record is left, which is then always named.
	Indexes []int
	// TooLarge says that the broker objects to the size, so that it would take
	// the records if its limit were higher.
	TooLarge bool
	// Reason says in words what the broker objects to, and where.
	Reason string
	// Err is the broker's answer.
	Err error
}

// Error implements error.
func (e *RefusedError) Error() string {
	if e.Indexes == nil {
		return fmt.Sprintf("relay: batch refused: %s", e.Reason)
	}
	return fmt.Sprintf("relay: records %v of a batch refused: %s", e.Indexes, e.Reason)
}

// Unwrap gives the broker's answer.
func (e *RefusedError) Unwrap() error { return e.Err }

// TopicError is the answer when the broker refuses a topic: it is unknown, its
// name is not allowed, or this client may not use it. It says nothing against
// the events, which wait. Nothing of the attempt was appended.
//
// In a cluster a topic that was created a moment ago can be unknown to some
// brokers, so this answer is to be asked again, not remembered.
type TopicError struct {
	// Topic is the topic's name.
	Topic string
	// Reason says in words what is wrong, and what to do about it.
	Reason string
	// Err is the broker's answer.
	Err error
}

// Error implements error.
func (e *TopicError) Error() string {
	return fmt.Sprintf("relay: topic %q: %s", e.Topic, e.Reason)
}

// Unwrap gives the broker's answer.
func (e *TopicError) Unwrap() error { return e.Err }

// NoAnswerError is the answer of Describe when no broker could be asked: it says
// nothing of the topic, and most likely the next one is answered with the same.
type NoAnswerError struct {
	// Topic is the topic that was asked about.
	Topic string
	// Reason says in words why there was no answer; the same for two topics if
	// the cause is the same.
	Reason string
	// Err is what came instead of an answer.
	Err error
}

// Error implements error.
func (e *NoAnswerError) Error() string {
	return fmt.Sprintf("relay: topic %q: no answer: %s", e.Topic, e.Reason)
}

// Unwrap gives what came instead of an answer.
func (e *NoAnswerError) Unwrap() error { return e.Err }
