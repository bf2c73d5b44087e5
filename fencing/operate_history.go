package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/schema"
)

// HistoryInfo is which history a database is, and which one its fences were
// issued in.
type HistoryInfo struct {
	// Recorded is where the fences were issued, Found where this database is.
	Recorded, Found Identity
	// Since is the time of the install or last bump in µs since 1970: every
	// epoch of this history is at or above it.
	Since int64
	// LargestEpoch is that of all fences; zero if there is none.
	LargestEpoch int64
	// OnNew is what the database does when it finds itself to be another.
	OnNew NewHistory
	// Changes are what operators have done, newest first, at most 20.
	Changes []HistoryChange
}

// Same says that this is the database in which the fences were issued.
func (h HistoryInfo) Same() bool { return h.Recorded == h.Found }

// HistoryChange is one thing that was done to a history.
type HistoryChange struct {
	// Why is bump, "bump by itself", confirm or policy.
	Why string
	// Who is the name that was given, Login with which it came.
	Who, Login string
	// Since is the history's beginning after it, Policy the one that was set.
	Since  int64
	Policy string
	// At is the time on the database's clock.
	At time.Time
}

// History tells which history the database is. It works while everything else
// refuses, but not on a standby.
func (o *Operator) History(ctx context.Context) (h HistoryInfo, err error) {
	b := &pgx.Batch{}
	b.Queue(o.sql.history).QueryRow(func(row pgx.Row) error {
		return row.Scan(&h.Recorded.System, &h.Recorded.Timeline, &h.Recorded.Database, &h.Recorded.Table,
			&h.Found.System, &h.Found.Timeline, &h.Found.Database, &h.Found.Table, &h.Since, &h.LargestEpoch, &h.OnNew)
	})
	b.Queue(o.sql.changes).Query(func(rows pgx.Rows) (err error) {
		h.Changes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c HistoryChange, err error) {
			return c, row.Scan(&c.Why, &c.Who, &c.Login, &c.Since, &c.Policy, &c.At)
		})
		return err
	})
	if err := o.pool.SendBatch(ctx, b).Close(); err != nil {
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "55000" {
			return HistoryInfo{}, fmt.Errorf("fencing: history: the database is a standby in recovery: ask again after its promotion, or ask the primary: %w", err)
		}
		return HistoryInfo{}, fmt.Errorf("fencing: history: %w", err)
	}
	return h, nil
}

// Bump begins a new history: what was acknowledged may have been lost. Every key
// starts a new epoch with its next lease, every lease of before ends, and a
// retry of before whose receipt is not there is unconfirmable. Commits in
// progress are waited for. Epochs start at the database's clock, above all that
// is recorded, and above the given number: the largest epoch that the lost side
// is known to have issued, or 0; below 2^62, else it is ErrInvalid. It returns the
// beginning of the new history.
func (o *Operator) Bump(ctx context.Context, above int64, who string) (since int64, err error) {
	if err := o.change(ctx, func(row pgx.Row) error { return row.Scan(&since) }, o.sql.bump, above, who); err != nil {
		return 0, fmt.Errorf("fencing: bump the history: %w", translate(err))
	}
	return since, nil
}

// Confirm says that this database is the same history as before: nothing that
// was acknowledged was lost, and nobody else goes on under the old identity.
// Epochs and leases go on.
func (o *Operator) Confirm(ctx context.Context, who string) error {
	if err := o.change(ctx, nothing, o.sql.confirm, who); err != nil {
		return fmt.Errorf("fencing: confirm the history: %w", translate(err))
	}
	return nil
}

// OnNewHistory sets what the database does the next time that it finds itself to
// be another. It holds for every program that uses it.
func (o *Operator) OnNewHistory(ctx context.Context, policy NewHistory, who string) error {
	if err := o.change(ctx, nothing, o.sql.onNew, string(policy), who); err != nil {
		return fmt.Errorf("fencing: set what a new history does: %w", translate(err))
	}
	return nil
}

type operatorStatements struct {
	leases, lease, fence, known, turns, expire, setOwner string
	history, changes, bump, confirm, onNew               string
}

func newOperatorStatements(name string) operatorStatements {
	x := func(template string) string { return schema.Expand(template, name) }
	// One look at the clock for each lease, by which all is judged that is told of it.
	lease := func(which string) string {
		return x(`select l.key, l.epoch, l.token, l.holder,
		case when l.expires_at > l.now then 'held' when l.expires_at > '-infinity' then 'expired' when l.reserved_until > l.now then 'reserved' else 'free' end,
		nullif(l.expires_at, '-infinity'), extract(epoch from nullif(l.expires_at, '-infinity') - l.now)::float8,
		case when l.reserved_until > l.now then l.successor else '' end, case when l.reserved_until > l.now then l.reserved_until end,
		case when l.waiter_until > l.now then l.waiter else '' end, coalesce(f.owner::text, ''), starts_with(l.key, 'fenceline:')
		from (select t.*, clock_timestamp() as now from @schema@.lease t ` + which + `) l left join @schema@.fence f on f.key = l.key order by l.key`)
	}
	return operatorStatements{
		leases:   lease(`where starts_with(t.key, $1) and ($2 = '' or t.key > $2) and starts_with(t.key, 'fenceline:') = $3 order by t.key limit $4`),
		lease:    lease(`where t.key = $1`),
		fence:    x(`select epoch, max_issued_token, closed_at, coalesce(owner::text, '') from @schema@.fence where key = $1`),
		known:    x(`select exists (select from @schema@.fence where key = $1)`),
		turns:    x(`select epoch, token, why, coalesce(holder, ''), coalesce(whom, ''), coalesce(login::text, ''), at from @schema@.turn where key = $1 order by n desc limit $2`),
		expire:   x(`select ended, epoch, token, holder from @schema@.expire_lease($1, $2)`),
		setOwner: x(`select @schema@.set_owner($1, $2, $3)`),
		// What _identity() gives, which nobody may call.
		history: x(`select h.system_identifier::text, h.timeline, h.database_oid::text, h.self_oid::text,
			c.system_identifier::text, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), d.oid::text, h.tableoid::text,
			h.since, (select coalesce(max(epoch), 0) from @schema@.fence), coalesce(h.on_new, 'refuse')
			from @schema@.history h, pg_control_system() c, pg_database d where d.datname = current_database()`),
		changes: x(`select why, coalesce(who, ''), login::text, since, coalesce(policy, ''), at from @schema@.history_change order by n desc limit 20`),
		bump:    x(`select @schema@.history_bump($1, $2)`),
		confirm: x(`select @schema@.history_confirm($1)`),
		onNew:   x(`select @schema@.history_on_new($1, $2)`),
	}
}
