package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
)

// It may wait for a lock that somebody has had since yesterday. What an operator
// decides of another key is carried out all the same.
func TestAParkedEventThatFailsForAPassingReasonKeepsNoOtherKeys(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(event("t", "a", 1), event("t", "a", 2), event("t", "b", 1), event("t", "b", 2))
	cfg := b.config()
	cfg.PollInterval, cfg.StallAlarm = 5*time.Millisecond, time.Millisecond
	var mended, free atomic.Bool
	b.run(log.source(), cfg, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		switch {
		case d.Seq == 1:
		case !mended.Load():
			return consumer.Reject(errPoison)
		case d.Key == "a" && !free.Load():
			_, err := tx.Exec(ctx, "do $$ begin raise exception 'x' using errcode = '55P03'; end $$")
			return err
		}
		return b.apply("x")(ctx, tx, d)
	}))
	b.eventually("both fail for good", func() bool {
		return b.one("select count(*)::text from fenceline.parked where reason = 'failing'") == "2"
	})
	mended.Store(true)
	op, err := consumer.NewOperator(t.Context(), b.pool, consumer.OperatorConfig{Consumer: cfg.Name})
	if err != nil {
		t.Fatal(err)
	}
	ok(t, op.Retry(t.Context(), consumer.StreamKey{Stream: "t", Key: "a"}, note))
	b.eventually("the one is tried", func() bool { return b.seen.failed("55P03") > 0 })
	b.eventually("the alarm says of which stream", func() bool {
		return b.seen.stalled(consumer.StreamKey{Stream: "t", Key: "a"}, "parked events of t[a]")
	})
	if b.seen.failed("parked events of t[a]: ") == 0 {
		t.Error("the observer was not told of which stream")
	}
	ok(t, op.Retry(t.Context(), consumer.StreamKey{Stream: "t", Key: "b"}, note))
	b.eventually("the other goes on", func() bool { return len(b.applied("b")) == 2 })
	b.want("a", "a/1")
	free.Store(true)
	b.eventually("and in the end the one", func() bool { return len(b.applied("a")) == 2 })
	b.want("a", effects("a", 1, 2)...)
	b.want("b", effects("b", 1, 2)...)
}

// stalled says whether there was an alarm that something of the stream stands.
func (r *recorder) stalled(key consumer.StreamKey, text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.alarms, func(a consumer.Alarm) bool {
		return a.Kind == consumer.Stalled && a.Stream == key && strings.Contains(a.Text, text)
	})
}

// However many wait for the same lock.
func TestParkedEventsThatFailForAPassingReasonKeepNoOtherKeysHoweverManyTheyAre(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	const waiting = 120
	keys := []string{"z"} // behind all of them
	for i := range waiting {
		keys = append(keys, fmt.Sprintf("k%03d", i))
	}
	for seq := range int64(2) {
		for _, k := range keys {
			log.publish(event("t", k, seq+1))
		}
	}
	cfg := b.config()
	cfg.PollInterval = 5 * time.Millisecond
	var mended atomic.Bool
	b.run(log.source(), cfg, consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		switch {
		case d.Seq == 1:
		case !mended.Load():
			return consumer.Reject(errPoison)
		case d.Key != "z":
			_, err := tx.Exec(ctx, "do $$ begin raise exception 'x' using errcode = '55P03'; end $$")
			return err
		}
		return b.apply("x")(ctx, tx, d)
	}))
	b.eventually("all fail for good", func() bool {
		return b.one("select count(*)::text from fenceline.parked where reason = 'failing'") == fmt.Sprint(waiting+1)
	})
	mended.Store(true)
	op, err := consumer.NewOperator(t.Context(), b.pool, consumer.OperatorConfig{Consumer: cfg.Name})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys[1:] {
		ok(t, op.Retry(t.Context(), consumer.StreamKey{Stream: "t", Key: k}, note))
	}
	ok(t, op.Retry(t.Context(), consumer.StreamKey{Stream: "t", Key: "z"}, note))
	b.eventually("the one that can goes on", func() bool { return len(b.applied("z")) == 2 })
}
