package dbcheck

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
)

// sessionSQL ends in values that are read back only where the session spells
// them as the driver expects.
const sessionSQL = `select current_setting('client_encoding'), current_setting('server_encoding'), current_setting('DateStyle'), current_setting('IntervalStyle'),
	current_setting('standard_conforming_strings'), timestamptz '2000-01-02 03:04:05+00', interval '1 day 1.5 s'`

// The columns of sessionSQL that can fail to be read.
const (
	timeColumn     = 5
	intervalColumn = 6
)

// Session looks at what a login or a connection string can set for a session, and
// gives a *Problem, nil, or the database's error. It needs no schema.
//
// With another client_encoding the server would convert what is UTF-8 here as if
// it were something else: a key that is not ASCII would be another key to
// everybody whose session has UTF-8, with a fence of its own, and another one in
// Kafka. Times and intervals are binary in pgx's default query mode; in those that
// a pooler in transaction mode needs they are text, in the session's style, and
// the driver reads one of each only: every acquire would commit and then fail.
func Session(ctx context.Context, q schema.Querier) error {
	var client, server, dates, intervals, strings string
	var t time.Time
	var d time.Duration
	err := q.QueryRow(ctx, sessionSQL).Scan(&client, &server, &dates, &intervals, &strings, &t, &d)
	if scan, ok := errors.AsType[pgx.ScanArgError](err); ok {
		switch scan.ColumnIndex {
		case timeColumn:
			return style("DateStyle", dates, "ISO")
		case intervalColumn:
			return style("IntervalStyle", intervals, "postgres")
		}
	}
	if err != nil {
		return fmt.Errorf("look at the session's settings: %w", err)
	}
	// A key's shard and partition are murmur2 of its bytes in UTF-8, by the database
	// and by the relay; between two encodings they would differ. In SQL_ASCII bytes
	// are what they are.
	if server != "UTF8" && server != "SQL_ASCII" {
		return &Problem{"the database encoding", server,
			"keys beyond ASCII would be others to the database than to the programs, and their events could never be published; use a database that was created with encoding 'UTF8'"}
	}
	if p := encoding(client, server); p != nil {
		return p
	}
	if strings != "on" {
		return &Problem{"standard_conforming_strings of the session", strings,
			"the functions of the schema would read their own texts in another way than they were written, and find no partition of the outbox; set it to on for the login (alter role … set standard_conforming_strings = on)"}
	}
	return nil
}

// Encoding looks at that alone of a session in which keys would be others: for a
// database that no program but its own looks for keys in.
func Encoding(ctx context.Context, q schema.Querier) error {
	var client, server string
	if err := q.QueryRow(ctx, "select current_setting('client_encoding'), current_setting('server_encoding')").Scan(&client, &server); err != nil {
		return fmt.Errorf("look at the session's encoding: %w", err)
	}
	if p := encoding(client, server); p != nil {
		return p
	}
	return nil
}

func encoding(client, server string) *Problem {
	// Without a conversion the server takes UTF-8 as it is, if it has that, or looks
	// at bytes alone.
	if client == "UTF8" || client == server || client == "SQL_ASCII" && server == "UTF8" {
		return nil
	}
	return &Problem{"client_encoding of the session", client,
		"a key or subject that is not ASCII would be stored as another one, with a fence or guard of its own; set it to UTF8 for the login (alter role … set client_encoding = 'UTF8'), or in the connection string"}
}

func style(name, have, want string) *Problem {
	return &Problem{name + " of the session", have, fmt.Sprintf("times are text in this connection string's default_query_exec_mode, and could not be read in that style; "+
		"set it to %[2]s for the login (alter role … set %[1]s = '%[2]s'), or in the connection string (%[1]s=%[2]s)", name, want)}
}
