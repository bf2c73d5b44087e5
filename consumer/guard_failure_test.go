package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
)

var errBad = errors.New("no such account")

// failed is the delivery of a record that its handler has been found to fail
// on for good.
func (l *lab) failed(ds []consumer.Delivery, i int) []consumer.Delivery {
	ds[i].Failed = errBad
	return ds
}

func TestAHandlersErrorNamesItsEventAndLeavesNothing(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.fails["0.2"] = consumer.Reject(errBad)
	_, err := l.try(l.deliver(evs(0, 1, 3)...)...)
	var h *consumer.HandlerError
	if !errors.As(err, &h) || h.Index != 1 || h.Delivery.Seq != 2 || h.Delivery.Resumed || !errors.Is(err, errBad) || !consumer.IsRejected(err) {
		t.Fatalf("got %v", err)
	}
	l.effects()
	if n := l.text("select count(*)::text from fenceline.guard"); n != "0" {
		t.Fatalf("%s guards", n)
	}
}

// Guard, effect and park are one: who goes on and commits after an error must
// not get half of it.
func TestATransactionInWhichAHandlerFailedCantBeCommitted(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.fails["0.2"] = errBad
	ctx := context.Background()
	tx, err := l.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.guard.Apply(ctx, tx, l.deliver(evs(0, 1, 2)...), l.handler()); err == nil {
		t.Fatal("no error")
	}
	if err := tx.Commit(ctx); !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Fatalf("commit: %v", err)
	}
	l.effects()
}

func TestAPanicIsTheFailureOfItsEvent(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := l.guard.Apply(ctx, tx, l.deliver(evs(0, 1, 2)...), consumer.HandlerFunc(func(context.Context, pgx.Tx, consumer.Delivery) error {
			panic("index out of range")
		}))
		return err
	})
	var (
		h *consumer.HandlerError
		p *consumer.PanicError
	)
	if !errors.As(err, &h) || h.Index != 0 || !errors.As(err, &p) || p.Value != "index out of range" || len(p.Stack) == 0 {
		t.Fatalf("got %v", err)
	}
}

func TestAStrictStreamParksAnEventThatFailsAndWhatFollows(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1))
	rs, err := l.try(l.failed(l.deliver(ev(0, 1, 2), ev(0, 1, 3), of("other", ev(0, 1, 1))), 0)...)
	if err != nil {
		t.Fatal(err)
	}
	l.outcomes(rs, "parked 4e failing", "parked 4f gap", "applied 2")
	l.at("0/1/1 {} failing")
	// Another copy waits as the first does; its handler isn't tried again.
	l.outcomes(l.apply(ev(0, 1, 2), ev(0, 1, 4)), "parked 4e failing", "parked 4f gap")
	l.effects("0.1", "0.1")
	if got := l.parked(); got != "2 failing, 3 gap, 4 gap" {
		t.Fatalf("parked: %s", got)
	}
	if got := l.text("select error || ' ' || attempts from fenceline.parked where reason = 'failing'"); got != "no such account 1" {
		t.Fatalf("the reason is %q", got)
	}
	// Its skip lets the rest go on.
	l.outcomes(l.apply(skip(0, 2, 2)), "absorbed 4d", "+stale 4a", "+applied 4e", "+applied 4e")
	l.at("0/1/4 {[2,3)} free")
}

// Fails when a failing first event writes no guard: the second one is then the
// first seen, and the first one's retry a duplicate.
func TestAFirstEventThatFailsIsWhereTheStreamBegins(t *testing.T) {
	for _, start := range []consumer.Start{consumer.FromFirstSeen, consumer.FromOrigin} {
		t.Run(string(start), func(t *testing.T) {
			l := newLab(t, consumer.GuardConfig{Start: start})
			rs, err := l.try(l.failed(l.deliver(ev(0, 1, 1), ev(0, 1, 2)), 0)...)
			if err != nil {
				t.Fatal(err)
			}
			rule := map[consumer.Start]string{consumer.FromFirstSeen: "2", consumer.FromOrigin: "4e"}[start]
			l.outcomes(rs, "parked "+rule+" failing", "parked 4f gap")
			l.effects()
			l.at("0/0/0 {} failing")
		})
	}
}

func TestAStateStreamBuriesAnEventThatFailsAndGoesOn(t *testing.T) {
	l := newLab(t, state)
	l.apply(ev(0, 1, 1))
	rs, err := l.try(l.failed(l.deliver(ev(0, 1, 2), ev(0, 1, 4)), 0)...)
	if err != nil {
		t.Fatal(err)
	}
	l.outcomes(rs, "dead_lettered 4e", "applied 4f")
	l.effects("0.1", "0.4")
	if got := l.text("select seq || ' ' || error || ' ' || attempts from fenceline.dead"); got != "2 no such account 1" {
		t.Fatalf("dead: %s", got)
	}
	// Something newer was applied: a redrive is decided like any late copy.
	l.outcomes(l.apply(ev(0, 1, 2)), "stale 4a")
}

func TestADeadLetterThatWorksAtLastIsAppliedIfNothingNewerWas(t *testing.T) {
	l := newLab(t, state)
	l.apply(ev(0, 1, 1))
	if _, err := l.try(l.failed(l.deliver(ev(0, 1, 2)), 0)...); err != nil {
		t.Fatal(err)
	}
	if _, err := l.try(l.failed(l.deliver(ev(0, 1, 2)), 0)...); err != nil {
		t.Fatal(err)
	}
	if got := l.text("select attempts::text from fenceline.dead"); got != "2" {
		t.Fatalf("attempts: %s", got)
	}
	l.at("0/1/1 {} free")
	l.outcomes(l.apply(ev(0, 1, 2)), "applied 4e")
	l.effects("0.1", "0.2")
	if got := l.text("select count(*)::text from fenceline.dead"); got != "0" {
		t.Fatalf("%s dead letters", got)
	}
}

func TestADiscardedDeadLetterIsNeverApplied(t *testing.T) {
	l := newLab(t, state)
	l.apply(ev(0, 1, 1))
	if _, err := l.try(l.failed(l.deliver(ev(0, 1, 2)), 0)...); err != nil {
		t.Fatal(err)
	}
	l.exec("update fenceline.dead set discarded_at = now()")
	l.outcomes(l.apply(ev(0, 1, 2), ev(0, 1, 3)), "stale 4e", "applied 4f")
	l.effects("0.1", "0.3")
	if got := l.text("select count(*)::text from fenceline.dead"); got != "1" {
		t.Fatalf("%s dead letters", got)
	}
}

// The event that fails came out of the park: the one that fills the hole before
// it must not be blamed.
func TestAParkedEventThatFailsDoesNotHoldTheFillerUp(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 4))
	l.fails["0.3"] = consumer.Reject(errBad)
	_, err := l.try(l.deliver(ev(0, 1, 2))...)
	var h *consumer.HandlerError
	if !errors.As(err, &h) || !h.Delivery.Resumed || h.Delivery.Seq != 3 || h.Index != 0 {
		t.Fatalf("got %v", err)
	}
	l.effects("0.1")
	if err := l.tx(func(ctx context.Context, tx pgx.Tx) error { return l.guard.Fail(ctx, tx, h.Delivery, h.Err) }); err != nil {
		t.Fatal(err)
	}
	l.outcomes(l.apply(ev(0, 1, 2)), "applied 4e")
	l.at("0/1/2 {} failing")
	if got := l.parked(); got != "3 failing, 4 gap" {
		t.Fatalf("parked: %s", got)
	}
	l.outcomes(l.apply(ev(0, 1, 3)), "parked 4e failing")
	l.effects("0.1", "0.2")
}

func TestALongParkIsResumedInSeveralTransactionsAndNothingIsLeft(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{ResumeLimit: 40})
	l.apply(ev(0, 1, 1))
	l.apply(evs(0, 3, 150)...)
	rs := l.apply(ev(0, 1, 2))
	if len(rs) != 41 {
		t.Fatalf("%d results", len(rs))
	}
	keys := consumer.More(rs)
	if len(keys) != 1 || keys[0] != (consumer.StreamKey{Stream: "s", Key: "k"}) {
		t.Fatalf("more: %v", keys)
	}
	l.at("0/1/42 {} gap")

	// The process ends here. The next one finds what was left.
	l.reopen()
	turns := 0
	for {
		var keys []consumer.StreamKey
		err := l.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
			if keys, err = l.guard.Pending(ctx, tx, 10); err != nil {
				return err
			}
			_, err = l.guard.Resume(ctx, tx, keys, l.handler())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		turns++
	}
	if turns != 3 {
		t.Errorf("%d transactions, want 3 of up to 40 for the 108 that were left", turns)
	}
	l.at("0/1/150 {} free")
	if got := l.text("select count(*) || ' ' || count(*) filter (where what <> '0.' || n) from (select what, row_number() over (order by n) n from public.effect) x"); got != "150 0" {
		t.Errorf("applied, and out of order: %s", got)
	}
}

// Pending must come to an end: what truly waits is not pending.
func TestWhatWaitsForAHoleIsNotPending(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), ev(0, 1, 3), after(ev(7, 1, 1), 0, 9))
	rs, err := l.try(l.failed(l.deliver(of("failing", ev(0, 1, 1)), of("failing", ev(0, 1, 2))), 0)...)
	if err != nil {
		t.Fatal(err)
	}
	l.outcomes(rs, "parked 2 failing", "parked 4f gap")
	err = l.tx(func(ctx context.Context, tx pgx.Tx) error {
		keys, err := l.guard.Pending(ctx, tx, 10)
		if len(keys) > 0 {
			t.Errorf("pending: %v", keys)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
