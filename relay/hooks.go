package relay

import "time"

// Hooks are told what the relay does, for metrics and alarms. Each may be nil.
// They are called from several goroutines at once, on the path of the events:
// they must return quickly, and must not call back into the relay.
type Hooks struct {
	// Acknowledged is called when Kafka has acknowledged a batch and before
	// the relay takes note of it: a process that dies in here leaves events
	// that are in the log and will be published a second time. It must not
	// keep or change the batch.
	Acknowledged func(b *Batch)

	// Published is called when the relay has taken note of an acknowledged
	// batch: its topic and partition, how many records and bytes (as read, an
	// upper estimate of what was sent), and how long ago the oldest of them was
	// appended, by this machine's clock.
	Published func(topic string, partition, records, bytes int, age time.Duration)

	// Retried is called after each attempt that has to be made again, with the
	// number of attempts so far. It says nothing against the events.
	Retried func(topic string, partition, attempts int, err error)

	// OutageBegan is called when the first attempt has failed, which it may have
	// taken all of its time for, and OutageEnded when all partitions go on, with
	// the time since that attempt was begun.
	OutageBegan func(err error)
	OutageEnded func(lasted time.Duration)

	// Held is called when a stream is held because the broker refuses a record.
	Held func(s HeldStream)

	// Resumed is called when a held stream has caught up and flows with the rest
	// again. Its last records may still be on their way, and be refused.
	Resumed func(s HeldStream)

	// Forked is called when a topic is refused, or one of its partitions fails
	// for longer than the others; Joined when all of the topic has caught up and
	// flows with the rest again, or, if it was retired, when all that waited has
	// its verdict. A topic that an operator has retired or accepted is set aside
	// for a moment without Forked.
	Forked func(topic, reason string)
	Joined func(topic string)

	// Checkpointed is called when the cursor was stored, with the number of
	// events acknowledged since the last time and how long it took.
	Checkpointed func(events int, took time.Duration)

	// Retained is called after each pass of the retention that this instance
	// makes.
	Retained func(r RetentionReport, err error)

	// RetentionLost is called when another instance takes care of the retention
	// from now on, after this one did: what Retained was told last of partitions
	// that are overdue is that one's to tell.
	RetentionLost func()

	// Paused is called when the instance learns that an operator has paused the
	// relays, or that they may go on.
	Paused func(paused bool)

	// Shards is called when this instance works on other shards than before,
	// with all that it has now, in order.
	Shards func(shards []int)

	// LeaseGained is called when this instance becomes active: it has got its
	// first shards, one of them under this token. LeaseLost is called when it has
	// none any more, except by a clean stop or because others got its share.
	LeaseGained func(epoch, token int64)
	LeaseLost   func(err error)
}

// signals let tests see and cut what happens inside. All are nil, and do
// nothing, in any other program.
type signals struct {
	loaded      func(main cursor)            // the cursor was read from the database
	read        func(main cursor, rows int)  // after each read of the main flow
	listenQuiet time.Duration                // the listener's patience, both of them
	crash       func(point string) bool      // true: drop everything here, as a killed process would
	joined      func(topic string, s string) // a fork has joined, at this snapshot
	slow        time.Duration                // after which a checkpoint is said to take long
}

func (s signals) crashAt(point string) bool { return s.crash != nil && s.crash(point) }
