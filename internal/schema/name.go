package schema

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Default is the schema that is used where none is configured.
const Default = "fenceline"

// validName leaves room within PostgreSQL's 63 bytes for the longest role
// suffix and for the names of objects derived from the schema's. It admits only
// characters that need no folding, so quoted and unquoted spellings of a name
// are the same name.
var validName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

// InvalidNameError says that a schema name is not allowed and why. Nothing was
// sent to the database.
type InvalidNameError struct {
	Name   string // the name as it was given
	Reason string // what is wrong with it
}

// Error names the schema, what is wrong with it and what is allowed.
func (e *InvalidNameError) Error() string {
	return fmt.Sprintf("schema: name %q is not allowed: %s; allowed are 1 to 40 characters: lower-case letters a-z, digits and underscores, "+
		"not beginning with a digit or with pg_, and neither public nor information_schema (for example %q)", e.Name, e.Reason, Default)
}

// Validate reports whether name may be used as a schema, as an
// *InvalidNameError if not. It must have been called before name reaches
// Expand.
func Validate(name string) error {
	refuse := func(reason string) error { return &InvalidNameError{Name: name, Reason: reason} }
	switch {
	case name == "":
		return refuse("it is empty")
	case len(name) > 40:
		return refuse(fmt.Sprintf("it has %d bytes", len(name)))
	case !validName.MatchString(name):
		return refuse("it has a character that is not allowed there")
	case strings.HasPrefix(name, "pg_"):
		return refuse("PostgreSQL keeps names that begin with pg_ for itself")
	case name == "public" || name == "information_schema":
		return refuse("this schema belongs to everyone or to PostgreSQL")
	}
	return nil
}

// Quote returns name as a quoted SQL identifier.
func Quote(name string) string { return pgx.Identifier{name}.Sanitize() }
