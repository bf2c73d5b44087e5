package kafkapub

import (
	"context"
	"errors"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// verdict is what follows from the answer to a produce request.
type verdict int

const (
	// again: nothing is known of the attempt, or the cluster is in a passing
	// state. The same bytes go out again. It is the verdict on every code that
	// isn't listed, since it is the one that can't lose or reorder anything: an
	// answer that never changes stops its partition, loudly, until someone
	// looks.
	again verdict = iota
	// moved is again, after forgetting connections and leaders.
	moved
	// absent: this broker, or what we remember of the cluster, doesn't know the
	// topic or the partition. That is true of a topic that was deleted, but
	// also of one that was created a moment ago, and of every topic as long as
	// no broker could be reached. So the answer is never believed: the broker
	// is asked.
	absent
	// anew: the broker has forgotten this producer or contradicts what it
	// acknowledged. The same records go out again under a new producer id.
	anew
	// refused: records of the batch are at fault.
	refused
	// closed: the topic is not to be written to, by us or by anyone.
	closed
	// fenced: another producer has taken our place.
	fenced
	// notIdempotent: we may write, but not with a producer id.
	notIdempotent
	// notCompressed: the broker doesn't know the compression of the batch.
	notCompressed
)

// verdicts lists what the broker's codes mean in the answer to a produce
// request. Only codes are looked at, never base offsets (brokers fill them
// differently in errors) and never kafka.Error.Temporary, which is about
// clients in general.
var verdicts = map[kafka.Error]verdict{
	kafka.LeaderNotAvailable:    moved,
	kafka.NotLeaderForPartition: moved,
	kafka.BrokerNotAvailable:    moved, // kafka-go's own, for a leader that it can't find
	kafka.ReplicaNotAvailable:   moved,
	kafka.NetworkException:      moved,
	kafka.KafkaStorageError:     moved, // the leader's disk failed: another will lead
	kafka.ListenerNotFound:      moved,
	kafka.FencedLeaderEpoch:     moved,
	kafka.UnknownLeaderEpoch:    moved,
	kafka.UnknownTopicID:        moved,
	kafka.InconsistentTopicID:   moved,

	kafka.UnknownTopicOrPartition: absent,

	// Duplicate sequence is among these although the records are in the log: it
	// doesn't say that all in-sync replicas have them, which is what nil means.
	kafka.OutOfOrderSequenceNumber: anew,
	kafka.DuplicateSequenceNumber:  anew,
	kafka.UnknownProducerId:        anew,
	kafka.InvalidProducerIDMapping: anew,

	kafka.MessageSizeTooLarge: refused,
	kafka.RecordListTooLarge:  refused,
	kafka.InvalidTimestamp:    refused,
	kafka.InvalidRecord:       refused,

	kafka.InvalidTopic:                closed,
	kafka.TopicAuthorizationFailed:    closed,
	kafka.UnsupportedForMessageFormat: closed, // an old message format can't hold headers
	kafka.PolicyViolation:             closed,

	kafka.InvalidProducerEpoch:    fenced,
	kafka.InvalidTransactionState: fenced,
	kafka.ProducerFenced:          fenced,

	kafka.ClusterAuthorizationFailed: notIdempotent,

	kafka.UnsupportedCompressionType: notCompressed,

	kafka.Error(129): moved, // rebootstrap required
}

// classify judges the error of an attempt, whether the broker answered with it
// or the call failed.
func classify(err error) verdict {
	var code kafka.Error
	switch {
	case errors.As(err, &code):
		return verdicts[code]
	case errors.Is(err, protocol.ErrNoTopic), errors.Is(err, protocol.ErrNoPartition):
		return absent
	case errors.Is(err, protocol.ErrNoLeader):
		return moved
	case errors.Is(err, context.Canceled):
		return again // the caller's doing: nothing against the connections
	default:
		return moved // no answer: the connection is gone, or may as well be
	}
}
