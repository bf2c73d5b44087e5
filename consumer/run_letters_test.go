package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
)

// As one that is too large for the topic of dead letters.
func TestADeadLetterThatItsSinkRefusesForEverKeepsNoOther(t *testing.T) {
	b := newBench(t)
	t.Cleanup(consumer.TryLettersAgainAtOnce())
	log := newMemory("t")
	log.publish(events("t", "a", 1, 8)...)
	cfg := b.config()
	cfg.Policy, cfg.PollInterval = consumer.State, 2*time.Millisecond
	var larger atomic.Bool // the topic's limit was raised
	cfg.DeadLetters = func(_ context.Context, letters []consumer.DeadLetter) error {
		for _, l := range letters {
			if (l.Seq == 2 || l.Seq == 3) && !larger.Load() {
				return errors.New("it is too large")
			}
		}
		return nil
	}
	b.run(log.source(), cfg, consumer.HandlerFunc(func(context.Context, pgx.Tx, consumer.Delivery) error {
		return consumer.Reject(errPoison)
	}))
	taken := func(want string) func() bool {
		return func() bool {
			return b.one("select coalesce(string_agg(seq::text, ' ' order by seq), '') from fenceline.dead where forwarded_at is not null") == want
		}
	}
	b.eventually("the others are taken", taken("1 4 5 6 7 8"))
	log.publish(events("t", "a", 9, 10)...)
	b.eventually("also those that come later", taken("1 4 5 6 7 8 9 10"))
	larger.Store(true)
	b.eventually("in the end all are", taken("1 2 3 4 5 6 7 8 9 10"))
}
