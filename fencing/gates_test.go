package fencing_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

func gatesOf(step string, leases ...*fencing.Lease) (gates []fencing.Gate) {
	for _, l := range leases {
		gates = append(gates, fencing.Gate{Position: l.Position(), Content: content(step, "x")})
	}
	return gates
}

// writeAll writes under the first of the gates.
func writeAll(ctx context.Context, txs []fencing.Tx) error { return write(ctx, txs[0]) }

func TestACommitThroughSeveralGatesIsUnderAllOfThemOrNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	x, y := a.acquire("x"), a.acquire("y")
	got, err := a.CommitAll(ctx, gatesOf("s", y, x), func(ctx context.Context, txs []fencing.Tx) error {
		for i, key := range []string{"y", "x"} {
			if txs[i].Gate().Key != key {
				t.Errorf("gate %d is that of %s", i, txs[i].Gate().Key)
			}
		}
		return errors.Join(write(ctx, txs[1]), txs[0].SetResult([]byte("of y")), outbox.Append(ctx, txs[0], outbox.Event{Topic: "results", Type: "t"}))
	})
	w.ok(err)
	if got[0].Position != y.Position() || got[1].Position != x.Position() || got[0].CommittedAt.IsZero() {
		t.Errorf("%+v", got)
	}
	w.wantWritten("x", written{1, 1, 1})
	w.wantWritten("y", written{1, 0, 1})

	// Asked again, all of them answer.
	again, err := a.CommitAll(ctx, gatesOf("s", x, y), writeAll)
	w.ok(err)
	if !again[0].Replayed || !again[1].Replayed || again[0].Position.Key != "x" || string(again[1].Result) != "of y" {
		t.Errorf("%+v", again)
	}
	// One that is stale refuses the whole.
	b.takeOver("y")
	_, err = a.CommitAll(ctx, gatesOf("s2", x, y), writeAll)
	w.is(err, fencing.ErrStale)
	if e := evidence(w, err); e.Key != "y" {
		t.Errorf("%+v", e)
	}
	again, err = a.CommitAll(ctx, gatesOf("s", x, y), writeAll)
	w.ok(err)
	if !again[1].Replayed {
		t.Error("not replayed after the takeover")
	}
	w.wantWritten("x", written{1, 1, 1})
	w.wantWritten("y", written{1, 0, 1})
}

func TestReceiptsOfSeveralGatesThatWereNeverOneCommitAreMisuse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	x, y, z := a.acquire("x"), a.acquire("y"), a.acquire("z")
	_, err := a.commit(y.Position(), content("s", "x"))
	w.ok(err)
	_, err = a.CommitAll(ctx, gatesOf("s", x, y, z), writeAll)
	w.is(err, fencing.ErrMisuse)
	w.wantWritten("x", written{})
	w.wantWritten("z", written{})
	_, err = a.CommitAll(ctx, []fencing.Gate{{Position: y.Position(), Content: content("s", "other")}, gatesOf("s", x)[0]}, writeAll)
	w.is(err, fencing.ErrConflict)
	a.clean(z)
}

func TestGatesThatContradictEachOtherAreInvalid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	old := a.acquire("x").Position()
	x := a.takeOver("x").Position()
	for name, gates := range map[string][]fencing.Gate{
		"none":            nil,
		"two tokens":      {{Position: old, Content: content("s", "x")}, {Position: x, Content: content("t", "x")}},
		"one step twice":  {{Position: x, Content: content("s", "x")}, {Position: x, Content: content("s", "x")}},
		"a wrong content": {{Position: x, Content: content("\x00", "x")}},
	} {
		if _, err := a.CommitAll(ctx, gates, writeAll); !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	got, err := a.CommitAll(ctx, []fencing.Gate{{Position: x, Content: content("s", "x")}, {Position: x, Content: content("t", "x")}}, writeAll)
	w.ok(err)
	if len(got) != 2 || got[1].Step != "t" {
		t.Errorf("%+v", got)
	}
	w.wantWritten("x", written{2, 1, 1})
}

// Two processes commit under the same two keys and name them in opposite
// orders. A third one holds the lock that both need first.
func TestOppositeOrdersOfGatesNeverDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.worker("a"), w.worker("b")
	x, y := a.acquire("x"), a.acquire("y")
	pids := []uint32{a.pid(), b.pid()}
	held := a.w.session(w.dsn)
	_, err := held.Exec(ctx, "begin; select from fenceline.fence where key = 'x' for update")
	w.ok(err)
	done := make(chan error, 2)
	for i, k := range []*worker{a, b} {
		gates := gatesOf(k.name, x, y)
		if i == 1 {
			gates = gatesOf(k.name, y, x)
		}
		go func() {
			_, err := k.CommitAll(ctx, gates, writeAll)
			done <- err
		}()
	}
	for _, pid := range pids { // both wait for x; none has y already
		pgtest.WaitBlocked(t, w.admin, pid)
	}
	if _, err := w.admin.Exec(ctx, "select from fenceline.fence where key = 'y' for update nowait"); err != nil {
		t.Errorf("y is locked before x: %v", err)
	}
	_, err = held.Exec(ctx, "commit")
	w.ok(err)
	w.ok(errors.Join(<-done, <-done))
}

// The same without the order, by hand: one of them is the victim.
func TestGatesLockedInTheOrderInWhichTheyComeDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	gates := gatesOf("", a.acquire("x"), a.acquire("y"))
	first, second := w.session(w.producer), w.session(w.producer)
	tx1, err := first.Begin(ctx)
	w.ok(err)
	tx2, err := second.Begin(ctx)
	w.ok(err)
	_, err = a.Enter(ctx, tx1, gates[0].Position, content("1", "x"))
	w.ok(err)
	_, err = a.Enter(ctx, tx2, gates[1].Position, content("2", "x"))
	w.ok(err)
	waiting := make(chan error, 1)
	go func() {
		_, err := a.Enter(ctx, tx1, gates[1].Position, content("1", "x"))
		waiting <- err
	}()
	pgtest.WaitBlocked(t, w.admin, first.PgConn().PID(), second.PgConn().PID())
	_, err = a.Enter(ctx, tx2, gates[0].Position, content("2", "x"))
	w.ok(errors.Join(tx2.Rollback(ctx)))
	other := <-waiting
	w.ok(tx1.Rollback(ctx))
	if (sqlstate(err) == "40P01") == (sqlstate(other) == "40P01") {
		t.Errorf("one of them must give way: %v, %v", err, other)
	}
}
