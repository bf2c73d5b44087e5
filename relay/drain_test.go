package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

func TestDrainPublishesWhatIsCommittedAndReturns(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	cfg := quick()
	drained := func(want int64) {
		t.Helper()
		d, err := Drain(bg, pool, kafka, cfg)
		if err != nil || d.Records != want || d.Held != 0 || len(d.Refused) != 0 {
			t.Fatalf("%+v, %v, want %d records", d, err, want)
		}
	}
	drained(0)
	p, slow := newProducer(t, pool, "k"), newProducer(t, pool, "slow")
	open := slow.begin().enter().append("a", "open")
	for i := range 50 {
		p.publish("a", fmt.Sprint(i))
		p.publish("b", fmt.Sprint(i))
	}
	cfg.PageSize = 7
	drained(100) // it doesn't wait for what is not committed
	if kafka.has("a", "open") {
		t.Error("what isn't committed is published")
	}
	drained(0)
	open.commit()
	drained(1)
	if !kafka.has("a", "open") {
		t.Error("a straggler is not published")
	}
}

func TestDrainLeavesWhatTheBrokerRefusesAndSaysSo(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p, other := newProducer(t, pool, "k"), newProducer(t, pool, "other")
	p.publish("a", "fine", "poison", "behind")
	other.publish("missing", "x")
	other.publish("a", "y")
	kafka.answer(refusing("poison"))
	cfg := quick()
	cfg.Grace = 50 * time.Millisecond
	d, err := Drain(bg, pool, kafka, cfg)
	if err != nil || d.Held != 1 || strings.Join(d.Refused, " ") != "missing" {
		t.Fatalf("%+v, %v", d, err)
	}
	if !kafka.has("a", "fine") || !kafka.has("a", "y") || kafka.has("a", "behind") {
		t.Errorf("published: %v", kafka.payloads("a"))
	}
	kafka.create("missing", 1)
	cfg.Grace = time.Minute
	if d, err = Drain(bg, pool, kafka, cfg); err != nil || len(d.Refused) != 0 || !kafka.has("missing", "x") {
		t.Errorf("once the topic is there: %+v, %v", d, err)
	}
}

// Where only drains run, nobody else does what an operator has asked for.
func TestDrainDoesWhatAnOperatorHasAskedOfAHeldStream(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	newProducer(t, pool, "k").publish("a", "1", "poison", "3")
	newProducer(t, pool, "l").publish("a", "4", "poison", "6")
	kafka.answer(refusing("poison"))
	cfg := quick()
	drained := func(held int) {
		t.Helper()
		if d, err := Drain(bg, pool, kafka, cfg); err != nil || d.Held != held {
			t.Fatalf("%+v, %v; want %d held", d, err, held)
		}
	}
	drained(2)
	operator, err := NewOperator(bg, pool, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := operator.Skip(bg, "a", "k", 0, By{Who: "me"}); err != nil {
		t.Fatal(err)
	}
	if _, err := operator.Retry(bg, "a", "l", By{Who: "me"}); err != nil {
		t.Fatal(err)
	}
	drained(1) // the one that was retried is refused again
	if !kafka.has("a", "3") || kafka.has("a", "6") {
		t.Errorf("published: %q", kafka.payloads("a"))
	}
	drained(1) // and asked for once: nothing is waited for
	kafka.answer(nil)
	if _, err := operator.Retry(bg, "a", "l", By{Who: "me"}); err != nil {
		t.Fatal(err)
	}
	drained(0)
	if !kafka.has("a", "6") {
		t.Errorf("published: %q", kafka.payloads("a"))
	}
	firsts(t, kafka.logs["a"])
}

// Nothing else of the topic waits, and only drains run.
func TestDrainGivesTheHeldStreamsOfARetiredTopicTheirVerdict(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "gone")
	newProducer(t, pool, "k").publish("gone", "poison", "2")
	kafka.answer(refusing("poison"))
	cfg := quick()
	if d, err := Drain(bg, pool, kafka, cfg); err != nil || d.Held != 1 {
		t.Fatalf("%+v, %v; want one held", d, err)
	}
	kafka.remove("gone")
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "the topic is refused", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 1 })
	r.end()
	if _, err := operator(t, pool).RetireTopic(bg, "gone", By{Who: "me"}); err != nil {
		t.Fatal(err)
	}
	if d, err := Drain(bg, pool, kafka, cfg); err != nil || d.Held != 0 {
		t.Errorf("%+v, %v; want none held", d, err)
	}
	if n := query[int](t, pool, "select count(*) from fenceline.outbox where verdict = 'retired'"); n != 2 {
		t.Errorf("%d events have their verdict, want 2", n)
	}
}

func TestDrainWaitsForWhatAnotherRelayPublishes(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	r := startRelay(t, pool, kafka, quick())
	r.passed(1)
	p := newProducer(t, pool, "k")
	p.publish("a", "x")
	if _, err := Drain(bg, pool, kafka, quick()); err != nil || !kafka.has("a", "x") {
		t.Errorf("%v, published: %v", err, kafka.payloads("a"))
	}
	r.end()
}

func TestDrainEndsWithThePauseTheContextAndRunsErrors(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("a", "x")
	if _, err := SetPause(bg, pool, "", true, "alice", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Drain(bg, pool, kafka, quick()); !errors.Is(err, ErrPaused) {
		t.Errorf("paused: %v", err)
	}
	if _, err := Republish(bg, pool, kafka, RepublishConfig{Key: "k", Who: "alice"}); !errors.Is(err, ErrPaused) {
		t.Errorf("republished while paused: %v", err)
	}
	if _, err := SetPause(bg, pool, "", false, "alice", ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bg)
	kafka.answer(func(context.Context, *Batch) error { cancel(); return errAway })
	cfg := quick()
	cfg.Grace = time.Millisecond
	if _, err := Drain(ctx, pool, kafka, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	kafka.answer(func(context.Context, *Batch) error { return ErrFenced })
	if _, err := Drain(bg, pool, kafka, quick()); !errors.Is(err, ErrFenced) {
		t.Errorf("fenced: %v", err)
	}
	if _, err := Drain(bg, pool, kafka, Config{LeaseTTL: -1}); err == nil {
		t.Error("what isn't valid is accepted")
	}
}

func TestDrainPublishesTheOtherPartitionsOfATopicOfWhichOneHasNoLeader(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	headless(kafka, "a", 1)
	waits, flows := newProducer(t, pool, keysOf(1, 1)[0]), newProducer(t, pool, keysOf(2, 1)[0])
	waits.publish("a", "waits")
	flows.publish("a", "flows") // as what fails alone is set aside
	var log lines
	cfg := quick()
	cfg.LeaseTTL, cfg.Logger = time.Minute, log.logger() // who is slow has not lost it
	cfg.PartitionGrace = 10 * time.Millisecond
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "the partition is set aside", func() bool {
		return query[int](t, pool, "select count(*) from fenceline.relay_fork where partition = 1") == 1
	})
	r.end()

	waits.publish("a", "waits, too")
	flows.publish("a", "flows, too")
	// The other partition answers late, and a drain that doesn't wait for it has ended
	// by then.
	var late atomic.Pointer[time.Time]
	kafka.answer(func(ctx context.Context, b *Batch) error {
		if b.Partition == 1 {
			return errAway
		}
		now := time.Now()
		late.CompareAndSwap(nil, &now)
		if now.Sub(*late.Load()) < time.Second {
			return errAway
		}
		return nil
	})
	cfg.PartitionGrace, cfg.Grace = time.Hour, 50*time.Millisecond
	d, err := Drain(bg, pool, kafka, cfg)
	if err != nil || len(d.Refused) != 1 {
		t.Errorf("%+v, %v; want one refused topic", d, err)
	}
	if !kafka.has("a", "flows, too") {
		t.Errorf("published: %q", kafka.payloads("a"))
	}
	kafka.answer(nil)
	cfg.Grace = time.Minute
	if d, err = Drain(bg, pool, kafka, cfg); err != nil || len(d.Refused) != 0 || !kafka.has("a", "waits, too") {
		t.Errorf("when the partition is back: %+v, %v\n%s", d, err, log.String())
	}
	firsts(t, kafka.logs["a"])
}

// The grace time of a refused topic begins when somebody can ask the broker for it.
func TestDrainGivesARefusedTopicItsTimeThoughItsShardsAreStillADeadInstances(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t)
	newProducer(t, pool, "k").publish("missing", "x")
	cfg := quick()
	cfg.Grace = 50 * time.Millisecond
	if d, err := Drain(bg, pool, kafka, cfg); err != nil || len(d.Refused) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	for n := range outbox.Shards {
		seize(t, pool, n, 2*time.Second)
	}
	var asked atomic.Bool
	cfg.LeaseTTL = time.Minute
	cfg.Hooks.Shards = func(shards []int) { asked.Store(asked.Load() || len(shards) > 0) }
	d, err := Drain(bg, pool, kafka, cfg)
	if err != nil || len(d.Refused) != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if !asked.Load() {
		t.Error("it has ended before it had a shard, and says of the topic that it is refused")
	}
}
