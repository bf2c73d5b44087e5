package replica

import (
	"fmt"
	"time"

	"github.com/fenceline/fenceline/internal/schema"
)

// sqlAt is where the log of a primary is flushed. Not pg_current_wal_insert_lsn:
// at a page's boundary that lies behind the header of a page that doesn't exist
// yet, and no replica gets there before the primary writes again. The functions
// of a primary fail on a standby, so they aren't called there.
const sqlAt = `
select pg_is_in_recovery(), c.system_identifier,
       case when not pg_is_in_recovery() then substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8) end,
       case when not pg_is_in_recovery() then pg_current_wal_flush_lsn()::text end,
       current_setting('synchronous_commit'), pg_current_xact_id_if_assigned() is not null
from pg_control_system() c`

// sqlReplayed is how far a standby has replayed. What it has merely received
// can't be read yet. It is a statement of its own, sent before sqlServer: the
// timeline that is read afterwards is at least the one that was replayed.
const sqlReplayed = `select pg_last_wal_replay_lsn()::text`

// sqlServer is which server this is, and what it can say about its timeline.
// Start time and address tell two servers of one cluster apart, for a pooler
// that leads to more than one. received_tli is null for a login that isn't a
// member of pg_read_all_stats.
const sqlServer = `
select pg_is_in_recovery(), c.system_identifier, d.oid::bigint,
       concat_ws(' ', pg_postmaster_start_time(), inet_server_addr(), inet_server_port()),
       current_setting('server_version_num')::int,
       case when not pg_is_in_recovery() then substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8) end,
       case when not pg_is_in_recovery() then pg_current_wal_flush_lsn()::text end,
       greatest(k.timeline_id, v.min_recovery_end_timeline)::bigint,
       (select received_tli from pg_stat_wal_receiver)::bigint,
       exists (select from pg_stat_wal_receiver),
       case when pg_is_in_recovery() then (extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000000)::bigint end
from pg_control_system() c, pg_control_checkpoint() k, pg_control_recovery() v, pg_database d
where d.datname = current_database()`

// sqlFence is a key's current generation, and whether it has a result: a receipt
// under its own token. One statement, so one snapshot, also where the caller's
// transaction should not be REPEATABLE READ.
func sqlFence(name string) string {
	return schema.Expand(`
select f.epoch, f.max_issued_token, f.closed_at is not null,
       exists (select from @schema@.receipt r where r.key = f.key and r.epoch = f.epoch and r.token = f.max_issued_token)
from @schema@.fence f where f.key = $1`, name)
}

// sqlWait has the server wait until it has replayed lsn, at most as long as d:
// from PostgreSQL 19 on, otherwise it is empty and the caller polls. It says
// nothing about the timeline and is never believed: the checks follow. lsn is a
// number, so nothing of a caller's gets into the text, which takes no parameters.
func sqlWait(version int, lsn uint64, d time.Duration) string {
	if version < 190000 {
		return ""
	}
	return fmt.Sprintf("wait for lsn '%s' with (mode 'standby_replay', timeout '%dms', no_throw)", formatLSN(lsn), max(1, d.Milliseconds()))
}
