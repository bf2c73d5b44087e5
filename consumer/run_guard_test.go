package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func TestADuplicateInTwoMembersAtOnceIsAppliedOnce(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	for range 5 {
		log.publish(events("t", "a", 1, 40)...)
		log.publish(events("t", "b", 1, 40)...)
	}
	cfg := b.config()
	cfg.BatchSize = 7
	log.rewind(0) // where both begin, whatever the other one has done
	log.commitFails = true
	one := b.run(log.source(), cfg, b.apply("one"))
	two := b.run(log.source(), cfg, b.apply("two"))
	b.eventually("both members read everything", func() bool {
		return b.seen.count(consumer.Applied)+b.seen.count(consumer.Duplicate) == 2*5*80
	})
	if err := one(); err != nil {
		t.Fatal(err)
	}
	if err := two(); err != nil {
		t.Fatal(err)
	}
	b.want("a", effects("a", 1, 40)...)
	b.want("b", effects("b", 1, 40)...)
}

// The crash is between the two commits: the database has the batch, Kafka has
// not been told. Fails when the offset is committed to Kafka first, in the form
// of the next test, and when guard and effect are in two transactions.
func TestWhatCommittedBeforeACrashIsRefusedWhenItIsDeliveredAgain(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 20)...)
	log.commitFails = true
	stop := b.run(log.source(), b.config(), b.apply("one"))
	b.eventually("everything is applied", func() bool { return len(b.applied("")) == 20 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if log.offset() != consumer.NoOffset {
		t.Fatalf("kafka's offset is %d", log.offset())
	}
	// The database's own offset would spare us the redelivery that this is about.
	log.commitFails = false
	log.rewind(0)
	b.run(log.source(), b.config(), b.apply("two"))
	b.eventually("everything is delivered again", func() bool { return b.seen.count(consumer.Duplicate) == 20 })
	b.want("", effects("a", 1, 20)...)
}

func TestKafkasOffsetNeverPassesWhatTheDatabaseHasCommitted(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 10)...)
	reached, goOn := make(chan struct{}), make(chan struct{})
	cfg := b.config()
	cfg.OffsetInterval = time.Millisecond
	cfg.BatchSize = 4
	b.run(log.source(), cfg, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if d.Seq == 7 {
			close(reached)
			wait(t, goOn) // in the second batch, inside its transaction
		}
		return b.apply("one")(ctx, tx, d)
	}))
	<-reached
	b.eventually("the first batch's offset is committed", func() bool { return log.offset() >= 4 })
	// Give a commit that runs ahead every chance to be seen.
	for range 20 {
		if o := log.offset(); o != 4 {
			t.Errorf("kafka's offset is %d while the database has 4", o)
			break
		}
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	b.eventually("the rest follows", func() bool { return log.offset() == 10 })
	b.want("", effects("a", 1, 10)...)
}

// Rebalance in the middle of a handler: the old owner is inside its transaction
// when the new one reads the same events, and later ones.
func TestARebalanceInTheMiddleOfAHandlerEndsInTheSameStateWhoeverCommitsFirst(t *testing.T) {
	for _, commits := range []bool{true, false} {
		name := "the old owner commits"
		if !commits {
			name = "the old owner is killed"
		}
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 5)...)
			inside, goOn := make(chan uint32, 1), make(chan struct{})
			old := log.source()
			cfg := b.config()
			b.run(old, cfg, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
				if err := b.apply("old")(ctx, tx, d); err != nil {
					return err
				}
				if d.Seq == 3 {
					select {
					case inside <- tx.Conn().PgConn().PID():
						wait(t, goOn)
					default:
					}
				}
				return nil
			}))
			pid := <-inside
			old.revoke()
			log.publish(events("t", "a", 6, 9)...)
			b.run(log.source(), cfg, b.apply("new"))
			b.eventually("the new owner waits for the old one's guard", func() bool {
				return b.one(`select count(*)::text from pg_stat_activity where $1::int = any (pg_blocking_pids(pid))`, pid) == "1"
			})
			if !commits {
				b.exec("select pg_terminate_backend($1)", pid)
				pgtest.WaitGone(t, b.pool, pid)
			}
			close(goOn)
			b.eventually("everything is applied", func() bool { return len(b.applied("")) >= 9 && log.offset() == 9 })
			b.want("", effects("a", 1, 9)...)
		})
	}
}

func TestAGroupThatIsRewoundAppliesNothingAgain(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	const n = 300
	for _, k := range []string{"a", "b", "c"} {
		log.publish(events("t", k, 1, n)...)
	}
	for round := range 3 {
		log.rewind(0)
		stop := b.run(log.source(), b.config(), b.apply("x"))
		b.eventually("everything is read", func() bool {
			return b.seen.count(consumer.Applied)+b.seen.count(consumer.Duplicate) == (round+1)*3*n
		})
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.seen.count(consumer.Applied); got != 3*n || len(b.applied("")) != 3*n {
		t.Errorf("applied %d, effects %d, want %d", got, len(b.applied("")), 3*n)
	}
	if got := b.stored("t"); got != "900" {
		t.Errorf("the stored offset is %s", got)
	}
}

// watching looks at the stored offset after each batch.
type watching struct {
	*recorder
	committed func()
}

func (w watching) Committed(c consumer.Committed) {
	w.committed()
	w.recorder.Committed(c)
}

func TestTheStoredOffsetNeverMovesBackWhileOldRecordsAreReadAgain(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 12)...)
	b.upTo(log, b.config(), 12)
	log.rewind(0)
	cfg := b.config()
	cfg.BatchSize = 5
	cfg.Observer = watching{&b.seen, func() {
		if got := b.stored("t"); got != "12" {
			t.Errorf("the stored offset is %s", got)
		}
	}}
	b.run(log.source(), cfg, b.apply("x"))
	b.eventually("everything is read again", func() bool { return b.seen.count(consumer.Duplicate) == 12 })
	b.want("", effects("a", 1, 12)...)
}
