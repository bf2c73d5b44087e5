package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

var state = consumer.GuardConfig{Policy: consumer.State}

func TestAnOlderEventAfterANewerOneIsNotApplied(t *testing.T) {
	for _, policy := range []consumer.Policy{consumer.Strict, consumer.State} {
		t.Run(string(policy), func(t *testing.T) {
			l := newLab(t, consumer.GuardConfig{Policy: policy})
			l.outcomes(l.apply(evs(0, 1, 3)...), "applied 2", "applied 4e", "applied 4e")
			l.outcomes(l.apply(ev(0, 1, 2)), "duplicate 4c")
			l.outcomes(l.apply(end(0, 4), ev(9, 1, 1), ev(0, 1, 3)), map[consumer.Policy][]string{
				consumer.Strict: {"absorbed 4d", "applied 5d", "stale 3c"},
				consumer.State:  {"absorbed 4d", "applied 5a", "stale 3c"},
			}[policy]...)
			l.effects("0.1", "0.2", "0.3", "9.1")
			l.at("9/1/1 {} free")
		})
	}
}

// Fails for a guard on (epoch, token) alone: it takes the second event of a
// commit for the first.
func TestAThousandEventsOfOneTokenAreAllApplied(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	all := evs(0, 1, 1000)
	l.apply(all[:400]...)
	l.apply(all[350:]...)
	l.at("0/1/1000 {} free")
	if n := l.text("select count(distinct what) || ' of ' || count(*) from public.effect"); n != "1000 of 1000" {
		t.Fatalf("applied %s", n)
	}
}

func TestEventsBehindAHoleWaitAndGoOnInOrderWhenItIsFilled(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1))
	l.outcomes(l.apply(ev(0, 1, 4), ev(0, 1, 3), ev(0, 1, 6), ev(0, 1, 4)), "parked 4f gap", "parked 4f gap", "parked 4f gap", "parked 4f gap")
	l.at("0/1/1 {} gap")
	if got := l.parked(); got != "3 gap, 4 gap, 6 gap" {
		t.Fatalf("parked: %s", got)
	}
	l.outcomes(l.apply(ev(0, 1, 2)), "applied 4e", "+applied 4e", "+applied 4e")
	l.at("0/1/4 {} gap")
	l.outcomes(l.apply(ev(0, 1, 5)), "applied 4e", "+applied 4e")
	l.at("0/1/6 {} free")
	l.effects("0.1", "0.2", "0.3", "0.4", "0.5", "0.6")
	if got := l.parked(); got != "" {
		t.Fatalf("parked: %s", got)
	}
}

// The hole is filled in the batch that has parked what waits for it.
func TestAHoleThatIsFilledInTheSameBatchHoldsNothingUp(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.outcomes(l.apply(ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 2), ev(0, 1, 4)),
		"applied 2", "parked 4f gap", "applied 4e", "applied 4e", "+applied 4e")
	l.effects("0.1", "0.2", "0.3", "0.4")
	l.at("0/1/4 {} free")
}

func TestAParkedRecordKeepsAllOfWhatKafkaHad(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	tombstone, empty := ev(0, 1, 3), ev(0, 1, 4)
	tombstone.Payload, empty.Payload = nil, []byte{}
	tombstone.Headers = []outbox.Header{{Name: "x", Value: "\x00\xff"}, {Name: "\xfe", Value: ""}}
	l.apply(ev(0, 1, 1), tombstone, empty)
	var seen []consumer.Delivery
	err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := l.guard.Apply(ctx, tx, l.deliver(ev(0, 1, 2)), consumer.HandlerFunc(func(_ context.Context, _ pgx.Tx, d consumer.Delivery) error {
			seen = append(seen, d)
			return nil
		}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != 3 {
		t.Fatalf("%d were handled", len(seen))
	}
	d := seen[1]
	if d.Payload != nil || seen[2].Payload == nil {
		t.Errorf("a tombstone must stay apart from an empty payload: %v, %v", d.Payload, seen[2].Payload)
	}
	if fmt.Sprint(d.Headers) != fmt.Sprint(tombstone.Headers) || d.ID != tombstone.ID || !d.CreatedAt.Equal(tombstone.CreatedAt) {
		t.Errorf("got %+v", d.Record)
	}
	if !d.Resumed || d.Offset != 1 || d.Attempt != 1 || seen[0].Resumed {
		t.Errorf("resumed %v, offset %d, attempt %d", d.Resumed, d.Offset, d.Attempt)
	}
}

func TestAStateStreamPassesOverAHoleAndNeverGoesBack(t *testing.T) {
	l := newLab(t, state)
	l.outcomes(l.apply(ev(0, 1, 1), ev(0, 2, 5)), "applied 2", "applied 4f")
	l.at("0/2/5 {[2,5)} free")
	l.outcomes(l.apply(ev(0, 1, 3), ev(0, 2, 5), ev(9, 1, 3), ev(9, 1, 2)), "stale 4a", "duplicate 4c", "applied 5a", "stale 4a")
	l.effects("0.1", "0.5", "9.3")
	l.at("9/1/3 {[1,3)} free")
}

func TestANewLifeIsProvenByItsPredecessorOrByTheEnd(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(evs(0, 1, 2)...)
	l.outcomes(l.apply(after(ev(5, 1, 1), 0, 2)), "applied 5d")
	l.outcomes(l.apply(end(5, 2), ev(7, 1, 1)), "absorbed 4d", "applied 5d")
	l.effects("0.1", "0.2", "5.1", "7.1")
}

func TestANewLifeThatNothingProvesWaitsForTheOldOnesTail(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1))
	l.outcomes(l.apply(after(ev(5, 1, 1), 0, 3), ev(5, 1, 2)), "parked 5e life", "parked 5c gap")
	l.at("0/1/1 {} life")
	l.outcomes(l.apply(ev(0, 1, 2)), "applied 4e")
	l.at("0/1/2 {} life")
	// The end completes the old life, and what waits goes on behind it.
	l.outcomes(l.apply(end(0, 3)), "absorbed 4d", "+applied 5d", "+applied 4e")
	l.at("5/1/2 {} free")
	l.effects("0.1", "0.2", "5.1", "5.2")
}

// After a restore the history is newer than the life that ended: its end may be
// a phantom, with events behind it that only exist now.
func TestAnEndFromBeforeARestoreProvesNothing(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), end(0, 2))
	next := ev(5, 1, 1)
	next.History = life + 3
	l.outcomes(l.apply(next), "parked 5e life")
	l.effects("0.1")
}

func TestSkippedEventsArePassedAndNeverAppliedAfterwards(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1))
	l.outcomes(l.apply(ev(0, 1, 5)), "parked 4f gap")
	l.outcomes(l.apply(skip(0, 2, 4)), "absorbed 4d", "+applied 4e")
	l.at("0/1/5 {[2,5)} free")
	l.outcomes(l.apply(ev(0, 1, 3), skip(0, 2, 4), ev(0, 1, 5)), "stale 4a", "duplicate 4a", "duplicate 4c")
	l.effects("0.1", "0.5")
}

// A marker can be ahead of a hole, and cover what waits behind it.
func TestAParkedEventThatIsSkippedLeavesThePark(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), ev(0, 1, 4), ev(0, 1, 5))
	l.outcomes(l.apply(skip(0, 4, 4)), "absorbed 4d", "+stale 4a")
	l.at("0/1/1 {[4,5)} gap")
	l.outcomes(l.apply(ev(0, 1, 2), ev(0, 1, 3)), "applied 4e", "applied 4e", "+applied 4e")
	l.effects("0.1", "0.2", "0.3", "0.5")
	l.at("0/1/5 {[4,5)} free")
}

// Both wait for a stream's origin; the operator's word comes first.
func TestAParkedSkipIsDecidedBeforeTheEventThatItGivesUp(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Start: consumer.FromOrigin})
	l.outcomes(l.apply(ev(0, 1, 2), ev(0, 1, 3), skip(0, 2, 2)), "parked 4f gap", "parked 4f gap", "parked 4d gap")
	l.outcomes(l.apply(ev(0, 1, 1)), "applied 4e", "+absorbed 4d", "+stale 4a", "+applied 4e")
	l.effects("0.1", "0.3")
}

func TestQuarantineHoldsNeitherTheKeyNorTheBatchUp(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	broken := l.deliver(ev(0, 1, 1), ev(0, 1, 2), ev(0, 1, 3), ev(0, 1, 4))
	broken[0].Raw.Headers = broken[0].Raw.Headers[:4]
	broken[0] = consumer.NewDelivery(consumer.Partition{Topic: "s"}, broken[0].Raw)
	broken[1].Epoch = 1<<62 - 1 // absurd
	broken[2].Key = "k\x00"
	broken[3].Seq = 1<<63 - 1
	good := l.deliver(evs(0, 1, 3)...)
	rs, err := l.try(append(broken, good...)...)
	if err != nil {
		t.Fatal(err)
	}
	l.outcomes(rs, "quarantined 0 malformed", "quarantined 0 absurd", "quarantined 0 malformed", "quarantined 0 malformed", "applied 2", "applied 4e", "applied 4e")
	l.effects("0.1", "0.2", "0.3")
	if _, err := l.try(broken...); err != nil {
		t.Fatal(err)
	}
	if n := l.text("select count(*) || ' ' || string_agg(distinct reason, ',') from fenceline.quarantine"); n != "4 absurd,malformed" {
		t.Errorf("quarantine has %s", n)
	}
}

func TestAContradictoryTokenBlocksAStrictKeyAndNotAStateKey(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Streams: map[string]consumer.StreamConfig{"snap": {Policy: consumer.State}}})
	l.apply(ev(0, 2, 1), ev(0, 2, 2))
	rs := l.apply(ev(0, 1, 3), ev(0, 2, 3), ev(0, 2, 1))
	l.outcomes(rs, "quarantined 4b conflict", "parked 4e conflict", "duplicate 4c")
	if !rs[0].Alarm {
		t.Error("no alarm")
	}
	l.at("0/2/2 {} conflict")

	snap := func(r outbox.Record) outbox.Record {
		r.Stream, r.Topic, r.Payload = "snap", "snap", append([]byte("snap"), r.Payload...)
		return r
	}
	l.outcomes(l.apply(snap(ev(0, 2, 1)), snap(ev(0, 1, 2)), snap(ev(0, 2, 2))), "applied 2", "quarantined 4b conflict", "applied 4e")
	l.effects("0.1", "0.2", "snap0.1", "snap0.2")
}

// X13. A copy that is published again, or mirrored, elsewhere has the guard of its
// stream.
func TestTheSameEventInAnotherTopicIsADuplicate(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1))
	mirrored := ev(0, 1, 1)
	mirrored.Topic = "dc2.s"
	l.outcomes(l.apply(mirrored), "duplicate 4c")
	l.effects("0.1")
}

func TestAForgottenLifeIsNotLetInAgain(t *testing.T) {
	for _, policy := range []consumer.Policy{consumer.Strict, consumer.State} {
		t.Run(string(policy), func(t *testing.T) {
			l := newLab(t, consumer.GuardConfig{Policy: policy, Start: consumer.FromOrigin})
			l.apply(ev(0, 1, 1), end(0, 2))
			l.exec("update fenceline.consumer_stream set forgotten = $1", life)
			l.exec("delete from fenceline.guard")
			rs := l.apply(ev(0, 1, 1), ev(3, 1, 1))
			l.outcomes(rs, "quarantined 1 before_memory", map[consumer.Policy]string{consumer.Strict: "applied 4e", consumer.State: "applied 2"}[policy])
			l.effects("0.1", "3.1")
		})
	}
}

// A later life's record that came first makes a row; the row must not be
// re-based to a life whose guard was there and is gone.
func TestAnUnsettledGuardDoesNotLetAForgottenLifeIn(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Start: consumer.FromOrigin})
	l.apply(ev(0, 1, 1), end(0, 2))
	l.exec("update fenceline.consumer_stream set forgotten = $1", life)
	l.exec("delete from fenceline.guard")
	l.outcomes(l.apply(ev(3, 1, 2), ev(0, 1, 1), ev(3, 1, 1)), "parked 4f gap", "quarantined 1 before_memory", "applied 4e", "+applied 4e")
	l.effects("0.1", "3.1", "3.2")
}

func TestATransactionOfAnotherIsolationLevelIsRefused(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		ctx := context.Background()
		err := pgx.BeginTxFunc(ctx, l.pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			_, err := l.guard.Apply(ctx, tx, l.deliver(ev(0, 1, 1)), l.handler())
			return err
		})
		if !errors.Is(err, consumer.ErrIsolation) {
			t.Errorf("%s: %v", level, err)
		}
	}
	l.effects()
}

func TestAStreamCantChangeItsPolicyUnderItsGuards(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1))
	for _, cfg := range []consumer.GuardConfig{{Policy: consumer.State}, {Start: consumer.FromOrigin}} {
		cfg.Consumer = "c"
		l.cfg = cfg
		l.reopen()
		_, err := l.try(l.deliver(ev(0, 1, 2))...)
		var changed *consumer.StreamChangedError
		if !errors.Is(err, consumer.ErrStreamChanged) || !errors.As(err, &changed) || changed.Stream != "s" || changed.HavePolicy != consumer.Strict {
			t.Errorf("%v", err)
		}
	}
	l.effects("0.1")
}

func TestAConsumerHasTheRightsItNeedsAndNoOthers(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	l.apply(ev(0, 1, 1), ev(0, 1, 3))
	for _, sql := range []string{
		"delete from fenceline.guard",
		"update fenceline.consumer_stream set forgotten = 0",
		"delete from fenceline.consumer_stream",
		"update fenceline.dead set discarded_at = null",
		"delete from fenceline.quarantine",
		"update fenceline.quarantine set value = null",
		"update fenceline.consumer_offset set truncated_at = null",
		"update fenceline.consumer_topic set partitions = 1",
		"insert into fenceline.consumer_audit (consumer, action, reason) values ('c', 'x', 'x')",
	} {
		_, err := l.pool.Exec(context.Background(), sql)
		denied(t, sql, err)
	}
	for sql, allowed := range map[string]bool{
		"select seq, blocked from fenceline.guard":              true,
		"select seq, reason, attempts from fenceline.parked":    true,
		"select reason, kafka_offset from fenceline.quarantine": true,
		"select epoch, discarded_at from fenceline.dead":        true,
		"select next_offset from fenceline.consumer_offset":     true,
		"select action, actor from fenceline.consumer_audit":    true,
		"select value from fenceline.parked":                    false,
		"select headers from fenceline.parked":                  false,
		"select error from fenceline.parked":                    false,
		"select value from fenceline.dead":                      false,
		"select kafka_key from fenceline.quarantine":            false,
		"update fenceline.guard set seq = 0":                    false,
		"delete from fenceline.parked":                          false,
	} {
		err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "reset role; set local role fenceline_monitor"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sql)
			return err
		})
		if allowed && err != nil {
			t.Errorf("monitor: %s: %v", sql, err)
		}
		if !allowed {
			denied(t, sql, err)
		}
	}
}

func denied(t *testing.T, sql string, err error) {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "42501" {
		t.Errorf("%s: got %v, want SQLSTATE 42501", sql, err)
	}
}

func TestANewGuardSaysEverythingThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := consumer.NewGuard(consumer.GuardConfig{
		Schema: `x";drop`, Policy: "loose", MaxAhead: -1,
		Streams: map[string]consumer.StreamConfig{"a": {Start: "middle"}},
	})
	for _, part := range []string{"GuardConfig.Consumer", "GuardConfig.Schema", `"loose"`, "MaxAhead", `Streams["a"]`, `"middle"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
}
