package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
)

// protection is what "relay protect" and "relay unprotect" share.
type protection struct {
	postgres config.Postgres
	table    string
	wait     time.Duration
}

func (p *protection) register(s *config.Set) {
	p.postgres.Register(s)
	s.String(&p.table, "table", "", "", "table, as SQL names it: result, public.result or \"My\".\"Table\"", config.Required())
	s.Duration(&p.wait, "wait", "", 10*time.Second, time.Millisecond, time.Hour, "time to wait for the transactions that are writing the table; those that come later wait behind this command")
}

// untimed is for what waits as long as -wait says: what the login has set is for
// other things. (The last one is there since PostgreSQL 17.)
const untimed = `select set_config(name, '0', true) from pg_catalog.pg_settings where name in ('statement_timeout', 'lock_timeout', 'transaction_timeout')`

// with runs f with the table's name in its parts, in a transaction that may write (a
// person's login is often set to write nothing unless it is told so), and prints what
// f has to say when that is committed.
func (p *protection) with(ctx context.Context, name string, stdout io.Writer, f func(context.Context, pgx.Tx, pgx.Identifier) (string, error)) error {
	pool, err := p.postgres.Open(ctx, name)
	if err != nil {
		return err
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	var parts []string
	err = pool.QueryRow(ctx, "select parse_ident($1)", p.table).Scan(&parts)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "22023" { // not a name
		return &config.UsageError{Err: fmt.Errorf("%s: -table: %q is not a name: want table or schema.table, with double quotes around what has other characters than lower-case letters, digits and underscores", name, p.table)}
	}
	var done string
	if err == nil {
		err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) (err error) {
			if _, err := tx.Exec(ctx, untimed); err != nil {
				return err
			}
			done, err = f(ctx, tx, parts)
			return err
		})
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: no lock on the table within %v: it is being written; look at pg_stat_activity for long transactions, or raise -wait", name, p.wait)
	}
	if err == nil {
		_, err = fmt.Fprintln(stdout, done)
	}
	return err
}

func protect(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		p      protection
		column string
	)
	s := config.New("relay protect", "Makes a table refuse every write whose transaction has not passed the gate of the row's key, whoever writes. "+
		"Run it as the table's owner, with the role <schema>_producer or <schema>_operator, and again after a partition was added.")
	p.register(s)
	s.String(&column, "column", "", "", "column that holds the key, as it is spelt, without quotes", config.Required())
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return p.with(ctx, s.Name, stdout, func(ctx context.Context, tx pgx.Tx, table pgx.Identifier) (string, error) {
		if err := fencing.Protect(ctx, tx, p.postgres.Schema, table, column); err != nil {
			return "", config.NeedsRole(err, p.postgres.Schema, schema.KindProducer)
		}
		return fmt.Sprintf("%s is protected: a write needs the gate of the key in %s", table.Sanitize(), pgx.Identifier{column}.Sanitize()), nil
	})
}

func unprotect(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var p protection
	s := config.New("relay unprotect", "Takes the protection off a table: from then on late holders can write it. Run it as the table's owner.")
	p.register(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return p.with(ctx, s.Name, stdout, func(ctx context.Context, tx pgx.Tx, table pgx.Identifier) (string, error) {
		was, err := fencing.Unprotect(ctx, tx, p.postgres.Schema, table)
		switch {
		case err != nil:
			return "", config.NeedsRole(err, p.postgres.Schema, schema.KindProducer)
		case was:
			return table.Sanitize() + " is not protected any more", nil
		default:
			return table.Sanitize() + " was not protected: \"relay protected\" lists the tables that are", nil
		}
	})
}

// protectedTable is a line of "relay protected -json", on whose names scripts
// rely.
type protectedTable struct {
	Table     string   `json:"table"`
	KeyColumn string   `json:"key_column"`
	Open      []string `json:"open"`
}

func protected(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		postgres config.Postgres
		asJSON   bool
	)
	s := config.New("relay protected", "Lists the tables that refuse writes outside the gate, and what is still open of each: a partition that came later, a trigger that was disabled. "+
		"Exits with 1 if something is open, 0 if nothing is.")
	postgres.Register(s)
	s.Bool(&asJSON, "json", "", "print one JSON array")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	pool, err := postgres.Open(ctx, s.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	tables, err := fencing.Protected(ctx, pool, postgres.Schema)
	if err != nil {
		return config.NeedsRole(err, postgres.Schema, schema.KindMonitor)
	}
	list := []protectedTable{}
	open := 0
	for _, t := range tables {
		list = append(list, protectedTable{t.Table.Sanitize(), t.KeyColumn, append([]string{}, t.Gaps...)})
		if len(t.Gaps) > 0 {
			open++
		}
	}
	if err := printProtected(stdout, list, asJSON); err != nil {
		return err
	}
	if open > 0 {
		return fmt.Errorf("something is open on %s: run \"relay protect\" on it again, as its owner", count(open, "table"))
	}
	return nil
}

func printProtected(stdout io.Writer, list []protectedTable, asJSON bool) error {
	switch {
	case asJSON:
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(list)
	case len(list) == 0:
		_, err := fmt.Fprintln(stdout, "no table is protected")
		return err
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TABLE\tKEY COLUMN\tOPEN")
	for _, t := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\n", t.Table, t.KeyColumn, dash(strings.Join(t.Open, ", ")))
	}
	return w.Flush()
}
