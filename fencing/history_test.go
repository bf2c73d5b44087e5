package fencing_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

// newIdentity makes the database another one than that which its history
// remembers, as a restore, a promotion or a copy does.
func (w *world) newIdentity(set string) {
	w.Helper()
	w.exec("update fenceline.history set " + set)
}

func TestInAnotherHistoryNothingIsIssuedAndNothingCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, set := range map[string]string{
		"promoted, or restored to a point in time": "timeline = '00000009'",
		"restored on another server":               "system_identifier = system_identifier + 1",
		"copied within the server":                 "database_oid = (database_oid::bigint + 1)::oid",
		"an old dump loaded over it":               "self_oid = (self_oid::bigint + 1)::oid",
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.TB = t
			anotherHistory(&w, name, set)
		})
	}
}

func anotherHistory(w *world, key, set string) {
	o := w.outsider()
	lease := o.acquire(key)
	_, err := lease.Commit(ctx, content("before", "x"), write)
	w.ok(err)
	w.newIdentity(set)
	defer w.exec("select fenceline.history_confirm()")
	// The same connection as before: a new one is not what it takes.
	_, err = lease.Commit(ctx, content("after", "x"), write)
	w.is(err, fencing.ErrHistory)
	if !strings.Contains(err.Error(), "history_confirm()") || !strings.Contains(err.Error(), "history_bump()") {
		w.Errorf("the error names no remedy: %v", err)
	}
	_, err = o.Acquire(ctx, key+"2", long)
	w.is(err, fencing.ErrHistory)
	_, err = o.advance(key+"3", 1)
	w.is(err, fencing.ErrHistory)
	// What is certain is still said.
	again, err := lease.Commit(ctx, content("before", "x"), write)
	w.ok(err)
	if !again.Replayed {
		w.Error("a receipt that survived was not replayed")
	}
	w.wantWritten(key, written{1, 1, 1})
}

func TestACopyOfTheDatabaseRefusesUntilAnOperatorHasSpoken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	_, err := a.commit(pos, content("s", "x"))
	w.ok(err)

	u, err := url.Parse(w.dsn)
	w.ok(err)
	original := strings.TrimPrefix(u.Path, "/")
	name := original + "_copy"
	u.Path = "/postgres"
	server := w.session(u.String())
	a.pool.Reset()
	w.admin.Reset()
	// Nobody may be connected to the original; closed connections take a moment.
	deadline := time.Now().Add(time.Minute)
	for {
		_, err = server.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()+" template "+pgx.Identifier{original}.Sanitize()+" strategy file_copy")
		if sqlstate(err) != "55006" || time.Now().After(deadline) {
			break
		}
	}
	w.ok(err)
	defer func() {
		_, err := server.Exec(ctx, "drop database "+pgx.Identifier{name}.Sanitize()+" (force)")
		w.ok(err)
	}()
	u.Path = "/" + name
	c := &world{TB: t, dsn: u.String(), producer: u.String(), admin: pgtest.Connect(t, u.String())}
	b := c.worker("b")
	_, err = b.commit(pos, content("s2", "x"))
	c.is(err, fencing.ErrHistory)
	_, err = b.Acquire(ctx, "l", long)
	c.is(err, fencing.ErrHistory)
	c.exec("select fenceline.history_confirm()")
	_, err = b.commit(pos, content("s2", "x"))
	c.ok(err)
	b.pool.Close()
	c.admin.Close()
	// The original never noticed.
	_, err = a.commit(pos, content("s2", "x"))
	w.ok(err)
}

func TestAfterConfirmEpochsGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	w.newIdentity("timeline = '00000009'")
	w.exec("select fenceline.history_confirm()")
	_, err := lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
	if fresh := a.takeOver("k").Position(); fresh.Epoch != lease.Position().Epoch || fresh.Token != 2 {
		t.Errorf("%v, then %v", lease.Position(), fresh)
	}
}

func TestAfterABumpOldAttemptsAreUnconfirmableAndReceiptsThatSurvivedAreReplayed(t *testing.T) {
	t.Parallel()
	afterABump(newWorld(t))
}

func afterABump(w *world) {
	a := w.worker("a")
	old := a.acquire("k")
	_, err := old.Commit(ctx, content("survived", "x"), write)
	w.ok(err)
	w.newIdentity("timeline = '00000009'")
	since := value[int64](w, "select fenceline.history_bump()")
	_, err = old.Commit(ctx, content("lost", "x"), write)
	w.is(err, fencing.ErrUnconfirmable)
	if e := evidence(w, err); e.Reason != "earlier history" {
		w.Errorf("reason %q", e.Reason)
	}
	again, err := old.Commit(ctx, content("survived", "x"), write)
	w.ok(err)
	if !again.Replayed {
		w.Error("a receipt that survived was not replayed")
	}
	// No lease of before keeps anybody out, and the new life is above all of before.
	fresh := a.acquire("k")
	if p := fresh.Position(); p.Epoch < since || p.Epoch <= old.Position().Epoch || p.Token != 1 {
		w.Errorf("%v, bumped to %d, then %v", old.Position(), since, p)
	}
	_, err = fresh.Commit(ctx, content("survived", "y"), write) // another life: not the same attempt
	w.ok(err)
	_, err = old.Commit(ctx, content("lost", "x"), write)
	w.is(err, fencing.ErrUnconfirmable)
	// The first event of the new life says where the old one ended.
	var seq, prevEpoch, prevSeq, history int64
	w.ok(w.admin.QueryRow(ctx, "select seq, prev_epoch, prev_seq, history from fenceline.outbox where key = 'k' order by pos desc limit 1").Scan(&seq, &prevEpoch, &prevSeq, &history))
	if seq != 1 || prevEpoch != old.Position().Epoch || prevSeq != 1 || history != since {
		w.Errorf("seq %d, prev %d/%d, history %d", seq, prevEpoch, prevSeq, history)
	}
}

func TestABumpIsAboveWhatTheOperatorNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := value[int64](w, "select fenceline.history_bump()")
	second := value[int64](w, "select fenceline.history_bump()")
	if second <= first {
		t.Errorf("%d, then %d", first, second)
	}
	const most = int64(1) << 62
	op, err := fencing.NewOperator(ctx, w.admin, "")
	w.ok(err)
	_, err = op.Bump(ctx, most, "alice") // for good: no epoch falls, and no record could have one
	w.is(err, fencing.ErrInvalid)
	above := second + 1_000_000_000_000
	if third := value[int64](w, "select fenceline.history_bump($1)", above); third <= above {
		t.Errorf("%d, want above %d", third, above)
	}
	if pos := w.worker("a").acquire("k").Position(); pos.Epoch <= above {
		t.Errorf("a new key's epoch is %d", pos.Epoch)
	}
}

// A promoted standby's clock may be behind that of the server before, by which the
// newest keys began; and a clock may have been set back.
func TestABumpIsAboveEachEpochThatIsRecordedWhateverTheClockSays(t *testing.T) {
	t.Parallel()
	aboveWhatIsRecorded(newWorld(t))
}

func aboveWhatIsRecorded(w *world) {
	a := w.worker("a")
	pos := w.ahead(a)
	w.newIdentity("timeline = '00000009'")
	since := value[int64](w, "select fenceline.history_bump()")
	w.above(pos.Epoch, since)
	_, err := a.commit(pos, content("lost", "x"))
	w.is(err, fencing.ErrUnconfirmable)
	w.wantWritten("k", written{1, 0, 1}) // of before
	for _, key := range []string{"k", "new"} {
		if p := a.acquire(key).Position(); p.Epoch < since || p.Token != 1 {
			w.Errorf("%v, behind a bump to %d", p, since)
		}
	}
}

func TestABumpWaitsForCommitsInProgressAndThoseBehindItFindIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	pos, other := a.acquire("k").Position(), a.acquire("l").Position()
	commit := a.pauseBehindGate(pos, content("s", "x"))
	operator := w.session(w.dsn)
	bumped := later(operator, "select fenceline.history_bump()")
	pgtest.WaitBlocked(t, w.admin, operator.PgConn().PID(), commit.pid)
	pid := b.pid()
	behind := b.commitLater(other, content("s", "x"))
	pgtest.WaitBlocked(t, w.admin, pid, operator.PgConn().PID())
	commit.goOn()
	w.ok((<-commit.done).err)
	w.ok(<-bumped)
	w.is((<-behind).err, fencing.ErrUnconfirmable)
	w.wantWritten("k", written{1, 1, 1})
	w.wantWritten("l", written{})
}

func TestABumpEndsTheLeasesOfBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.workerAt("a", w.producer, 2)
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 5 * time.Minute, RenewEvery: 100 * time.Millisecond})
	w.exec("select fenceline.history_bump()")
	<-lease.Context().Done()
	w.is(context.Cause(lease.Context()), fencing.ErrLeaseLost)
}
