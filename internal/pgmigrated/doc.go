// Package pgmigrated gives tests a PostgreSQL database in which both parts of
// the migrations are applied, in the default schema. It is apart from pgtest so
// that the migrations' own tests can use that.
//
// The migrations run once per test binary, into a template that each test's
// database is a copy of. The group roles belong to the server and outlive the
// test; a test that needs a login makes its own and grants it one of them.
package pgmigrated
