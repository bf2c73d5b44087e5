package fencing

import (
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// noticeKey marks a connection whose COMMIT brought the warning below.
const noticeKey = "fenceline.not_replicated"

// WatchNotices lets the commits of connections with this configuration notice
// the server's warning 01000, "committed locally, but might not have been
// replicated", and answer ErrNotReplicated. Without it such a commit looks like
// any other, and so does a token. Call it on a pool's ConnConfig before the pool is
// made; a handler that is there already is still called. It matters where
// synchronous_standby_names is set.
func WatchNotices(cfg *pgx.ConnConfig) {
	next := cfg.OnNotice
	cfg.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
		// RAISE WARNING in somebody's trigger has the same code; all other
		// sources of it are taken for the warning.
		if n.Code == "01000" && n.Routine != "exec_stmt_raise" {
			c.CustomData()[noticeKey] = true
		}
		if next != nil {
			next(c, n)
		}
	}
}

func forgetNotice(c *pgconn.PgConn) { delete(c.CustomData(), noticeKey) }

func notReplicated(c *pgconn.PgConn) bool {
	_, ok := c.CustomData()[noticeKey]
	return ok
}
