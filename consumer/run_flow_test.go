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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
)

// However far behind a consumer is, and however slow its handler: what is in
// memory is the piece that is being applied and the next one.
func TestHoweverManyPartitionsThereAreTheirPiecesTogetherHaveABound(t *testing.T) {
	for _, c := range []struct {
		partitions, most int
		want             int // of each
	}{
		{1, 0, 1 << 20},          // what Config.FetchBytes defaults to
		{40, 0, 1 << 20},         // which 64 MiB are enough for
		{200, 0, 64 << 20 / 200}, // and here not
		{40, 1 << 20, 1 << 20 / 40},
		{40, 1 << 10, 16 << 10}, // less makes no sense
	} {
		b := newBench(t)
		log := newMemory("t")
		log.partitions, log.all = c.partitions, true
		cfg := b.config()
		cfg.FetchMaxBytes = c.most
		stop := b.run(log.source(), cfg, b.apply("x"))
		asked := func() (n, bytes int) {
			log.mu.Lock()
			defer log.mu.Unlock()
			for _, a := range log.asked {
				bytes += a
			}
			return len(log.asked), bytes
		}
		b.eventually("all partitions are read", func() bool { n, _ := asked(); return n == c.partitions })
		if _, bytes := asked(); bytes != c.partitions*c.want {
			t.Errorf("%d partitions, FetchMaxBytes %d: together %d bytes are read at once, want %d for each", c.partitions, c.most, bytes, c.want)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

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

// A rebalance while the database is away: the partitions are this process's, and
// nothing of them is read.
func TestPartitionsWaitWhileTheirTopicsNumberOfThemIsNotKnown(t *testing.T) {
	b := newBench(t)
	cfg := b.pool.Config()
	cfg.ConnConfig.RuntimeParams["lock_timeout"] = "50ms"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	locked, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locked.Rollback(context.Background()) }()
	if _, err := locked.Exec(t.Context(), "lock table fenceline.consumer_topic"); err != nil {
		t.Fatal(err)
	}
	log := newMemory("t")
	log.publish(events("t", "a", 1, 2)...)
	config := b.config()
	seen := &states{recorder: &b.seen}
	config.Observer = seen
	b.runAs(pool, log.source(), config, b.apply("x"))
	b.eventually("the partition is told", func() bool { return len(seen.all()) > 0 })
	if err := locked.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.eventually("the events are applied", func() bool { return b.seen.count(consumer.Applied) == 2 })
	if got := seen.all(); len(got) != 2 || !strings.HasPrefix(got[0], "t/0 waiting: ") || got[1] != "t/0 reading" {
		t.Errorf("told %q, want that it waits, then that it is read", got)
	}
}

func TestEachStreamThatStandsForTooLongRaisesItsAlarmHoweverManyDo(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	const n = 250
	for k := range n {
		key := fmt.Sprint("k", k)
		log.publish(event("t", key, 1), event("t", key, 3))
	}
	cfg := b.config()
	cfg.GapAlarm, cfg.PollInterval = time.Millisecond, 10*time.Millisecond
	b.run(log.source(), cfg, b.apply("x"))
	told := func() int {
		b.seen.mu.Lock()
		defer b.seen.mu.Unlock()
		of := make(map[consumer.StreamKey]int)
		for _, a := range b.seen.alarms {
			if a.Kind == consumer.Overdue {
				of[a.Stream]++
			}
		}
		for key, times := range of {
			if times > 1 {
				t.Fatalf("%d alarms of %s, want one", times, key)
			}
		}
		return len(of)
	}
	b.eventually("there is an alarm of each", func() bool { return told() == n })
}
