// Package fencing lets a worker commit results under a key only as long as
// nobody has taken the key over, on PostgreSQL.
//
// # The promise
//
// Once a takeover has committed, the old holder can commit nothing more under
// the key, whether or not the new holder has written anything yet. A commit
// whose answer was lost can be asked for again with the same token and the same
// content, and gets its first answer, also after a takeover. Both hold as long
// as PostgreSQL does not lose what it has acknowledged; where it may have
// (a restore, a failover), nothing goes on until an operator has spoken.
//
// # The picture
//
//	         Acquire, takeover                  Commit
//	         (one transaction)                  (one transaction)
//
//	lease    holder, expiry      ◄── renewals   not looked at
//	fence    highest token + 1                  locked; is it still mine?
//	receipt                                     (key, epoch, token, step), digest
//	                                            + your rows + your events
//
// The lease is for liveness: it says who should work, and its context ends
// before anybody else can have it. It promises nothing, since a process can be
// paused between any two instructions. The fence is for safety: one row for
// each key, with the highest token ever issued. A takeover raises it; a commit
// locks it and compares. So the two exclude each other in the database, where a
// pause of the client cannot come between.
//
// A position is (epoch, token): the life of the key and the grant of the lease
// within it. Both only rise, and never come back. The receipt is what makes a
// commit repeatable, and is the transaction's pass to append events (package
// outbox): a write without the gate is refused by the database.
//
// # An example
//
//	fences, err := fencing.New(ctx, pool, fencing.Config{})
//
//	lease, err := fences.Acquire(ctx, "catalogue/ci", fencing.LeaseConfig{TTL: 15 * time.Second})
//	if errors.Is(err, fencing.ErrHeld) { … } // err says by whom, and until when
//	defer lease.Release(ctx)
//
//	content := fencing.Content{Step: report.ID, Type: "application/json", Bytes: body}
//	commit := func(ctx context.Context) (fencing.Receipt, error) {
//		return lease.Commit(ctx, content, func(ctx context.Context, tx fencing.Tx) error {
//			if _, err := tx.Exec(ctx, "insert into quake …"); err != nil {
//				return err
//			}
//			return outbox.Append(ctx, tx, outbox.Event{Topic: "quakes", Type: "quake.reported", Subject: report.ID, Payload: body})
//		})
//	}
//	receipt, err := commit(ctx)               // its answer is lost: ErrUnknownOutcome
//	receipt, err = fencing.Retry(ctx, commit) // receipt.Replayed: it had committed, once
//
// The package's runnable example is this one, answer lost and all.
//
// # The shapes of a commit
//
//	lease.Commit       a callback that reads and writes, between two round trips
//	lease.CommitBatch  statements that are only written, in one round trip; those
//	                   of a lease that wait at the same time share a transaction
//	fences.CommitAll   under several keys, or under none of them; with a callback
//	fencing.Retry      around any of them: asks again while the outcome is unknown
//
// docs/performance.md has what they cost. Callbacks of a lease share a transaction
// only where [LeaseConfig.CoalesceCallbacks] says so, since each then sees what
// those before it have written. With [Config.GroupCommit] the commits of all keys
// that wait at the same time share transactions (a group commit), each with a gate,
// a receipt and an answer of its own: where many small commits come at once, that
// is as cheap as no fence at all. Several keys have no shape of one round trip.
//
// # The answers
//
//	receipt                  committed now
//	receipt.Replayed         had committed before; with the first time and result
//	ErrStale                 somebody has taken over: stop, acquire anew
//	ErrConflict              the same step has committed with other content
//	ErrUnconfirmable         nothing can say any more what became of the attempt
//	ErrClosed                this life of the key has ended
//	ErrUnknownOutcome        the answer to COMMIT is lost: call Commit again
//	ErrNotReplicated         with a receipt: committed, but perhaps not on the standby
//	ErrHistory               restored, promoted or copied: an operator decides
//	ErrOwner                 the key belongs to another login
//	ErrGateTimeout           idle behind the gate for too long: nothing was written
//	ErrLeaseLost, ErrReleased  the lease ended during the callback: nothing was written
//
// All match with errors.Is. Refusals are a [*RefusedError] with the evidence:
// what was presented, where the fence is, which digests differ. None of them is
// guessed from a statement that found no row.
//
// # The rules for callers
//
//   - Everything that determines the effect belongs into Content.Bytes: it is
//     what a retry is compared by. Keep the bytes; don't serialise anew. Who
//     must, and writes JSON, uses [StrictJSON].
//   - A step names one of several commits under one token. Choose it from the
//     work, not from the attempt.
//   - A callback may run more than once over retries. It touches nothing but its
//     transaction, does not end it, and calls nothing that waits for it: another
//     commit of its key, or the lease's Rotate, HandOver, Close or Release, are
//     ErrMisuse there.
//   - Pass the callback's context on: it ends with the trust in the lease.
//   - After ErrUnknownOutcome, ask again, from this process or another, with the
//     same position and content, until there is an answer.
//   - A lease rotates its token by itself now and then ([Lease.Rotate]), and a step
//     is remembered under its token. Who keeps a position for a retry by another
//     process commits by that position.
//   - Tokens protect against being late, not against malice among the logins of
//     one role. Logins that must be kept apart own their keys
//     ([LeaseConfig].Own).
//
// # How it is done
//
// The functions of migrations/producer carry the correctness; this package
// calls them. enter() answers in five steps: F locks the fence row where key,
// epoch and token are the presented ones; where that would have to wait, R1
// looks the receipt up first, so that a replay does not queue; H checks,
// under that lock, that the database is the one in which the token was issued;
// W writes the receipt; and whoever found no row at F, H or W gets its answer
// from R2, which reads receipt and fence in one statement. Every fact of F is in
// the row that it locks, since after a wait only that row is read again. The
// gate raises for each answer but the first commit, so that nothing that is
// pipelined behind it can commit by oversight. It also sets timeouts for the
// rest of the transaction, or a holder that is paused there would block the
// takeover for ever.
//
// Two round trips enclose the callback: BEGIN with the gate, and what was queued
// with COMMIT. One goroutine and one statement renew all leases of a process.
// Those who bring their own lease advance the fence in a transaction of theirs
// ([Fences.Advance]) and commit by position ([Fences.Commit], [Fences.Enter]).
//
// [Fences.Campaign] waits for a lease, [Lease.HandOver] gives it to a named
// successor. The row of the lease carries who waits and who comes next; all of
// that is liveness, judged on the database's clock behind the row's lock, and can
// at worst cost time. [Operator] looks and mends.
package fencing
