package dbcheck

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
)

// Problem is one thing that is set wrongly.
type Problem struct {
	// Name is what is set wrongly, Have how.
	Name, Have string
	// Remedy is what breaks, and what to do.
	Remedy string
}

// Error implements error.
func (p *Problem) Error() string { return fmt.Sprintf("%s is %s: %s", p.Name, p.Have, p.Remedy) }

// problemSQL gives the gravest problem, in one round trip, from catalogues that
// every login can read. Without the server's settings where $1 is false.
const problemSQL = `
select kind, name, have from (
	select 1 as rank, 'recovery' as kind, '' as name, '' as have where pg_is_in_recovery()
	union all
	select 2, 'setting', s.name, s.setting from pg_catalog.pg_settings s where s.name in ('fsync', 'full_page_writes') and s.setting <> 'on' and $1
	union all
	select 3, case c.relkind when 'S' then 'unlogged sequence' else 'unlogged table' end, c.relname::text, ''
	  from pg_catalog.pg_class c where c.relnamespace = '@schema_name@'::regnamespace and c.relkind in ('r', 'p', 'S') and c.relpersistence <> 'p'
	union all
	select 4, 'cache', c.relname::text, s.seqcache::text
	  from pg_catalog.pg_sequence s join pg_catalog.pg_class c on c.oid = s.seqrelid
	 where c.relnamespace = '@schema_name@'::regnamespace and c.relname = 'outbox_pos' and s.seqcache <> 1
	union all
	select 5, 'type ' || w.type, w.tab || '.' || w.col, coalesce(h.type, 'missing')
	  from (values ` + columns + `) as w(tab, col, type)
	  left join lateral (
		select replace(format_type(a.atttypid, a.atttypmod), '"', '') || case when a.attcollation = '"C"'::regcollation then ' collate "C"' else '' end as type
		  from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
		 where c.relnamespace = '@schema_name@'::regnamespace and c.relname = w.tab and a.attname = w.col and not a.attisdropped) h on true
	 where h.type is distinct from w.type
	union all
	select 6, 'order', '', '' from pg_catalog.pg_attribute x, pg_catalog.pg_attribute p
	 where x.attrelid = '@schema_name@.outbox'::regclass and x.attname = 'xid' and p.attrelid = x.attrelid and p.attname = 'pos' and x.attnum > p.attnum
) problem order by rank, name limit 1`

// columns are those that a comparison rests on. With an int a token or a
// sequence number ends after some months; with another collation two logins'
// orders of the same keys could differ, and their locks with them.
const columns = `
	('history', 'since', 'bigint'), ('history', 'epoch_floor', 'bigint'),
	('fence', 'key', 'text collate "C"'), ('fence', 'epoch', 'bigint'), ('fence', 'max_issued_token', 'bigint'),
	('fence', 'floor_epoch', 'bigint'), ('fence', 'floor_token', 'bigint'), ('fence', 'closed_at', 'timestamp with time zone'),
	('lease', 'key', 'text collate "C"'), ('lease', 'epoch', 'bigint'), ('lease', 'token', 'bigint'), ('lease', 'expires_at', 'timestamp with time zone'),
	('receipt', 'key', 'text collate "C"'), ('receipt', 'epoch', 'bigint'), ('receipt', 'token', 'bigint'), ('receipt', 'step', 'text collate "C"'),
	('receipt', 'digest', 'bytea'), ('receipt', 'xid', 'xid8'), ('receipt', 'committed_at', 'timestamp with time zone'),
	('head', 'topic', 'text collate "C"'), ('head', 'key', 'text collate "C"'), ('head', 'epoch', 'bigint'), ('head', 'seq', 'bigint'),
	('outbox', 'topic', 'text collate "C"'), ('outbox', 'key', 'text collate "C"'), ('outbox', 'epoch', 'bigint'), ('outbox', 'token', 'bigint'),
	('outbox', 'seq', 'bigint'), ('outbox', 'pos', 'bigint'), ('outbox', 'xid', 'xid8'), ('outbox', 'payload', 'bytea')`

// Check gives a *Problem, nil, or the database's error. name is a valid name of
// a schema in which the producer's part is. With server, the settings of the
// server are looked at too.
func Check(ctx context.Context, q schema.Querier, name string, server bool) error {
	if err := Session(ctx, q); err != nil {
		return err
	}
	var kind, object, have string
	err := q.QueryRow(ctx, schema.Expand(problemSQL, name), server).Scan(&kind, &object, &have)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("check the database: %w", err)
	}
	full := name + "." + object
	switch kind {
	case "recovery":
		return &Problem{"the database", "a standby in recovery", "connect to the primary"}
	case "setting":
		return &Problem{"the server's setting " + object, have, "a crash could take back what was acknowledged, and no promise would hold; " +
			"run alter system set " + object + " = on, and reload the configuration"}
	case "unlogged sequence":
		return &Problem{"sequence " + full, "unlogged", fmt.Sprintf("a crash would give positions out again; run alter sequence %s set logged", full)}
	case "unlogged table":
		return &Problem{"table " + full, "unlogged", fmt.Sprintf("a crash empties it, and with it what was acknowledged; run alter table %s set logged", full)}
	case "cache":
		return &Problem{"cache of sequence " + full, have,
			fmt.Sprintf("a later event of a stream could get the smaller position and be published first; run alter sequence %s cache 1", full)}
	case "order":
		return &Problem{"order of the columns of " + name + ".outbox", "pos before xid",
			"an event could get its position before its transaction id, and be passed over; create the table as the migrations do, with xid first"}
	}
	want := kind[len("type "):]
	return &Problem{"column " + full, have, fmt.Sprintf("it must be %s, or comparisons with it can't be trusted; undo the change, or create the table as the migrations do", want)}
}
