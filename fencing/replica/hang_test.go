package replica_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing/replica"
	"github.com/fenceline/fenceline/internal/pgproxy"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// The time of a read bounds also its end: the rollback behind a callback that has
// failed would else wait for a server that does not answer for as long as TCP does.
func TestAServerThatHangsAfterTheCallbackDoesNotKeepTheCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	login := w.as(w.server, "postgres")
	u, err := url.Parse(login)
	w.ok(err)
	proxy, err := pgproxy.Listen(u.Host)
	w.ok(err)
	t.Cleanup(func() { _ = proxy.Close() })
	dsn, err := proxy.DSN(login)
	w.ok(err)
	cfg := w.config()
	cfg.ConnectTimeout = 500 * time.Millisecond
	reader, err := replica.New(ctx, pgtest.Connect(t, dsn), nil, cfg)
	w.ok(err)
	defer proxy.Thaw()
	failed := errors.New("of the callback")
	done := make(chan error, 1)
	go func() {
		_, err := reader.Read(ctx, nil, replica.Primary(), func(context.Context, pgx.Tx) error {
			proxy.Freeze()
			return failed
		})
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, failed) {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the read hangs, long after its time")
	}
}
