package relay

import (
	"fmt"
	"strings"
)

// CheckTopic says whether the relay would write to a topic as the broker
// describes it, for tools that want to know before the first event comes.
// maxRecordBytes is what producers may append, outbox.MaxRecordBytes unless
// they were told otherwise. The error is a [*TopicError] with what to change.
func CheckTopic(d Topic, maxRecordBytes int) error {
	if refusal := unfit(d, 0, maxRecordBytes); refusal != nil {
		return refusal
	}
	return nil
}

// unfit says why a topic that exists can't be written to all the same; nil if
// it can. pinned is the partition count with which it was written to before, 0
// if it wasn't.
func unfit(d Topic, pinned, maxRecordBytes int) *TopicError {
	need := maxRecordBytes + framing
	switch {
	case d.Partitions < 1:
		return &TopicError{Topic: d.Name, Reason: "it has no partitions: create it with at least one"}
	case pinned != 0 && d.Partitions != pinned:
		return &TopicError{Topic: d.Name, Reason: fmt.Sprintf("it has %s, and the relay goes by %d, which is what it had when the relay began to write to it, or what an operator has accepted since: the events of a key would go on in another partition and overtake those before them; "+
			"create it again with %s, or, once all consumers have read everything that is in it, let the relay take the count that it has with \"relay topic accept\"", count(d.Partitions, "partition"), pinned, count(pinned, "partition"))}
	case strings.Contains(d.CleanupPolicy, "compact"):
		return &TopicError{Topic: d.Name, Reason: fmt.Sprintf("its cleanup.policy is %q: compaction removes events, and consumers would find holes in their streams; set cleanup.policy=delete", d.CleanupPolicy)}
	case d.MaxMessageBytes < need:
		return &TopicError{Topic: d.Name, Reason: fmt.Sprintf("its max.message.bytes is %d: producers may append records of %d bytes, which it would not take; set max.message.bytes to at least %d", d.MaxMessageBytes, maxRecordBytes, need)}
	}
	return nil
}
