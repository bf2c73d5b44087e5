// Package outboxtest answers, in the tests of those who append events, the one
// question that they have: was this appended?
//
// Against a database, after the commit:
//
//	outboxtest.RequireAppended(t, pool, outboxtest.Match{Topic: "quakes", Key: "catalogue/ci", Type: "quake.reported"})
//	outboxtest.RequireNotAppended(t, pool, outboxtest.Match{Type: "quake.withdrawn"})
//
// A commit of package fencing sends its events with COMMIT, so they are there
// when it has returned, and not before. In a transaction of fencing's Enter they
// are there at once: give the transaction in the pool's place.
//
// Without a database, for a function that takes the transaction as an outbox.Tx,
// a [Recorder] takes the place of the transaction.
package outboxtest
