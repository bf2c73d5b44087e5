// Package pgtest gives each test a PostgreSQL database of its own.
//
// All tests of a test binary share one server, which starts when the first of them asks. FENCELINE_TEST_POSTGRES names
// a running server to use instead (a superuser's connection string); package cmd/teststack sets it, so that the tests
// of all packages share one. The server keeps nothing through a power cut (fsync and full_page_writes are off), but
// synchronous_commit is on: with it off, a commit that has been answered could be missing from the log.
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		pool := pgtest.Pool(t) // an empty database, dropped after the test
//		…
//	}
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) } // optional, see package testmain
//
// A database isolates tables, advisory locks, LISTEN and replication slots. Roles belong to the server: tests that
// make some must tolerate that others make the same at the same moment.
//
// [Clone] copies a database that was prepared once, by migrations for example, which is far quicker than preparing
// each anew. [Server] starts a server for one test alone, to be killed and restarted, and [Replica] a streaming replica
// of that. FENCELINE_TEST_POSTGRES_VERSION=18 has all of this on that major version, or fails. [WaitBlocked] is how a test of an
// interleaving knows that a session has arrived at a lock.
package pgtest
