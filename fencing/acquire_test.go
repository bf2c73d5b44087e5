package fencing_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestWhoLosesALeaseIsToldTheHolderAndTheTimeAndNotTheToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("holder-a"), w.worker("b")
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: time.Minute, Holder: "somebody else"})
	_, err := b.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrHeld)
	var held *fencing.HeldError
	if !errors.As(err, &held) || held.Key != "k" || held.Holder != "somebody else" || held.Remaining <= 0 || held.Remaining > time.Minute {
		t.Fatalf("%+v", held)
	}
	if until := value[time.Time](w, "select expires_at from fenceline.lease where key = 'k'"); !held.ExpiresAt.Equal(until) {
		t.Errorf("told %v, it is %v", held.ExpiresAt, until)
	}
	if strings.Contains(err.Error(), fmt.Sprint(lease.Position().Epoch)) {
		t.Errorf("the error names the position: %v", err)
	}
	if lease.Holder() != "somebody else" {
		t.Error(lease.Holder())
	}
}

func TestATakeoverIsLeaseAndFenceOrNeither(t *testing.T) {
	t.Parallel()
	takeoverIsOneTransaction(newWorld(t))
}

// The taker's backend is killed between the two writes.
func takeoverIsOneTransaction(w *world) {
	a := w.worker("a")
	old := a.acquire("k")
	w.expire("k")
	w.exec(`create function public.wait() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(9); return new; end $$;
		create trigger wait before insert or update on fenceline.lease for each row execute function public.wait()`)
	pause := w.session(w.dsn)
	_, err := pause.Exec(ctx, "select pg_advisory_lock(9)")
	w.ok(err)
	taker := w.session(w.producer)
	pid := taker.PgConn().PID()
	taken := later(taker, "select fenceline.acquire('k', 'b', '1 min', gen_random_uuid(), '10 s')")
	pgtest.WaitBlocked(w, w.admin, pid, pause.PgConn().PID())
	w.exec("select pg_terminate_backend($1)", int32(pid))
	if err := <-taken; err == nil {
		w.Fatal("the taker survived")
	}
	pgtest.WaitGone(w, w.admin, pid)
	_, err = pause.Exec(ctx, "select pg_advisory_unlock(9)")
	w.ok(err)
	if holder := value[string](w, "select holder from fenceline.lease where key = 'k'"); holder != "a" {
		w.Errorf("the lease is %s's", holder)
	}
	if token := value[int64](w, "select max_issued_token from fenceline.fence where key = 'k'"); token != old.Position().Token {
		w.Errorf("the fence is at %d", token)
	}
	if turns := value[int](w, "select count(*) from fenceline.turn where key = 'k'"); turns != 1 {
		w.Errorf("%d turns", turns)
	}
	_, err = a.commit(old.Position(), content("s", "x"))
	w.ok(err)
}

func TestAnExpiredLeaseThatNobodyTookStillCommits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	w.expire("k")
	_, err := lease.Commit(ctx, content("s", "x"), write)
	w.ok(err) // the lease is liveness, the fence is safety
}

func TestReleaseKeepsTheCounterAndEndsTheContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	for want := int64(1); want <= 3; want++ {
		lease := a.acquire("k")
		if lease.Position().Token != want {
			t.Errorf("token %d, want %d", lease.Position().Token, want)
		}
		w.ok(lease.Release(ctx))
		w.ok(lease.Release(ctx)) // as defer does
		select {
		case <-lease.Context().Done():
		default:
			t.Error("the context did not end")
		}
		if got := value[int64](w, "select max_issued_token from fenceline.fence where key = 'k'"); got != want {
			t.Errorf("after the release the fence is at %d", got)
		}
	}
	lease := b.acquire("k")
	if lease.Position().Token != 4 {
		t.Errorf("the next holder's token is %d", lease.Position().Token)
	}
	why := value[string](w, "select string_agg(why || ' ' || token || ' ' || holder, ', ' order by n) from fenceline.turn where key = 'k'")
	if want := "acquire 1 a, release 1 a, acquire 2 a, release 2 a, acquire 3 a, release 3 a, acquire 4 b"; why != want {
		t.Errorf("turns: %s", why)
	}
}

func TestReleaseAfterATakeoverLeavesTheNewHolderAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	old := a.acquire("k")
	b.takeOver("k")
	w.ok(old.Release(ctx))
	_, err := a.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrHeld)
}

func TestTheTimeSpentWaitingForACommitIsNotTakenFromTheTrust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.workerAt("b", w.producer, 2)
	lease := a.acquire("k")
	commit := a.pauseBehindGate(lease.Position(), content("s", "x"))
	w.expire("k")
	// Longer than the lease's whole time is waited for.
	cfg := fencing.LeaseConfig{TTL: 4 * time.Second, Wait: time.Minute, RenewEvery: 500 * time.Millisecond}
	got := make(chan *fencing.Lease, 1)
	go func() {
		l, err := b.Acquire(ctx, "k", cfg)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	pgtest.WaitTrue(t, w.admin, "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '4200 ms')")
	commit.goOn()
	w.ok((<-commit.done).err)
	fresh := <-got
	defer func() { _ = fresh.Release(ctx) }()
	// Had it been, the trust would be over already, and nothing be renewed.
	from := value[time.Time](w, "select expires_at from fenceline.lease where key = 'k'")
	pgtest.WaitTrue(t, w.admin, "select expires_at > $1 from fenceline.lease where key = 'k'", from)
	if fresh.Context().Err() != nil {
		t.Error("the lease was lost as soon as it was won")
	}
}

func TestAcquireRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	for name, c := range map[string]struct {
		key string
		cfg fencing.LeaseConfig
	}{
		"empty key":             {"", long},
		"key too long":          {strings.Repeat("k", 513), long},
		"key not UTF-8":         {"\xff", long},
		"key with NUL":          {"a\x00b", long},
		"a key of ours":         {"fenceline:relay", long},
		"no lease time":         {"k", fencing.LeaseConfig{}},
		"lease time too short":  {"k", fencing.LeaseConfig{TTL: time.Millisecond}},
		"lease time too long":   {"k", fencing.LeaseConfig{TTL: 25 * time.Hour}},
		"negative lease time":   {"k", fencing.LeaseConfig{TTL: -time.Second}},
		"margin of all":         {"k", fencing.LeaseConfig{TTL: time.Second, Margin: time.Second}},
		"renewed too late":      {"k", fencing.LeaseConfig{TTL: time.Second, RenewEvery: 950 * time.Millisecond}},
		"negative gate timeout": {"k", fencing.LeaseConfig{TTL: time.Second, GateTimeout: -1}},
		"long gate timeout":     {"k", fencing.LeaseConfig{TTL: time.Second, GateTimeout: 25 * time.Hour}},
		"negative wait":         {"k", fencing.LeaseConfig{TTL: time.Second, Wait: -1}},
		"holder too long":       {"k", fencing.LeaseConfig{TTL: time.Second, Holder: strings.Repeat("h", 256)}},
		"holder not UTF-8":      {"k", fencing.LeaseConfig{TTL: time.Second, Holder: "\xff"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.Acquire(ctx, c.key, c.cfg)
			if !errors.Is(err, fencing.ErrInvalid) || !strings.HasPrefix(err.Error(), "fencing: ") {
				t.Errorf("got %v", err)
			}
		})
	}
	if n := value[int](w, "select count(*) from fenceline.fence"); n != 0 {
		t.Errorf("%d fences", n)
	}
	// The longest key is one.
	a.acquire(strings.Repeat("ä", 256))
}

func TestCommitRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	pos := a.acquire("k").Position()
	for name, c := range map[string]struct {
		pos     fencing.Position
		content fencing.Content
	}{
		"empty key":      {fencing.Position{Epoch: 1, Token: 1}, content("s", "x")},
		"no epoch":       {fencing.Position{Key: "k", Token: 1}, content("s", "x")},
		"no token":       {fencing.Position{Key: "k", Epoch: 1}, content("s", "x")},
		"a key of ours":  {fencing.Position{Key: "fenceline:x", Epoch: 1, Token: 1}, content("s", "x")},
		"step too long":  {pos, content(strings.Repeat("s", 129), "x")},
		"step not UTF-8": {pos, content("\xff", "x")},
		"step with NUL":  {pos, content("\x00", "x")},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.commit(c.pos, c.content)
			if !errors.Is(err, fencing.ErrInvalid) || !strings.HasPrefix(err.Error(), "fencing: ") {
				t.Errorf("got %v", err)
			}
		})
	}
	w.wantWritten("k", written{})
}
