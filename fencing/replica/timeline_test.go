package replica_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing/replica"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

func TestAReplicaThatIsPromotedWhileItIsWaitedForIsNotBelieved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	reader := w.reader(standby)
	w.report(w.takeOver("k"), "old")
	w.ok(standby.CatchUp(ctx))
	w.ok(standby.Disconnect(ctx))
	lease := w.takeOver("k")
	position := w.report(lease, "new")

	type answer struct {
		text   string
		result replica.Result
		err    error
	}
	answers := make(chan answer, 1)
	go func() { // by generation: this waits for data, whatever the receiver does
		text, result, err := body(reader, "k", replica.Generation(lease.Position()), replica.WaitThenPrimary(15*time.Second))
		answers <- answer{text, result, err}
	}()
	w.waits(standby.Postgres)
	w.ok(standby.Promote(ctx))
	if a := <-answers; a.err != nil || a.text != "new" || !a.result.FromPrimary() || len(a.result.Refusals) != 1 || !errors.Is(a.result.Refusals[0], replica.ErrNotReplica) || a.result.Waited > 10*time.Second {
		t.Errorf("%q, %+v, %v", a.text, a.result, a.err)
	}

	// It writes its own log now, past the position's number.
	promoted := pgtest.Connect(t, standby.DSN("postgres"))
	pgtest.WaitTrue(t, promoted, "select pg_current_wal_flush_lsn() >= $1::text::pg_lsn or pg_logical_emit_message(true, '', repeat('x', 1000)) is null", lsnOf(position))
	text, result, err := body(reader, "k", position, replica.WaitThenPrimary(15*time.Second))
	if err != nil || text != "new" || !result.FromPrimary() {
		t.Errorf("%q, %+v, %v", text, result, err)
	}
	text, _, err = body(reader, "k", position, replica.WaitThenPending(15*time.Second))
	if w.is(err, replica.ErrPending, replica.ErrNotReplica); text != "" {
		t.Errorf("read %q", text)
	}
}

func lsnOf(p replica.Position) string {
	text := p.String()
	return text[strings.LastIndex(text, ":")+1:]
}

// The replica follows a promoted server and passes the number of a commit that it
// never had, while its control file still names the timeline of before.
func TestAReplicaThatFollowsAnotherTimelineIsNotBelieved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	promoted, follower := w.replica(nil), w.replica(nil)
	reader := w.reader(follower)
	w.report(w.takeOver("k"), "old")
	w.ok(promoted.CatchUp(ctx))
	w.ok(follower.CatchUp(ctx))
	w.ok(promoted.Disconnect(ctx))
	w.ok(follower.Disconnect(ctx))
	position := w.report(w.takeOver("k"), "new") // which neither of them gets
	w.ok(promoted.Promote(ctx))
	w.ok(follower.Follow(ctx, promoted.Postgres))
	other := pgtest.Connect(t, promoted.DSN("postgres"))
	pgtest.WaitTrue(t, other, "select pg_current_wal_flush_lsn() >= $1::text::pg_lsn or pg_logical_emit_message(true, '', repeat('x', 1000)) is null", lsnOf(position))
	standby := pgtest.Connect(t, follower.DSN("postgres"))
	pgtest.WaitTrue(t, standby, "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn", lsnOf(position))
	if n := value[int](t, standby, "select timeline_id from pg_control_checkpoint()"); n != 1 {
		t.Errorf("the control file already says %d: the case that this test is for didn't arise", n)
	}
	if got := value[string](t, standby, "select body from report"); got != "old" {
		t.Fatalf("the follower shows %q", got)
	}

	text, result, err := body(reader, "k", position, replica.WaitThenPrimary(10*time.Second))
	if err != nil || text != "new" || !result.FromPrimary() {
		t.Errorf("%q, %+v, %v", text, result, err)
	}
	text, _, err = body(reader, "k", position, replica.WaitThenPending(10*time.Second))
	if w.is(err, replica.ErrPending, replica.ErrTimeline); text != "" {
		t.Errorf("read %q", text)
	}
	text, result, err = body(reader, "k", position, replica.MarkedStale(0))
	if err != nil || text != "old" || !result.Stale {
		t.Errorf("marked stale: %q, %+v, %v", text, result, err)
	}

	// On the promoted primary nobody can tell whether it had the position.
	after, err := replica.New(ctx, pgtest.Connect(t, promoted.DSN("postgres")), nil, w.config())
	w.ok(err)
	if _, result, err := body(after, "k", position, replica.Primary()); err != nil || result.Proven {
		t.Errorf("on the promoted primary: %+v, %v", result, err)
	}
}

func TestAReplicaWhoseTimelineTheLoginCannotSeeIsNotBelieved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	standby := w.replica(nil)
	lease := w.takeOver("k")
	position := w.report(lease, "x")
	w.ok(standby.CatchUp(ctx))
	reader := w.reader(standby)
	read := func() error {
		_, err := reader.Read(ctx, position, replica.WaitThenPending(0), func(context.Context, pgx.Tx) error { return nil })
		return err
	}
	w.ok(read())
	w.exec("revoke pg_read_all_stats from " + w.name)
	w.ok(standby.CatchUp(ctx))
	err := read()
	w.is(err, replica.ErrPending, replica.ErrTimeline)
	if !strings.Contains(err.Error(), "grant pg_read_all_stats") {
		t.Errorf("no remedy: %v", err)
	}
	// A generation needs no timeline.
	if _, result, err := body(reader, "k", replica.Generation(lease.Position()), replica.WaitThenPending(0)); err != nil || result.FromPrimary() {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestTheMonitorsRoleIsWhatAReaderNeeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lease := w.takeOver("k")
	w.report(lease, "x")
	for kind, allowed := range map[string]bool{schema.KindMonitor: true, schema.KindProducer: false} {
		login := pgmigrated.Login(t, w.server.DSN("postgres"), kind)
		reader, err := replica.New(ctx, pgtest.Connect(t, login), nil, w.config())
		w.ok(err)
		_, err = reader.Read(ctx, replica.Generation(lease.Position()), replica.Primary(), func(context.Context, pgx.Tx) error { return nil })
		if (err == nil) != allowed || err != nil && !strings.Contains(err.Error(), "grant fenceline_monitor") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
