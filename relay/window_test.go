package relay

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestNothingIsPassedOverWhenPositionsCommitInAnotherOrder(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	r := startRelay(t, pool, kafka, quick())
	first, second := newProducer(t, pool, "k1"), newProducer(t, pool, "k2")
	early := first.begin().enter().append("a", "pos 1")
	late := second.begin().enter().append("a", "pos 2")
	late.commit()
	eventually(t, "the later position is published", func() bool { return kafka.has("a", "pos 2") })
	r.passed(3)
	early.commit()
	eventually(t, "the earlier position is published", func() bool { return kafka.has("a", "pos 1") })
	r.end()
}

// A transaction can have its id long before it comes to the gate. Of a stream, the
// order of the gate counts, which is that of the positions.
func TestOrderIsByPositionAndNotByTransaction(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	older := p.begin()
	older.exec("select pg_current_xact_id()")
	p.publish("a", "first")
	older.enter().append("a", "second").commit()
	r := startRelay(t, pool, kafka, quick())
	eventually(t, "both are published", func() bool { return kafka.has("a", "first") && kafka.has("a", "second") })
	r.end()
	if got := kafka.payloads("a"); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("published %q", got)
	}
	if n := query[int](t, pool, "select count(*) from fenceline.outbox a join fenceline.outbox b on a.pos < b.pos and a.xid > b.xid"); n != 1 {
		t.Errorf("%d pairs are in another order by transaction, want one: else the test proves nothing", n)
	}
}

func TestAStragglerBelowTheLowBoundIsPublished(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	r := startRelay(t, pool, kafka, quick())
	straggler := newProducer(t, pool, "k1").begin().enter().append("a", "straggler 1", "straggler 2")
	pos := query[int64](t, pool, "select last_value from fenceline.outbox_pos")
	other := newProducer(t, pool, "k2")
	for !t.Failed() && r.cursor().low < pos { // each event moves the pair, and the pair the bound
		other.publish("a", "other")
		r.passed(2)
	}
	straggler.commit()
	eventually(t, "the straggler is published", func() bool { return kafka.has("a", "straggler 2") })
	r.end()
}

// The pair's own transaction must have ended before the snapshot is taken:
// otherwise a transaction that has a position but is younger than everything
// that has ended is in no snapshot's list, and below the bound.
func TestTheYoungestTransactionIsNotBelowTheLowBound(t *testing.T) {
	t.Parallel()
	// A server of its own: whatever ends elsewhere in it makes older transactions
	// known to the next snapshot, and nothing is shown.
	_, pool := ownServer(t, nil)
	kafka := newMemory(t, "a")
	// And the relay itself ends no transaction meanwhile, however long it takes.
	cfg := steady()
	cfg.CheckpointInterval, cfg.TopicCheck = time.Hour, time.Hour
	r := startRelay(t, pool, kafka, cfg)
	newProducer(t, pool, "k1").publish("a", "first")
	eventually(t, "the first is published", func() bool { return kafka.has("a", "first") })
	p := newProducer(t, pool, "k2")
	r.passed(3)
	young := p.begin().enter().append("a", "young")
	r.passed(5)
	young.commit()
	eventually(t, "the young one is published", func() bool { return kafka.has("a", "young") })
	r.end()
}

// What a checkpoint promises with its pair (L, c): whoever gets a transaction
// id after c gets a position above L.
func TestWhoeverIsYoungerThanThePairGetsAPositionAboveItsL(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	cfg := quick()
	newProducer(t, pool, "k1").publish("a", "first")
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "a checkpoint", func() bool { return checkpointsOf(t, pool) > 0 })
	r.end()

	// A checkpoint is stopped at the fence's lock, behind L and c.
	lock, err := pool.Begin(bg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(bg) }()
	var epoch, token int64
	if err := lock.QueryRow(bg, "select epoch, max_issued_token from fenceline.fence where key = $1 for update", ShardKey(0)).Scan(&epoch, &token); err != nil {
		t.Fatal(err)
	}
	type pair struct {
		low int64
		xid uint64
		err error
	}
	got := make(chan pair, 1)
	conn, err := pool.Acquire(bg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	pid := conn.Conn().PgConn().PID()
	go func() {
		var p pair
		p.err = conn.QueryRow(bg, "select pair_low, pair_xid from fenceline.relay_checkpoint(array[$1::text], array[$2::bigint], array[$3::bigint], '[]', '[]', '[]', null, false)",
			ShardKey(0), epoch, token).Scan(&p.low, &p.xid)
		got <- p
	}()
	eventually(t, "the checkpoint waits for the lock", func() bool {
		return query[bool](t, pool, "select cardinality(pg_blocking_pids($1)) > 0", int32(pid))
	})
	p := newProducer(t, pool, "k2")
	p.publish("a", "younger")
	if err := lock.Rollback(bg); err != nil {
		t.Fatal(err)
	}
	pr := <-got
	if pr.err != nil {
		t.Fatal(pr.err)
	}
	var xid uint64
	var pos int64
	if err := pool.QueryRow(bg, "select xid, pos from fenceline.outbox where key = 'k2'").Scan(&xid, &pos); err != nil {
		t.Fatal(err)
	}
	if xid < pr.xid {
		t.Fatalf("the test proves nothing: transaction %d is older than the pair's %d", xid, pr.xid)
	}
	if pos <= pr.low {
		t.Fatalf("transaction %d is younger than the pair's %d, but its position %d is not above L = %d", xid, pr.xid, pos, pr.low)
	}
}

// The same of the pairs that the reader makes for itself, step by step.
func TestWhoeverIsYoungerThanTheReadersPairGetsAPositionAboveItsL(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("a", "before")
	tx, err := pool.Begin(bg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(bg) }()
	var pair [len(pairSQL)]int64
	for i, sql := range newStatements("fenceline").pair {
		if err := tx.QueryRow(bg, sql).Scan(&pair[i]); err != nil {
			t.Fatal(err)
		}
		p.publish("a", fmt.Sprint("after statement ", i))
	}
	if n := query[int](t, pool, "select count(*) from fenceline.outbox where xid::text::bigint > $1", pair[1]); n == 0 {
		t.Fatal("the test proves nothing: nobody is younger than the pair")
	}
	if n := query[int](t, pool, "select count(*) from fenceline.outbox where xid::text::bigint > $1 and pos <= $2", pair[1], pair[0]); n != 0 {
		t.Errorf("%d positions of transactions younger than the pair's %d are not above L = %d", n, pair[1], pair[0])
	}
}

// Polls walk over the rows between the low bound and the newest. Without a pair of
// its own the reader would have the bound of the last checkpoint, which can be long
// ago.
func TestTheLowBoundFollowsBetweenCheckpoints(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	cfg := quick()
	cfg.CheckpointInterval = time.Hour
	r := startRelay(t, pool, kafka, cfg)
	jump := func(to int64) {
		t.Helper()
		if _, err := pool.Exec(bg, "select setval('fenceline.outbox_pos', $1)", to); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the low bound follows", func() bool { return r.cursor().low >= to })
	}
	jump(refreshAfter / 2)
	eventually(t, "the first checkpoint", func() bool { return checkpointsOf(t, pool) > 0 }) // a session stores where it begins
	before := checkpointsOf(t, pool)
	jump(refreshAfter/2 + 2*pairAfter)
	jump(refreshAfter/2 + 4*pairAfter)
	if n := checkpointsOf(t, pool); n != before {
		t.Fatalf("the test proves nothing: %d checkpoints were made", n-before)
	}
	newProducer(t, pool, "k").publish("a", "behind it")
	eventually(t, "what comes behind it is published", func() bool { return kafka.has("a", "behind it") })
	r.end()
}

func TestARolledBackEventIsNeverPublishedAndStopsNothing(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	r := startRelay(t, pool, kafka, quick())
	p := newProducer(t, pool, "k")
	w := p.begin().enter().append("a", "one")
	w.exec("savepoint s")
	w.append("a", "undone in part")
	w.exec("rollback to s")
	w.append("a", "two")
	w.commit()
	p.begin().enter().append("a", "undone").rollback()
	p.publish("a", "three")
	eventually(t, "all is published", func() bool { return kafka.has("a", "three") })
	r.end()
	if got := kafka.payloads("a"); !slices.Equal(got, []string{"one", "two", "three"}) {
		t.Errorf("published %q", got)
	}
}

func TestAPreparedTransactionIsPublishedWhenItCommits(t *testing.T) {
	t.Parallel()
	_, pool := ownServer(t, map[string]string{"max_prepared_transactions": "5"})
	kafka := newMemory(t, "a")
	r := startRelay(t, pool, kafka, quick())
	w := newProducer(t, pool, "k").begin().enter().append("a", "prepared")
	w.exec("prepare transaction 'p'")
	other := newProducer(t, pool, "o")
	for range 5 {
		other.publish("a", "other")
		r.passed(2)
	}
	if kafka.has("a", "prepared") {
		t.Error("published before it committed")
	}
	w.exec("commit prepared 'p'")
	eventually(t, "the prepared transaction is published", func() bool { return kafka.has("a", "prepared") })
	r.end()
}
