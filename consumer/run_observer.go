package consumer

import "time"

// Observer is told what [Run] does, for counting and for alarms. Its methods
// are called from several goroutines at once, one per partition, and must
// return soon.
type Observer interface {
	// Committed is called after each transaction that has committed.
	Committed(Committed)
	// Failing is called for every try that failed and whose records will be
	// tried again, or given to the park or the dead letters.
	Failing(Failure)
	// Alarm is called for what an operator should look at. What is alarming is
	// also in the log, as an error.
	Alarm(Alarm)
}

// Committed is one transaction that has committed.
type Committed struct {
	// Partition is empty, and Next and HighWatermark are zero, where no partition's
	// record brought it about: an operator has let stored events go on.
	Partition Partition
	// Results are what became of the records, and of what they released from
	// the park.
	Results []Result
	// Next is the offset to read next, HighWatermark the end of the log as of
	// the fetch: the difference is the lag.
	Next, HighWatermark int64
	// Took is the time from BEGIN until COMMIT was answered.
	Took time.Duration
}

// Failure is one try that failed.
type Failure struct {
	// Partition is empty where no partition's record brought it about: an operator
	// has let a stored event go on, which Err then names.
	Partition Partition
	Err       error
	// Passing says that the reason lies outside of the records: they are tried
	// again for as long as it takes.
	Passing bool
	// Attempt is how often the event was tried, if it is not passing.
	Attempt int
}

// Alarm is something that an operator should look at.
type Alarm struct {
	// Partition is empty where it is about a stream alone.
	Partition Partition
	Kind      AlarmKind
	// From and To are the offsets concerned: From ≤ offset < To.
	From, To int64
	// Stream is the stream concerned, where it is about one.
	Stream StreamKey
	Text   string
}

// AlarmKind says what an alarm is about.
type AlarmKind string

const (
	// Truncated: events went unread. Their offsets are gone from the log, or
	// the topic was created anew. Strict streams prove no new life until an
	// operator has published them again from the outbox, or accepted the loss.
	Truncated AlarmKind = "truncated"
	// OffsetAhead: Kafka's offset was ahead of the database's, which has been
	// restored or lost a commit. What lies between is read again.
	OffsetAhead AlarmKind = "offset_ahead"
	// Unreadable: a record batch can't be read; the partition waits at it, unless
	// it has been read before.
	Unreadable AlarmKind = "unreadable"
	// Full: more of the partition waits than Config.Limits allows to keep. The
	// group's offset stays in front of what did not fit, which is read again when
	// there is room.
	Full AlarmKind = "full"
	// Overdue: a stream has been standing for longer than its GapAlarm. What it
	// waits for was lost, or is for an operator to decide.
	Overdue AlarmKind = "overdue"
	// Stalled: a partition, or a stream's parked events, have not got on for
	// Config.StallAlarm, for a reason that may pass. The tries go on.
	Stalled AlarmKind = "stalled"
)

// PartitionObserver is an [Observer] that is also told which partitions this
// process has, and which of them wait: those are not ready.
type PartitionObserver interface {
	// PartitionChanged is called when a partition was assigned, when it stops
	// getting on, when it gets on again, and when it was given back.
	PartitionChanged(PartitionChange)
}

// PartitionChange is what has become of a partition.
type PartitionChange struct {
	Partition Partition
	State     PartitionState
	// Reason is why it waits.
	Reason error
}

// PartitionState says what a partition does.
type PartitionState string

const (
	// Reading: it is read and applied, or there is nothing to read.
	Reading PartitionState = "reading"
	// Waiting: it is this process's and doesn't get on, for the reason that
	// is given: the broker or the database is away, or a batch can't be read.
	// The others go on.
	Waiting PartitionState = "waiting"
	// Released: it is another member's now, or nobody's.
	Released PartitionState = "released"
)
