package fencing

import (
	"context"
	"time"
)

// unblockSQL ends sessions that keep a fence in the one state which the gate's
// own timeout cannot see: between two messages of a pipeline, or within COPY,
// PostgreSQL waits for its client without counting as idle, and cancels nothing
// that it waits for. Only sessions of the caller's own role, and of roles that
// it is a member of, show that state to it, and can be ended by it.
const unblockSQL = `select count(*) from (
	select pg_terminate_backend(pid) as ended from pg_stat_activity
	where pid = any ($1) and pid <> pg_backend_pid() and state = 'active' and wait_event = 'ClientRead' and state_change < clock_timestamp() - $2::interval) s
	where ended`

// unblock ends what keeps the fence of a lease that has expired for longer than
// the gate's timeout allows, and says whether there was anything to end. It is
// what the timeout would have done: whoever loses the session asks again, and
// is answered by the receipt or as stale.
func (f *Fences) unblock(ctx context.Context, b *BlockedError, timeout time.Duration) bool {
	if len(b.PIDs) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	var ended int
	if err := f.pool.QueryRow(ctx, unblockSQL, b.PIDs, timeout).Scan(&ended); err != nil {
		f.cfg.Logger.Warn("could not look at what blocks the fence", "key", b.Key, "pids", b.PIDs, "error", err)
		return false
	}
	if ended > 0 {
		f.cfg.Logger.Warn("ended a session that kept the fence of an expired lease while it waited for its client", "key", b.Key, "pids", b.PIDs, "timeout", timeout)
	}
	return ended > 0
}
