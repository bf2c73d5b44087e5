package fencing

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/schema"
)

// DB is a pool, a connection or a transaction.
type DB interface {
	// Query is pgx's.
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	// QueryRow is pgx's.
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// ProtectedTable is a table that refuses writes outside the gate.
type ProtectedTable struct {
	// Table is its schema and name.
	Table pgx.Identifier
	// KeyColumn is the column that holds the key of each row.
	KeyColumn string
	// Gaps says what is still open, such as "truncate of public.leaf" where a
	// partition was attached after Protect: protect it again. Empty for none.
	Gaps []string
}

// The table's name reaches the database as a parameter, quoted, and is looked
// up there as the caller would find it; no statement is put together from it
// here. The functions are in migrations/producer, for people without Go.
const (
	protectSQL   = "select @schema@.protect($1::text::regclass, $2::text::name)"
	unprotectSQL = "select @schema@.unprotect($1::text::regclass)"
	protectedSQL = "select table_schema, table_name, key_column, gaps from @schema@.protected()"
)

// Protect makes a table refuse each write (insert, update, delete, COPY, and
// truncate as a whole) of a transaction that has not passed the gate of the
// row's key, whoever writes. A refused statement fails with SQLSTATE FL007 and
// says what to do. An update that moves a row to another key needs the gates of
// both; a row without a key is refused.
//
// It must be run as the table's owner, who needs the role <schema>_producer or
// <schema>_operator to name the functions; those who write need nothing. The
// key column is of a text type. A partitioned table is protected with all its
// partitions, also those attached later (for TRUNCATE, which nobody but a
// partition's owner may do unless told so, run Protect again). Run again it
// changes the key column. It waits for the transactions that are writing the
// table: give ctx a deadline, or the session a lock_timeout.
//
// What it does not stop is what an owner or superuser does to the protection
// itself: disabling triggers, session_replication_role = replica, dropping or
// detaching; and logical replication applies rows without it.
//
// Schema is where the migrations were applied. Defaults to "fenceline". Errors:
// an [*InvalidError] or ErrInvalid (no such table or column, another type, a
// view or foreign table), or the database's (42501: not the owner).
func Protect(ctx context.Context, db DB, schemaName string, table pgx.Identifier, keyColumn string) error {
	name, err := protection(ctx, db, &schemaName, table)
	if err != nil {
		return err
	}
	if err := validateName("key column", keyColumn); err != nil {
		return err
	}
	_, err = queryAll(ctx, db, func(pgx.CollectableRow) (struct{}, error) { return struct{}{}, nil },
		schema.Expand(protectSQL, schemaName), name, keyColumn)
	return protectError("protect "+name, err)
}

// Unprotect takes the protection off a table, and says whether there was one.
// It must be run as the table's owner. Errors are those of [Protect].
func Unprotect(ctx context.Context, db DB, schemaName string, table pgx.Identifier) (bool, error) {
	name, err := protection(ctx, db, &schemaName, table)
	if err != nil {
		return false, err
	}
	was, err := queryAll(ctx, db, pgx.RowTo[bool], schema.Expand(unprotectSQL, schemaName), name)
	if err != nil {
		return false, protectError("unprotect "+name, err)
	}
	return len(was) == 1 && was[0], nil
}

// Protected lists the protected tables of the database, by name. It needs the
// role <schema>_producer, _operator or _monitor.
func Protected(ctx context.Context, db DB, schemaName string) ([]ProtectedTable, error) {
	if err := usable(ctx, db, &schemaName); err != nil {
		return nil, err
	}
	list, err := queryAll(ctx, db, func(row pgx.CollectableRow) (t ProtectedTable, err error) {
		t.Table = make(pgx.Identifier, 2)
		err = row.Scan(&t.Table[0], &t.Table[1], &t.KeyColumn, &t.Gaps)
		return t, err
	}, schema.Expand(protectedSQL, schemaName))
	return list, protectError("list protected tables", err)
}

func queryAll[T any](ctx context.Context, db DB, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, row)
}

// usable fills in the schema's default, and sees that it is there and fits.
func usable(ctx context.Context, db DB, schemaName *string) error {
	if *schemaName == "" {
		*schemaName = schema.Default
	}
	if err := schema.Check(ctx, db, *schemaName, schema.Producer); err != nil {
		return fmt.Errorf("fencing: %w", err)
	}
	return nil
}

// protection checks the arguments and gives the table's quoted name.
func protection(ctx context.Context, db DB, schemaName *string, table pgx.Identifier) (string, error) {
	if len(table) < 1 || len(table) > 2 {
		return "", &InvalidError{"table", fmt.Sprintf("has %d parts, want a name, or schema and name", len(table))}
	}
	for _, part := range table {
		if err := validateName("table", part); err != nil {
			return "", err
		}
	}
	return table.Sanitize(), usable(ctx, db, schemaName)
}

// validateName refuses what PostgreSQL would cut off, which could then be the
// name of something else.
func validateName(what, name string) error {
	switch {
	case name == "":
		return &InvalidError{what, "has an empty name"}
	case len(name) > 63:
		return &InvalidError{what, "has a name of more than 63 bytes, which PostgreSQL would cut off"}
	case !validText(name):
		return &InvalidError{what, "has a name that is not UTF-8 without NUL"}
	}
	return nil
}

// protectError says what was tried and what helps.
func protectError(what string, err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &pg):
		return fmt.Errorf("fencing: %s: %w", what, err)
	}
	remedy := pg.Hint
	switch pg.Code {
	case "FL011", "42P01", "3F000": // an argument; no such table; no such schema
		text := fmt.Sprintf("fencing: %s: %s", what, pg.Message)
		if remedy != "" {
			text += ": " + remedy
		}
		return &wrappedError{text, ErrInvalid, err}
	case "42501":
		if remedy == "" {
			remedy = "it must be run as the owner of the table and of its partitions, who needs the schema's role for producers or operators"
		}
	case "55P03", "57014": // no lock in time; cancelled
		remedy = "the table is being written: try again when its writers are done"
	}
	if remedy != "" {
		remedy = ": " + remedy
	}
	return fmt.Errorf("fencing: %s: %w%s", what, err, remedy)
}
