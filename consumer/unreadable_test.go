package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// changedMapping reads the wire, but for the values of which it is told what to
// say: what a mapping that was changed makes of what an older one has read.
type changedMapping map[string]func(*outbox.Record) error

var errUnknownShape = errors.New("unknown shape")

func refusing(*outbox.Record) error { return errUnknownShape }

func (m changedMapping) read(p consumer.Partition, r consumer.KafkaRecord) (outbox.Record, error) {
	rec, err := consumer.Wire(p, r)
	if change := m[string(r.Value)]; err == nil && change != nil {
		err = change(&rec)
	}
	return rec, err
}

// newChangedLab is a lab whose mapping can be changed. What the lab delivers is
// read by the wire's: it is what the mapping reads again that changes.
func newChangedLab(t *testing.T, cfg consumer.GuardConfig) (*lab, changedMapping) {
	t.Helper()
	m := changedMapping{}
	cfg.Mapping = m.read
	return newLab(t, cfg), m
}

// unreadable asserts that one of the results says so of a record, and gives what
// it says.
func (l *lab) unreadable(rs []consumer.Result, seq, offset int64, cause error) string {
	l.Helper()
	for _, r := range rs {
		var u *consumer.UnreadableError
		if !errors.As(r.Err, &u) {
			continue
		}
		if !errors.Is(r.Err, consumer.ErrUnreadable) || cause != nil && !errors.Is(r.Err, cause) || r.Seq != seq || u.Seq != seq || u.StreamKey != stream ||
			u.Topic != "s" || u.Partition != 0 || u.Offset != offset || !strings.Contains(u.Error(), "s/0 at offset "+fmt.Sprint(offset)) {
			l.Fatalf("got %v", r.Err)
		}
		return u.Error()
	}
	l.Fatalf("nothing is said to be unreadable in %+v", rs)
	return ""
}

func (l *lab) said(seq int64) string {
	l.Helper()
	return l.text("select coalesce(error, '') from fenceline.parked where seq = $1", seq)
}

// Also what was parked before by a mapping that is another one now, by what the
// change is.
func TestAParkedRecordThatCantBeReadAnyMoreStandsAndEverythingElseGoesOn(t *testing.T) {
	for name, change := range map[string]func(*outbox.Record) error{
		"an error":         refusing,
		"another position": func(r *outbox.Record) error { r.Seq++; return nil },
		"another key":      func(r *outbox.Record) error { r.Key += "'s"; return nil },
		"another kind":     func(r *outbox.Record) error { r.Kind = outbox.KindEnd; return nil },
		"no token":         func(r *outbox.Record) error { r.Token = 0; return nil },
		"a panic":          func(*outbox.Record) error { panic("nil map") },
	} {
		t.Run(name, func(t *testing.T) {
			l, m := newChangedLab(t, consumer.GuardConfig{})
			l.apply(ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 4))
			m["0.3"] = change
			rs := l.apply(ev(0, 1, 2), of("other", ev(0, 1, 1)))
			l.outcomes(rs, "applied 4e", "applied 2", "+parked  failing")
			said := l.unreadable(rs, 3, 1, nil)
			l.effects("0.1", "0.2", "0.1")
			l.at("0/1/2 {} failing")
			if got := l.parked() + ": " + l.said(3); got != "3 gap, 4 gap: "+said {
				t.Fatalf("parked: %s", got)
			}
			// It is told once, and what comes of the key waits behind it.
			l.outcomes(l.apply(ev(0, 1, 5)), "parked 4f gap")
			l.outcomes(l.resumes())
			l.at("0/1/2 {} failing")

			delete(m, "0.3")
			ok(t, l.operator().Retry(t.Context(), stream, note))
			l.outcomes(l.goesOn(), "+applied 4e", "+applied 4e", "+applied 4e")
			l.at("0/1/5 {} free")
		})
	}
}

// A marker that now begins earlier would give up what nobody has.
func TestAParkedMarkerThatWouldBeginElsewhereIsUnreadable(t *testing.T) {
	l, m := newChangedLab(t, consumer.GuardConfig{})
	l.outcomes(l.apply(ev(0, 1, 1), skip(1, 3, 4)), "applied 2", "parked 5c gap")
	m[""] = func(r *outbox.Record) error {
		if r.Kind == outbox.KindSkip {
			r.From = 2
		}
		return nil
	}
	rs := l.apply(end(0, 2), ev(1, 1, 1), ev(1, 1, 2))
	if said := l.unreadable(rs, 4, 1, nil); !strings.Contains(said, "begin at 2") || !strings.Contains(said, "beginning at 3") {
		t.Errorf("it says %q", said)
	}
	l.at("1/1/2 {} failing")
	delete(m, "")
	ok(t, l.operator().Retry(t.Context(), stream, note))
	l.at("1/1/4 {[3,5)} free") // an operator needs no handler for a marker

	l.effects("0.1", "1.1", "1.2")
}

func (l *lab) resumes() (rs []consumer.Result) {
	l.Helper()
	if err := l.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		rs, err = l.guard.Resume(ctx, tx, []consumer.StreamKey{stream}, l.handler())
		return err
	}); err != nil {
		l.Fatal(err)
	}
	return rs
}

// Whose handler failed before as well: it is the same, once it is to be tried.
func TestARecordWhoseHandlerFailedAndThatCantBeReadAnyMoreStandsAfterARetry(t *testing.T) {
	l, m := newChangedLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1))
	l.parkFailing(2, ev(0, 1, 3))
	m["0.2"] = refusing
	ok(t, l.operator().Retry(t.Context(), stream, note))
	rs := l.goesOn()
	l.outcomes(rs, "+parked  failing")
	l.unreadable(rs, 2, 1, errUnknownShape)
	l.at("0/1/1 {} failing")
	l.effects("0.1")
}

func TestAnErasedRecordThatCantBeReadAnyMoreStillSaysThatItWasErased(t *testing.T) {
	l, m := newChangedLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), ev(0, 1, 3))
	ok(t, l.operator().EraseParked(t.Context(), stream, life, 3, note))
	m[""] = refusing // it has no value any more
	l.outcomes(l.apply(ev(0, 1, 2)), "applied 4e")
	l.at("0/1/2 {} failing")
	if got := l.said(3); got != "what it said was erased by an operator" {
		t.Fatalf("said: %s", got)
	}
}

func TestACopyThatCanBeReadIsAppliedOverAParkedRecordThatCant(t *testing.T) {
	l, m := newChangedLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 4))
	m["0.3"] = refusing
	l.apply(ev(0, 1, 2))
	l.at("0/1/2 {} failing")
	l.outcomes(l.apply(ev(0, 1, 3)), "applied 4e", "+duplicate 4c", "+applied 4e")
	l.effects("0.1", "0.2", "0.3", "0.4")
	l.at("0/1/4 {} free")
	if got := l.text("select parked_rows || ' ' || parked_bytes from fenceline.guard"); l.parked() != "" || got != "0 0" {
		t.Fatalf("parked: %q, counted %s", l.parked(), got)
	}
}

// A hole in front of it is a hole: what fills it may come, and nothing is said
// of a record whose turn hasn't come.
func TestAStreamStandsAtTheHoleInFrontOfARecordThatCantBeRead(t *testing.T) {
	l, m := newChangedLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), ev(0, 1, 4), after(ev(5, 1, 1), 0, 9))
	m["0.4"], m["5.1"] = refusing, refusing
	l.outcomes(l.apply(ev(0, 1, 2)), "applied 4e")
	l.at("0/1/2 {} gap")
	if got := l.said(4); got != "" {
		t.Fatalf("said %q", got)
	}
	rs := l.apply(ev(0, 1, 3))
	l.outcomes(rs, "applied 4e", "+parked  failing")
	l.unreadable(rs, 4, 1, errUnknownShape)
	// The next is the beginning of a life, of which nothing is known then.
	rs = l.apply(ev(0, 1, 4))
	l.outcomes(rs, "applied 4e", "+duplicate 4c", "+parked  failing")
	l.unreadable(rs, 1, 2, errUnknownShape)
	l.at("0/1/4 {} failing")
	l.effects("0.1", "0.2", "0.3", "0.4")
}

// What the guard passes goes, as far as one transaction decides, and the rest in
// the next.
func TestWhatCantBeReadLeavesTheParkWhenTheGuardHasPassedIt(t *testing.T) {
	l, m := newChangedLab(t, consumer.GuardConfig{ResumeLimit: 1})
	l.apply(ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 4), ev(0, 1, 5), end(0, 6))
	m["0.3"], m["0.4"] = refusing, refusing
	l.outcomes(l.apply(skip(0, 2, 4)), "absorbed 4d", "+stale 4a")
	l.outcomes(l.goesOn(), "+stale 4a", "+applied 4e")
	l.effects("0.1", "0.5")

	// Of an earlier life, when an operator has the key go on in a later one.
	other := consumer.StreamKey{Stream: "s", Key: "other"}
	l.apply(of("other", ev(0, 1, 1)), of("other", ev(0, 1, 3)))
	_, err := l.operatorBy(m).Adopt(t.Context(), other, life+5, 1, note)
	ok(t, err)
	l.outcomes(l.apply(of("other", ev(5, 1, 1))), "applied 4e")
	if got := l.parked(); got != "" {
		t.Fatalf("parked: %s", got)
	}
}

// An unsettled row has decided nothing; a marker is passed when all that it gives
// up is.
func TestOnlyASettledGuardHasPassedARecord(t *testing.T) {
	at := func(kind outbox.Kind, epoch, from, seq int64) *outbox.Record {
		return &outbox.Record{Kind: kind, Epoch: epoch, From: from, Seq: seq}
	}
	row := consumer.Row{Epoch: 5, Seq: 4, Missed: consumer.Missed{{From: 2, To: 2}, {From: 8, To: 9}}, Settled: true}
	unsettled := row
	unsettled.Settled = false
	for _, c := range []struct {
		row  *consumer.Row
		rec  *outbox.Record
		want bool
	}{
		{&row, at(outbox.KindData, 4, 0, 100), true},
		{&row, at(outbox.KindData, 5, 0, 4), true},
		{&row, at(outbox.KindData, 5, 0, 5), false},
		{&row, at(outbox.KindData, 5, 0, 8), true},
		{&row, at(outbox.KindData, 6, 0, 1), false},
		{&row, at(outbox.KindSkip, 5, 3, 4), true},
		{&row, at(outbox.KindSkip, 5, 7, 9), false},
		{&row, at(outbox.KindSkip, 5, 8, 9), true},
		{&row, at(outbox.KindEnd, 5, 0, 9), true},
		{&row, at(outbox.KindEnd, 5, 0, 10), false},
		{&unsettled, at(outbox.KindData, 4, 0, 1), false},
		{&unsettled, at(outbox.KindData, 5, 0, 1), false},
	} {
		if got := c.row.Passed(c.rec); got != c.want {
			t.Errorf("settled %v: %s %d/%d..%d is passed: %v", c.row.Settled, c.rec.Kind, c.rec.Epoch, c.rec.From, c.rec.Seq, got)
		}
	}
}

func TestADeadLetterThatCantBeReadAnyMoreStaysDead(t *testing.T) {
	l, m := newChangedLab(t, state)
	op := l.operator()
	l.apply(ev(0, 1, 1))
	l.bury(2)
	l.bury(3)
	m["0.2"] = refusing
	ok(t, op.RetryDead(t.Context(), stream, life, 2, note))
	ok(t, op.RetryDead(t.Context(), stream, life, 3, note))
	rs := l.goesOn()
	l.outcomes(rs, "+dead_lettered", "+applied 4f") // the other one isn't held up
	said := l.unreadable(rs, 2, 1, errUnknownShape)
	if got := l.text("select seq || ' ' || retry || ' ' || error from fenceline.dead"); got != "2 false "+said {
		t.Fatalf("dead: %s", got)
	}
	l.effects("0.1", "0.3")
	delete(m, "0.2")
	ok(t, op.RetryDead(t.Context(), stream, life, 2, note))
	l.outcomes(l.goesOn(), "+stale 4a") // decided as ever
}

func TestAQuarantinedRecordThatCantBeReadAnyMoreStaysWhereItIs(t *testing.T) {
	l, m := newChangedLab(t, consumer.GuardConfig{MaxAhead: time.Hour})
	ahead := time.Now().Add(48*time.Hour).UnixMicro() - life
	l.apply(ev(0, 1, 1))
	l.outcomes(l.apply(ev(ahead, 1, 1)), "quarantined 0 absurd")
	m[fmt.Sprintf("%d.1", ahead)] = refusing
	ok(t, l.operator().RetryQuarantined(t.Context(), 1, note))
	l.outcomes(l.goesOn(), "+quarantined 0 malformed")
	if got := l.text("select (retry is null and resolved_at is null and value is not null)::text || ' ' || error from fenceline.quarantine"); got != "true unknown shape" {
		t.Fatalf("in quarantine: %s", got)
	}
	l.outcomes(l.apply(ev(0, 1, 2)), "applied 4e")
}

// operatorBy is an operator who reads by a mapping of his own, as relay inbox
// reads everything by the wire's.
func (l *lab) operatorBy(m changedMapping) *consumer.Operator {
	l.Helper()
	op, err := consumer.NewOperator(context.Background(), l.role("operator"), consumer.OperatorConfig{Consumer: l.cfg.Consumer, Mapping: m.read})
	if err != nil {
		l.Fatal(err)
	}
	return op
}

// And what he can't read he doesn't mark: the consumer can.
func TestAnOperatorDecidesAboutParkedRecordsThatHeCantRead(t *testing.T) {
	all := changedMapping{"0.2": refusing, "0.3": refusing, "0.4": refusing, "0.6": refusing, "5.1": refusing}
	for name, c := range map[string]struct {
		do   func(context.Context, *consumer.Operator) error
		want []string
	}{
		"retry": {func(ctx context.Context, op *consumer.Operator) error { return op.Retry(ctx, stream, note) },
			[]string{"+applied 4e", "+applied 4e", "+applied 4e"}},
		"discard": {func(ctx context.Context, op *consumer.Operator) error {
			return op.Discard(ctx, stream, life, 2, 2, note)
		},
			[]string{"+applied 4e", "+applied 4e"}},
		"discard several": {func(ctx context.Context, op *consumer.Operator) error {
			return op.Discard(ctx, stream, life, 2, 3, note)
		},
			[]string{"+applied 4e"}},
		"adopt": {func(ctx context.Context, op *consumer.Operator) error {
			_, err := op.Adopt(ctx, stream, life, 4, note)
			return err
		}, []string{"+applied 4e"}},
		"erase": {func(ctx context.Context, op *consumer.Operator) error {
			return op.EraseParked(ctx, stream, life, 3, note)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, consumer.GuardConfig{})
			l.apply(ev(0, 1, 1))
			l.parkFailing(2, ev(0, 1, 3), ev(0, 1, 4), ev(0, 1, 6))
			ok(t, c.do(t.Context(), l.operatorBy(all)))
			if got := l.text("select count(*)::text from fenceline.parked where error like '%any more%'"); got != "0" {
				t.Fatalf("%s are marked", got)
			}
			l.outcomes(l.goesOn(), c.want...)
		})
	}
}

// Of a later life the first event can be discarded by one who can't read it only
// where the consumer has called its handler.
func TestTheFirstEventOfALifeIsDiscardedUnreadOnlyWhenItsHandlerHasFailed(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operatorBy(changedMapping{"5.1": refusing})
	l.apply(ev(0, 1, 1))
	l.outcomes(l.apply(ev(5, 1, 1)), "parked 5e life")
	refused(t, op.Discard(t.Context(), stream, life+5, 1, 1, note), "isn't known", "OperatorConfig.Mapping", "unknown shape")
	l.fails["5.1"] = errBad
	rs, err := l.try(l.deliver(end(0, 2))...)
	var h *consumer.HandlerError
	if !errors.As(err, &h) || !h.Delivery.Resumed {
		t.Fatalf("got %+v, %v", rs, err)
	}
	ok(t, l.tx(func(ctx context.Context, tx pgx.Tx) error { return l.guard.Fail(ctx, tx, h.Delivery, h.Err) }))
	l.apply(end(0, 2))
	l.at("0/1/2 {[2,3)} failing")
	ok(t, op.Discard(t.Context(), stream, life+5, 1, 1, note))
	l.outcomes(l.apply(ev(5, 1, 2)), "applied 4e")
	l.effects("0.1", "5.2")
	l.at("5/1/2 {[1,2)} free")
}
