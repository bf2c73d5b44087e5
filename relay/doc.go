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
// is the same in every byte. Whatever is wrong with one event or one topic
// stops its stream or its topic, says so, and stops nothing else. An outage is
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
// One instance is active: the holder of the lease [LeaseKey]; others stand by.
// A session lasts from one pair of connections to the next. In it, one
// goroutine reads, one stores the cursor, and each partition in use has a lane.
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
// pair (c, L). A checkpoint reads the sequence's value L, and in a later
// statement takes its own transaction id c. Whoever has an id above c has
// positions above L, because an append locks a row of the fence, and with that
// has its id, before it calls nextval; and because xid is declared before pos,
// should anything else ever insert. If the pair was committed before s2 was
// taken, each id from s2.xmax on is above c, and L bounds the window that
// starts at s2. Taken later, or L alone, it is no bound: a transaction that has
// its pos but is younger than everything that has ended is in no list.
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
// and direct, because a pooler in transaction mode would move the session.
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
// # Forks
//
// A topic that is unknown, forbidden, compacted, too small for the records that
// may be appended, or has another partition count than before, is refused as a
// whole. It gets a cursor of its own, a copy of the main one as acknowledged,
// and the main flow goes on without it. The broker is asked again every few
// seconds; once the topic is usable, the fork reads its own windows and joins
// the main flow where both stand at the same snapshot. See type fork.
//
// # Checkpoints
//
// Generations of one row, inserted by the function relay_checkpoint, which
// locks the lease's fence row and compares the token: an instance that was
// paused moves nothing. Its late request may still reach Kafka; it is a second
// copy, since its run began at a stored cursor too. Stored are the cursor as
// acknowledged without a gap, and in the same transaction what the cursor
// relies on: holds and forks. Windows without rows are not stored.
//
// # What happens when
//
//	the relay is killed                      a standby takes over within the lease time, from the stored cursor;
//	                                         what was acknowledged since is published again
//	the relay is paused                      its lease ends before another can have it; it stops, forgets, campaigns
//	a connection to PostgreSQL breaks        forget, connect, load, go on
//	PostgreSQL crashes                       the same
//	PostgreSQL is restored or copied         Run ends with fencing.ErrHistory; an operator decides
//	the broker is away, or slow              the same batches again with backoff; memory stays bounded
//	an acknowledgement is lost               the same batch again; an idempotent publisher appends it once
//	a record is refused                      its stream is held, the rest flows
//	a topic is refused                       the topic waits in a fork, the rest flows
//	a partition count changes                the topic is refused, with the remedy
//	another producer fences ours             Run ends with ErrFenced
//	a transaction stays open for hours       nothing; its events are published when it commits
package relay
