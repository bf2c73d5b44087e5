package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// reader reads a partition as a runner does, in a test's own steps: the guard,
// and what was read, in one transaction.
type reader struct {
	*lab
	log []outbox.Record
	at  consumer.Progress
}

func (l *lab) reader() *reader {
	return &reader{lab: l, at: consumer.Progress{Overflow: consumer.NoOffset}}
}

// publish adds records to the log.
func (r *reader) publish(recs ...outbox.Record) { r.log = append(r.log, recs...) }

// reads reads from..next in one transaction.
func (r *reader) reads(from, next int64) (rs []consumer.Result) {
	r.Helper()
	r.offset = from
	ds := r.deliver(r.log[from:next]...)
	err := r.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		if rs, err = r.guard.Apply(ctx, tx, ds, r.handler()); err != nil {
			return err
		}
		r.at, err = r.guard.Progress(ctx, tx, consumer.Read{Partition: consumer.Partition{Topic: "s"}, From: from, Next: next}, rs)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	return rs
}

func (r *reader) room() (room bool) {
	r.Helper()
	if err := r.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		room, err = r.guard.Room(ctx, tx, consumer.Partition{Topic: "s"})
		return err
	}); err != nil {
		r.Fatal(err)
	}
	return room
}

// goesOn resumes what is pending, as the runner does every few seconds.
func (l *lab) goesOn() (all []consumer.Result) {
	l.Helper()
	for range 100 {
		var rs []consumer.Result
		var keys []consumer.StreamKey
		err := l.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
			if keys, err = l.guard.Pending(ctx, tx, 100); err != nil || len(keys) == 0 {
				return err
			}
			rs, err = l.guard.Resume(ctx, tx, keys, l.handler())
			return err
		})
		if err != nil {
			l.Fatal(err)
		}
		if all = append(all, rs...); len(keys) == 0 {
			return all
		}
	}
	l.Fatal("what is pending never ends")
	return nil
}

// progress asserts what may be committed and where the overflow is.
func (r *reader) progress(committable, overflow int64) {
	r.Helper()
	if r.at != (consumer.Progress{Committable: committable, Overflow: overflow}) {
		r.Fatalf("committable and overflow are %+v, want %d and %d", r.at, committable, overflow)
	}
}

func unstored(rs []consumer.Result) (list []string) {
	for _, r := range rs {
		if r.Unstored {
			list = append(list, fmt.Sprintf("%d %s displaced=%v", r.Seq, r.Outcome, r.Displaced))
		}
	}
	return list
}

func expect[T comparable](t *testing.T, got []T, want ...T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func limits(records int64) consumer.GuardConfig {
	return consumer.GuardConfig{Limits: consumer.Limits{KeyRecords: records}}
}

// Fails where a full park makes the partition wait: the filler comes behind
// what doesn't fit.
func TestWhatAFullParkCantStoreIsReadAgainWhenTheHoleIsFilled(t *testing.T) {
	l := newLab(t, limits(2))
	r := l.reader()
	r.publish(ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 4), ev(0, 1, 5), ev(0, 1, 6), ev(0, 1, 2))
	expect(t, unstored(r.reads(0, 5)), "5 parked displaced=false", "6 parked displaced=false")
	r.progress(3, 3)
	if got := l.parked(); got != "3 gap, 4 gap" {
		t.Fatalf("parked: %s", got)
	}
	if r.room() {
		t.Fatal("there is room in a full park")
	}
	l.outcomes(r.reads(5, 6), "applied 4e", "+applied 4e", "+applied 4e")
	r.progress(3, 3)
	if !r.room() {
		t.Fatal("the hole is filled, and there is no room")
	}
	l.outcomes(r.reads(3, 6), "applied 4e", "applied 4e", "duplicate 4c")
	r.progress(6, consumer.NoOffset)
	l.effects("0.1", "0.2", "0.3", "0.4", "0.5", "0.6")
	l.goesOn()
	if got := l.text("select unstored::text || recheck || parked_rows || ' ' || parked_bytes from fenceline.guard"); got != "{}false0 0" {
		t.Fatalf("the guard still has %s", got)
	}
}

// It would be read again, with all that it said, and be applied one day.
func TestWhatAnOperatorErasedIsNotDisplaced(t *testing.T) {
	l := newLab(t, limits(2))
	r := l.reader()
	secret := ev(0, 1, 6)
	secret.Payload = []byte("her address")
	r.publish(ev(0, 1, 1), secret, ev(0, 1, 5), ev(0, 1, 3), ev(0, 1, 4), ev(0, 1, 2), secret)
	r.reads(0, 3)
	ok(t, l.operator().EraseParked(t.Context(), stream, life, 6, note))
	expect(t, unstored(r.reads(3, 5)), "4 parked displaced=false", "5 parked displaced=true")
	if got := l.parked(); got != "3 gap, 6 failing" {
		t.Fatalf("parked: %s", got)
	}
	r.reads(5, 7)
	r.progress(2, 2)
	if !r.room() {
		t.Fatal("there is no room for what did not fit")
	}
	r.reads(2, 7)
	r.progress(7, consumer.NoOffset)
	l.effects("0.1", "0.2", "0.3", "0.4", "0.5")
	l.at("0/1/5 {} failing")
	if got := l.text("select (value is null and erased_at is not null)::text from fenceline.parked"); got != "true" {
		t.Error("what was erased is back")
	}
}

// What was erased can't give way, and the park holds nothing else.
func TestWhatComesBeforeTheOnlyErasedRecordOfAFullParkIsStored(t *testing.T) {
	l := newLab(t, limits(1))
	l.apply(ev(0, 1, 1), ev(0, 1, 6))
	ok(t, l.operator().EraseParked(t.Context(), stream, life, 6, note))
	expect(t, unstored(l.apply(ev(0, 1, 7), ev(0, 1, 3), ev(0, 1, 4))), "7 parked displaced=false", "4 parked displaced=false")
	if got := l.parked(); got != "3 gap, 6 failing" {
		t.Fatalf("parked: %s", got)
	}
}

// A record out of the quarantine takes a place in the park like others. Nobody reads
// there who could note what it takes it from.
func TestWhatARecordOutOfTheQuarantineDisplacesIsReadAgain(t *testing.T) {
	cfg := limits(1)
	cfg.MaxAhead = time.Hour
	l := newLab(t, cfg)
	early := time.Now().Add(48*time.Hour).UnixMicro() - life
	l.outcomes(l.apply(ev(early, 1, 3)), "quarantined 0 absurd")
	l.cfg.MaxAhead = 100 * time.Hour // as when that time has come
	l.reopen()
	l.outcomes(l.apply(ev(early, 1, 1), ev(early, 1, 4)), "applied 2", "parked 4f gap")
	ok(t, l.operator().RetryQuarantined(t.Context(), 1, note))
	if got := unstored(l.goesOn()); !slices.Equal(got, []string{"4 parked displaced=true"}) {
		t.Fatalf("not stored: %v", got)
	}
	if got := l.parked(); got != "3 gap" {
		t.Fatalf("parked: %s", got)
	}
	if got := l.text("select coalesce(max(overflow_offset), -1)::text from fenceline.consumer_offset"); got != "2" { // where 4 lies
		t.Errorf("what did not fit begins at %s", got)
	}
}

// A reading that ends in the middle of the overflow, by a crash or a rebalance,
// leaves the rest of it.
func TestTheOverflowMovesUpWithTheReadingThatGoesThroughIt(t *testing.T) {
	l := newLab(t, limits(1))
	r := l.reader()
	r.publish(ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 4), ev(0, 1, 5), ev(0, 1, 6), ev(0, 1, 2), ev(0, 1, 7))
	r.reads(0, 6)
	r.progress(2, 2)
	l.effects("0.1", "0.2", "0.3")
	r.reads(2, 3)
	r.progress(3, 3)
	r.reads(4, 5) // somebody else is elsewhere: that is no part of it
	r.progress(3, 3)
	r.reads(6, 7)
	r.progress(3, 3)
	r.reads(3, 4)
	r.progress(4, 4)
	r.reads(4, 7)
	r.progress(7, consumer.NoOffset)
	l.effects("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7")
}

// X20. Fails where a full park refuses what comes before what it has.
func TestALowerRecordTakesThePlaceOfTheHighest(t *testing.T) {
	l := newLab(t, limits(2))
	r := l.reader()
	r.publish(ev(0, 1, 1), ev(0, 1, 5), ev(0, 1, 6), ev(0, 1, 4), ev(0, 1, 3), ev(0, 1, 2))
	expect(t, unstored(r.reads(0, 4)), "6 parked displaced=true")
	r.progress(2, 2)
	expect(t, unstored(r.reads(4, 5)), "5 parked displaced=true")
	r.progress(1, 1)
	if got := l.parked(); got != "3 gap, 4 gap" {
		t.Fatalf("parked: %s", got)
	}
	r.reads(5, 6)
	if !r.room() {
		t.Fatal("no room")
	}
	r.reads(1, 6)
	r.progress(6, consumer.NoOffset)
	l.effects("0.1", "0.2", "0.3", "0.4", "0.5", "0.6")
}

// Fails where the head of a stream is not storable: an event that fails would
// be lost, or hold the partition up.
func TestTheNextEventOfAStreamIsStoredHoweverFullTheParkIs(t *testing.T) {
	for name, cfg := range map[string]consumer.GuardConfig{
		"its own": limits(1), "all": {Limits: consumer.Limits{Records: 1}}, "bytes": {Limits: consumer.Limits{Bytes: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, cfg)
			l.apply(of("other", ev(0, 1, 1)), of("other", ev(0, 1, 3)))
			l.apply(ev(0, 1, 1), ev(0, 1, 3))
			rs, err := l.try(l.failed(l.deliver(ev(0, 1, 2)), 0)...)
			if err != nil {
				t.Fatal(err)
			}
			l.outcomes(rs, "parked 4e failing")
			expect(t, unstored(rs))
			if got := l.text("select count(*)::text from fenceline.parked where key = 'k' and reason = 'failing'"); got != "1" {
				t.Fatalf("%s failing events are parked", got)
			}
		})
	}
}

// The total is reached by another stream, for good. What this one could not
// store must be read again all the same when its turn has come.
func TestAStreamGoesOnAlthoughOthersHaveFilledThePark(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Limits: consumer.Limits{Records: 2}})
	r := l.reader()
	o := func(r outbox.Record) outbox.Record { return of("other", r) }
	r.publish(o(ev(0, 1, 1)), o(ev(0, 1, 3)), o(ev(0, 1, 4)), ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 2))
	expect(t, unstored(r.reads(0, 5)), "3 parked displaced=false")
	if r.room() {
		t.Fatal("there is room in a full park")
	}
	r.reads(5, 6)
	if !r.room() {
		t.Fatal("nothing of the stream waits for room any more, and it is not read again")
	}
	r.reads(4, 6)
	r.progress(6, consumer.NoOffset)
	l.at("0/1/3 {} free")
}

// X19 in a full park: what is not stored is not there, and still waits.
func TestNoLifeIsProvenOverOneThatCouldNotBeStored(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Limits: consumer.Limits{Records: 1}})
	r := l.reader()
	o := func(r outbox.Record) outbox.Record { return of("other", r) }
	r.publish(o(ev(0, 1, 1)), o(ev(0, 1, 3)), ev(0, 1, 1), end(0, 2), ev(3, 1, 2), ev(4, 1, 1), ev(3, 1, 1), end(3, 3))
	expect(t, unstored(r.reads(0, 6)), "2 parked displaced=false", "1 parked displaced=false")
	l.at("0/1/2 {[2,3)} gap")
	l.outcomes(r.reads(6, 8), "applied 5d", "absorbed 4d")
	l.effects("0.1", "0.1", "3.1")
	// e3 #2 is missing in front of the end, and e4 is not proven over it.
	l.at("3/1/1 {[3,4)} free")
	r.reads(4, 8)
	l.goesOn()
	l.effects("0.1", "0.1", "3.1", "3.2", "4.1")
	r.progress(8, consumer.NoOffset)
}

// X20. Fails where only what is parked is looked at, when the guard has come to
// the life that waited: e3 is gone from the park, and e4 would be proven over it.
func TestALaterLifeWaitsForOneThatIsNotStored(t *testing.T) {
	l := newLab(t, limits(1))
	r := l.reader()
	r.publish(ev(0, 1, 1), after(ev(3, 1, 1), 2, 7), after(ev(2, 1, 1), 0, 2), ev(0, 1, 2), end(2, 2), ev(4, 1, 1))
	expect(t, unstored(r.reads(0, 3)), "1 parked displaced=true") // e3 #1 has made room for e2 #1
	r.reads(3, 5)
	l.at("2/1/2 {[2,3)} free")
	if got := l.text("select (waiting_epoch - $1)::text from fenceline.guard", life); got != "3" {
		t.Fatalf("waits for epoch %s", got)
	}
	l.outcomes(r.reads(5, 6), "parked 5e life")
	l.effects("0.1", "0.2", "2.1")
}

// Fails where a guard remembers only that something was not stored: the first
// life's end would wait for the second's, which finds no room, and both for ever.
func TestALifeIsProvenAlthoughALaterOneCouldNotBeStored(t *testing.T) {
	l := newLab(t, limits(1))
	r := l.reader()
	r.publish(ev(0, 1, 1), ev(5, 1, 2), ev(5, 1, 3), after(ev(5, 1, 1), 0, 2), ev(0, 1, 2))
	r.reads(0, 5)
	l.at("5/1/1 {} free")
	r.reads(1, 5)
	l.effects("0.1", "0.2", "5.1", "5.2", "5.3")
}

func TestDeadLettersBeyondTheLimitAreReadAgain(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Policy: consumer.State, Limits: consumer.Limits{KeyRecords: 1}})
	r := l.reader()
	r.publish(ev(0, 1, 1), ev(0, 1, 2), ev(0, 1, 3))
	ds := l.failed(l.failed(l.deliver(r.log...), 1), 2)
	var rs []consumer.Result
	err := l.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
		if rs, err = l.guard.Apply(ctx, tx, ds, l.handler()); err != nil {
			return err
		}
		r.at, err = l.guard.Progress(ctx, tx, consumer.Read{Partition: consumer.Partition{Topic: "s"}, Next: 3}, rs)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, unstored(rs), "3 dead_lettered displaced=false")
	r.progress(2, 2)
	if r.room() {
		t.Fatal("room")
	}
	r.reads(1, 2) // it works now
	if !r.room() {
		t.Fatal("no room")
	}
	l.outcomes(r.reads(2, 3), "applied 4e")
	r.progress(3, consumer.NoOffset)
	if got := l.text("select parked_rows || ' ' || parked_bytes from fenceline.guard"); got != "0 0" {
		t.Fatalf("counted: %s", got)
	}
}

func TestAFullQuarantineKeepsWhereARecordLiesAndNotWhatItSays(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Limits: consumer.Limits{Records: 2}})
	bad := l.deliver(ev(0, 1, 1), ev(0, 1, 2), ev(0, 1, 3))
	for i := range bad {
		bad[i].Raw.Headers = bad[i].Raw.Headers[:2]
		bad[i] = consumer.NewDelivery(consumer.Partition{Topic: "s"}, bad[i].Raw)
	}
	if _, err := l.try(bad...); err != nil {
		t.Fatal(err)
	}
	if got := l.text("select string_agg(kafka_offset || case when erased_at is null then ' kept' else ' only ' || size || coalesce(convert_from(value, 'UTF8'), ' nothing') end, ', ' order by id) from fenceline.quarantine"); got != "0 kept, 1 kept, 2 only 0 nothing" {
		t.Fatalf("got %s", got)
	}
}

// The counters are exact: copies of a record, and a batch that is rolled back,
// count once and not at all.
func TestWhatIsParkedIsCountedExactly(t *testing.T) {
	l := newLab(t, limits(100))
	l.apply(ev(0, 1, 1), ev(0, 1, 3), ev(0, 1, 3), ev(0, 1, 4))
	l.apply(ev(0, 1, 3), ev(0, 1, 5))
	_ = l.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := l.guard.Apply(ctx, tx, l.deliver(ev(0, 1, 6)), l.handler())
		if err != nil {
			t.Error(err)
		}
		return context.Canceled
	})
	check := func() {
		t.Helper()
		if got := l.text(`select string_agg((g.parked_rows = p.n and g.parked_bytes = p.size)::text || ' ' || g.parked_rows, ' ') from fenceline.guard g,
			(select count(*) n, coalesce(sum(size), 0) size from fenceline.parked) p`); got != "true 3" && got != "true 0" {
			t.Fatalf("counted: %s", got)
		}
	}
	check()
	l.apply(ev(0, 1, 2))
	check()
}

func TestAnOverflowOfAnotherPartitionIsRememberedThere(t *testing.T) {
	l := newLab(t, limits(1))
	mirrored := func(r outbox.Record) outbox.Record { r.Topic = "dc2.s"; return r }
	l.apply(ev(0, 1, 1), mirrored(ev(0, 1, 6)))
	r := l.reader()
	r.publish(ev(0, 1, 3))
	expect(t, unstored(r.reads(0, 1)), "6 parked displaced=true")
	r.progress(1, consumer.NoOffset)
	if got := l.text("select string_agg(topic || ' ' || overflow_offset || '-' || overflow_end, ',') from fenceline.consumer_offset where overflow_offset is not null"); got != "dc2.s 1-2" {
		t.Fatalf("overflow: %s", got)
	}
}
