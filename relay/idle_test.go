package relay

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// counter counts the statements of all connections of a pool, also of those
// that were taken out of it.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestAnIdleRelayWithAllShardsAsksTheDatabaseFewerThanTwelveTimesASecond(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	var c counter
	cfg := pool.Config()
	cfg.ConnConfig.Tracer = &c
	counted, err := pgxpool.NewWithConfig(bg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(counted.Close)
	idle := quick()
	plain := Config{}.withDefaults()
	idle.PollMin, idle.PollMax, idle.PollBlind = plain.PollMin, plain.PollMax, plain.PollBlind
	idle.CheckpointInterval, idle.LeaseTTL, idle.TopicCheck = plain.CheckpointInterval, plain.LeaseTTL, plain.TopicCheck
	var own atomic.Int64
	idle.Hooks.Shards = func(shards []int) { own.Store(int64(len(shards))) }
	r := startRelay(t, counted, kafka, idle)
	eventually(t, "it has all shards", func() bool { return own.Load() == 64 })
	// It backs off, from one poll to the next, as far as it goes.
	from, at := int64(0), time.Time{}
	eventually(t, "it is idle", func() bool {
		before := c.n.Load()
		time.Sleep(200 * time.Millisecond)
		from, at = c.n.Load(), time.Now()
		return from-before < 4
	})
	time.Sleep(3 * time.Second) // what is measured
	if perSecond := float64(c.n.Load()-from) / time.Since(at).Seconds(); perSecond >= 12 {
		t.Errorf("%.1f statements a second", perSecond)
	} else {
		t.Logf("%.1f statements a second", perSecond)
	}
	r.end()
}
