package relay

import (
	"bytes"
	"context"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
)

// cutOff is a connection whose answer to the first request that speaks of the
// retention's lease comes when a stop has begun, and is not read by whoever heeds it.
type cutOff struct {
	net.Conn
	asked *atomic.Bool
	stop  context.CancelFunc

	mine    atomic.Bool
	once    sync.Once
	expired chan struct{}
}

func (c *cutOff) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(RetentionKey)) && c.asked.CompareAndSwap(false, true) {
		c.mine.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *cutOff) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.mine.Swap(false) {
		return n, err
	}
	c.stop()
	select {
	case <-c.expired:
		return 0, os.ErrDeadlineExceeded
	case <-time.After(500 * time.Millisecond): // nobody heeds it
		return n, err
	}
}

func (c *cutOff) SetDeadline(t time.Time) error {
	if !t.IsZero() {
		c.once.Do(func() { close(c.expired) })
	}
	return c.Conn.SetDeadline(t)
}

// Otherwise nobody could take care of the retention until the lease expires, and
// nobody would know why.
func TestAStopGivesTheLeaseOfTheRetentionBackThoughItWasJustAskedFor(t *testing.T) {
	t.Parallel()
	pool := pgmigrated.Pool(t)
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	var asked atomic.Bool
	through := pool.Config()
	through.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &cutOff{Conn: conn, asked: &asked, stop: cancel, expired: make(chan struct{})}, nil
	}
	cut, err := pgxpool.NewWithConfig(bg, through)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cut.Close)
	cfg := quick().withDefaults()
	fences, err := fencing.New(bg, cut, fencing.Config{Schema: cfg.Schema, Holder: cfg.Name, System: true, AllowUnsafeDatabase: true, Logger: cfg.Logger})
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{pool: cut, fences: fences, cfg: cfg, retention: RetentionConfig{}.withDefaults()}
	k.run(ctx) // until the stop
	if !asked.Load() || ctx.Err() == nil {
		t.Fatal("the test proves nothing: the lease was not asked for")
	}
	if n := query[int](t, pool, "select count(*) from fenceline.lease where key = $1 and expires_at > now()", RetentionKey); n != 0 {
		t.Error("the lease that was asked for when the stop came is nobody's, and lasts")
	}
}
