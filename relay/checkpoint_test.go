package relay

import (
	"testing"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// Somebody holds what a checkpoint has to lock. Events flow, and each of them would
// come a second time after a crash: who looks into the log should learn of it.
func TestACheckpointThatTakesLongIsSaid(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	var log lines
	cfg := quick()
	cfg.Logger = log.logger()
	cfg.signals.slow = 100 * time.Millisecond
	r := startRelay(t, pool, kafka, cfg)
	p.publish("a", "x")
	eventually(t, "a cursor is stored", func() bool { return checkpointsOf(t, pool) > 0 })
	held, err := pool.Begin(bg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(bg) }()
	if _, err := held.Exec(bg, "select from fenceline.fence where key = $1 for update", ShardKey(outbox.Shard("k"))); err != nil {
		t.Fatal(err)
	}
	p.publish("a", "y")
	eventually(t, "that it takes long is said", func() bool { return log.count("storing the cursors takes long") > 0 })
	if err := held.Rollback(bg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "that it is over is said, too", func() bool { return log.count("what took long to be stored is") > 0 })
	r.end()
}
