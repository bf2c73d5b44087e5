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

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
)

// However far behind a consumer is, and however slow its handler: what is in
// memory is the piece that is being applied and the next one.
func TestWhileAPieceIsAppliedTheNextIsFetchedAndNoMore(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.page = 10
	log.publish(events("t", "a", 1, 1000)...)
	inside, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.run(log.source(), b.config(), consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
		if d.Seq == 15 { // in the second piece
			once.Do(func() { close(inside); wait(t, goOn) })
		}
		return b.apply("x")(ctx, tx, d)
	}))
	fetched := func() int64 {
		log.mu.Lock()
		defer log.mu.Unlock()
		return log.fetched
	}
	<-inside
	b.eventually("the next piece is fetched", func() bool { return fetched() >= 30 })
	// Give one that runs ahead every chance to be seen.
	for range 20 {
		if n := fetched(); n != 30 {
			t.Fatalf("%d records were fetched while the second ten are applied", n)
		}
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	b.eventually("everything is read", func() bool { return log.offset() == 1000 })
	b.want("", effects("a", 1, 1000)...)
}

func TestANewConsumerBeginsWhereItIsToldTo(t *testing.T) {
	for begin, want := range map[consumer.Begin][]string{consumer.Earliest: effects("a", 1, 6), consumer.Latest: effects("a", 5, 6)} {
		t.Run(string(begin), func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(events("t", "a", 1, 4)...)
			cfg := b.config()
			cfg.Begin = begin
			stop := b.run(log.source(), cfg, b.apply("x"))
			b.eventually("where it begins is stored", func() bool { return b.stored("t") != "none" })
			log.publish(events("t", "a", 5, 6)...)
			b.eventually("everything is read", func() bool { return log.offset() == 6 })
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			b.want("", want...)
			// It is where to begin and not where to go on.
			log.publish(events("t", "a", 7, 8)...)
			b.upTo(log, cfg, 8)
			b.want("", append(slices.Clone(want), effects("a", 7, 8)...)...)
		})
	}
	cfg := newBench(t).config()
	cfg.Begin, cfg.Start = consumer.Latest, consumer.FromOrigin
	if err := consumer.Run(context.Background(), nil, nil, cfg, nil); err == nil || !strings.Contains(err.Error(), "its first event would never be read") {
		t.Errorf("latest and from the origin: %v", err)
	}
}

// states records what a partition observer is told.
type states struct {
	*recorder
	mu  sync.Mutex
	got []string
}

func (s *states) PartitionChanged(c consumer.PartitionChange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := fmt.Sprintf("%s %s", c.Partition, c.State)
	if c.Reason != nil {
		text += ": " + c.Reason.Error()
	}
	s.got = append(s.got, text)
}

func (s *states) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

func TestAPartitionThatDoesNotGetOnSaysSoAndWhyAndRaisesOneAlarm(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	for range 30 {
		log.fetchErrs = append(log.fetchErrs, errors.New("connection refused"))
	}
	cfg := b.config()
	seen := &states{recorder: &b.seen}
	cfg.Observer, cfg.StallAlarm = seen, time.Millisecond
	b.upTo(log, cfg, 3)
	want := []string{"t/0 reading", "t/0 waiting: connection refused", "t/0 reading", "t/0 released"}
	if got := seen.all(); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	if n := b.seen.alarmed(consumer.Stalled); n != 1 {
		t.Errorf("%d alarms, want one for the whole of it", n)
	}
	b.want("", effects("a", 1, 3)...)
}
