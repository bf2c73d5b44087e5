// Package replica reads from streaming replicas without ever presenting old
// data as new.
//
// # The trouble
//
// A replica can show the generation of before a takeover, for as long as it
// lags: seconds, or until somebody resumes its replay.
//
//	primary   token 1 commits A │ takeover: token 2 │ token 2 commits B
//	replica   A ················│ A, fence at 1 ····│ A, fence at 1 ········ B
//	                                                     ▲
//	                               who reads here has to know what it reads
//
//	what is asked for: token 2       before the takeover  between       once B is
//	                                 is replayed                        replayed
//	Primary()                        B                    B             B
//	WaitThenPrimary(d)               waits, then B of     the same      B
//	                                 the primary
//	WaitThenPending(d)               waits, then          the same      B
//	                                 [ErrPending]
//	MarkedStale(d)                   waits, then A with   the same      B
//	                                 Result.Stale
//
// And where the primary itself has the takeover but not yet B, all but
// MarkedStale answer [ErrPending]: what the tables hold is the work of an earlier
// generation.
//
// # What is asked for
//
// A reader says what it must at least see, as a [Point]:
//
//   - a [Position] in the log, taken by [At] after a commit. It travels as text,
//     in a header for example, so that another service reads what this one wrote.
//   - a [Generation] of a key, (epoch, token): the fence of the key is at or past
//     it, and the generation that holds the key has a result. It needs nothing
//     but the data, so it holds across poolers, failovers and timelines.
//     fencing.Position converts: replica.Generation(lease.Position()).
//
// # How it is done
//
// The check and the read use one connection, and the read begins after the
// check. For a position: replayed (never: received) up to it, then a REPEATABLE
// READ snapshot, which must come from the same server. For a generation: the
// fence row is read in the snapshot of the read itself.
//
// Log positions of two timelines can't be compared: after a failover a replica
// that follows the new primary passes the number of a commit that it never had.
// So a replica is believed only while its receiver streams the position's own
// timeline. What pg_control_checkpoint says lags behind a switch by up to
// checkpoint_timeout and is no proof; pg_stat_wal_receiver is, and shows it to
// members of pg_read_all_stats. A position is taken where the log is flushed,
// not where the next record will be inserted: at the boundary of a page the
// latter lies behind a page header that isn't written yet, and no replica
// reaches it before the primary writes again.
//
// From PostgreSQL 19 on the server itself waits (WAIT FOR LSN), which replaces
// the polling and none of the checks: it doesn't look at timelines.
//
// A replica that can't serve is left alone for this read, and the policy goes
// on: one that is a primary ([ErrNotReplica]), of another cluster or database
// ([ErrOtherCluster]), of another timeline ([ErrTimeline]), not to be reached
// ([ErrUnavailable]), or that cancelled the read because of a conflict with
// replay ([ErrRecoveryConflict]). [Result] and [ReadError] list them.
//
// # What a login needs
//
// The role fenceline_monitor (fences and receipts, without results), rights on
// the tables that are read, and pg_read_all_stats to wait for positions on a
// replica. Roles are replicated: grant on the primary.
package replica
