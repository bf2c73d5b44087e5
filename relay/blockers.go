package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
)

// Blocker is a transaction that has written to the outbox and is still open: its
// events are not there to be published, whoever wants to commit or take over
// under its key waits for it, and a partition that it has written to can't be
// dropped. Other events pass it by.
type Blocker struct {
	// PID is the server process, 0 for a prepared transaction.
	PID int
	// GID is the name of a prepared transaction.
	GID string
	// User, Application and State are as in pg_stat_activity. A login without
	// pg_read_all_stats sees no more than User of other logins' sessions.
	User, Application, State string
	// Open is how long it has been open; zero where that may not be seen.
	Open time.Duration
}

// Prepared transactions have no backend, and their locks no pid.
const blockersSQL = `
select coalesce(a.pid, 0), '', coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(a.state, ''), coalesce(extract(epoch from clock_timestamp() - a.xact_start), 0)::float8
  from pg_locks l join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'relation' and l.relation = '@schema_name@.outbox'::regclass and l.mode = 'RowExclusiveLock' and l.granted
   and l.database = (select oid from pg_database where datname = current_database()) and a.pid <> pg_backend_pid()
   and coalesce(clock_timestamp() - a.xact_start > $1, true)
union all
select 0, p.gid, p.owner, '', 'prepared', extract(epoch from clock_timestamp() - p.prepared)::float8
  from pg_prepared_xacts p where p.database = current_database() and clock_timestamp() - p.prepared > $1
 order by 6 desc limit 20`

// ReadBlockers lists the transactions that have written to the outbox and have
// been open for longer than age, the oldest first, and all prepared ones of the
// database; 20 at most. A login needs the role fenceline_monitor, and
// pg_read_all_stats to see more than who it is. An empty name stands for
// "fenceline".
func ReadBlockers(ctx context.Context, pool *pgxpool.Pool, name string, age time.Duration) ([]Blocker, error) {
	if name == "" {
		name = schema.Default
	}
	rows, err := pool.Query(ctx, schema.Expand(blockersSQL, name), age)
	if err != nil {
		return nil, fmt.Errorf("relay: list open transactions: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Blocker, err error) {
		var open float64
		err = row.Scan(&b.PID, &b.GID, &b.User, &b.Application, &b.State, &open)
		b.Open = time.Duration(open * float64(time.Second))
		return b, err
	})
	if err != nil {
		return nil, fmt.Errorf("relay: list open transactions: %w", err)
	}
	return list, nil
}
