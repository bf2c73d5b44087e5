package migrations

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/jackc/pgx/v5/pgconn"
)

// VersionError says that a schema and the library that looks at it don't fit:
// the schema is missing, too old or renamed, or the library is too old. It has
// what is there (Have), what is needed (Want), and its text the remedy.
type VersionError = schema.VersionError

// Problem is the way in which schema and library don't fit, a VersionError's
// field.
type Problem = schema.Problem

// The problems a VersionError can tell of.
const (
	Missing       = schema.Missing
	SchemaTooOld  = schema.SchemaTooOld
	LibraryTooOld = schema.LibraryTooOld
	Renamed       = schema.Renamed
)

// InvalidNameError says that a schema name is not allowed and why.
type InvalidNameError = schema.InvalidNameError

// ServerError says that the PostgreSQL server can't carry the tables. Upgrade
// the server or use another one.
type ServerError struct {
	Have int // server_version_num, for example 140012
	Want int // the least that is needed
}

// Error names both versions.
func (e *ServerError) Error() string {
	return fmt.Sprintf("migrations: the server is PostgreSQL %d.%d, want %d or newer; upgrade the server or point the DSN at another one",
		e.Have/10000, e.Have%10000, e.Want/10000)
}

// ChangedError says that a migration was applied from another file than the one
// of this program. Restore the file, or use the program version that it was
// applied with; a change belongs into a new migration.
type ChangedError struct {
	Migration string // for example producer/001_init
	Applied   string // SHA-256 that schema_version records, or the recorded name if that differs
	File      string // SHA-256 of this program's file, or its name
}

// Error names the migration, both checksums and the remedy.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("migrations: %s was edited after it had been applied: schema_version records %s, the file has %s; "+
		"restore the file (or use the version of this program that applied it) and put the change into a new migration", e.Migration, e.Applied, e.File)
}

// PrivilegeError says that the login may not do what is missing, and carries
// what an administrator has to run first. Nothing was changed.
type PrivilegeError struct {
	User       string
	Missing    string
	Statements []string // SQL, in order, each ending in a semicolon
}

// Error names the user, what it lacks, and the statements.
func (e *PrivilegeError) Error() string {
	return fmt.Sprintf("migrations: user %q %s; have an administrator run these statements in this database, then run this again:\n%s",
		e.User, e.Missing, strings.Join(e.Statements, "\n"))
}

// RoleError says that a role that has the name of one of our group roles can't
// be one. Rename or alter it, or choose another schema name.
type RoleError struct {
	Role   string
	Reason string
	Remedy string // a statement
}

// Error names the role, the reason and the remedy.
func (e *RoleError) Error() string {
	return fmt.Sprintf("migrations: role %q exists but %s, which a group role must not: run `%s`, or choose another schema name", e.Role, e.Reason, e.Remedy)
}

// OwnerError says that the schema exists but belongs to someone else.
type OwnerError struct {
	Schema, Have, Want string
}

// Error names the schema, its owner, and the remedy.
func (e *OwnerError) Error() string {
	return fmt.Sprintf("migrations: schema %q exists and belongs to %q, want %q: if it is meant for fenceline run `alter schema %s owner to %s`, otherwise choose another schema name",
		e.Schema, e.Have, e.Want, schema.Quote(e.Schema), schema.Quote(e.Want))
}

// Session is someone else's connection that holds locks.
type Session struct {
	PID         int
	User        string // empty where this login may not see it
	Application string
	State       string // pg_stat_activity.state, for example "idle in transaction"
}

// LockedError says that other sessions held locks for longer than
// Config.LockPatience. Nothing of the step that waited was kept. Let them
// finish or end them with pg_terminate_backend, then run again.
type LockedError struct {
	Doing   string // what was waiting
	Waited  time.Duration
	Holders []Session // who holds locks in the schema; may be empty if they have just gone
	Err     error     // the last refusal
}

// Error names what waited, for how long, and the pids in the way.
func (e *LockedError) Error() string {
	who := "nobody holds one any more, so try again"
	if len(e.Holders) > 0 {
		var list []string
		for _, s := range e.Holders {
			list = append(list, fmt.Sprintf("pid %d (user %q, application %q, %s)", s.PID, s.User, s.Application, s.State))
		}
		who = "held in this schema by " + strings.Join(list, ", ") + "; let them finish or end them with pg_terminate_backend, then run this again"
	}
	return fmt.Sprintf("migrations: %s: got no lock within %s: %s", e.Doing, e.Waited.Round(time.Millisecond), who)
}

// Unwrap returns the last refusal.
func (e *LockedError) Unwrap() error { return e.Err }

// Loss is what one table would lose.
type Loss struct {
	Table  string // schema-qualified, quoted
	Column string // empty if the table is dropped
	Rows   int64  // rows, or rows with a value in Column
	More   bool   // Rows is only where counting stopped
}

// DataLossError says that a down step would lose data. Nothing was changed. Save
// the rows, or go ahead with Force.
type DataLossError struct {
	Migration string
	Losses    []Loss
}

// Error names the migration, and each table with its rows.
func (e *DataLossError) Error() string {
	var list []string
	for _, l := range e.Losses {
		what, more := l.Table, ""
		if l.Column != "" {
			what += " column " + schema.Quote(l.Column)
		}
		if l.More {
			more = "more than "
		}
		rows := "rows"
		if l.Rows == 1 && !l.More {
			rows = "row"
		}
		list = append(list, fmt.Sprintf("%s: %s%d %s", what, more, l.Rows, rows))
	}
	return fmt.Sprintf("migrations: undoing %s would lose data (%s); nothing was changed; save the rows, or go ahead with force", e.Migration, strings.Join(list, ", "))
}

// StepError is a failure of one migration's SQL. Its transaction was rolled
// back; the steps before it stay.
type StepError struct {
	Step Step
	Line int // in the file, 1 for the first; 0 if the server didn't say
	Err  error
}

// Error names the step, the line, what the server said, and what helps, where
// the migration says so.
func (e *StepError) Error() string {
	at, help := "", ""
	if e.Line > 0 {
		at = fmt.Sprintf(" line %d", e.Line)
	}
	var pg *pgconn.PgError
	if errors.As(e.Err, &pg) && pg.Hint != "" {
		help = ": " + pg.Hint
	}
	return fmt.Sprintf("migrations: %s%s: %v%s", e.Step, at, e.Err, help)
}

// Unwrap returns what the server said.
func (e *StepError) Unwrap() error { return e.Err }
