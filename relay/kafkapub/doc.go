// Package kafkapub is the relay's publisher: the only place where records are
// written to Kafka.
//
//	publisher, err := kafkapub.New(kafkapub.Config{Brokers: []string{"127.0.0.1:9092"}})
//	defer publisher.Close()
//	err = relay.Run(ctx, pool, publisher, relay.Config{})
//
// # What it promises
//
// A batch that was acknowledged is held by all in-sync replicas. A batch whose
// fate is unknown can be sent again, and as long as the broker remembers the
// producer it is in the log once. Whatever happens, the first copy of a record
// never stands before the first copy of one that precedes it in its partition.
//
// # Lanes
//
// Everything is done per (topic, partition), in a lane: one request at a time,
// a producer id, a sequence number, and the batch that is open, that is, sent
// and neither acknowledged nor refused. A batch is encoded once; its bytes,
// producer id and sequence number included, stay the same at each attempt. The
// broker recognises such a resend by (producer id, sequence) and acknowledges
// it without appending it again.
//
// That recognition looks at sequence numbers alone, not at the records. If a
// lane sent *other* records under numbers that an attempt of unknown outcome
// may have used up, the broker could take them for that resend and acknowledge
// what it never appended. Therefore a lane takes a new producer id, with
// sequences from 0, whenever it goes on without knowing what became of its
// last numbers:
//
//   - another batch comes while one is open: it was cut differently;
//   - the broker refused records, and what remains is cut anew;
//   - the broker has forgotten the producer, or contradicts it (codes 45, 46,
//     49 and 59);
//   - the sequence numbers are used up.
//
// # Shared requests
//
// A lane sends by itself as long as few requests are on their way to the
// broker that leads its partition. Where a topic has many partitions, batches
// that would be one more request, and one more connection, wait for one of
// these to be answered and go together; and small batches that come at the same
// moment go together at once. See join.go. The lane sees nothing of that: one batch
// on its way, and an answer of its own.
//
// # Why a new producer id keeps the order
//
// Call a request's records its run. The relay hands a lane the next batch only
// when all records before it are acknowledged, or were refused and their
// streams held. So whenever a request is *sent*, all that precedes its run in
// the lane is in the log, and a log only grows: whenever that request *lands*,
// even long after it was given up and its records were sent again under
// another producer id, every record of its run has its predecessors before it,
// in the log or in the same run. A copy that lands late is a second copy. The
// price of a new producer id is therefore duplicates, which consumers drop by
// position, and never an inversion or a hole. The same argument holds for
// plain produce, without a producer id, which is used only where the broker
// allows nothing else.
//
// # Refusals
//
// The table in classify.go says what each of the broker's codes means. Anything
// that isn't clearly a verdict on the records or the topic is an outage: the
// same bytes go out again, without end. "Unknown topic" is believed only after
// asking afresh, since kafka-go gives the same answer when no broker could be
// reached.
//
// Two refusals are about the way and not about the records: a broker that
// allows no producer ids gets plain produce, one that doesn't know a
// compression gets plain batches, from then on and with one warning each.
// docs/kafka-errors.md has all of it for operators; tests hold it to the table
// and the table to the protocol.
//
// # Encryption, authentication, compression
//
// Config.TLS and Config.SASL are the client's own types, so that any mechanism
// can be brought; the relay command makes them of its settings. Neither a
// configuration nor a publisher shows a password, however it is printed.
//
// A batch is compressed once, when it is frozen, and only if that makes it
// smaller. Its bytes are the same at each attempt like all others.
//
// # kafka-go
//
// Its Client and Transport carry the requests; its Writer and its encoder are
// not used: they know no producer ids, and the Writer goes on sending after its
// caller has given up. Its request timeout is 500 ms unless one is set, so one
// always is. Its Transport caches the cluster's layout and routes by it: each
// topic has a Transport of its own, which is dropped, with its idle connections
// and what it knew, as soon as an answer shows that it is out of date.
package kafkapub
