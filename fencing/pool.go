package fencing

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// connection takes a connection from the pool. Whoever has waited for one in vain
// because all are taken is told so: "deadline exceeded" alone is looked for in the
// network and in the database, which have nothing to do with it.
func (f *Fences) connection(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := f.pool.Acquire(ctx)
	if err == nil || ctx.Err() == nil {
		return conn, err
	}
	if s := f.pool.Stat(); s.AcquiredConns() >= s.MaxConns() {
		return nil, fmt.Errorf("all %d connections of the pool are taken: raise pool_max_conns in its DSN, or hold none while waiting for another: %w", s.MaxConns(), err)
	}
	return nil, err
}
