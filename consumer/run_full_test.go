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

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// unstoredFrom is the lowest offset of what did not fit, or -1.
func (b *bench) unstoredFrom() string {
	return b.one("select coalesce(min(overflow_offset), -1)::text from fenceline.consumer_offset")
}

// A hole at 2 of key a, and far more behind it than may be kept. Were the
// partition paused instead, the filler could never be read; were what doesn't fit
// passed, it would be lost.
func TestWhatDoesNotFitIsReadAgainWhenThereIsRoomAndTheOffsetWaitsForIt(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %t", restart), func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.page = 7
			cfg := b.config()
			cfg.BatchSize = 5
			cfg.PollInterval = 10 * time.Millisecond
			cfg.Limits = consumer.Limits{KeyRecords: 3}
			log.publish(event("t", "a", 1))
			for seq := int64(3); seq <= 20; seq++ {
				log.publish(event("t", "a", seq), event("t", "b", seq-2))
			}
			stop := b.run(log.source(), cfg, b.apply("x"))
			b.eventually("the other key is read to its end", func() bool { return len(b.applied("b")) == 18 })
			b.eventually("kafka is told", func() bool { return log.offset() > 0 })
			b.want("a", "a/1")
			if got := b.one("select count(*)::text from fenceline.parked"); got != "3" && got != "4" { // the next one is always kept
				t.Errorf("%s are parked, want no more than the limit", got)
			}
			// 3, 4, 5 are at 1, 3, 5; 6 is at 7.
			if o := log.offset(); o > 7 || b.unstoredFrom() == "-1" {
				t.Errorf("kafka's offset is %d, and what did not fit begins at %s", o, b.unstoredFrom())
			}
			if b.seen.alarmed(consumer.Full) == 0 {
				t.Error("no alarm")
			}
			if restart {
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				if o := log.offset(); o > 7 {
					t.Errorf("kafka's offset is %d after the stop", o)
				}
				b.run(log.source(), cfg, b.apply("y"))
			}
			log.publish(event("t", "a", 2))
			b.eventually("everything is applied", func() bool { return len(b.applied("a")) == 20 })
			b.want("a", effects("a", 1, 20)...)
			b.want("b", effects("b", 1, 18)...)
			b.eventually("the offset is at the end", func() bool { return log.offset() == 38 && b.unstoredFrom() == "-1" })
			if got := b.one("select count(*)::text from fenceline.parked"); got != "0" {
				t.Errorf("%s are still parked", got)
			}
		})
	}
}

// What is read again must leave time for what is new, where the missing event comes
// from. Key b has caught up and counts as one with room, until all that did not fit
// was read; but a stands at its hole, so that each reading from there is in vain. It
// takes longer than the pause between two looks whether there is room.
func TestReadingAgainInVainDoesNotKeepWhatIsNewFromBeingRead(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.page = 1
	cfg := b.config()
	cfg.BatchSize = 1
	cfg.PollInterval = time.Millisecond
	cfg.Limits = consumer.Limits{KeyRecords: 1}
	log.publish(event("t", "a", 1), event("t", "b", 1))
	for seq := int64(3); seq <= 12; seq++ {
		log.publish(event("t", "a", seq), event("t", "b", seq))
	}
	log.publish(event("t", "b", 2))
	b.run(log.source(), cfg, b.apply("x"))
	b.eventually("b has caught up", func() bool { return len(b.applied("b")) == 12 })
	readings := func() int { return strings.Count(b.log.String(), "reading what did not fit") }
	n := readings()
	b.eventually("it is read again in vain", func() bool { return readings() > n })
	log.publish(event("t", "a", 2))
	b.eventually("the hole is filled", func() bool { return len(b.applied("a")) == 12 })
	b.want("a", effects("a", 1, 12)...)
	b.want("b", effects("b", 1, 12)...)
	b.eventually("nothing is left", func() bool { return b.unstoredFrom() == "-1" })
}

// What comes behind it in the log can have filled the park again by the time that it
// is the next: then there is room for nothing, and everything waits for it.
func TestWhatDidNotFitIsReadAgainAlsoWhereTheParkIsFullAgain(t *testing.T) {
	a := func(seqs ...int64) (rs []outbox.Record) {
		for _, seq := range seqs {
			rs = append(rs, event("t", "a", seq))
		}
		return rs
	}
	for name, c := range map[string]struct {
		limits consumer.Limits
		log    []outbox.Record
	}{
		"of its key":        {consumer.Limits{KeyRecords: 3}, a(1, 2, 4, 5, 6, 7, 3, 9, 10, 11, 8)},
		"of its key's last": {consumer.Limits{KeyRecords: 2}, a(1, 3, 4, 5, 6, 7, 2, 8, 9)},
		"of all keys":       {consumer.Limits{Records: 4}, append([]outbox.Record{event("t", "z", 1), event("t", "z", 3), event("t", "z", 4), event("t", "z", 5)}, a(1, 3, 4, 5, 2, 6, 7)...)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(c.log...)
			cfg := b.config()
			cfg.PollInterval, cfg.Limits = time.Millisecond, c.limits
			b.run(log.source(), cfg, b.apply("x"))
			want := effects("a", 1, slices.MaxFunc(c.log, func(x, y outbox.Record) int { return int(x.Seq - y.Seq) }).Seq)
			b.eventually("all of the key is applied", func() bool { return len(b.applied("a")) == len(want) })
			b.want("a", want...)
		})
	}
}

// Another partition's transaction, of another member even, has displaced a record of
// one in which nothing arrives any more.
func TestWhatAnotherPartitionDisplacedIsReadAgainAlsoWhereNothingArrives(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	cfg := b.config()
	cfg.PollInterval = 5 * time.Millisecond
	b.run(log.source(), cfg, b.apply("x"))
	b.eventually("everything is read", func() bool { return log.offset() == 3 })
	b.exec(`update fenceline.guard set unstored = '{t/0}', unstored_epochs = int8multirange(int8range(epoch, epoch + 1));
		update fenceline.consumer_offset set overflow_offset = 1, overflow_end = 2`) // in one transaction
	b.eventually("it is read again", func() bool { return b.seen.count(consumer.Duplicate) == 2 && b.unstoredFrom() == "-1" })
	b.eventually("that is known of the stream", func() bool { return b.one("select unstored::text from fenceline.guard") == "{}" })
	if n := b.seen.alarmed(consumer.Full); n != 1 {
		t.Errorf("%d alarms that not all did fit, want 1", n)
	}
	b.want("", effects("a", 1, 3)...)
}

// What did not fit lay in a topic that was created anew since, at offsets that are
// yet to be read in the new one: to go "back" there would leave out what lies in
// between, and nothing would read it one day.
func TestWhatDidNotFitInATopicThatIsGoneHidesNothingOfTheNewOne(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.page = 1 // whether there is room is asked behind each record
	cfg := b.config()
	cfg.PollInterval = time.Millisecond
	cfg.Limits = consumer.Limits{KeyRecords: 1}
	until := func(next string) {
		stop := b.run(log.source(), cfg, b.apply("x"))
		b.eventually("everything is read", func() bool { return b.stored("t") == next })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	log.publish(append(events("t", "x", 1, 5), event("t", "a", 1))...)
	log.publish(events("t", "a", 3, 12)...) // of which one fits
	until("16")
	if got := b.unstoredFrom(); got != "7" {
		t.Fatalf("what did not fit begins at %s", got)
	}
	log.recreate()
	log.publish(event("t", "a", 2), event("t", "x", 6)) // a goes on: there is room for the rest
	until("2")
	if got := b.unstoredFrom(); got != "7" {
		t.Fatalf("what did not fit begins at %s in the new topic", got)
	}
	log.publish(event("t", "y", 1), event("t", "alone", 1))
	log.publish(events("t", "y", 2, 9)...)
	until("12")
	b.want("alone", "alone/1")
	b.want("y", effects("y", 1, 9)...)
}

func TestAChangedNumberOfPartitionsIsRefusedAlsoByAProcessThatNeverSawTheOldOne(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 2)...)
	b.upTo(log, b.config(), 2)
	log.partitions = 4
	log.publish(events("t", "a", 3, 4)...)
	b.failsWith(log, b.config(), consumer.ErrPartitionsChanged)
	b.want("", effects("a", 1, 2)...)
	log.partitions = 1
	b.upTo(log, b.config(), 4)
}

func TestAStreamThatStandsForTooLongRaisesOneAlarm(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "a", 3), event("t", "b", 1))
	cfg := b.config()
	cfg.GapAlarm, cfg.PollInterval = time.Millisecond, time.Millisecond
	b.run(log.source(), cfg, b.apply("x"))
	b.eventually("the alarm", func() bool { return b.seen.alarmed(consumer.Overdue) > 0 })
	polls := func() string {
		return b.one("select xact_commit::text from pg_stat_database where datname = current_database()")
	}
	for was, n := polls(), 0; n < 3; { // rounds go by
		if now := polls(); now != was {
			was, n = now, n+1
		}
		time.Sleep(time.Millisecond)
	}
	b.seen.mu.Lock()
	defer b.seen.mu.Unlock()
	var about []consumer.StreamKey
	for _, a := range b.seen.alarms {
		if a.Kind == consumer.Overdue {
			about = append(about, a.Stream)
		}
	}
	if want := []consumer.StreamKey{{Stream: "t", Key: "a"}}; !slices.Equal(about, want) {
		t.Errorf("alarms about %v, want %v", about, want)
	}
}

// A rebalance is nothing that an operator should look at again.
func TestARebalanceRaisesNoAlarmAgainOfAStreamThatStands(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "a", 3))
	cfg := b.config()
	cfg.GapAlarm, cfg.PollInterval = time.Millisecond, time.Millisecond
	source := log.source()
	b.run(source, cfg, b.apply("x"))
	b.eventually("the alarm", func() bool { return b.seen.alarmed(consumer.Overdue) == 1 })
	source.revoke()
	b.eventually("the next generation", func() bool { return strings.Count(b.log.String(), "partitions assigned") == 2 })
	log.publish(event("t", "b", 1), event("t", "b", 3)) // a round that finds this finds the other, which stands longer
	b.eventually("the next alarm", func() bool { return b.seen.alarmed(consumer.Overdue) > 1 })
	b.seen.mu.Lock()
	defer b.seen.mu.Unlock()
	var about []string
	for _, a := range b.seen.alarms {
		about = append(about, a.Stream.Key)
	}
	if want := []string{"a", "b"}; !slices.Equal(about, want) {
		t.Errorf("alarms about %v, want %v", about, want)
	}
}

func TestDeadLettersAreHandedOutAndAgainUntilTheyAreTaken(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 5)...)
	var mu sync.Mutex
	var got []string
	tries := 0
	cfg := b.config()
	cfg.Policy, cfg.PollInterval = consumer.State, 5*time.Millisecond
	cfg.DeadLetters = func(_ context.Context, letters []consumer.DeadLetter) error {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries < 3 {
			return errors.New("the topic of dead letters is away")
		}
		for _, l := range letters {
			rec, err := outbox.ParseWire(l.Topic, l.Record.Key, l.Record.Value, l.Record.Time, l.Record.Headers)
			if err != nil || rec.Seq != l.Seq {
				t.Errorf("%s is %v, %v as a record", l.Position, rec.Seq, err)
			}
			got = append(got, fmt.Sprintf("%s@%d: %s", l.Position, l.Offset, l.Error))
		}
		return nil
	}
	b.run(log.source(), cfg, b.failing("a", 3, poison))
	want := []string{fmt.Sprintf("t[a] %d/3@2: poison", int64(testEpoch))}
	b.eventually("the letter is taken", func() bool { mu.Lock(); defer mu.Unlock(); return slices.Equal(got, want) })
	b.eventually("that is noted", func() bool { return b.one("select count(forwarded_at)::text from fenceline.dead") == "1" })
	b.eventually("everything is read", func() bool { return log.offset() == 5 })
	b.want("", "a/1", "a/2", "a/4", "a/5")
}
