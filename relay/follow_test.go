package relay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// slot makes a logical replication slot of this database.
func slot(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return query[string](t, pool, "select slot_name::text from pg_create_logical_replication_slot(current_database() || '_slot', 'pgoutput')")
}

// confirmAll is a reader of the slot that confirms whatever there is, until the
// test has ended. Like Debezium's heartbeat it writes to the log itself.
func confirmAll(t testing.TB, pool *pgxpool.Pool, slot string) {
	ctx, stop := context.WithCancel(bg)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, err := pool.Exec(ctx, "select pg_logical_emit_message(false, 'test', '')")
			if err == nil {
				_, err = pool.Exec(ctx, "select pg_replication_slot_advance($1, pg_current_wal_flush_lsn())", slot)
			}
			if err != nil && ctx.Err() == nil {
				t.Errorf("confirm: %v", err)
				return
			}
			_ = pause(ctx, 20*time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
		// A session that was cut off may have it for a moment.
		eventually(t, "the slot is dropped", func() bool {
			_, err := pool.Exec(bg, "select pg_drop_replication_slot($1)", slot)
			return err == nil
		})
	})
}

func followed(name string) FollowConfig {
	return FollowConfig{Slot: name, Wait: 30 * time.Second, AllowUnsafeDatabase: true, Logger: slog.New(slog.DiscardHandler)}
}

func follow(t testing.TB, pool *pgxpool.Pool, name string) {
	t.Helper()
	if _, err := Follow(bg, pool, followed(name)); err != nil {
		t.Fatal(err)
	}
}

func TestWhatASlotHasConfirmedIsPublishedAndNothingElse(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	name := slot(t, pool)
	newProducer(t, pool, "k").publish("t", "a")
	retain(t, pool, atOnce) // rotates
	soon := followed(name)
	soon.Wait = time.Second
	if _, err := Follow(bg, pool, soon); !errors.Is(err, ErrSlotBehind) || !strings.Contains(err.Error(), "not being read") {
		t.Errorf("nobody reads the slot: %v", err)
	}
	if r := retain(t, pool, atOnce); len(r.Dropped) != 0 {
		t.Fatalf("dropped what nobody has read: %+v", r)
	}
	// In progress while the log is confirmed, and committed afterwards: the
	// snapshot does not have it, whatever the slot says.
	late := newProducer(t, pool, "late").begin().enter().append("t", "b")
	confirmAll(t, pool, name)
	follow(t, pool, name)
	late.commit()
	if r := retain(t, pool, atOnce); strings.Join(r.Dropped, " ") != "outbox_0" {
		t.Errorf("confirmed and old: %+v", r)
	}
	newProducer(t, pool, "later").publish("t", "c")
	retain(t, pool, atOnce) // rotates
	if r := retain(t, pool, atOnce); len(r.Dropped) != 0 || len(r.Overdue) != 2 || r.Overdue[0].Kept != KeptUnpublished || r.Overdue[1].Kept != KeptUnpublished {
		t.Errorf("committed since: %+v", r)
	}
	// A relay goes on from there: nothing is left out, and what was confirmed
	// doesn't come again.
	publishAll(t, pool, kafka)
	got := kafka.payloads("t")
	if slices.Sort(got); strings.Join(got, " ") != "b c" {
		t.Errorf("the relay has published %q, want b and c", got)
	}
}

func TestFollowingASlotAgainAndAgainLeavesFewCursors(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t, "t")
	name := slot(t, pool)
	confirmAll(t, pool, name)
	p := newProducer(t, pool, "k")
	for range 4 {
		p.publish("t", "a")
		follow(t, pool, name)
	}
	if got := query[int](t, pool, "select count(*) from fenceline.relay_checkpoint"); got != 1 {
		t.Errorf("%d cursors", got)
	}
	if got := query[bool](t, pool, "select bool_and(pg_visible_in_snapshot(o.xid, c.s1)) from fenceline.outbox o cross join fenceline.relay_checkpoint c"); !got {
		t.Error("the cursor is behind what was confirmed")
	}
	// They were given back: a relay needs them at once.
	if got := query[int](t, pool, "select count(*) from fenceline.lease where key like 'fenceline:relay/%' and expires_at > clock_timestamp()"); got != 0 {
		t.Errorf("%d leases are still held", got)
	}
}

func TestASlotIsNotFollowedWhereItProvesNothing(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	name := slot(t, pool)
	confirmAll(t, pool, name)
	newProducer(t, pool, "k").publish("t", "a")
	// At once: one that were made while it waits would confirm what nobody has
	// read from it.
	ctx, cancel := context.WithTimeout(bg, time.Minute)
	defer cancel()
	missing := followed("no_such_slot")
	missing.Wait = time.Hour
	if _, err := Follow(ctx, pool, missing); !errors.Is(err, ErrSlotBehind) || !strings.Contains(err.Error(), "no such") {
		t.Errorf("no slot: %v", err)
	}
	if _, err := Follow(bg, pool, FollowConfig{}); err == nil {
		t.Error("a slot without a name is followed")
	}
	if _, err := pool.Exec(bg, "insert into fenceline.relay_held (topic, key, pos, epoch, seq, reason, detail) values ('t', 'k', 1, 1, 1, 'record', '')"); err != nil {
		t.Fatal(err)
	}
	if _, err := Follow(bg, pool, followed(name)); !errors.Is(err, ErrWaiting) {
		t.Errorf("a held stream: %v", err)
	}
	if _, err := pool.Exec(bg, "delete from fenceline.relay_held"); err != nil {
		t.Fatal(err)
	}
	if n := checkpointsOf(t, pool); n != 0 {
		t.Errorf("%d cursors were stored", n)
	}
	r := startRelay(t, pool, kafka, quick())
	eventually(t, "the relay has published", func() bool { return len(kafka.payloads("t")) == 1 })
	if _, err := Follow(bg, pool, followed(name)); !errors.Is(err, ErrRelayRuns) {
		t.Errorf("a relay runs: %v", err)
	}
	r.end()
	follow(t, pool, name)
}

func TestWhatIsTakenForPublishedIsReportedAndWhetherTheSlotSpeaksForIt(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	p := newProducer(t, pool, "k")
	p.publish("t", "a", "b") // before there is a slot
	name := slot(t, pool)
	confirmAll(t, pool, name)
	took := func() FollowReport {
		t.Helper()
		r, err := Follow(bg, pool, followed(name))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	last := query[int64](t, pool, "select max(pos) from fenceline.outbox")
	if r := took(); r.Events != 2 || r.Pos != last || r.At.IsZero() || !r.Unproven {
		t.Errorf("at first: %+v", r)
	}
	if r := took(); r != (FollowReport{}) {
		t.Errorf("nothing is new: %+v", r)
	}
	p.publish("t", "c")
	if r := took(); r.Events != 1 || r.Pos <= last || r.Unproven {
		t.Errorf("followed since: %+v", r)
	}
	// A relay had the shards meanwhile: the slot may have been made anew.
	p.publish("t", "d")
	publishAll(t, pool, kafka)
	p.publish("t", "e")
	if r := took(); r.Events != 1 || !r.Unproven {
		t.Errorf("after a relay: %+v", r)
	}
}

func TestASlotOfAnotherPluginIsNotFollowed(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t, "t")
	name := query[string](t, pool, "select slot_name::text from pg_create_logical_replication_slot(current_database() || '_other', 'test_decoding')")
	confirmAll(t, pool, name)
	newProducer(t, pool, "k").publish("t", "a")
	if _, err := Follow(bg, pool, followed(name)); !errors.Is(err, ErrSlotForeign) || !strings.Contains(err.Error(), `"test_decoding" and not pgoutput`) {
		t.Errorf("error is %v", err)
	}
	if n := checkpointsOf(t, pool); n != 0 {
		t.Errorf("%d cursors were stored", n)
	}
}
