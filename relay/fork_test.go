package relay

import (
	"context"
	"testing"
)

// A fork and the main flow are stored as far as each is acknowledged, so after
// a restart the fork can stand at a newer snapshot than the end of the main
// flow's window. It must not go back there with its own low bound.
func TestAForkThatIsAheadOfTheMainFlowWaitsForItsNextSnapshot(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "t")
	p := newProducer(t, pool, "p")
	p.publish("a", "1")
	older := query[string](t, pool, "select pg_current_snapshot()::text")
	high := query[int64](t, pool, "select last_value from fenceline.outbox_pos")

	straggler := newProducer(t, pool, "s").begin().enter().append("t", "straggler")
	p.publish("a", "2")
	low := query[int64](t, pool, "select last_value from fenceline.outbox_pos")
	query[uint64](t, pool, "select pg_current_xact_id()") // c
	newer := query[string](t, pool, "select pg_current_snapshot()::text")
	for _, stmt := range []struct {
		sql  string
		args []any
	}{
		{"insert into fenceline.relay_checkpoint (epoch, token, s1, low, s2, high, low2, last_pos, pair_low, pair_xid) values (1, 1, '3:3:', 0, $1::text::pg_snapshot, $2, 0, 0, 0, '3')", []any{older, high}},
		{"insert into fenceline.relay_fork (topic, s1, low, reason, detail) values ('t', $1::text::pg_snapshot, $2, 'test', 'test')", []any{newer, low}},
	} {
		if _, err := pool.Exec(bg, stmt.sql, stmt.args...); err != nil {
			t.Fatal(err)
		}
	}
	straggler.commit()

	cfg, sql := quick().withDefaults(), newStatements("fenceline")
	s, err := openSession(bg, pool, kafka, cfg, &sql, leases())
	if err != nil {
		t.Fatal(err)
	}
	s.soft, s.cancelSoft = context.WithCancel(bg)
	if _, _, err := s.readFork(s.forks[0]); err != nil {
		t.Fatal(err)
	}
	if at := s.forks[0].flow.read; at.s1.text != newer {
		t.Errorf("before the main flow has polled, the fork went from %s to %s with the low bound %d", newer, at.s1.text, at.low)
	}
	s.cancelSoft()
	s.close()

	r := startRelay(t, pool, kafka, quick())
	eventually(t, "the straggler is published", func() bool { return kafka.has("t", "straggler") })
	eventually(t, "the fork is gone", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 0 })
	r.end()
}
