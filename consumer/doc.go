// Package consumer applies events to a service's own tables, each of them once
// and in order, however often and in whatever order Kafka delivers them.
//
//	err := consumer.Run(ctx, pool, source, consumer.Config{Name: "quake-report"},
//		consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
//			_, err := tx.Exec(ctx, "insert into quake …", d.Payload)
//			return err
//		}))
//
// # One transaction
//
// The guard is a row for each stream (the topic that an event was appended to,
// and its key) in the service's own database. A transaction locks it, decides,
// calls the handler with that same transaction, moves the guard, stores the
// offset, and commits. Either all of it happened or none; a second member on
// the same partition waits for the lock and then decides on what the first one has
// committed. Offsets say only where to go on reading: after a rewind to the
// beginning nothing is applied twice.
//
// # The decision
//
// [Decide] is a pure function of the guard, the record and a few settings. Its
// answer is an [Outcome]. Three facts make it longer than "seq is the next one":
//
//   - seq restarts at 1 with every life of a key (epoch). A first event of a new
//     life says nothing about the old one's tail, so under [Strict] it needs a
//     proof: that it names the guard's position as its predecessor, or that the
//     guard stands on the old life's end record and no database was restored
//     since.
//   - A seq that was passed was applied or given up. The guard keeps those that
//     were given up ([Missed]), and so tells a duplicate from a stale event.
//   - A marker or a failing event can be the first thing that is seen of a
//     stream. It makes a row too, or what follows would be taken for the first.
//
// # Two policies
//
// A [Strict] stream parks what comes behind a hole, with all of the record, and
// goes on in order when the hole is filled, under the guard's lock and in the
// filler's transaction. A [State] stream applies what is newer than all it has
// applied, and remembers what it passed over.
//
// Strict is the default, because the two mistakes are not alike. Snapshots that
// are treated as strict wait at a hole, raise an alarm, and go on when it is
// filled or given up: nothing is wrong meanwhile, only old. Changes that are
// treated as snapshots are added up with some missing, nobody is told, and what
// is wrong can't be found afterwards. Who wants the second must say so. The
// policy and start with which a stream's guards were written are stored, and
// another one is refused ([ErrStreamChanged]): the guards would mean something
// else.
//
// # Failures
//
// A handler's error rolls the transaction back, and is tried again. When it is
// marked with [Reject], or lasts, a strict stream parks the event and what
// follows of its key; a state stream writes a dead letter, leaves the guard where
// it was, and goes on. A record that can't be placed, or isn't believed, goes
// to the quarantine by its offset, and holds nothing up.
//
// # What is kept has bounds
//
// Whatever can't be applied yet is kept whole, up to [Limits]. A full park never
// stops a partition: what would fill the hole comes behind what doesn't fit. So
// what doesn't fit is decided and not stored; the lowest such offset is
// remembered, reading goes on, and comes back when there is room
// ([Guard.Progress], [Guard.Room]). The next event of a stream is always stored,
// and so is one that comes before something parked of its stream, which gives
// way. The guard knows of which lives something is not stored: a later one is not
// proven over it.
//
// # Operators decide, consumers apply
//
// An [Operator] retries, discards, adopts, admits, accepts and erases, each under
// the guard's lock and with its audit in the same transaction. It has a role of
// its own: a consumer can give up nothing, vouch for nothing and take down no
// flag. And it has no handler, so it applies nothing: it marks the stream, and
// the consumer, which looks at [Guard.Pending] every few seconds, decides again.
//
// # Forgetting
//
// There is a guard for each stream that was ever seen, unless it is forgotten: if
// its life has ended, nothing of it is kept, and Config.ForgetAfter says so. The
// highest epoch of which guards were removed is remembered in their stead. What
// is at or below it and has no guard may have been applied: it goes to the
// quarantine, and only an operator admits it.
//
// # Layers
//
// [Decide] is the table. [Guard] is the table in anyone's transaction, with any
// Kafka client. [Run] is the guard with a [Source] of records, retries and offsets;
// package kafkasource has the source for Kafka.
//
// Effects outside of the database, such as a mail or a request, are not
// covered: they can happen more than once. Give them the event's ID as an
// idempotency key.
package consumer
