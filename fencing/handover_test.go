package fencing_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
)

func TestAfterAHandOverOnlyTheSuccessorCanAcquire(t *testing.T) {
	t.Parallel()
	handedOver(newWorld(t))
}

func handedOver(w *world) {
	a, b, c := w.worker("a"), w.worker("b"), w.worker("c")
	lease := a.acquire("k")
	w.ok(lease.HandOver(ctx, "b"))
	w.is(context.Cause(lease.Context()), fencing.ErrReleased)
	for _, k := range []*worker{a, c} {
		_, err := k.Acquire(ctx, "k", long)
		var held *fencing.HeldError
		if !errors.As(err, &held) || held.Holder != "b" || !held.Reserved || held.Remaining > long.TTL {
			w.Errorf("%s acquires: %v, want it kept for b", k.name, err)
		}
	}
	// Until it comes, the giver's token is the newest: its retries are answered.
	_, err := a.commit(lease.Position(), content("s", "x"))
	w.ok(err)
	next := b.acquire("k")
	if next.Position().Token != 2 {
		w.Errorf("the successor's token is %d", next.Position().Token)
	}
	_, err = a.commit(lease.Position(), content("s2", "x"))
	w.is(err, fencing.ErrStale)
	why := value[string](w, "select string_agg(why || ' ' || token || ' ' || holder || coalesce(' to ' || whom, ''), ', ' order by n) from fenceline.turn where key = 'k'")
	if want := "acquire 1 a, handover 1 a to b, acquire 2 b"; why != want {
		w.Errorf("turns: %s", why)
	}
	w.ok(lease.Release(ctx)) // as a defer does
	w.is(lease.HandOver(ctx, "c"), fencing.ErrReleased)
	w.ok(next.Context().Err())
}

// Only the first of those who campaign in a process asks the database. Where the key
// was handed over to one behind it, that one's turn has come.
func TestASuccessorThatWaitsInTheSameProcessHasItsTurn(t *testing.T) {
	t.Parallel()
	successorInLine(newWorld(t))
}

func successorInLine(w *world) {
	a := w.workerAt("a", w.producer, 3)
	lease := a.acquire("k")
	as := func(holder string) fencing.LeaseConfig {
		return fencing.LeaseConfig{TTL: 5 * time.Minute, PollEvery: time.Minute, Holder: holder}
	}
	first := a.campaignLater(ctx, "k", as("first"))
	w.inLine("k", "first")
	gone, giveUp := context.WithCancel(ctx)
	second := a.campaignLater(gone, "k", as("second"))
	fencing.WaitForContenders(a.Fences, "k", 2)
	third := a.campaignLater(ctx, "k", as("third"))
	fencing.WaitForContenders(a.Fences, "k", 3)
	w.ok(lease.HandOver(ctx, "third"))
	won := w.won(third)
	if won.Holder() != "third" || won.Position().Token != 2 {
		w.Errorf("%s has it under %v", won.Holder(), won.Position())
	}
	// The others are in their order again, also without the one that gives up.
	giveUp()
	w.is((<-second).err, context.Canceled)
	w.ok(won.Release(ctx))
	if won := w.won(first); won.Holder() != "first" {
		w.Errorf("%s has it", won.Holder())
	}
}

func TestASuccessorThatDoesNotComeKeepsNobodyOutForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, c := w.worker("a"), w.worker("c")
	cfg := long
	cfg.ReserveFor = 500 * time.Millisecond
	lease := a.acquireWith("k", cfg)
	w.ok(lease.HandOver(ctx, "nobody"))
	_, err := c.Acquire(ctx, "k", long)
	w.is(err, fencing.ErrHeld)
	w.won(c.campaignLater(ctx, "k", patient))
}

func TestAHandOverLetsTheCommitsInProgressEndAndBeginsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.workerAt("a", w.producer, 3), w.worker("b")
	lease := a.acquire("k")
	inside, proceed := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, err := lease.Commit(ctx, content("s1", "x"), func(ctx context.Context, tx fencing.Tx) error {
			close(inside)
			<-proceed
			return write(ctx, tx)
		})
		first <- err
	}()
	<-inside
	// One that isn't waited for to the end leaves the lease as it is.
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	w.is(lease.HandOver(brief, "b"), context.DeadlineExceeded)
	w.ok(lease.Context().Err())
	given := make(chan error, 1)
	go func() { given <- lease.HandOver(ctx, "b") }()
	close(proceed)
	w.ok(<-first)
	w.ok(<-given)
	_, err := lease.Commit(ctx, content("s2", "x"), write)
	w.is(err, fencing.ErrReleased)
	b.acquire("k")
	w.wantWritten("k", written{1, 1, 1})
}

func TestALeaseThatIsOverIsNotItsHoldersToGive(t *testing.T) {
	t.Parallel()
	notOnesToGive(newWorld(t))
}

func notOnesToGive(w *world) {
	a, b := w.worker("a"), w.worker("b")
	lease := a.acquire("k")
	w.is(lease.HandOver(ctx, ""), fencing.ErrInvalid)
	w.is(lease.HandOver(ctx, strings.Repeat("b", 256)), fencing.ErrInvalid)
	w.ok(lease.Context().Err())
	w.expire("k")
	w.is(lease.HandOver(ctx, "c"), fencing.ErrLeaseLost)
	b.acquire("k")
	_, err := a.Acquire(ctx, "k", fencing.LeaseConfig{TTL: time.Second, ReserveFor: 25 * time.Hour})
	w.is(err, fencing.ErrInvalid)
}
