package fencing

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// waitedSQL is an expression with which COMMIT waits for the synchronous standby, if
// there is one, though nothing was written. The message makes the transaction one
// that waits; it is in the log behind what is asked about, so a standby that has the
// one has the other. It waits as a commit does: no less than for the log, and as the
// login says beyond that.
const waitedSQL = `case when current_setting('synchronous_standby_names') <> '' then pg_logical_emit_message(true, 'fenceline', '') is not null and ` + durableSQL + ` <> '' end`

// durableSQL is an expression with which COMMIT waits for the log whatever a login has
// set, and no less than it has set.
const durableSQL = `set_config('synchronous_commit', case when current_setting('synchronous_commit') in ('off', 'local') then 'on' else current_setting('synchronous_commit') end, true)`

const replicatedSQL = "select " + waitedSQL

// replayedWith asks whether a commit that is to be reported as replayed is replicated.
func (f *Fences) replayedWith(ctx context.Context, g Gate) error {
	return f.replicated(ctx, fmt.Sprintf("commit of %q step %q", g.Position.Key, g.Content.Step))
}

// replicated is asked before a replay is reported, of a commit or of a close. Its
// commit is visible as soon as somebody has cut its wait for the synchronous standby
// short, and then it may be on the primary alone: the answer "replayed" would say more
// than is known. So the wait is made up for, and ends as that of a commit can end.
func (f *Fences) replicated(ctx context.Context, what string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.cfg.CommitTimeout)
	defer cancel()
	unknown := func(err error) error {
		return &wrappedError{fmt.Sprintf("fencing: %s: committed before, but whether it is replicated is not known: %v (%v)", what, ErrUnknownOutcome, err), ErrUnknownOutcome, err}
	}
	conn, err := f.connection(ctx)
	if err != nil {
		return unknown(err) // not that nothing was written
	}
	defer conn.Release()
	forgetNotice(conn.Conn().PgConn())
	b := &pgx.Batch{}
	b.Queue(f.sql.begin)
	b.Queue(replicatedSQL)
	b.Queue(f.sql.commit)
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		f.rollback(conn)
		return unknown(err)
	}
	if notReplicated(conn.Conn().PgConn()) {
		return fmt.Errorf("fencing: %s: %w", what, ErrNotReplicated)
	}
	return nil
}
