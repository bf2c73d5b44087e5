// Package migrations creates and changes fenceline's tables, in the same way
// from a program, from the relay's command line and from another migration
// tool.
//
// # Two parts
//
// The producer part (fences, receipts, outbox, the relay's progress) and the
// consumer part (guards) have their own numbered migrations and their own
// versions. They can be in one schema, in two, or in databases that don't know
// each other.
//
// # Files
//
// Each migration is a pair of templates, NNN_name.up.sql and NNN_name.down.sql,
// numbered from 001 without gaps. Placeholders such as @schema@ and @relay@ are
// filled in per schema: @schema@ is the quoted name, @schema_name@ the bare one
// for use inside literals, and @owner@, @producer@, @advancer@, @relay@,
// @operator@, @consumer@ and @monitor@ are the quoted roles. Everything is
// schema-qualified, because the search path is empty while it runs. The first
// lines of an up file say
//
//	-- min-library: N
//
// where N is the oldest library level that may still run once this migration is
// applied (a library's level is the newest migration it knows). Adding a nullable
// column keeps N; dropping what old code reads raises it, in a later release.
//
// An up file's SHA-256, taken before substitution, is recorded when it is
// applied. A file that differs from its record is refused: the database would
// no longer be what the files say. To change something, add a migration.
//
// # What a run does
//
// The first transaction prepares: it checks the server (PostgreSQL 15 or
// newer), creates the group roles, the schema owned by the owner role, and
// schema_version. Then each migration has a transaction of its own, together
// with its row in schema_version; so a run that was cut off has left each
// migration either whole or not begun, and running again goes on where it
// stopped. Every transaction begins with an advisory lock of its own extent and
// reads schema_version only under it: of two processes one waits, then finds
// the work done. The lock ends with the transaction, so this works behind a
// pooler in transaction mode. Nothing needs a second connection.
//
// No statement waits longer than LockTimeout for a lock, since everyone who
// comes after a waiting `alter table` waits with it. A run that got no lock
// tries again until LockPatience is over, and then fails with a LockedError
// that names the sessions in its way.
// What a step alters of the tables that a commit comes by is locked first, and in the
// order in which it does: a commit between its gate and its events goes on.
//
// # Roles
//
// Group roles without login are named after the schema: <schema>_owner,
// _producer, _advancer, _relay, _operator, _consumer, _monitor. Existing ones
// are used, unless they can log in, are superusers, or are members of the
// owner; whoever runs the migrations needs CREATEROLE only where one is
// missing. A PrivilegeError carries the exact statements for an administrator.
// Migrations run as the owner role, so the login that runs them becomes a
// member of it and stays one (`revoke "fenceline_owner" from …`, run by the
// same login, undoes this; the next run grants it again). From PostgreSQL 16 on
// it can become the owner, but doesn't inherit. Roles belong to the whole cluster,
// where other databases may use them, so Down leaves them.
//
// # Down
//
// Down undoes one part's migrations, newest first. It refuses with a
// DataLossError, naming tables and row counts, if a step would drop a table
// with rows in it or a column with values in it, unless told to go ahead with
// Force. Rows that a migration itself inserted don't count as long as they are
// unchanged. When a part's last step is undone and the other part isn't there,
// schema_version and the schema go too, unless somebody else put something
// into it.
package migrations
