package fencing

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// silence is how much longer than the database may take for an answer it is waited
// for. A server whose host is gone answers nothing, also not that it is gone; the
// operating system would wait for it for a quarter of an hour.
const silence = 5 * time.Second

// connection takes a connection from the pool. Whoever has waited for one in vain
// because all are taken is told so: "deadline exceeded" alone is looked for in the
// network and in the database, which have nothing to do with it.
//
// The pool asks a connection that was idle whether it lives, for as long as ctx
// lasts, which may be for ever. So it is asked for a connection twice: what answers
// nothing the first time goes, and with it the others that were idle meanwhile. (It
// is not the place to bound how long a connection is waited for, or made.)
func (f *Fences) connection(ctx context.Context) (*pgxpool.Conn, error) {
	taking, taken := context.WithTimeout(ctx, silence)
	conn, err := f.pool.Acquire(taking)
	silent := err != nil && taking.Err() != nil
	taken()
	if silent && ctx.Err() == nil {
		f.distrust()
		conn, err = f.pool.Acquire(ctx)
	}
	if err == nil || ctx.Err() == nil {
		return conn, err
	}
	return nil, f.taken(err)
}

// taken is the error of a wait for a connection that was in vain, with the reason
// where it is the pool's size.
func (f *Fences) taken(err error) error {
	if s := f.pool.Stat(); s.AcquiredConns() >= s.MaxConns() {
		return fmt.Errorf("all %d connections of the pool are taken: raise pool_max_conns in its DSN, or hold none while waiting for another: %w", s.MaxConns(), err)
	}
	return err
}

// distrust closes what is idle in the pool, after a connection has answered nothing:
// the others may lead to the same host, and each would have to be waited for. Those
// that work are made anew.
func (f *Fences) distrust() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // a hook of the pool's need not ask the server: what it refuses is closed as well
	for _, conn := range f.pool.AcquireAllIdle(ctx) {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), silence)
			defer cancel()
			_ = conn.Conn().Close(ctx)
			conn.Release()
		}()
	}
}
