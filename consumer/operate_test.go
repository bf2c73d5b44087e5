package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

var (
	stream = consumer.StreamKey{Stream: "s", Key: "k"}
	note   = consumer.Note{Who: "anna", Why: "ticket 7"}
)

// role is a pool of connections with a role's rights and no others.
func (l *lab) role(name string) *pgxpool.Pool {
	l.Helper()
	c := l.admin.Config().Copy()
	c.MaxConns = 4
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set role fenceline_"+name)
		return err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(pool.Close)
	return pool
}

func (l *lab) operator() *consumer.Operator {
	l.Helper()
	op, err := consumer.NewOperator(context.Background(), l.role("operator"), consumer.OperatorConfig{Consumer: l.cfg.Consumer})
	if err != nil {
		l.Fatal(err)
	}
	return op
}

func (l *lab) audited() string {
	l.Helper()
	return l.text(`select coalesce(string_agg(action || ' ' || who || ' ' || reason || coalesce(' ' || (epoch - $1) || '/' || from_seq || '-' || to_seq, '')
		|| coalesce(' ' || topic || '/' || partition || ' ' || coalesce(from_offset::text, '?') || '-' || coalesce(to_offset::text, '?'), ''), ', ' order by id), '') from fenceline.consumer_audit`, life)
}

func refused(t *testing.T, err error, parts ...string) {
	t.Helper()
	var r *consumer.RefusedError
	if !errors.Is(err, consumer.ErrRefused) || !errors.As(err, &r) {
		t.Fatalf("got %v, want a refusal", err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%q is missing in: %v", p, err)
		}
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *lab) parkFailing(seq int64, behind ...outbox.Record) {
	l.Helper()
	rs, err := l.try(l.failed(l.deliver(append([]outbox.Record{ev(0, 1, seq)}, behind...)...), 0)...)
	if err != nil {
		l.Fatal(err)
	}
	if rs[0].Reason != consumer.Failing {
		l.Fatalf("got %+v", rs[0])
	}
}

func TestAStreamThatIsRetriedGoesOnInOrder(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	l.apply(ev(0, 1, 1))
	l.parkFailing(2, ev(0, 1, 3), ev(0, 1, 4))
	if rs := l.goesOn(); len(rs) != 0 {
		t.Fatalf("it went on by itself: %+v", rs)
	}
	ok(t, op.Retry(t.Context(), stream, note))
	l.effects("0.1") // it is the consumer who applies
	l.outcomes(l.goesOn(), "+applied 4e", "+applied 4e", "+applied 4e")
	l.effects("0.1", "0.2", "0.3", "0.4")
	l.at("0/1/4 {} free")
	if got := l.audited(); got != "retry anna ticket 7 0/2-1" {
		t.Fatalf("audited: %s", got)
	}
	refused(t, op.Retry(t.Context(), stream, note), "does not stand")
}

// One that fails again stands as before, and nobody tries it for ever.
func TestAnEventThatFailsAgainAfterARetryStands(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1))
	l.parkFailing(2, ev(0, 1, 3))
	ok(t, l.operator().Retry(t.Context(), stream, note))
	l.fails["0.2"] = errBad
	var h *consumer.HandlerError
	err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := l.guard.Resume(ctx, tx, []consumer.StreamKey{stream}, l.handler())
		return err
	})
	if !errors.As(err, &h) || !h.Delivery.Resumed || h.Delivery.Attempt != 2 {
		t.Fatalf("got %v", err)
	}
	ok(t, l.tx(func(ctx context.Context, tx pgx.Tx) error { return l.guard.Fail(ctx, tx, h.Delivery, h.Err) }))
	if rs := l.goesOn(); len(rs) != 0 {
		t.Fatalf("got %+v", rs)
	}
	l.at("0/1/1 {} failing")
	if got := l.text("select attempts::text from fenceline.parked where reason = 'failing'"); got != "2" {
		t.Fatalf("attempts: %s", got)
	}
}

// X8.
func TestADiscardedEventIsNeverAppliedAndWhatFollowsGoesOn(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	l.apply(ev(0, 1, 1))
	l.parkFailing(2, ev(0, 1, 3), ev(0, 1, 4))
	ok(t, op.Discard(t.Context(), stream, life, 2, 2, note))
	l.outcomes(l.goesOn(), "+applied 4e", "+applied 4e")
	l.effects("0.1", "0.3", "0.4")
	rs := l.apply(ev(0, 1, 2), ev(0, 1, 3))
	l.outcomes(rs, "stale 4a", "duplicate 4c")
	if rs[0].Why != "discard by anna: ticket 7" || rs[1].Why != "" {
		t.Fatalf("why: %q, %q", rs[0].Why, rs[1].Why)
	}
	if got := l.audited(); got != "discard anna ticket 7 0/2-2" {
		t.Fatalf("audited: %s", got)
	}
	if got := l.text("select parked_rows || ' ' || parked_bytes from fenceline.guard"); got != "0 0" {
		t.Fatalf("counted: %s", got)
	}
}

func TestADiscardGivesUpNothingThatIsNotItsOwnToGiveUp(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Streams: map[string]consumer.StreamConfig{"snap": {Policy: consumer.State}}})
	op := l.operator()
	snap := ev(0, 1, 1)
	snap.Stream, snap.Topic = "snap", "snap"
	l.apply(ev(0, 1, 1), ev(0, 1, 2), end(0, 5), snap)
	ctx := t.Context()
	refused(t, op.Discard(ctx, consumer.StreamKey{Stream: "s", Key: "none"}, life, 1, 1, note), "nothing was read")
	refused(t, op.Discard(ctx, stream, life, 1, 2, note), "passed")
	refused(t, op.Discard(ctx, stream, life, 3, 5, note), "its end can't be given up")
	refused(t, op.Discard(ctx, stream, life+7, 1, 1, note), "the guard is in epoch")
	refused(t, op.Discard(ctx, stream, life, 4, 3, note), "from ≤ to")
	refused(t, op.Discard(ctx, consumer.StreamKey{Stream: "snap", Key: "k"}, life, 2, 2, note), "state stream")
	refused(t, op.Discard(ctx, stream, life, 3, 3, consumer.Note{Who: "anna"}), "why")
	if got := l.audited(); got != "" {
		t.Fatalf("audited: %s", got)
	}
	if got := l.text("select count(*)::text from fenceline.guard"); got != "2" {
		t.Fatalf("%s guards: a refusal has left one", got)
	}
}

// One number too large would give the key's whole future up, and look like any
// other discard.
func TestWhatNobodyHasSeenIsNotDiscardedInPassing(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op, ctx := l.operator(), t.Context()
	l.apply(ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 4))
	for _, to := range []int64{5, 6, 4 + 1<<30} {
		err := op.Discard(ctx, stream, life, 2, to, note)
		var unseen *consumer.UnseenError
		if !errors.As(err, &unseen) || !errors.Is(err, consumer.ErrRefused) || unseen.Highest != 4 || unseen.To != to || unseen.StreamKey != stream || unseen.Epoch != life {
			t.Errorf("to %d: %v", to, err)
		}
	}
	for _, to := range []int64{5 + 1<<30, 1 << 62} {
		refused(t, op.Discard(ctx, stream, life, 2, to, note), "nothing speaks for")
		refused(t, op.DiscardUnseen(ctx, stream, life, 2, to, note), "nothing speaks for")
	}
	l.at("0/1/1 {} gap")
	if got := l.audited(); got != "" {
		t.Errorf("what was refused is audited: %s", got)
	}
	ok(t, op.Discard(ctx, stream, life, 4, 4, note))
	ok(t, op.Discard(ctx, stream, life, 3, 4, note)) // what was given up is known
	ok(t, op.DiscardUnseen(ctx, stream, life, 2, 6, note))
	l.at("0/1/6 {[2,7)} free")
	l.outcomes(l.apply(ev(0, 1, 6), ev(0, 1, 7)), "stale 4a", "applied 4e")
}

// That a life has an end says how far its events go.
func TestWhatLiesBeforeTheEndOfALifeIsKnown(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), end(0, 5))
	ok(t, l.operator().Discard(t.Context(), stream, life, 2, 4, note))
	l.at("0/1/5 {[2,6)} free")
}

// Under FromOrigin the end waits in the park, and can't be given up there either.
func TestAParkedEndCantBeDiscarded(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Start: consumer.FromOrigin})
	l.apply(ev(0, 1, 2), end(0, 3))
	refused(t, l.operator().Discard(t.Context(), stream, life, 1, 3, note), "end record is parked")
}

func TestAnAdoptedPositionIsTheNextAndTheRestIsGivenUp(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	l.apply(ev(0, 1, 1), ev(0, 1, 5), ev(0, 1, 6))
	out, err := op.Adopt(t.Context(), stream, life, 5, note)
	ok(t, err)
	if out.From.Seq != 1 || out.To.Seq != 5 || out.To.Epoch != life {
		t.Fatalf("got %+v", out)
	}
	l.outcomes(l.goesOn(), "+applied 4e", "+applied 4e")
	l.at("0/1/6 {[2,5)} free")
	rs := l.apply(ev(0, 1, 3))
	l.outcomes(rs, "stale 4a")
	if rs[0].Why != "adopt by anna: ticket 7" {
		t.Fatalf("why: %q", rs[0].Why)
	}
	_, err = op.Adopt(t.Context(), stream, life, 4, note)
	refused(t, err, "only goes forwards")
	_, err = op.Adopt(t.Context(), stream, life, 7, note)
	refused(t, err, "only goes forwards")
	if got := l.audited(); got != "adopt anna ticket 7 0/2-4" {
		t.Fatalf("audited: %s", got)
	}
}

// Where nothing but markers was seen the first event that comes is the next, unless
// somebody has said which one is.
func TestAnAdoptedPositionIsTheNextAlsoWhereOnlyMarkersWereSeen(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.outcomes(l.apply(skip(0, 1, 2)), "absorbed 2")
	_, err := l.operator().Adopt(t.Context(), stream, life, 6, note)
	ok(t, err)
	l.outcomes(l.apply(ev(0, 1, 8), ev(0, 1, 4)), "parked 4f gap", "stale 4a")
	l.outcomes(l.apply(ev(0, 1, 6), ev(0, 1, 7)), "applied 4e", "applied 4e", "+applied 4e")
	l.effects("0.6", "0.7", "0.8")
}

func TestAPositionThatNothingSpeaksForIsNotAdopted(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	l.apply(ev(0, 1, 1), ev(0, 1, 5), ev(0, 1, 6))
	ahead := time.Now().Add(48 * time.Hour).UnixMicro()
	for _, c := range []struct {
		epoch, seq int64
		reason     string
	}{
		{1 << 62, 1, "ahead of the database's clock"},
		{ahead, 1, "ahead of the database's clock"},
		{life, 1 << 61, "adopt 7 at most"},
		{life, 8, "adopt 7 at most"},
		{life + 1, 1 << 61, "nothing speaks for"}, // no record of it was seen
	} {
		_, err := op.Adopt(t.Context(), stream, c.epoch, c.seq, note)
		refused(t, err, c.reason)
		_, err = op.CanAdopt(t.Context(), stream, c.epoch, c.seq)
		refused(t, err, c.reason)
	}
	for _, at := range [][2]int64{{life, 7}, {life + 1, 1000}, {time.Now().UnixMicro(), 1}} {
		out, err := op.CanAdopt(t.Context(), stream, at[0], at[1])
		ok(t, err)
		if out.From.Epoch != life || out.From.Seq != 1 || out.To.Epoch != at[0] || out.To.Seq != at[1] {
			t.Errorf("%+v", out)
		}
	}
	l.at("0/1/1 {} gap")
	if got := l.audited(); got != "" {
		t.Errorf("what was only looked at is audited: %s", got)
	}
	patient, err := consumer.NewOperator(t.Context(), l.role("operator"), consumer.OperatorConfig{Consumer: l.cfg.Consumer, MaxAhead: 72 * time.Hour})
	ok(t, err)
	_, err = patient.CanAdopt(t.Context(), stream, ahead, 1)
	ok(t, err)
	_, err = op.Adopt(t.Context(), stream, life, 7, note)
	ok(t, err)
	l.at("0/1/6 {[2,7)} free")
}

// A consumer that believes in epochs so far ahead has parked one: that speaks
// for it, whatever the operator's own limit is.
func TestAnEpochOfWhichSomethingIsParkedIsAdoptedHoweverFarAheadItIs(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{MaxAhead: 100 * 24 * time.Hour})
	at := time.Now().Add(48*time.Hour).UnixMicro() - life
	l.apply(ev(0, 1, 1), ev(at, 1, 2))
	_, err := l.operator().Adopt(t.Context(), stream, life+at, 2, note)
	ok(t, err)
}

func TestAConsumerThatHasNeverReadAnythingIsNotKnown(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	if err := op.Known(t.Context()); !errors.Is(err, consumer.ErrUnknown) || !strings.Contains(err.Error(), `"c" has never read anything`) {
		t.Errorf("%v", err)
	}
	l.apply(ev(0, 1, 1))
	ok(t, op.Known(t.Context()))
}

// X19. The token that was applied last is of the old life, and nothing is
// compared with it in the new one.
func TestANewLifeCanBeAdoptedAndOnesBehindItStillWait(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	old := ev(0, 9, 1)
	l.apply(old, after(ev(5, 1, 1), 0, 7), ev(5, 1, 2), ev(8, 1, 2))
	l.at("0/9/1 {} life")
	_, err := op.Adopt(t.Context(), stream, life+5, 1, note)
	ok(t, err)
	l.outcomes(l.goesOn(), "+applied 4e", "+applied 4e")
	l.at("5/1/2 {} gap")
	l.effects("0.1", "5.1", "5.2")
	if got := l.text("select (waiting_epoch - $1)::text from fenceline.guard", life); got != "8" {
		t.Fatalf("waits for epoch %s", got)
	}
	l.outcomes(l.apply(end(5, 3), ev(9, 1, 1)), "absorbed 4d", "parked 5e life")
}

func TestAContradictionIsClearedByAnOperator(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 2, 1), ev(0, 1, 2), ev(0, 2, 2), ev(0, 2, 3))
	l.at("0/2/1 {} conflict")
	if rs := l.goesOn(); len(rs) != 0 {
		t.Fatalf("it went on by itself: %+v", rs)
	}
	ok(t, l.operator().Retry(t.Context(), stream, note))
	l.outcomes(l.goesOn(), "+applied 4e", "+applied 4e")
	l.at("0/2/3 {} free")
}

// The race: what an operator decides and what arrives take the same lock, and
// whoever comes second decides on what the first has left. Fails where an
// operator's command doesn't lock the guard.
func TestAnOperatorWaitsForTheBatchThatHasTheStream(t *testing.T) {
	for name, c := range map[string]struct {
		arrives []outbox.Record
		act     func(context.Context, *consumer.Operator) error
		refused string
		at      string
	}{
		"a discard of what arrives now": {[]outbox.Record{ev(0, 1, 2)},
			func(ctx context.Context, op *consumer.Operator) error {
				return op.Discard(ctx, stream, life, 2, 2, note)
			}, "passed", "0/1/3 {} free"},
		"a discard of what is parked now": {[]outbox.Record{ev(0, 1, 4)},
			func(ctx context.Context, op *consumer.Operator) error {
				return op.Discard(ctx, stream, life, 2, 4, note)
			}, "", "0/1/4 {[2,5)} free"},
		"an adoption over what arrives now": {[]outbox.Record{ev(0, 1, 2)}, func(ctx context.Context, op *consumer.Operator) error {
			_, err := op.Adopt(ctx, stream, life, 3, note)
			return err
		}, "only goes forwards", "0/1/3 {} free"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, consumer.GuardConfig{})
			op := l.operator()
			l.apply(ev(0, 1, 1), ev(0, 1, 3))
			ctx := t.Context()
			m := l.member(ctx)
			m.start(ctx, l, c.arrives...)
			m.wait(l)
			var work sync.WaitGroup
			var err error
			work.Go(func() { err = c.act(ctx, op) })
			pgtest.WaitTrue(t, l.admin, "select exists (select from pg_stat_activity where $1::int = any(pg_blocking_pids(pid)))", int32(m.pid))
			ok(t, m.tx.Commit(ctx))
			work.Wait()
			if c.refused != "" {
				refused(t, err, c.refused)
			} else {
				ok(t, err)
			}
			l.goesOn()
			l.at(c.at)
		})
	}
}

func TestAnErasedRecordIsGoneAndItsPlaceIsNot(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	secret := ev(0, 1, 3)
	secret.Payload, secret.Subject = []byte("her address"), "her name"
	secret.Headers = []outbox.Header{{Name: "x-user", Value: "her mail"}}
	l.apply(ev(0, 1, 1), secret, ev(0, 1, 4))
	ok(t, op.EraseParked(t.Context(), stream, life, 3, note))
	if got := l.text("select count(*)::text from fenceline.parked p where position('her ' in p::text) > 0 or position(encode('her ', 'hex') in p::text) > 0"); got != "0" {
		t.Fatalf("%s rows still say it", got)
	}
	l.outcomes(l.apply(ev(0, 1, 2)), "applied 4e")
	l.at("0/1/2 {} failing")
	ok(t, op.Retry(t.Context(), stream, note))
	if rs := l.goesOn(); len(rs) != 0 {
		t.Fatalf("what is gone was applied: %+v", rs)
	}
	l.outcomes(l.apply(secret), "parked 4e failing") // read again: it doesn't come back
	if got := l.text("select (value is null)::text from fenceline.parked where seq = 3"); got != "true" {
		t.Fatal("a copy has brought back what was erased")
	}
	ok(t, op.Discard(t.Context(), stream, life, 3, 3, note))
	l.outcomes(l.goesOn(), "+applied 4e")
	l.effects("0.1", "0.2", "0.4")
	refused(t, op.EraseParked(t.Context(), stream, life, 3, note), "nothing is parked there")
}

// The guard is still in the old life, but the new one is proven.
func TestTheFirstEventOfAProvenLifeCanBeDiscarded(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	l.apply(ev(0, 1, 1), after(ev(5, 1, 1), 0, 2), ev(5, 1, 2))
	refused(t, op.Discard(t.Context(), stream, life+5, 1, 1, note), "epoch") // not proven yet
	l.fails["5.1"] = consumer.Reject(errBad)
	_, err := l.try(l.deliver(ev(0, 1, 2))...)
	var h *consumer.HandlerError
	if !errors.As(err, &h) || !h.Delivery.Resumed {
		t.Fatalf("got %v", err)
	}
	ok(t, l.tx(func(ctx context.Context, tx pgx.Tx) error { return l.guard.Fail(ctx, tx, h.Delivery, h.Err) }))
	l.apply(ev(0, 1, 2))
	l.at("0/1/2 {} failing")
	ok(t, op.Discard(t.Context(), stream, life+5, 1, 1, note))
	l.outcomes(l.goesOn(), "+applied 4e")
	l.at("5/1/2 {[1,2)} free")
	l.effects("0.1", "0.2", "5.2")
	l.outcomes(l.apply(ev(5, 1, 1)), "stale 4a")
}

// A skip marker has the seq of the last event that it gives up, and comes before
// all of them.
func TestALongListOfParkedRecordsIsWholePageByPage(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1))
	l.apply(skip(5, 2, 6), ev(5, 1, 3), ev(5, 1, 4), skip(5, 4, 4), ev(5, 1, 6), end(5, 8), ev(6, 1, 2))
	op := l.operator()
	var got []string
	for f := (consumer.Filter{Limit: 1}); len(got) < 20; {
		page, err := op.Records(t.Context(), stream, f)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		f.After = page[0].Position
		got = append(got, fmt.Sprintf("%d/%d %s", f.After.Epoch-life, f.After.Seq, f.After.Kind))
	}
	want := []string{"5/6 skip", "5/3 data", "5/4 skip", "5/4 data", "5/6 data", "5/8 end", "6/2 data"}
	if !slices.Equal(got, want) {
		t.Errorf("page by page %q, want %q", got, want)
	}
}
