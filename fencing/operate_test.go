package fencing_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/internal/schema"
)

func (w *world) monitor() *fencing.Operator {
	w.Helper()
	o, err := fencing.NewOperator(ctx, pgtest.Connect(w, pgmigrated.Login(w, w.dsn, schema.KindMonitor)), "")
	w.ok(err)
	return o
}

func TestLeasesAreListedWithTheirStateAndTheToolkitsOwnApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	m := w.monitor()
	a.acquire("k/expired")
	w.expire("k/expired")
	w.ok(a.acquire("k/free").Release(ctx))
	held := a.acquireWith("k/held", own)
	w.ok(a.acquire("k/kept").HandOver(ctx, "b"))
	a.acquire("l")
	until, stop := context.WithCancel(ctx)
	defer stop()
	b.campaignLater(until, "k/held", patient)
	w.inLine("k/held", "b")
	w.exec("select fenceline.relay_acquire('fenceline:x', 'r', '1 min', gen_random_uuid(), '1 s')")

	leases, err := m.Leases(ctx, fencing.LeaseFilter{Prefix: "k/"})
	w.ok(err)
	var got []string
	for _, l := range leases {
		got = append(got, string(l.State)+" "+l.Position.Key)
	}
	if want := []string{"expired k/expired", "free k/free", "held k/held", "reserved k/kept"}; !slices.Equal(got, want) {
		t.Errorf("listed %v", got)
	}
	h := leases[2]
	if h.Position != held.Position() || h.Holder != "a" || h.Waiter != "b" || h.Owner != w.loginOf(w.producer) || h.Remaining <= 0 || time.Until(h.ExpiresAt) <= 0 {
		t.Errorf("%+v", h)
	}
	if e, k := leases[0], leases[3]; e.Remaining >= 0 || k.Successor != "b" || k.ReservedUntil.IsZero() || !k.ExpiresAt.IsZero() {
		t.Errorf("%+v, %+v", e, k)
	}
	page, err := m.Leases(ctx, fencing.LeaseFilter{After: "k/held", Limit: 1})
	w.ok(err)
	if len(page) != 1 || page[0].Position.Key != "k/kept" {
		t.Errorf("the next page is %+v", page)
	}
	system, err := m.Leases(ctx, fencing.LeaseFilter{System: true})
	w.ok(err)
	if len(system) != 1 || system[0].Position.Key != "fenceline:x" || !system[0].System {
		t.Errorf("our own are %+v", system)
	}
}

func TestAKeyIsShownWithItsFenceAndItsTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	m := w.monitor()
	lease := a.acquire("k")
	w.rotated(lease)
	w.ok(lease.HandOver(ctx, "b"))
	info, err := m.Show(ctx, "k", 2)
	w.ok(err)
	if len(info.Turns) != 2 || info.Turns[0].Why != "handover" || info.Turns[0].Whom != "b" || info.Turns[1].Why != "rotate" || info.Turns[1].Position != lease.Position() ||
		info.Turns[0].Login != w.loginOf(w.producer) || info.Fence != lease.Position() || info.Lease.State != fencing.LeaseReserved || !info.ClosedAt.IsZero() {
		t.Errorf("%+v", info)
	}
	_, err = m.Show(ctx, "nothing", 0)
	w.is(err, pgx.ErrNoRows)
	w.is(err, fencing.ErrUnknownKey)
	epoch, err := a.Open(ctx, "open")
	w.ok(err)
	info, err = m.Show(ctx, "open", 0)
	w.ok(err)
	if info.Lease != nil || info.Fence != (fencing.Position{Key: "open", Epoch: epoch}) {
		t.Errorf("a key that was never acquired: %+v", info)
	}
	_, err = m.Show(ctx, "", 0)
	w.is(err, fencing.ErrInvalid)
}

func TestAnOperatorEndsALeaseAndTheFenceStillDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.workerAt("a", w.producer, 2), w.worker("b")
	op := w.mender()
	lease := a.acquireWith("k", fencing.LeaseConfig{TTL: 5 * time.Minute, RenewEvery: 100 * time.Millisecond})
	holder, pos, ended, err := op.Expire(ctx, "k", "alice")
	w.ok(err)
	if holder != "a" || pos != lease.Position() || !ended {
		t.Errorf("ended %q at %v: %v", holder, pos, ended)
	}
	<-lease.Context().Done() // the next renewal is told
	w.is(context.Cause(lease.Context()), fencing.ErrLeaseLost)
	_, err = a.commit(pos, content("s", "x"))
	w.ok(err) // nobody has taken over
	_, _, ended, err = op.Expire(ctx, "k", "alice")
	w.ok(err)
	if ended {
		t.Error("ended twice")
	}
	next := b.acquire("k")
	_, err = a.commit(pos, content("s2", "x"))
	w.is(err, fencing.ErrStale)
	// What a key is kept for ends with it.
	w.ok(next.HandOver(ctx, "nobody"))
	_, _, ended, err = op.Expire(ctx, "k", "alice")
	w.ok(err)
	if !ended {
		t.Error("the reservation did not end")
	}
	b.acquire("k")
	_, _, _, err = op.Expire(ctx, "nothing", "alice")
	w.is(err, fencing.ErrUnknownKey)
	_, err = a.Open(ctx, "open")
	w.ok(err)
	holder, _, ended, err = op.Expire(ctx, "open", "alice")
	w.ok(err)
	if holder != "" || ended {
		t.Errorf("of a key that was never acquired %q's lease ended: %v", holder, ended)
	}
	_, _, _, err = op.Expire(ctx, "k", "")
	w.is(err, fencing.ErrInvalid)
	_, _, _, err = w.monitor().Expire(ctx, "k", "alice")
	if sqlstate(err) != "42501" {
		t.Error(err)
	}
	why := value[string](w, "select string_agg(whom || ' ' || login, ', ' order by n) from fenceline.turn where why = 'expire'")
	if strings.Count(why, "alice test_") != 2 {
		t.Errorf("noted: %s", why)
	}
}

func TestAHistoryIsShownBumpedAndConfirmedByNameAndTheStepsAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec("delete from fenceline.history_change") // of the test's own set-up
	op, m, a := w.mender(), w.monitor(), w.worker("a")
	lease := a.acquire("k")
	w.newIdentity("timeline = '00000009'")
	h, err := m.History(ctx)
	w.ok(err)
	if h.Same() || h.Recorded.Timeline != "00000009" || h.Found.Timeline == "" || h.Found.System != h.Recorded.System || h.OnNew != fencing.Refuse || h.LargestEpoch != lease.Position().Epoch {
		t.Errorf("%+v", h)
	}
	_, err = lease.Commit(ctx, content("s", "x"), write)
	var he *fencing.HistoryError
	if !errors.As(err, &he) || he.Recorded != h.Recorded || he.Found != h.Found || he.OnNew != fencing.Refuse || !strings.Contains(err.Error(), "relay history bump") {
		t.Errorf("%+v", err)
	}
	w.ok(op.Confirm(ctx, "alice"))
	_, err = lease.Commit(ctx, content("s", "x"), write)
	w.ok(err)
	since, err := op.Bump(ctx, h.Since+1_000_000_000_000, "bob")
	w.ok(err)
	w.ok(op.OnNewHistory(ctx, fencing.Bump, "carol"))
	w.is(op.OnNewHistory(ctx, "perhaps", "carol"), fencing.ErrInvalid)
	h, err = m.History(ctx)
	w.ok(err)
	if !h.Same() || h.Since != since || since <= 1_000_000_000_000 || h.OnNew != fencing.Bump || len(h.Changes) != 3 ||
		h.Changes[0].Why != "policy" || h.Changes[1].Why != "bump" || h.Changes[1].Who != "bob" || h.Changes[1].Since != since || h.Changes[2].Why != "confirm" || h.Changes[2].Login == "" {
		t.Errorf("%+v", h)
	}
	if err := m.Confirm(ctx, "mallory"); sqlstate(err) != "42501" {
		t.Error(err)
	}
}
