// Package relay publishes the events of the outbox to Kafka.
//
//	publisher, err := kafkapub.New(kafkapub.Config{Brokers: []string{"127.0.0.1:9092"}})
//	defer publisher.Close()
//	err = relay.Run(ctx, pool, publisher, relay.Config{})
//
// # What it promises
//
// Every committed event is in Kafka at some time, at least once; of each
// stream, first copies stand in commit order and without holes. A second copy
// is the same in every byte. Whatever is wrong with one event, one topic or one
// partition stops that and nothing else, and says so. An outage is
// no failure: it is waited out, for as long as it takes.
//
// Not promised: exactly once (a crash republishes what was acknowledged since
// the last checkpoint), and order between streams.
//
// # The picture
//
//	outbox ── reader ──┬── main flow ──┬── lane (topic, partition) ── Publisher ── Kafka
//	  one page at a    ├── fork of T   ├── lane                          │
//	  time, by pos     └── …           └── …                             │
//	relay_checkpoint ◄── what is acknowledged without a gap ◄────────────┘
//
// Instances share the work by shards; see below. A session lasts from one pair
// of connections to the next, or until shards change hands. In it, one goroutine
// reads, one stores the cursors, and each partition in use has a lane.
//
// # Shards
//
// A key's hash puts it into one of 64 shards, once and for all: the number is
// stored with the fence and with each event. Each shard is a lease of this
// module's own fencing ([ShardKey]) and has a cursor of its own. All of a key is
// read under one cursor, and whoever reads begins at a stored one and publishes
// without gaps. So it doesn't matter for the order of first copies who reads, nor
// whether somebody else, who was paused, still sends what he has.
//
// An instance says that it is alive (table relay_instance) and looks four times
// a second who else is, and which shards are free. Everybody computes the same
// shares from that. Who has less than its share takes what is free, who has more
// gives away. Nothing is negotiated: leases and fences decide, the shares only
// say how much to want. Type share has it.
//
// A shard and a partition are remainders of one hash, so which shards an instance
// has decides how even its lanes are. It takes, of what is free, and gives away, of
// what is above its share, whatever leaves it with as many for each partition; see
// even.go. No shard changes hands for that alone.
//
// A session works under a fixed set of leases. When the set changes, it stops
// reading, sends what stands in front of anything that was sent already, or has it
// in a fork (see closing.go), waits for its requests, and stores its cursors; only then are
// shards given away. The next session begins from what is stored, at once, with
// nothing in memory. So when instances come and go in an orderly way, nothing is
// published twice.
//
// Shards that stand at one place share a flow: one query reads them all, by a
// mask of bits that no index can attract. Of several flows the furthest is the
// main one; the others are forks of it, and join it within a few windows.
//
// # The snapshot window
//
// Events must not be read by "pos > where I was": of two transactions, the one
// with the larger pos may commit first, and the other would be passed over. So
// the cursor is a snapshot, s1: which transactions count as seen. A poll is one
// statement, and the snapshot that it runs under is s2. The window is every row
// visible in s2 and not in s1. Nothing waits for a transaction that stays open,
// and nothing depends on when it commits.
//
// A window is read in the order of pos, which is the order of commits within a
// stream: an append allots pos under the lock of the key's fence, from a
// sequence that hands out no position ahead (cache 1; checked at the start).
// It has two phases, which need no merging:
//
//  1. Stragglers: rows at or below the low bound, of transactions that ran when
//     s1 was taken and have ended since. By index (xid, pos).
//  2. Rows above the low bound, by primary key, up to the sequence's value that
//     was read together with s2.
//
// So one pos says how far inside a window the relay is. It is stored with s1,
// s2 and both bounds, and a restart goes on in the middle of a window of
// millions. A page is bounded in rows and in bytes.
//
// The low bound says where rows that are not visible in s1 can be: at or below
// it only those of transactions in s1's list of running ones. It comes from a
// pair (c, L). A checkpoint reads the sequence's value L, and in a later statement
// takes its own transaction id c. Whoever has an id above c has
// positions above L, because an append locks a row of the fence, and with that
// has its id, before it calls nextval; and because xid is declared before pos,
// should anything else ever insert. If the pair was committed before s2 was
// taken, each id from s2.xmax on is above c, and L bounds the window that
// starts at s2. Taken later, or L alone, it is no bound: a transaction that has
// its pos but is younger than everything that has ended is in no list.
//
// Between checkpoints the polls themselves give bounds, at no cost: each reads the
// sequence's value, and the next one reads which transaction id would be given out
// then. That is a c without a transaction, and L holds for a snapshot whose xmax has
// come up to it; see type bounds. Where none does for long, the reader makes a pair
// of its own. Transactions that are known to be younger than their bound are no
// stragglers, so that most polls have only the second phase.
//
// The tests on xid are pg_visible_in_snapshot and nothing else, and topics are
// compared in a way that fits no index, so that the planner has one way to
// read a page: an index, in order, as far as the page goes. A test explains the
// generic plans on misleading statistics.
//
// # After a lost connection
//
// Everything in memory is forgotten and read again. PostgreSQL gives out
// transaction ids a second time after a crash, those that left nothing in its
// log, and under a snapshot from before the crash they count as seen. A stored
// cursor can't be ahead of them: it is in the same log, behind the transactions
// it speaks of. That is also why a checkpoint may be committed without waiting
// for the disk. Connections are dedicated, because a pool would hide the loss,
// direct, because a pooler in transaction mode would move the session, and with one
// server that is no standby: another one's snapshots mean nothing here, and a standby's
// list no transaction that runs.
//
// # Lanes
//
// Each partition has a queue in the order of pos and one request in flight. A
// batch is what is there when the lane is free: nothing waits for company. An
// answer that doesn't say what happened is followed by the same batch again. Why
// that keeps first copies in order, through holds and forks, is told at type
// lane. Rows that were read and are not acknowledged are bounded in bytes; the
// reader waits for room.
//
// # Held streams
//
// When the broker refuses one record for what it is, its batch is split until
// the record stands alone. Its stream is held from there on: later records of
// it leave the lane, the rest of the batch goes out, and the main flow passes
// the stream by, whatever epoch its later rows have. The row in relay_held is
// written by the next checkpoint, so no stored cursor is ever past a record
// that is neither published nor held.
//
// An operator has it retried or skipped; the command only sets a state in the
// database. A retry reads the stream beside the main flow, from the row's
// position on, and gives it back at a boundary; see type side. A record that is
// refused again is held again. Held for its size, a stream is retried once by
// itself when the topic's limit grows.
//
// # Verdicts
//
// A skip is a verdict on rows of the outbox, committed by the operator's command
// before the relay hears of it; whoever reads such a row reads the verdict with
// it, and makes a skip marker of the last one of its range, always the same. So
// the event is never sent again, whatever crashes. Retiring a topic that is gone
// gives all that waits for it its verdict: its lane writes to the database
// instead of Kafka, so its fork ends like any other. Neither touches an end
// record's meaning: it can't be skipped, and when retired it stays what it is.
//
// # Pins
//
// The partition count with which the relay began to write to a topic is kept in
// the database, for every instance and for good. A topic with another count is
// refused until an operator says that consumers have read all of it.
//
// # Once more
//
// [Republish] publishes events again that a stored cursor has passed, and leaves
// alone what the relay is still to publish: so every copy is a second one, and
// the order of first copies is not touched.
//
// # Forks
//
// A topic that is unknown, forbidden, compacted, too small for the records that
// may be appended, or has another partition count than before, is refused as a
// whole. It gets a cursor of its own, a copy of the main one as acknowledged,
// and the main flow goes on without it. The broker is asked again every few
// seconds; once the topic is usable, the fork reads its own windows and joins
// the main flow where both stand at the same snapshot. See type fork.
//
// The same is done for one partition that fails, while the broker answers, for
// longer than Config.PartitionGrace: it has no leader, or too few replicas. What
// waits for it would otherwise fill the budget and stop all others. Its fork
// tries now and then with one batch, and keeps nothing in memory; see
// partition.go. And shards that stand at another place than most are a fork too.
//
// An event has one owner: the fork of its partition, else that of its topic,
// else that of its shard, else the main flow. Where an operator has accepted another
// number of partitions while one was set aside, an event can be in the forks of two;
// the first one owns it, and both are stored together. A fork joins where it stands at
// the same boundary as every flow that has its events afterwards.
//
// # Checkpoints
//
// Generations of one row for each place at which shards stand, inserted by the
// function relay_checkpoint; for each shard the newest row that contains it
// counts. The function locks the fence rows of all the session's leases, in the
// order of keys, and compares the tokens: an instance that was paused, and has
// lost a single shard, moves nothing at all. Its late request may still reach
// Kafka; it is a second copy, since its run began at a stored cursor too. Stored
// are the cursors as acknowledged without a gap, and in the same transaction
// what they rely on: holds and forks. Windows without rows are not stored, but
// for one now and then while others publish: what is kept of the outbox is kept
// until the cursors of all shards have passed it.
//
// # Rows that append hasn't written
//
// Somebody can insert into the outbox by hand. A row without a key, of an epoch
// that can't be, in a shard that isn't its key's, with headers that are no list:
// its stream is held, with the reason, and everything else flows. See oddity.go.
//
// # Wake-up
//
// A producer's outbox.Waker sends NOTIFY after commits, and each instance
// listens on a connection of its own. An idle reader therefore backs off to
// Config.PollMax. Nothing rests on hearing: while the connection is not known to
// live, or events come unannounced, the reader looks every Config.PollBlind.
//
// # Retention
//
// The outbox is partitioned by pos, the partition's number in its high bits. The
// next one is attached beside the traffic, and the sequence set to its start
// once no transaction is left that would not find it. A partition is dropped
// when its newest event is old enough and everything in it is published and not
// held: said by a check that is made under the lock that the drop needs, since
// a transaction may commit into the partition while the drop waits. See
// outbox_rotate() and outbox_drop() of the migrations. Of all instances one does
// it, the holder of the lease [RetentionKey].
//
// # Pause
//
// Whether relays may publish is a row of the database, see [SetPause]. A reader
// does not look before it is known, nor while they may not.
//
// # What happens when
//
//	an instance starts, or stops             shards change hands within a second, and nothing is published twice
//	an instance is killed                    the others take its shards over within the lease time, from the stored
//	                                         cursors; what was acknowledged since is published again
//	an instance is paused                    its leases end before others can have them; it stops, forgets, and takes
//	                                         its share again
//	a connection to PostgreSQL breaks        forget, connect, load, go on
//	PostgreSQL crashes                       the same
//	PostgreSQL is restored or copied         Run ends with fencing.ErrHistory; an operator decides
//	the broker is away, or slow              the same batches again with backoff; memory stays bounded
//	an acknowledgement is lost               the same batch again; an idempotent publisher appends it once
//	a record is refused                      its stream is held, the rest flows; an operator retries or skips
//	a topic is refused                       the topic waits in a fork, the rest flows
//	a partition has no leader                the partition waits in a fork, the rest flows
//	a topic is gone for good                 an operator retires it; what waits gets its verdict
//	a partition count changes                the topic is refused, with the remedy, until an operator accepts it
//	another producer fences ours             Run ends with ErrFenced
//	a transaction stays open for hours       nothing; its events are published when it commits
package relay
