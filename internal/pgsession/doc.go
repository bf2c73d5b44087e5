// Package pgsession has what everybody does who takes a session with PostgreSQL
// out of a pool: bound the wait for it, know an error that ends it, and say what
// helps where a pooler in transaction mode is in between.
package pgsession
