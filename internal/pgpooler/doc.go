// Package pgpooler is a connection pooler in transaction mode, for tests: what
// PgBouncer does, and what may break whoever keeps something in a session.
//
//	pooler, err := pgpooler.Listen(pgpooler.Config{Backends: []string{dsn, dsn, dsn}, Reset: true})
//	pool, err := pgxpool.New(ctx, pooler.DSN("default_query_exec_mode=exec"))
//
// A client has a backend from the first message of a transaction to its end.
// The next one, also of a batch that is in the pipeline already, goes to the
// backend that has rested longest: with two of them or more never to the same
// one twice in a row, if nobody else works. With Reset a backend forgets
// everything in between (DISCARD ALL).
//
// Whoever goes in the middle of a transaction takes the backend along: its
// session is ended, and the server rolls back. A request to cancel is passed to
// the backend that the client has at that moment. Backends may be on several
// servers. Clients are asked for no password.
package pgpooler
