// Package monotonic is the weaker of two levels: an older result never
// overwrites a newer one. It is for those who can only compare when they write:
// whose results are in a table of a database that has no fence, and whose
// leases come from elsewhere. Who can have the fence in the database of the
// results should use package fencing, which is the other level, and the default.
//
// # What it does
//
// Each row remembers the (epoch, token) under which it was written, and a write
// with a smaller one is refused: one conditional upsert, a [Table] for pgx, or
// the statement that [Table.SQL] gives for anybody else. The comparison is made
// under the row's lock, so no two writes can overtake each other.
//
// # What it leaves open
//
// The row learns of a takeover only when the new holder writes it:
//
//	holder A, token 1        database                    holder B, token 2
//	─────────────────        ────────                    ─────────────────
//	reads, computes
//	is paused
//	                         lease of A expires
//	                                                     takes over
//	wakes up
//	writes with 1  ────────► row is at 0: accepted       ◄─ the window
//	                         (readers see A's result)
//	                                                     writes with 2
//	                         row is at 2
//	writes with 1  ────────► refused
//
// Between the takeover and the new holder's first write, which may be a long
// time and may never come, the old holder still writes. And the window is one of
// each row: what the new holder does not write, be it another row or another
// table, the old one can write for ever. Under the gate of package fencing the
// takeover itself closes everything at once:
//
//	wakes up
//	commits with 1 ────────► fence is at 2: stale
//
// Nor does this level make a set of writes one: each row compares for itself. A
// deleted row has forgotten its position. A retry whose answer was lost simply
// writes again; it is not told whether it had, and other content under the same
// token is not noticed. docs/levels.md has both levels side by side.
//
// # Positions
//
// Tokens must rise with each grant of the lease, never come back, and stay below
// 2^63: an etcd revision, a Kubernetes lease's transitions, a sequence. Where a
// store can be lost and begin again, raise the epoch; else it is always 1.
package monotonic
