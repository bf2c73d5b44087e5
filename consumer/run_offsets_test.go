package consumer_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// upTo runs a consumer until it has read everything, and stops it.
func (b *bench) upTo(log *memory, cfg consumer.Config, offset int64) {
	b.t.Helper()
	stop := b.run(log.source(), cfg, b.apply("x"))
	b.eventually("everything is read", func() bool { return log.offset() == offset })
	if err := stop(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) flagged() string {
	b.t.Helper()
	return b.one("select count(*)::text from fenceline.consumer_offset where truncated_at is not null")
}

func TestEventsThatWereDeletedUnreadRaiseAnAlarmAndFlagTheStrictAndReadingGoesOn(t *testing.T) {
	for policy, flagged := range map[consumer.Policy]string{consumer.Strict: "1", consumer.State: "0"} {
		t.Run(string(policy), func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 4)...)
			cfg := b.config()
			cfg.Policy = policy
			b.upTo(log, cfg, 4)
			if b.flagged() != "0" || b.seen.alarmed(consumer.Truncated) != 0 {
				t.Fatal("an alarm without a reason")
			}
			log.publish(events("t", "a", 5, 9)...)
			log.publish(event("t", "b", 1))
			log.cut(6) // 5 and 6 are at offsets 4 and 5
			b.upTo(log, cfg, 10)
			if b.flagged() != flagged || b.seen.alarmed(consumer.Truncated) != 1 {
				t.Errorf("%s flagged, %d alarms", b.flagged(), b.seen.alarmed(consumer.Truncated))
			}
			b.want("b", "b/1")
			if policy == consumer.Strict {
				b.want("a", effects("a", 1, 4)...)
				// What was lost is published again: the rest follows in order.
				log.publish(events("t", "a", 5, 6)...)
				b.upTo(log, cfg, 12)
				b.want("a", effects("a", 1, 9)...)
			} else {
				b.want("a", "a/1", "a/2", "a/3", "a/4", "a/7", "a/8", "a/9")
			}
		})
	}
}

// X12. Nothing follows what was lost, so that no hole will ever show it: that the
// log begins behind the offset is all there is to see.
func TestX12TheLossOfAStreamsLastEventsIsNeverSilent(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	b.upTo(log, b.config(), 3)
	log.publish(events("t", "a", 4, 5)...)
	log.cut(5)
	b.run(log.source(), b.config(), b.apply("x"))
	b.eventually("the loss is an alarm", func() bool { return b.seen.alarmed(consumer.Truncated) == 1 && b.flagged() == "1" })
	b.want("a", effects("a", 1, 3)...)
	log.publish(events("t", "a", 4, 6)...) // published again
	b.eventually("what was lost is applied", func() bool { return len(b.applied("")) == 6 })
	b.want("a", effects("a", 1, 6)...)
}

func TestATopicThatWasCreatedAnewIsReadFromItsBeginningAlsoWhenItHasGrownPastTheOffset(t *testing.T) {
	for name, n := range map[string]int64{"shorter": 2, "as long": 5, "longer": 12} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 5)...)
			b.upTo(log, b.config(), 5)
			log.recreate()
			log.publish(events("t", "new", 1, n)...)
			stop := b.run(log.source(), b.config(), b.apply("x"))
			b.eventually("the new topic is read", func() bool { return len(b.applied("new")) == int(n) && log.offset() == n })
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			b.want("new", effects("new", 1, n)...)
			if b.seen.alarmed(consumer.Truncated) != 1 || b.flagged() != "1" {
				t.Errorf("%d alarms, %s flagged", b.seen.alarmed(consumer.Truncated), b.flagged())
			}
		})
	}
}

func TestATopicThatIsCreatedAnewDuringAnOutageIsNoticedWithoutARestart(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 5)...)
	b.run(log.source(), b.config(), b.apply("x"))
	b.eventually("everything is read", func() bool { return log.offset() == 5 })
	log.mu.Lock()
	log.fetchErrs = []error{errors.New("connection refused"), errors.New("connection refused")}
	log.changed()
	log.mu.Unlock()
	log.recreate()
	log.publish(events("t", "new", 1, 9)...)
	b.eventually("the new topic is read", func() bool { return log.offset() == 9 })
	b.want("new", effects("new", 1, 9)...)
	if b.seen.alarmed(consumer.Truncated) != 1 {
		t.Errorf("%d alarms", b.seen.alarmed(consumer.Truncated))
	}
}

func TestADatabaseThatLostACommitReadsAgainWhatKafkaBelievesWasApplied(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 8)...)
	b.upTo(log, b.config(), 8)
	// The restore: the last three events' transactions never were.
	b.exec("delete from applied where seq > 5")
	b.exec("update fenceline.guard set seq = 5")
	b.exec("update fenceline.consumer_offset set next_offset = 5, last_id = $1", event("t", "a", 5).ID)
	stop := b.run(log.source(), b.config(), b.apply("again"))
	b.eventually("the lost events are applied", func() bool { return len(b.applied("")) == 8 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.want("", effects("a", 1, 8)...)
	if b.seen.alarmed(consumer.OffsetAhead) != 1 {
		t.Errorf("%d alarms", b.seen.alarmed(consumer.OffsetAhead))
	}
}

func TestALogThatNoLongerBeginsAtItsOriginIsFlaggedForWhoeverMustSeeTheOrigin(t *testing.T) {
	for start, flagged := range map[consumer.Start]string{consumer.FromOrigin: "1", consumer.FromFirstSeen: "0"} {
		t.Run(string(start), func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 4)...)
			log.cut(2)
			cfg := b.config()
			cfg.Streams = map[string]consumer.StreamConfig{"t": {Start: start}}
			b.upTo(log, cfg, 4)
			b.upTo(log, cfg, 4) // a second start doesn't flag it again, or for the first time
			if b.flagged() != flagged {
				t.Errorf("flagged: %s", b.flagged())
			}
		})
	}
}

// Another limit for batches, damage behind the consumer's back, or retention
// between two questions say nothing about what the topic was when it was read.
func TestATopicIsTakenForANewOneOnlyWhereTheEventThatWasReadLastIsAnother(t *testing.T) {
	for name, c := range map[string]struct {
		answer     func(*memory) error
		unreadable int
	}{
		"its batch can't be read": {func(m *memory) error {
			return &consumer.BatchError{Partition: m.partition(), Offset: 2, Reason: "larger than MaxBatchBytes"}
		}, 1},
		"retention has just passed it": {func(m *memory) error {
			return &consumer.OffsetError{Partition: m.partition(), Offset: 2, Start: 3, End: 3}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 3)...)
			b.upTo(log, b.config(), 3)
			log.publish(events("t", "a", 4, 5)...)
			log.fail(c.answer(log)) // the first that is asked for is the last that was read
			b.upTo(log, b.config(), 5)
			b.want("", effects("a", 1, 5)...)
			if n := b.seen.alarmed(consumer.Truncated); n != 0 || b.flagged() != "0" {
				t.Errorf("%d alarms say that events went unread, flagged: %s", n, b.flagged())
			}
			if n := b.seen.alarmed(consumer.Unreadable); n != c.unreadable {
				t.Errorf("%d alarms of a batch that can't be read, want %d", n, c.unreadable)
			}
			if n := b.seen.count(consumer.Duplicate); n != 0 {
				t.Errorf("%d events were read again", n)
			}
		})
	}
}

// Who begins with the relay's format and then reads it by a mapping of his own has
// the same topic.
func TestAMappingInThePlaceOfTheRelaysFormatMakesNoOtherTopicOfIt(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	b.upTo(log, b.config(), 3)
	log.publish(events("t", "a", 4, 5)...)
	cfg := b.config()
	cfg.Mapping = func(p consumer.Partition, r consumer.KafkaRecord) (outbox.Record, error) {
		rec, err := consumer.Wire(p, r)
		rec.ID = uuid.NewSHA1(uuid.Nil, r.Value)
		return rec, err
	}
	b.upTo(log, cfg, 5)
	b.upTo(log, cfg, 5)
	b.want("", effects("a", 1, 5)...)
	if n := b.seen.alarmed(consumer.Truncated); n != 0 || b.flagged() != "0" {
		t.Errorf("%d alarms say that events went unread, flagged: %s", n, b.flagged())
	}
}

func TestABatchThatCannotBeReadRaisesOneAlarmAndTheTriesGoOn(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	for range 4 {
		log.fetchErrs = append(log.fetchErrs, &consumer.BatchError{Partition: log.partition(), Offset: 0, Reason: "checksum"})
	}
	b.upTo(log, b.config(), 3)
	if n := b.seen.alarmed(consumer.Unreadable); n != 1 {
		t.Errorf("%d alarms", n)
	}
	b.want("", effects("a", 1, 3)...)
}

func TestAnOlderEventAfterANewerOneIsRefusedAndTheOffsetGoesOn(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	late := []outbox.Record{event("t", "a", 1), event("t", "a", 4), event("t", "a", 2), event("t", "a", 3), event("t", "a", 4), event("t", "a", 5), event("t", "a", 1)}
	log.publish(late...)
	cfg := b.config()
	cfg.Policy = consumer.State
	b.upTo(log, cfg, 7)
	b.want("", "a/1", "a/4", "a/5")
	if s, d := b.seen.count(consumer.Stale), b.seen.count(consumer.Duplicate); s != 2 || d != 2 {
		t.Errorf("%d stale, %d duplicate; want 2 and 2", s, d)
	}
}
