package consumer

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// committer copies offsets to Kafka, those of all partitions in one request.
// It is told an offset only after the database has committed it: the other way
// round, a crash in between would lose what Kafka believes was applied. What
// it fails to commit is read again one day, which is harmless.
type committer struct {
	gen   Generation
	every time.Duration
	log   *slog.Logger

	mu     sync.Mutex
	dirty  map[Partition]int64
	failed bool // said once, until it works again
}

func newCommitter(gen Generation, every time.Duration, log *slog.Logger) *committer {
	return &committer{gen: gen, every: every, log: log, dirty: make(map[Partition]int64)}
}

// reached notes that everything below next is committed in the database.
func (c *committer) reached(p Partition, next int64) {
	c.mu.Lock()
	c.dirty[p] = next
	c.mu.Unlock()
}

// run commits from time to time until ctx ends. The last flush is the
// caller's.
func (c *committer) run(ctx context.Context) {
	tick := time.NewTicker(c.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			c.flush(ctx)
		}
	}
}

func (c *committer) flush(ctx context.Context) {
	c.mu.Lock()
	next := maps.Clone(c.dirty)
	c.mu.Unlock()
	if len(next) == 0 {
		return
	}
	err := c.gen.Commit(ctx, next)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if !c.failed {
			c.log.Warn("offsets were not committed to kafka, what they stand for may be read again", "err", err)
		}
		c.failed = true
		return
	}
	c.failed = false
	maps.DeleteFunc(c.dirty, func(p Partition, o int64) bool { return next[p] == o })
}
