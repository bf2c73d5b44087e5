package consumer

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// forgotten says that a statement that pgx had prepared is not there, or is there
// of somebody else: what is between the pool and the server, a pooler in transaction
// mode, hands each transaction to another session. That is no event's fault. (The
// name is pgx's; it is there in every language.)
func forgotten(pg *pgconn.PgError) bool {
	return (pg.Code == "26000" || pg.Code == "42P05") && strings.Contains(pg.Message, "stmtcache_")
}

// pooled adds the remedy.
func pooled(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || !forgotten(pg) {
		return err
	}
	return fmt.Errorf("%w; a pooler in transaction mode is in between, and loses what is prepared: %s", err, pgsession.PoolerRemedy)
}
