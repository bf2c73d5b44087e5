// Package outbox writes events in the transaction of the result that they tell
// of, and defines what they look like on the way.
//
//	receipt, err := lease.Commit(ctx, content, func(ctx context.Context, tx fencing.Tx) error {
//		…
//		return outbox.Append(ctx, tx, outbox.Event{Topic: "quakes", Type: "quake.reported", Subject: id, Payload: body})
//	})
//
// # The promise
//
// An event is published if and only if its transaction has committed. The
// events of one key in one topic are a stream: each has a seq, dense from 1, in
// commit order, that runs on across takeovers of the key; so a consumer can tell
// that nothing is missing, and which of two events is the later one. What
// cannot be published cannot be appended: the size, the topic's name, the
// headers are checked by [Append], at once, and, but for the headers, again by
// append(). Whoever calls that himself and names a header as one of the record's
// own has the stream held by the relay, with the reason.
//
// # The model
//
// [Append] needs a transaction that has passed the gate of a key (package
// fencing: its Commit, or its Enter for a transaction of one's own). The receipt
// that the gate wrote is the proof; the database looks for it and refuses
// whatever has none with [ErrNoPass], also for somebody who calls its functions
// himself. The key of the gate is the key of the events and of their Kafka
// records. What an event is about within the key is its Subject.
//
// A position is (epoch, token, seq). One token commits several times and one
// commit appends several events, so (epoch, token) alone cannot order events.
// seq is dense within a stream and not within a key: a commit may append to two
// topics, and a consumer of one of them must not see holes. It starts again at 1
// only with a larger epoch, in a new life of the key; the first record of a life
// carries where the stream's previous one ended (Prev), which proves to a strict
// consumer that nothing of it is unread, and since when the database's history
// runs (History).
//
// Topic and stream are fixed when an event is appended, and so is everything
// else that travels: a copy that is published again is the same to the byte.
//
// # On the way
//
// [Record] is an event as stored and as it travels. [AppendWireHeaders],
// [WireValue] and [ParseWire] are the two directions of its form in Kafka:
// CloudEvents 1.0 in binary mode with extension attributes for the position.
// docs/wire.md describes it for other languages, and testdata/wire.json has
// examples with their meaning. A record whose headers contradict it cannot be
// placed: ParseWire says which header is at fault with a [*MalformedError].
//
// [Partition] is the partitioner of the Java client, which the relay uses;
// [Shard] is the same over the fixed number of shards in which relays share
// their work.
package outbox
