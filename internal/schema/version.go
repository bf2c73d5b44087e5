package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Part is one of the two independent halves of the tables. They have their own
// versions and may live in one schema, in two, or in two databases.
type Part string

// The two parts.
const (
	Producer Part = "producer" // fences, receipts, outbox, the relay's progress
	Consumer Part = "consumer" // guards and what is parked before them
)

// levels is the newest migration of each part that this library knows. The
// migrations package has a test that keeps these numbers equal to its files; it
// is not imported here, so that a library that only checks doesn't carry all
// the SQL.
var levels = map[Part]int{Producer: 14, Consumer: 2}

// Level returns the number of the newest migration of part that this library
// knows: what it needs the schema to be at, and what a migration's min-library
// is compared with. It is 0 for an unknown part.
func Level(part Part) int { return levels[part] }

// Problem is the way in which schema and library don't fit.
type Problem string

// The problems a VersionError can tell of.
const (
	Missing       Problem = "schema missing"  // no migration of the part was applied
	SchemaTooOld  Problem = "schema too old"  // Have: schema's version, Want: this library's level
	LibraryTooOld Problem = "library too old" // Have: this library's level, Want: what the schema demands
	Renamed       Problem = "schema renamed"  // the schema was migrated under another name
)

// VersionError says that the schema doesn't fit this library. Its holder must
// not start: the database needs `relay migrate up`, or the program needs a
// newer library, as the text says.
type VersionError struct {
	Part    Part
	Schema  string
	Problem Problem
	Have    int    // the level or version that is there
	Want    int    // the least that is needed
	Under   string // Renamed only: the name the schema was migrated under
}

// Error names the schema and part, what was found, what is needed, and the
// command or upgrade that helps.
func (e *VersionError) Error() string {
	at := fmt.Sprintf("schema: %q, %s part: %s", e.Schema, e.Part, e.Problem)
	switch e.Problem {
	case Missing, SchemaTooOld:
		return fmt.Sprintf("%s: have migration %d, want %d; run `relay migrate up` against this database (and check the DSN and the schema's name)", at, e.Have, e.Want)
	case LibraryTooOld:
		return fmt.Sprintf("%s: have library level %d, want at least %d, which an applied migration demands; upgrade this program's fenceline library", at, e.Have, e.Want)
	case Renamed:
		return fmt.Sprintf("%s: it was migrated under the name %q, which its functions still contain; undo it with `alter schema %s rename to %s`, or configure the name %q and migrate a new schema",
			at, e.Under, Quote(e.Schema), Quote(e.Under), e.Under)
	}
	return at
}

// AccessError says that a login may not read the schema's version: it is a
// member of none of the group roles.
type AccessError struct {
	Schema string
	Part   Part
	User   string
}

// Error names the login, and a role that would do.
func (e *AccessError) Error() string {
	return fmt.Sprintf("schema: %q is there, but user %q may not read it; grant it the role it needs, for example `grant %s to %s`",
		e.Schema, e.User, Quote(Role(e.Schema, string(e.Part))), Quote(e.User))
}

// Querier is what Check needs of a connection, pool or transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// findVersionTable looks the table up in the catalogue rather than with
// to_regclass, which fails instead of answering where the caller lacks USAGE on
// the schema, and "you lack a role" is another answer than "nothing is there".
const findVersionTable = `
select count(*) > 0,
       coalesce(bool_and(has_schema_privilege(n.oid, 'USAGE') and has_table_privilege(c.oid, 'SELECT')), false),
       current_user::text
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1::text and c.relname = 'schema_version' and c.relkind = 'r'`

// readVersion asks for the largest min_library of all applied migrations, not
// for the newest one's: a later migration may be harmless to a library that an
// earlier one has shut out.
const readVersion = `
select coalesce(max(version), 0)::int, coalesce(max(min_library), 0)::int,
       coalesce(max(schema_name) filter (where schema_name <> '@schema_name@'), '')
from @schema@.schema_version where part = $1::text`

// Check reports whether this library may run on the part of the schema that it
// finds: nil, a *VersionError with what is there and what is needed, an
// *InvalidNameError, an *AccessError, or an error that says what could not be read. Every
// component calls it before it does anything else; it changes nothing.
func Check(ctx context.Context, q Querier, schema string, part Part) error {
	if err := Validate(schema); err != nil {
		return err
	}
	level := Level(part)
	if level == 0 {
		return fmt.Errorf("schema: unknown part %q, want %q or %q", part, Producer, Consumer)
	}
	missing := &VersionError{Part: part, Schema: schema, Problem: Missing, Have: 0, Want: level}

	var found, readable bool
	var user string
	if err := q.QueryRow(ctx, findVersionTable, schema).Scan(&found, &readable, &user); err != nil {
		return fmt.Errorf("schema: look for %q: %w", schema, err)
	}
	if !found {
		return missing
	}
	if !readable {
		return &AccessError{Schema: schema, Part: part, User: user}
	}

	var have, minLibrary int
	var other string
	err := q.QueryRow(ctx, Expand(readVersion, schema), string(part)).Scan(&have, &minLibrary, &other)
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "42P01": // dropped between the two statements
		return missing
	case errors.As(err, &pg) && pg.Code == "42703": // undefined column
		return fmt.Errorf("schema: %q.schema_version is not fenceline's table; choose another schema name: %w", schema, err)
	case err != nil:
		return fmt.Errorf("schema: read the version of %q: %w", schema, err)
	}
	switch {
	case other != "":
		return &VersionError{Part: part, Schema: schema, Problem: Renamed, Have: have, Want: level, Under: other}
	case have == 0:
		return missing
	case minLibrary > level:
		return &VersionError{Part: part, Schema: schema, Problem: LibraryTooOld, Have: level, Want: minLibrary}
	case have < level:
		return &VersionError{Part: part, Schema: schema, Problem: SchemaTooOld, Have: have, Want: level}
	}
	return nil
}
