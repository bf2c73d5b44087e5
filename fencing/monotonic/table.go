package monotonic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Position is under which grant of the lease a result was made.
type Position struct {
	// Epoch is the life of what issues the tokens. From 1.
	Epoch int64
	// Token rises with each grant of the lease within the epoch. From 1.
	Token int64
}

// Compare is -1 if p is older than q, 0 if they are the same, 1 if it is newer.
func (p Position) Compare(q Position) int {
	switch {
	case p == q:
		return 0
	case p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.Token < q.Token:
		return -1
	}
	return 1
}

// String gives (epoch, token).
func (p Position) String() string { return fmt.Sprintf("(%d, %d)", p.Epoch, p.Token) }

// Config describes a table of results.
type Config struct {
	// Table is its name, or schema and name. Required.
	Table pgx.Identifier
	// Key is the column that names the result, with a unique constraint of its
	// own. Required.
	Key string
	// Columns are those that a write sets, beside key, epoch and token. Defaults
	// to none.
	Columns []string
	// Epoch and Token are the columns that remember the position: bigint, not
	// null. Default to "epoch" and "token".
	Epoch, Token string
}

// Table writes results into a table, never an older one over a newer one. It
// keeps no state and is safe for concurrent use.
type Table struct {
	columns     int
	write, read string
	name        string
}

// The errors of [Table.Write]. In each case nothing was written.
var (
	// ErrStale: the row has a newer position. The error is a [*StaleError].
	ErrStale = errors.New("stale: the row was written under a newer position")
	// ErrNotWritten: no row was written and none that is newer is there: it was
	// deleted at the same moment, or a trigger or policy of the table's has
	// suppressed the write.
	ErrNotWritten = errors.New("nothing was written, and nothing newer is there: look for triggers and row policies of the table")
	// ErrInvalid: an argument is out of range.
	ErrInvalid = errors.New("invalid argument")
)

// StaleError says where the row is.
type StaleError struct {
	Key                string
	Presented, Current Position
}

// Error names the key and both positions.
func (e *StaleError) Error() string {
	return fmt.Sprintf("monotonic: key %q under %v: %v: it is at %v", e.Key, e.Presented, ErrStale, e.Current)
}

// Unwrap gives ErrStale.
func (e *StaleError) Unwrap() error { return ErrStale }

// New checks the names and puts the statements together. It sends nothing; that
// the table is as described shows at the first Write.
func New(cfg Config) (*Table, error) {
	if cfg.Epoch == "" {
		cfg.Epoch = "epoch"
	}
	if cfg.Token == "" {
		cfg.Token = "token"
	}
	if len(cfg.Table) < 1 || len(cfg.Table) > 2 {
		return nil, fmt.Errorf("monotonic: table has %d parts, want a name, or schema and name: %w", len(cfg.Table), ErrInvalid)
	}
	columns := append([]string{cfg.Key, cfg.Epoch, cfg.Token}, cfg.Columns...)
	for i, name := range append(slices.Clone(columns), cfg.Table...) {
		switch {
		case name == "" || len(name) > 63 || !utf8.ValidString(name) || strings.ContainsRune(name, 0):
			return nil, fmt.Errorf("monotonic: %q is not a name of a column or table, which has 1 to 63 bytes of UTF-8: %w", name, ErrInvalid)
		case i < len(columns) && slices.Index(columns, name) != i:
			return nil, fmt.Errorf("monotonic: column %q is named twice: %w", name, ErrInvalid)
		}
	}
	quoted := make([]string, len(columns))
	params := make([]string, len(columns))
	var sets []string
	for i, c := range columns {
		quoted[i] = pgx.Identifier{c}.Sanitize()
		params[i] = "$" + strconv.Itoa(i+1)
		if i > 0 {
			sets = append(sets, quoted[i]+" = excluded."+quoted[i])
		}
	}
	table, key, epoch, token := cfg.Table.Sanitize(), quoted[0], quoted[1], quoted[2]
	return &Table{
		columns: len(cfg.Columns),
		name:    table,
		// The condition is checked under the row's lock, on the row as it is
		// then: an upsert that has waited for another one sees what that has
		// written. Equal positions are one holder's, whose writes it orders
		// itself.
		write: fmt.Sprintf("insert into %s as stored (%s)\nvalues (%s)\non conflict (%s) do update set %s\nwhere (stored.%s, stored.%s) <= (excluded.%s, excluded.%s)",
			table, strings.Join(quoted, ", "), strings.Join(params, ", "), key, strings.Join(sets, ", "), epoch, token, epoch, token),
		read: fmt.Sprintf("select %s, %s from %s where %s = $1", epoch, token, table, key),
	}, nil
}

// SQL is the statement of Write, for other languages and tools. Its parameters
// are key, epoch, token, and the columns in their order. "INSERT 0 1" says that
// it has written, "INSERT 0 0" that the row is newer.
func (t *Table) SQL() string { return t.write }

// DB is a pool, a connection or a transaction.
type DB interface {
	// Exec is pgx's.
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	// QueryRow is pgx's.
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Write stores a result, unless one of a newer position is there. Values are
// those of Config.Columns. A result of the same position is overwritten, so a
// write whose answer was lost can be repeated.
//
// What it does not promise is in the package's documentation: until the new
// holder has written this row, the old one still can.
//
// Errors: ErrStale (a [*StaleError]; stop, somebody else holds the lease),
// ErrNotWritten, ErrInvalid, or the database's; in a stricter isolation than
// READ COMMITTED, 40001 where two write at once.
func (t *Table) Write(ctx context.Context, db DB, key any, pos Position, values ...any) error {
	switch {
	case pos.Epoch < 1 || pos.Token < 1:
		return fmt.Errorf("monotonic: position %v, want epoch and token from 1: %w", pos, ErrInvalid)
	case len(values) != t.columns:
		return fmt.Errorf("monotonic: %d values for %d columns of %s: %w", len(values), t.columns, t.name, ErrInvalid)
	}
	tag, err := db.Exec(ctx, t.write, append([]any{key, pos.Epoch, pos.Token}, values...)...)
	if err != nil {
		return fmt.Errorf("monotonic: write %v of %s: %w", key, t.name, err)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	// Only a look at the row makes it an answer, in a statement of its own: the
	// one before may have begun before the newer write was there to be seen.
	var current Position
	err = db.QueryRow(ctx, t.read, key).Scan(&current.Epoch, &current.Token)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && current.Compare(pos) <= 0:
		return fmt.Errorf("monotonic: write %v of %s: %w", key, t.name, ErrNotWritten)
	case err != nil:
		return fmt.Errorf("monotonic: nothing was written; look at %v of %s: %w", key, t.name, err)
	}
	return &StaleError{Key: fmt.Sprint(key), Presented: pos, Current: current}
}
