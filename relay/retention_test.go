package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const minLockTimeout = time.Millisecond

// atOnce is a retention that keeps nothing that is published.
var atOnce = RetentionConfig{Keep: time.Microsecond, RotateAge: time.Microsecond, LockTimeout: 10 * time.Second, Tries: 1}

func retain(t testing.TB, pool *pgxpool.Pool, cfg RetentionConfig) RetentionReport {
	t.Helper()
	r, err := Retain(bg, pool, "", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// parts are the partitions' numbers and why each is kept, if nothing is kept
// for its age.
func parts(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return query[string](t, pool, "select coalesce(string_agg(number || ':' || coalesce(kept, '-'), ' ' order by number), '') from fenceline.outbox_partitions()")
}

// publishAll has a relay publish what there is.
func publishAll(t testing.TB, pool *pgxpool.Pool, kafka *memory) {
	t.Helper()
	r := startRelay(t, pool, kafka, quick())
	eventually(t, "everything is published", func() bool {
		return query[bool](t, pool, `select not exists (select from fenceline.outbox o where exists (select from fenceline._relay_seen s where s.s1 is null or not pg_visible_in_snapshot(o.xid, s.s1)))`)
	})
	r.end()
}

func TestTheOutboxIsRotatedByAgeAndBySizeAndPositionsOnlyRise(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t, "t")
	p := newProducer(t, pool, "k")
	day := RetentionConfig{RotateAge: 24 * time.Hour, RotateBytes: 1 << 40}
	if r := retain(t, pool, RetentionConfig{RotateAge: time.Microsecond}); r.Rotated {
		t.Error("an empty partition is rotated")
	}
	p.publish("t", "a")
	if r := retain(t, pool, day); r.Rotated {
		t.Error("a young partition is rotated")
	}
	// Commits go on while the next partition is made: one is in progress. It
	// would not find the new partition, so the switch waits for its end.
	slow := newProducer(t, pool, "slow")
	open := slow.begin().enter().append("t", "b")
	soon := RetentionConfig{RotateAge: time.Microsecond, LockTimeout: time.Millisecond, Tries: 2}
	if r := retain(t, pool, soon); r.Rotated || parts(t, pool) != "0:active 1:active" {
		t.Errorf("%+v, %s", r, parts(t, pool))
	}
	open.append("t", "c").commit()
	if r := retain(t, pool, soon); !r.Rotated {
		t.Error("an old partition is not rotated")
	}
	p.publish("t", "d")
	if r := retain(t, pool, RetentionConfig{RotateAge: 24 * time.Hour, RotateBytes: 1}); !r.Rotated {
		t.Error("a large partition is not rotated")
	}
	p.publish("t", "e")
	got := query[string](t, pool, "select string_agg(convert_from(payload, 'UTF8') || (pos >> 40) || ':' || seq, ' ' order by pos) from fenceline.outbox")
	if want := "a0:1 b0:1 c0:2 d1:2 e2:3"; got != want {
		t.Errorf("events are in %s, want %s", got, want)
	}
	o, err := ReadOutbox(bg, pool, "")
	if err != nil || len(o.Partitions) != 3 || !o.Partitions[2].Active || o.Bytes == 0 || o.Runway > 1<<40 || o.Runway < 1<<39 || o.Partitions[0].First.IsZero() {
		t.Errorf("%+v, %v", o, err)
	}
	// Everything that an index is for is there on the new ones too.
	if n := query[int](t, pool, "select count(*) from pg_indexes where schemaname = 'fenceline' and tablename ~ '^outbox_[0-9]+$'"); n != 9 {
		t.Errorf("%d indexes on three partitions, want 9", n)
	}
}

func TestAStepOfARotationThatIsCutOffIsTakenUpByTheNext(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t, "t")
	p := newProducer(t, pool, "k")
	p.publish("t", "a")
	if got := query[string](t, pool, "select fenceline.outbox_rotate('1 us', 1::bigint << 40, '10 s')"); got != "created" {
		t.Fatalf("the first step: %s", got)
	}
	p.publish("t", "b") // a crash between the two leaves everything working
	if r := retain(t, pool, RetentionConfig{RotateAge: time.Microsecond}); !r.Rotated || parts(t, pool) != "0:unpublished 1:active" {
		t.Errorf("%+v, %s", r, parts(t, pool))
	}
	// Both in one transaction could be rolled back half: setval can't be.
	conn := p.begin().conn
	if _, err := conn.Exec(bg, "select pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(bg, "select fenceline.outbox_rotate('1 us', 1, '10 s')"); err == nil || !strings.Contains(err.Error(), "transaction of its own") {
		t.Errorf("a step inside another transaction: %v", err)
	}
}

func TestAPartitionGoesWhenItIsPublishedAndOldAndNotBefore(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	p := newProducer(t, pool, "k")
	p.publish("t", "a")
	if r := retain(t, pool, atOnce); !r.Rotated || len(r.Dropped) != 0 || len(r.Overdue) != 0 {
		t.Errorf("nothing is published: %+v", r)
	}
	if r := retain(t, pool, atOnce); len(r.Dropped) != 0 || len(r.Overdue) != 1 || r.Overdue[0].Kept != KeptUnpublished {
		t.Errorf("nothing is published: %+v", r)
	}
	publishAll(t, pool, kafka)
	if r := retain(t, pool, RetentionConfig{Keep: time.Hour}); len(r.Dropped) != 0 || len(r.Overdue) != 0 {
		t.Errorf("young: %+v", r)
	}
	p.publish("t", "b") // in the next partition, unpublished: not in the way
	if r := retain(t, pool, atOnce); strings.Join(r.Dropped, " ") != "outbox_0" {
		t.Errorf("published and old: %+v", r)
	}
	publishAll(t, pool, kafka)
	if got := strings.Join(kafka.payloads("t"), " "); got != "a b" {
		t.Errorf("published: %s", got)
	}
	// The stream's numbers go on, whatever has gone.
	p.publish("t", "c")
	if got := query[int64](t, pool, "select max(seq) from fenceline.outbox"); got != 3 {
		t.Errorf("seq %d, want 3", got)
	}
}

// The transaction has a position in the old partition and commits while the
// drop waits for the lock. Looked at before the wait, the partition has nothing
// but what is published.
func TestADropThatWaitedForACommitSeesItsEvents(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	if why := lateCommit(t, pool, kafka); why != KeptUnpublished {
		t.Errorf("the drop says %q, want %q", why, KeptUnpublished)
	}
	publishAll(t, pool, kafka)
	if !kafka.has("t", "late") {
		t.Error("the late event is lost")
	}
	if r := retain(t, pool, atOnce); len(r.Dropped) != 1 {
		t.Errorf("then it goes: %+v", r)
	}
}

// rotateUnder switches to a new partition although a transaction is in progress
// that has appended: as an operator may do by hand.
func rotateUnder(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	if got := query[string](t, pool, "select fenceline.outbox_rotate('1 us', 1::bigint << 40, '1 ms')"); got != "created" {
		t.Fatalf("rotate: %s", got)
	}
	query[int64](t, pool, "select setval('fenceline.outbox_pos', 1::bigint << 40)")
}

func TestADropWaitsForTheLockNoLongerThanItIsTold(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	p := newProducer(t, pool, "k")
	p.publish("t", "a")
	retain(t, pool, RetentionConfig{RotateAge: time.Microsecond})
	publishAll(t, pool, kafka)
	open := newProducer(t, pool, "other").begin().enter().append("t", "b")
	quickly := atOnce
	quickly.LockTimeout, quickly.Tries, quickly.RotateAge = time.Millisecond, 2, 24*time.Hour
	r := retain(t, pool, quickly)
	if len(r.Dropped) != 0 || len(r.Overdue) != 1 || r.Overdue[0].Kept != KeptBusy {
		t.Errorf("behind a transaction that writes: %+v", r)
	}
	p.publish("t", "c") // nothing stands in the way of commits afterwards
	open.commit()
	if r := retain(t, pool, quickly); len(r.Dropped) != 1 {
		t.Errorf("when it has ended: %+v", r)
	}
}

// An unrelated transaction that stays open, and one that began before the
// cursor and is still running, keep nothing.
func TestAnOpenTransactionElsewhereKeepsNoPartition(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	if _, err := pool.Exec(bg, "create table unrelated (v int)"); err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(bg)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(bg)
	if _, err := tx.Exec(bg, "insert into unrelated values (1)"); err != nil {
		t.Fatal(err)
	}
	p := newProducer(t, pool, "k")
	p.publish("t", "a")
	retain(t, pool, RetentionConfig{RotateAge: time.Microsecond})
	publishAll(t, pool, kafka)
	if r := retain(t, pool, atOnce); len(r.Dropped) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestEveryCursorKeepsWhatItHasNotPassed(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	p := newProducer(t, pool, "k")
	p.publish("t", "a")
	before := query[string](t, pool, "select pg_current_snapshot()::text")
	p.publish("t", "b")
	retain(t, pool, RetentionConfig{RotateAge: time.Microsecond})
	publishAll(t, pool, kafka)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(bg, sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what, want string) {
		t.Helper()
		if got := parts(t, pool); got != want+" 1:active" {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
		var why string
		if want != "0:-" {
			if err := pool.QueryRow(bg, "select fenceline.outbox_drop(0, '0', '1 s')").Scan(&why); err != nil || "0:"+why != want {
				t.Errorf("%s: the drop says %q, %v", what, why, err)
			}
		}
	}
	want("all published", "0:-")
	exec(`insert into fenceline.relay_fork (topic, s1, low, reason, detail) values ('t', $1::text::pg_snapshot, 0, '', '')`, before)
	want("a fork stands before it", "0:unpublished")
	exec(`delete from fenceline.relay_fork`)
	// One shard of 64 stands elsewhere.
	exec(`insert into fenceline.relay_checkpoint (shards, epoch, token, s1, low, pair_low, pair_xid) values ('{17}', 1, 1, $1::text::pg_snapshot, 0, 0, '3')`, before)
	want("a shard stands before it", "0:unpublished")
	exec(`delete from fenceline.relay_checkpoint where shards = '{17}'`)
	exec(`update fenceline.relay_checkpoint set shards = array_remove(shards, 17::smallint)`)
	want("a shard has no cursor at all", "0:unpublished")
	exec(`update fenceline.relay_checkpoint set shards = shards || 17::smallint`)
	want("all published again", "0:-")
	held := `insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail) select topic, key, pos, epoch, seq, '', '' from fenceline.outbox where seq = $1`
	exec(held, 2)
	want("a stream is held in it", "0:held")
	exec(`update fenceline.relay_held set pos = 1::bigint << 40`)
	want("a stream is held behind it", "0:-")
	exec(`delete from fenceline.relay_held`)
	var why string
	for _, c := range []struct {
		number int
		want   string
	}{{1, KeptActive}, {7, "gone"}, {0, "dropped"}, {0, "gone"}} {
		if err := pool.QueryRow(bg, "select fenceline.outbox_drop($1, '0', '1 s')", c.number).Scan(&why); err != nil || why != c.want {
			t.Errorf("partition %d: %q, %v, want %q", c.number, why, err, c.want)
		}
	}
}

func TestHeldEventsStopTheRetentionOfTheirPartitionOnlyWithAnAlarm(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	p := newProducer(t, pool, "k")
	for i := range 3 {
		p.publish("t", fmt.Sprint(i))
		retain(t, pool, RetentionConfig{RotateAge: time.Microsecond, Keep: time.Hour})
	}
	publishAll(t, pool, kafka)
	if _, err := pool.Exec(bg, `insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail) values ('t', 'k', 1, 1, 1, '', '')`); err != nil {
		t.Fatal(err)
	}
	// All of the stream behind pos 1 is held: three partitions.
	r := retain(t, pool, atOnce)
	if len(r.Dropped) != 0 || len(r.Overdue) != 3 || r.Overdue[0].Kept != KeptHeld {
		t.Errorf("%+v", r)
	}
	if _, err := pool.Exec(bg, `update fenceline.relay_held set pos = 2::bigint << 40`); err != nil {
		t.Fatal(err)
	}
	r = retain(t, pool, atOnce)
	if strings.Join(r.Dropped, " ") != "outbox_0 outbox_1" || len(r.Overdue) != 1 || r.Overdue[0].Name != "outbox_2" || r.Overdue[0].Kept != KeptHeld {
		t.Errorf("%+v", r)
	}
}

func TestADropNeedsReadCommitted(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t, "t")
	w := newProducer(t, pool, "k").begin()
	w.exec("rollback")
	w.exec("begin isolation level repeatable read")
	if _, err := w.conn.Exec(bg, "select fenceline.outbox_drop(0, '0', '1 s')"); err == nil || !strings.Contains(err.Error(), "needs READ COMMITTED") {
		t.Errorf("repeatable read: %v", err)
	}
}

// plain makes the outbox one table.
func plain(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for _, sql := range []string{
		"create table fenceline.flat (like fenceline.outbox including all)",
		"alter table fenceline.outbox rename to was_partitioned",
		"alter table fenceline.flat rename to outbox",
		"alter table fenceline.outbox owner to fenceline_owner",
		"grant select on fenceline.outbox to fenceline_relay",
	} {
		if _, err := pool.Exec(bg, sql); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAPlainTableLosesPublishedEventsRowByRow(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	plain(t, pool)
	p, held := newProducer(t, pool, "k"), newProducer(t, pool, "held")
	for i := range 25 {
		p.publish("t", fmt.Sprint(i))
	}
	held.publish("t", "h1", "h2")
	publishAll(t, pool, kafka)
	if _, err := pool.Exec(bg, `insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail) select topic, key, pos, epoch, seq, '', '' from fenceline.outbox where key = 'held' and seq = 2`); err != nil {
		t.Fatal(err)
	}
	open := p.begin().enter().append("t", "open")
	if r := retain(t, pool, RetentionConfig{Keep: time.Hour}); r.Deleted != 0 {
		t.Errorf("young: %+v", r)
	}
	few := RetentionConfig{Keep: time.Microsecond, DeleteBatch: 4}
	if r := retain(t, pool, few); r.Deleted != 26 || r.Rotated {
		t.Errorf("published: %+v", r)
	}
	open.commit()
	if r := retain(t, pool, few); r.Deleted != 0 {
		t.Errorf("unpublished, and held: %+v", r)
	}
	if got := query[string](t, pool, "select string_agg(convert_from(payload, 'UTF8'), ' ' order by pos) from fenceline.outbox"); got != "h2 open" {
		t.Errorf("what is left: %s", got)
	}
	o, err := ReadOutbox(bg, pool, "")
	if err != nil || len(o.Partitions) != 0 || o.Bytes == 0 || o.Runway < 1<<60 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestOneOfTheRunningRelaysKeepsTheOutboxSmall(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	cfg := quick()
	often := atOnce
	often.Every = 100 * time.Millisecond
	cfg.Retention = &often
	var relays []*running
	for range 2 {
		relays = append(relays, startRelay(t, pool, kafka, cfg))
	}
	p := newProducer(t, pool, "k")
	// The load goes on while partitions come and go under it.
	n := 0
	for deadline := time.Now().Add(time.Minute); query[int64](t, pool, "select min(number) from fenceline.outbox_partitions()") < 1; n++ {
		if time.Now().After(deadline) {
			t.Fatalf("no partition has gone within a minute and %d events: %s", n, parts(t, pool))
		}
		p.publish("t", fmt.Sprint(n))
	}
	for i := range n {
		eventually(t, "every event is published", func() bool { return kafka.has("t", fmt.Sprint(i)) })
	}
	if got := query[int](t, pool, "select count(*) from fenceline.lease where key = $1 and expires_at > now()", RetentionKey); got != 1 {
		t.Errorf("%d instances take care of it", got)
	}
	for _, r := range relays {
		r.end()
	}
	if got := query[int](t, pool, "select count(*) from fenceline.lease where key = $1 and expires_at > now()", RetentionKey); got != 0 {
		t.Error("the lease of the retention outlives a clean stop")
	}
	firsts(t, kafka.logs["t"])
}

func TestRetentionIsValidated(t *testing.T) {
	t.Parallel()
	for _, c := range []RetentionConfig{{Keep: -1}, {RotateAge: -1}, {Every: -1}, {LockTimeout: time.Microsecond}, {LockTimeout: time.Minute}, {RotateBytes: -1}, {Tries: -1}, {DeleteBatch: 2_000_000}} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "use ") {
			t.Errorf("%+v: %v", c, err)
		}
		if err := (Config{Retention: &c}).Validate(); err == nil {
			t.Errorf("%+v is accepted in a relay's configuration", c)
		}
	}
	if _, err := Retain(context.Background(), nil, "", RetentionConfig{Keep: -1}); err == nil {
		t.Error("Retain takes what isn't valid")
	}
}

func TestAPausedRelayPublishesNothingUntilItIsResumed(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	p := newProducer(t, pool, "k")
	set := func(paused bool, want bool) {
		t.Helper()
		changed, err := SetPause(bg, pool, "", paused, "alice", "a broker upgrade")
		if err != nil || changed != want {
			t.Fatalf("pause %v: %v, %v", paused, changed, err)
		}
	}
	set(true, true)
	set(true, false)
	p.publish("t", "a")
	told := make(chan bool, 10)
	cfg := quick()
	cfg.Hooks.Paused = func(paused bool) { told <- paused }
	r := startRelay(t, pool, kafka, cfg)
	if !receive(t, "it is told", told) {
		t.Fatal("it was told that it may publish")
	}
	// It has its shards and its cursors, and does not look: not even once.
	eventually(t, "it could read", func() bool { return r.loads.Load() > 0 })
	time.Sleep(300 * time.Millisecond) // far more than it needs; less would hide a fault, not show one
	if n := r.polls.Load(); n != 0 {
		t.Errorf("it has looked %d times", n)
	}
	set(false, true)
	eventually(t, "it goes on", func() bool { return kafka.has("t", "a") })
	if receive(t, "it is told", told) {
		t.Fatal("it was told that it is paused")
	}
	set(true, true)
	if !receive(t, "it is told", told) {
		t.Fatal("it was told that it may publish")
	}
	if p, err := ReadPause(bg, pool, ""); err != nil || !p.Paused || p.Who != "alice" || p.Login == "" || p.Reason != "a broker upgrade" || p.At.IsZero() {
		t.Errorf("%+v, %v", p, err)
	}
	r.end() // a paused relay stops as cleanly
	if n := query[int](t, pool, "select count(*) from fenceline.relay_pause"); n != 3 {
		t.Errorf("%d rows on record, want 3", n)
	}
}
