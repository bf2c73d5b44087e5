// Package fencingtest puts a worker that uses package fencing into the
// situations for which it was built, in the tests of that worker:
//
//   - [Watch] stops a commit at a named point ([Pauses.At]), as a long garbage
//     collection or a suspended machine would;
//   - [Expire] ends a lease now, so that somebody else can take over;
//   - [Lossy] stands between the worker and the database and loses the answer
//     to a commit that has happened;
//   - [WantRefused] and [WantReplayed] check what the worker was told.
//
// It needs a database of the test's own with the migrations applied. None of it
// changes the code under test: it acts on the pool's configuration, on the
// connection string, and on the database.
//
// The scenario that a worker should survive, in short:
//
//	pauses := fencingtest.Watch(cfg.ConnConfig)
//	…
//	stop := pauses.At(fencingtest.BeforeCommit)
//	go worker.Run(ctx)                       // commits
//	<-stop.Reached()
//	fencingtest.Expire(t, admin, "fenceline", key)
//	successor, err := others.Acquire(ctx, key, …) // waits for the gate's timeout
//	stop.Resume()                            // the worker is told ErrStale, or that its session was ended
package fencingtest
