package consumer_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/pgtest"
	"github.com/fenceline/fenceline/outbox"
)

func (l *lab) bury(seq int64) {
	l.Helper()
	rs, err := l.try(l.failed(l.deliver(ev(0, 1, seq)), 0)...)
	if err != nil {
		l.Fatal(err)
	}
	if rs[0].Outcome != consumer.DeadLettered {
		l.Fatalf("got %+v", rs[0])
	}
}

func (l *lab) letters() string {
	l.Helper()
	return l.text(`select coalesce(string_agg(seq || case when discarded_at is null then '' else ' discarded' end || case when retry then ' retry' else '' end, ', ' order by seq), '') from fenceline.dead`)
}

// A redrive is the same decision again: the guard did not move for the letter.
func TestADeadLetterIsTriedAgainByTheConsumer(t *testing.T) {
	l := newLab(t, state)
	op := l.operator()
	l.apply(ev(0, 1, 1))
	l.bury(2)
	ok(t, op.RetryDead(t.Context(), stream, life, 2, note))
	l.effects("0.1")
	l.outcomes(l.goesOn(), "+applied 4e")
	l.effects("0.1", "0.2")
	if got := l.letters(); got != "" {
		t.Fatalf("dead: %s", got)
	}
	l.at("0/1/2 {} free")
	refused(t, op.RetryDead(t.Context(), stream, life, 2, note), "no such dead letter")

	// Something newer was applied: nothing is done, and nothing waits.
	l.bury(3)
	l.apply(ev(0, 1, 5))
	ok(t, op.RetryDead(t.Context(), stream, life, 3, note))
	l.outcomes(l.goesOn(), "+stale 4a")
	l.effects("0.1", "0.2", "0.5")
	if got := l.letters(); got != "" {
		t.Fatalf("dead: %s", got)
	}
}

// X9, the first event of all.
func TestADeadLetterThatWasTheFirstOfItsStreamCanBeTried(t *testing.T) {
	l := newLab(t, state)
	l.bury(1)
	l.outcomes(l.apply(skip(0, 2, 2)), "ignored 2")
	ok(t, l.operator().RetryDead(t.Context(), stream, life, 1, note))
	l.outcomes(l.goesOn(), "+applied 2")
	l.effects("0.1")
}

func TestADeadLetterThatFailsAgainIsTriedOnceOnly(t *testing.T) {
	l := newLab(t, state)
	l.apply(ev(0, 1, 1))
	l.bury(2)
	ok(t, l.operator().RetryDead(t.Context(), stream, life, 2, note))
	l.fails["0.2"] = errBad
	var h *consumer.HandlerError
	err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := l.guard.Resume(ctx, tx, []consumer.StreamKey{stream}, l.handler())
		return err
	})
	if !errors.As(err, &h) || !h.Delivery.Resumed {
		t.Fatalf("got %v", err)
	}
	ok(t, l.tx(func(ctx context.Context, tx pgx.Tx) error { return l.guard.Fail(ctx, tx, h.Delivery, h.Err) }))
	if rs := l.goesOn(); len(rs) != 0 {
		t.Fatalf("got %+v", rs)
	}
	if got := l.text("select seq || ' ' || attempts || ' ' || error from fenceline.dead"); got != "2 2 no such account" {
		t.Fatalf("dead: %s", got)
	}
}

// X18.
func TestAnOperatorsDiscardOfADeadLetterHoldsForEveryCopy(t *testing.T) {
	l := newLab(t, state)
	op := l.operator()
	l.apply(ev(0, 1, 1))
	l.bury(2)
	ok(t, op.DiscardDead(t.Context(), stream, life, 2, note))
	refused(t, op.DiscardDead(t.Context(), stream, life, 2, note), "discarded before")
	refused(t, op.RetryDead(t.Context(), stream, life, 2, note), "discarded")
	rs := l.apply(ev(0, 1, 2), ev(0, 1, 3))
	l.outcomes(rs, "stale 4e", "applied 4f")
	if rs[0].Why != "discard by anna: ticket 7" {
		t.Fatalf("why: %q", rs[0].Why)
	}
	if got := l.text("select parked_rows || ' ' || parked_bytes from fenceline.guard"); got != "0 0" {
		t.Fatalf("counted: %s", got)
	}
	ok(t, op.EraseDead(t.Context(), stream, life, 2, note))
	if got := l.text("select coalesce(convert_from(value, 'UTF8'), 'nothing') from fenceline.dead"); got != "nothing" {
		t.Fatalf("it says %s", got)
	}
	l.outcomes(l.apply(ev(0, 1, 2)), "stale 4a")
}

// A copy that was put into quarantine before is one like others.
func TestADeadLetterHoldsForACopyOutOfTheQuarantine(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{Policy: consumer.State, MaxAhead: time.Hour})
	op := l.operator()
	given := ev(time.Now().Add(48*time.Hour).UnixMicro()-life, 1, 1)
	again := of("other", given)
	again.ID = uuid.New()
	l.outcomes(l.apply(given, again), "quarantined 0 absurd", "quarantined 0 absurd")
	l.cfg.MaxAhead = 100 * time.Hour // as when that time has come
	l.reopen()
	rs, err := l.try(l.failed(l.failed(l.deliver(given, again), 0), 1)...)
	ok(t, err)
	l.outcomes(rs, "dead_lettered 2", "dead_lettered 2")
	ok(t, op.DiscardDead(t.Context(), stream, given.Epoch, 1, note))
	ok(t, op.RetryQuarantined(t.Context(), 1, note))
	rs = l.goesOn()
	l.outcomes(rs, "+stale 2")
	if rs[0].Why != "discard by anna: ticket 7" {
		t.Errorf("why: %q", rs[0].Why)
	}
	ok(t, op.RetryQuarantined(t.Context(), 2, note))
	l.outcomes(l.goesOn(), "+applied 2")
	l.effects(string(again.Payload))
	if got := l.letters(); got != "1 discarded" {
		t.Errorf("dead: %s", got)
	}
	if got := l.text("select sum(parked_rows)::text from fenceline.guard"); got != "0" {
		t.Errorf("counted: %s", got)
	}
}

// What a handler says of a copy may quote it.
func TestACopyBringsNothingBackOfAnErasedDeadLetter(t *testing.T) {
	l := newLab(t, state)
	l.apply(ev(0, 1, 1))
	l.bury(2)
	ok(t, l.operator().EraseDead(t.Context(), stream, life, 2, note))
	said := l.text("select error from fenceline.dead")
	ds := l.deliver(ev(0, 1, 2))
	ds[0].Failed = errors.New("there is no such address as hers")
	rs, err := l.try(ds...)
	ok(t, err)
	l.outcomes(rs, "dead_lettered 4e")
	if got := l.text("select error from fenceline.dead"); got != said {
		t.Errorf("the letter says %q, and said %q when it was erased", got, said)
	}
}

func TestDeadLettersAreHandedOutOnceTheyArePublished(t *testing.T) {
	l := newLab(t, state)
	l.apply(ev(0, 1, 1))
	l.bury(2)
	l.bury(3)
	var got []int64
	forward := func(sink error) (n int, err error) {
		err = l.tx(func(ctx context.Context, tx pgx.Tx) (err error) {
			n, err = l.guard.ForwardDead(ctx, tx, 10, func(_ context.Context, letters []consumer.DeadLetter) error {
				for _, x := range letters {
					got = append(got, x.Seq)
					if string(x.Record.Value) == "" || len(x.Record.Headers) == 0 || x.Error != "no such account" {
						t.Errorf("got %+v", x)
					}
				}
				return sink
			})
			return err
		})
		return n, err
	}
	if _, err := forward(errBad); !errors.Is(err, errBad) {
		t.Fatalf("got %v", err)
	}
	if n, err := forward(nil); n != 2 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := forward(nil); n != 0 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	expect(t, got, 2, 3, 2, 3)
}

// X15.
func TestARecordFromBeforeTheMemoryIsAdmittedByAnOperatorOnly(t *testing.T) {
	for _, policy := range []consumer.Policy{consumer.Strict, consumer.State} {
		t.Run(string(policy), func(t *testing.T) {
			l := newLab(t, consumer.GuardConfig{Policy: policy, ForgetAfter: time.Nanosecond})
			op := l.operator()
			l.apply(ev(0, 1, 1), end(0, 2))
			if n := l.forget(); n != 1 {
				t.Fatalf("forgot %d", n)
			}
			other := of("other", ev(0, 1, 1))
			l.outcomes(l.apply(ev(0, 1, 1), other), "quarantined 1 before_memory", "quarantined 1 before_memory")
			list, err := op.Quarantine(t.Context(), consumer.Filter{Key: "other"})
			ok(t, err)
			if len(list) != 1 || list[0].Reason != consumer.BeforeMemory || list[0].Epoch != life {
				t.Fatalf("got %+v", list)
			}
			ok(t, op.RetryQuarantined(t.Context(), list[0].ID, note))
			l.outcomes(l.goesOn(), "+quarantined 1 before_memory") // trying alone changes nothing
			ok(t, op.Admit(t.Context(), list[0].ID, note))
			l.outcomes(l.goesOn(), "+applied 2")
			l.outcomes(l.apply(other, of("other", ev(0, 1, 2)), ev(0, 1, 1)), "duplicate 4c", "applied 4e", "quarantined 1 before_memory")
			refused(t, op.Admit(t.Context(), list[0].ID, note), "dealt with")
			left, err := op.Quarantine(t.Context(), consumer.Filter{})
			ok(t, err)
			if len(left) != 2 || left[0].Key != "k" || left[1].Key != "k" {
				t.Fatalf("left: %+v", left)
			}
			ok(t, op.DiscardQuarantined(t.Context(), left[0].ID, note))
			ok(t, op.EraseQuarantined(t.Context(), left[0].ID, note))
			if got := l.text("select count(*)::text from fenceline.quarantine where value is null and kafka_key is null and outcome = 'discarded'"); got != "1" {
				t.Fatalf("%s erased", got)
			}
		})
	}
}

func (l *lab) forget() (n int64) {
	l.Helper()
	var f consumer.Forgetting
	for !f.Done {
		if err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
			m, err := l.guard.Forget(ctx, tx, &f)
			n += m
			return err
		}); err != nil {
			l.Fatal(err)
		}
	}
	return n
}

func TestAQuarantinedRecordCanBeReadByALaterVersion(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	l.apply(ev(0, 1, 1))
	bad := l.deliver(ev(0, 1, 2))
	good := bad[0].Raw.Headers
	bad[0].Raw.Headers = good[1:]
	bad[0] = consumer.NewDelivery(consumer.Partition{Topic: "s"}, bad[0].Raw)
	if _, err := l.try(bad...); err != nil {
		t.Fatal(err)
	}
	l.apply(ev(0, 1, 3))
	id := int64(1)
	refused(t, op.RetryQuarantined(t.Context(), id, note), "still can't be read")
	refused(t, op.Admit(t.Context(), id, note), "malformed")
	l.exec("update fenceline.quarantine set headers = array[$1::bytea, $2::bytea] || headers", []byte(good[0].Key), good[0].Value)
	ok(t, op.RetryQuarantined(t.Context(), id, note))
	l.outcomes(l.goesOn(), "+applied 4e", "+applied 4e") // and what waited for it
	l.effects("0.1", "0.2", "0.3")
}

// The operator's mapping makes another stream of it than the consumer's: that is
// said of the record, and ends nothing.
func TestAQuarantinedRecordThatWasToBeTriedByAnotherMappingStaysWhereItIs(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{MaxAhead: time.Hour, Mapping: func(p consumer.Partition, r consumer.KafkaRecord) (outbox.Record, error) {
		rec, err := consumer.Wire(p, r)
		rec.Stream += "-mapped"
		return rec, err
	}})
	// From the fixture's deliveries, which are read by the wire's mapping.
	d := l.deliver(ev(time.Now().Add(48*time.Hour).UnixMicro()-life, 1, 1))
	rs, err := l.try(l.cfg.Mapping.Delivery(consumer.Partition{Topic: "s"}, d[0].Raw))
	ok(t, err)
	l.outcomes(rs, "quarantined 0 absurd")
	ok(t, l.operator().RetryQuarantined(t.Context(), 1, note))
	l.goesOn()
	if got := l.text("select (retry is null and resolved_at is null and error like '%set OperatorConfig.Mapping to that one')::text from fenceline.quarantine"); got != "true" {
		t.Errorf("in quarantine: %s", l.text("select row(q.*)::text from fenceline.quarantine q"))
	}
}

// One whose handler fails then is parked, as it would have been.
func TestAnAdmittedRecordThatFailsIsParked(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{ForgetAfter: time.Nanosecond})
	op := l.operator()
	l.apply(ev(0, 1, 1), end(0, 2))
	l.forget()
	l.apply(of("other", ev(0, 1, 1)))
	ok(t, op.Admit(t.Context(), 1, note))
	l.fails["0.1"] = errBad
	var h *consumer.HandlerError
	key := consumer.StreamKey{Stream: "s", Key: "other"}
	err := l.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := l.guard.Resume(ctx, tx, []consumer.StreamKey{key}, l.handler())
		return err
	})
	if !errors.As(err, &h) {
		t.Fatalf("got %v", err)
	}
	ok(t, l.tx(func(ctx context.Context, tx pgx.Tx) error { return l.guard.Fail(ctx, tx, h.Delivery, h.Err) }))
	l.goesOn()
	if got := l.parked() + ", " + l.text("select outcome from fenceline.quarantine"); got != "1 failing, parked" {
		t.Fatalf("got %s", got)
	}
	l.outcomes(l.apply(of("other", ev(0, 1, 2))), "parked 4f gap")
	delete(l.fails, "0.1")
	ok(t, op.Retry(t.Context(), key, note))
	l.outcomes(l.goesOn(), "+applied 4e", "+applied 4e")
}

// Fails where a guard goes that still has something to say.
func TestOnlyAnEndedLifeOfWhichNothingWaitsIsForgotten(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{ForgetAfter: time.Nanosecond, Streams: map[string]consumer.StreamConfig{"snap": {Policy: consumer.State}}})
	l.apply(ev(0, 1, 1), end(0, 3), // a hole before its end
		of("open", ev(0, 1, 1)),                                                 // not ended
		of("next", ev(0, 1, 1)), of("next", end(0, 2)), of("next", ev(5, 1, 2)), // a later life waits
		of("done", ev(3, 1, 1)), of("done", end(3, 2)))
	if n := l.forget(); n != 1 {
		t.Fatalf("forgot %d", n)
	}
	if got := l.text("select string_agg(key, ' ' order by key) || ' ' || (select (forgotten - $1)::text from fenceline.consumer_stream) from fenceline.guard", life); got != "k next open 3" {
		t.Fatalf("left, and forgotten up to: %s", got)
	}
	// Something went unread: a late copy of any life may come.
	l.apply(of("done", ev(9, 1, 1)), of("done", end(9, 2)))
	l.exec("insert into fenceline.consumer_offset (consumer, topic, partition, next_offset, truncated_at) values ('c', 's', 0, 9, now())")
	if n := l.forget(); n != 0 {
		t.Fatalf("forgot %d of a truncated partition", n)
	}
}

// X15, the race: whoever comes second finds either the guard, or that it was
// forgotten.
func TestForgettingWaitsForNobodyAndNobodyFindsNeither(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{ForgetAfter: time.Nanosecond})
	ctx := t.Context()
	l.apply(ev(0, 1, 1), end(0, 2))
	m := l.member(ctx)
	m.start(ctx, l, ev(0, 1, 1))
	m.wait(l)
	if n := l.forget(); n != 0 {
		t.Fatalf("forgot %d that somebody holds", n)
	}
	ok(t, m.tx.Rollback(ctx))

	one := l.member(ctx)
	var f consumer.Forgetting
	n, err := l.guard.Forget(ctx, one.tx, &f)
	if n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	two := l.member(ctx)
	two.start(ctx, l, ev(0, 1, 1))
	pgtest.WaitBlocked(t, l.admin, two.pid, one.pid)
	ok(t, one.tx.Commit(ctx))
	two.wait(l)
	l.outcomes(two.rs, "quarantined 1 before_memory")
}

func (l *lab) truncate(from, to int64) {
	l.Helper()
	if _, err := l.pool.Exec(context.Background(), "select fenceline.restart_partition('c', 's', 0, $2, true, $1, $2)", from, to); err != nil {
		l.Fatal(err)
	}
}

// X19.
func TestNoLifeIsProvenUntilATruncationIsAcceptedAndThenTheParksGoOn(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	l.apply(ev(0, 1, 1), end(0, 2))
	l.truncate(10, 20)
	l.truncate(40, 50)
	l.outcomes(l.apply(ev(4, 1, 1), of("other", ev(0, 1, 1))), "parked 5e life", "applied 2")
	if rs := l.goesOn(); len(rs) != 0 {
		t.Fatalf("it went on by itself: %+v", rs)
	}
	p := consumer.Partition{Topic: "s"}
	list, err := op.Partitions(t.Context())
	ok(t, err)
	if len(list) != 1 || list[0].TruncatedAt.IsZero() || list[0].LostFrom != 10 || list[0].LostTo != 50 {
		t.Fatalf("got %+v", list)
	}
	accepted, err := op.AcceptTruncation(t.Context(), p, note)
	if !accepted || err != nil {
		t.Fatalf("%v, %v", accepted, err)
	}
	l.outcomes(l.goesOn(), "+applied 5d")
	l.effects("0.1", "0.1", "4.1")
	if got := l.audited(); got != "accept anna ticket 7 s/0 10-50" {
		t.Fatalf("audited: %s", got)
	}
	if accepted, err = op.AcceptTruncation(t.Context(), p, note); accepted || err != nil {
		t.Fatalf("again: %v, %v", accepted, err)
	}
	_, err = op.AcceptTruncation(t.Context(), consumer.Partition{Topic: "t"}, note)
	refused(t, err, "not read")
}

// Fails where the flag is read without its row being held: what is parked for it
// after it was accepted would never go on.
func TestAcceptingWaitsForThoseWhoDecideWhileTheFlagStands(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	ctx := t.Context()
	l.apply(ev(0, 1, 1), end(0, 2))
	l.truncate(10, 20)
	m := l.member(ctx)
	m.start(ctx, l, ev(4, 1, 1))
	m.wait(l)
	var work sync.WaitGroup
	var err error
	work.Go(func() { _, err = op.AcceptTruncation(ctx, consumer.Partition{Topic: "s"}, note) })
	pgtest.WaitTrue(t, l.admin, "select exists (select from pg_stat_activity where $1::int = any(pg_blocking_pids(pid)))", int32(m.pid))
	ok(t, m.tx.Commit(ctx))
	work.Wait()
	ok(t, err)
	l.outcomes(l.goesOn(), "+applied 5d")
}

// The flag would be gone, the parks would stand, and accepting again would fail again.
func TestATruncationIsAcceptedWholeWhateverTheLoginBeginsTransactionsWith(t *testing.T) {
	for setting, value := range map[string]string{"default_transaction_read_only": "on", "default_transaction_isolation": "serializable"} {
		t.Run(setting, func(t *testing.T) {
			l := newLab(t, consumer.GuardConfig{})
			c := l.role("operator").Config()
			c.ConnConfig.RuntimeParams[setting] = value
			pool, err := pgxpool.NewWithConfig(t.Context(), c)
			ok(t, err)
			t.Cleanup(pool.Close)
			op, err := consumer.NewOperator(t.Context(), pool, consumer.OperatorConfig{Consumer: l.cfg.Consumer})
			ok(t, err)
			l.apply(ev(0, 1, 1), end(0, 2))
			l.truncate(10, 50)
			l.apply(ev(4, 1, 1))
			accepted, err := op.AcceptTruncation(t.Context(), consumer.Partition{Topic: "s"}, note)
			if !accepted || err != nil {
				t.Fatalf("%v, %v", accepted, err)
			}
			l.outcomes(l.goesOn(), "+applied 5d")
		})
	}
}

// B: see TestCaseBOnlyATombstoneTellsOfALifeInTheOldPartition.
func TestAChangedNumberOfPartitionsIsRefusedUntilItIsAccepted(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{})
	op := l.operator()
	pin := func(n int) error {
		return l.tx(func(ctx context.Context, tx pgx.Tx) error { return l.guard.PinTopic(ctx, tx, "s", n) })
	}
	ok(t, pin(2))
	ok(t, pin(2))
	var changed *consumer.PartitionsChangedError
	if err := pin(3); !errors.Is(err, consumer.ErrPartitionsChanged) || !errors.As(err, &changed) || changed.Have != 2 || changed.Found != 3 {
		t.Fatalf("got %v", err)
	}
	accept := func(n int, ends map[int]int64) error { return op.AcceptTopic(t.Context(), "s", n, ends, note) }
	refused(t, accept(3, map[int]int64{0: 0}), "partition 1")
	refused(t, accept(3, map[int]int64{0: 4, 1: 0}), "partition 0 was not read")
	l.exec("insert into fenceline.consumer_offset (consumer, topic, partition, next_offset) values ('c', 's', 0, 3)")
	refused(t, accept(3, map[int]int64{0: 4, 1: 0}), "read up to 3")
	refused(t, accept(1, nil), "only gets more")
	l.exec("update fenceline.consumer_offset set next_offset = 4")
	l.apply(ev(0, 1, 1), ev(0, 1, 3))
	refused(t, accept(3, map[int]int64{0: 4, 1: 0}), "is parked")
	l.apply(ev(0, 1, 2))
	l.truncate(1, 4)
	refused(t, accept(3, map[int]int64{0: 4, 1: 0}), "went unread")
	l.exec("update fenceline.consumer_offset set truncated_at = null")
	ok(t, accept(3, map[int]int64{0: 4, 1: 0}))
	ok(t, pin(3))
}

func TestStreamsThatStandForTooLongAreOverdue(t *testing.T) {
	l := newLab(t, consumer.GuardConfig{GapAlarm: time.Hour, Streams: map[string]consumer.StreamConfig{"quick": {GapAlarm: time.Minute}}})
	quick := ev(0, 1, 3)
	quick.Stream, quick.Topic = "quick", "quick"
	first := quick
	first.Seq, first.History = 1, life
	l.apply(ev(0, 1, 1), ev(0, 1, 3), first, quick)
	overdue := func() (names []string) {
		ok(t, l.tx(func(ctx context.Context, tx pgx.Tx) error {
			list, err := l.guard.Overdue(ctx, tx, 10)
			for _, b := range list {
				names = append(names, b.Stream)
				if b.Reason != consumer.Gap || b.Parked != 1 || b.Seq != 1 {
					t.Errorf("got %+v", b)
				}
			}
			return err
		}))
		return names
	}
	expect(t, overdue())
	l.exec("update fenceline.guard set blocked_since = blocked_since - interval '10 minutes'")
	expect(t, overdue(), "quick")
	l.exec("update fenceline.guard set blocked_since = blocked_since - interval '1 hour'")
	if got := overdue(); len(got) != 2 {
		t.Fatalf("overdue: %v", got)
	}
}
