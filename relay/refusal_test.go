package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// refusing answers as a broker that objects to records with a payload, without
// saying which they are.
func refusing(payload string) func(context.Context, *Batch) error {
	return func(_ context.Context, b *Batch) error {
		for i := range b.Records {
			if string(b.Records[i].Payload) == payload {
				e := &RefusedError{Reason: "poison", Err: errors.New("invalid record")}
				if len(b.Records) == 1 {
					e.Indexes = []int{0}
				}
				return e
			}
		}
		return nil
	}
}

func TestOneRefusedRecordHoldsItsStreamAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(context.Context, *Batch) error{
		"the broker names it": func(_ context.Context, b *Batch) error {
			for i := range b.Records {
				if string(b.Records[i].Payload) == "poison" {
					return &RefusedError{Indexes: []int{i}, Reason: "poison", Err: errors.New("invalid record")}
				}
			}
			return nil
		},
		"it has to be found": refusing("poison"),
	} {
		t.Run(name, func(t *testing.T) {
			pool, kafka := fresh(t, "a")
			kafka.create("a", 1) // all in one lane, and in one batch
			kafka.answer(answer)
			var keys []*producer
			for i := range 5 {
				keys = append(keys, newProducer(t, pool, fmt.Sprint("k", i)))
			}
			for round := range 4 {
				for i, p := range keys {
					if i == 2 && round == 1 {
						p.publish("a", "poison", "2/behind in the same commit")
					} else {
						p.publish("a", fmt.Sprintf("%d/%d", i, round))
					}
				}
			}
			var log safeBuffer
			cfg := quick()
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			var held atomic.Int32
			cfg.Hooks.Held = func(HeldStream) { held.Add(1) }
			check := func(rounds int) {
				t.Helper()
				var want []string
				for round := range rounds {
					for i := range keys {
						if i != 2 || round == 0 {
							want = append(want, fmt.Sprintf("%d/%d", i, round))
						}
					}
				}
				got := kafka.payloads("a")
				slices.Sort(got)
				slices.Sort(want)
				if got = slices.Compact(got); !slices.Equal(got, want) {
					t.Errorf("published %q\nwant %q", got, want)
				}
				firsts(t, kafka.logs["a"])
			}
			r := startRelay(t, pool, kafka, cfg)
			eventually(t, "the others are published", func() bool { return kafka.has("a", "4/3") })
			eventually(t, "the hold is stored", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_held") == 1 })
			eventually(t, "the cursor passes it", func() bool {
				return query[int](t, pool, "select count(*) from fenceline.relay_checkpoint where s2 is null and pg_snapshot_xmax(s1)::text::bigint > (select max(xid::text::bigint) from fenceline.outbox)") > 0
			})
			r.end()
			check(4)
			var key, reason string
			var pos, epoch, seq int64
			if err := pool.QueryRow(bg, "select key, pos, epoch, seq, reason from fenceline.relay_held").Scan(&key, &pos, &epoch, &seq, &reason); err != nil {
				t.Fatal(err)
			}
			if want := query[int64](t, pool, "select pos from fenceline.outbox where payload = 'poison'"); key != "k2" || pos != want || epoch != keys[2].epoch || seq != 2 || reason != "poison" {
				t.Errorf("held: %s, pos %d (want %d), epoch %d, seq %d, %q", key, pos, want, epoch, seq, reason)
			}
			if s := log.String(); strings.Count(s, "stream held") != 1 || !strings.Contains(s, "remedy=") || held.Load() != 1 {
				t.Errorf("told %d times; the log says\n%s", held.Load(), s)
			}

			// Another instance goes on holding it, though the broker would take
			// the later ones.
			r = startRelay(t, pool, kafka, cfg)
			for i, p := range keys {
				p.publish("a", fmt.Sprintf("%d/4", i))
			}
			eventually(t, "the others are published", func() bool { return kafka.has("a", "4/4") && kafka.has("a", "3/4") })
			r.end()
			check(5)
		})
	}
}

// Killed between the refusal and the checkpoint that would have recorded it,
// again and again.
func TestAHoldIsStoredBeforeTheCursorPassesTheRecord(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.create("a", 1)
	kafka.answer(refusing("poison"))
	p, q := newProducer(t, pool, "k"), newProducer(t, pool, "other")
	p.publish("a", "1", "poison", "3")
	q.publish("a", "other")
	cfg := quick()
	var crashes atomic.Int32
	cfg.signals.crash = func(point string) bool {
		return (point == "checkpoint" || point == "acknowledged" || point == "checkpointed") && crashes.Add(1) <= 6
	}
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "the hold is stored", func() bool {
		passed := query[bool](t, pool, `select coalesce(bool_or(case when s2 is null then pg_visible_in_snapshot(o.xid, s1)
			else pg_visible_in_snapshot(o.xid, s1) or pg_visible_in_snapshot(o.xid, s2) and o.pos <= last_pos end), false)
			from fenceline.relay_checkpoint, fenceline.outbox o where o.payload = 'poison'`)
		held := query[int](t, pool, "select count(*) from fenceline.relay_held") == 1
		if passed && !held {
			t.Error("the cursor has passed a refused record that is not held")
		}
		return held && crashes.Load() > 6
	})
	eventually(t, "the other is published", func() bool { return kafka.has("a", "other") })
	r.end()
	if kafka.has("a", "3") {
		t.Error("a record behind the refused one was published")
	}
}

func TestATopicThatIsRefusedWaitsAndTheRestFlows(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	p.publish("missing", "m1")
	p.publish("a", "a1")
	var log safeBuffer
	cfg := quick()
	cfg.PageSize = 3
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "the rest flows", func() bool { return kafka.has("a", "a1") })
	for i := range 20 {
		p.begin().enter().append("missing", fmt.Sprint("m", 2*i+2), fmt.Sprint("m", 2*i+3)).append("a", fmt.Sprint("a", i+2)).commit()
	}
	eventually(t, "the rest flows on", func() bool { return kafka.has("a", "a21") })
	eventually(t, "the fork is stored", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 1 })
	// It doesn't depend on this instance.
	r.end()
	r = startRelay(t, pool, kafka, cfg)
	p.publish("a", "a22")
	eventually(t, "the rest flows after a restart", func() bool { return kafka.has("a", "a22") })
	if n := strings.Count(log.String(), "topic refused"); n < 1 || n > 2 {
		t.Errorf("the log speaks of it %d times", n)
	}
	kafka.create("missing", 2)
	eventually(t, "what waited is published", func() bool { return kafka.has("missing", "m41") })
	eventually(t, "the fork is gone", func() bool { return query[int](t, pool, "select count(*) from fenceline.relay_fork") == 0 })
	p.publish("missing", "after")
	eventually(t, "the topic flows with the rest", func() bool { return kafka.has("missing", "after") })
	r.end()
	n, again, _ := firsts(t, kafka.logs["missing"])
	if n != 42 || again != 0 {
		t.Errorf("%d events of the topic published, %d copies", n, again)
	}
	if n, _, _ := firsts(t, kafka.logs["a"]); n != 22 {
		t.Errorf("%d events of the other published", n)
	}
}

// The topic comes and goes while events flow, and the relay is killed: at every
// join something could fall between the two flows.
func TestNothingFallsBetweenAForkAndTheMainFlow(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	cfg := quick()
	cfg.PageSize = 60 // several pages when the topic comes back, one when it has caught up
	var forks, joins, crashes atomic.Int32
	cfg.Hooks.Forked = func(string, string) { forks.Add(1) }
	cfg.Hooks.Joined = func(string) { joins.Add(1) }
	var n atomic.Int32
	cfg.signals.crash = func(point string) bool {
		if n.Add(1)%300 == 0 {
			crashes.Add(1)
			return true
		}
		return false
	}
	r := startRelay(t, pool, kafka, cfg)
	stop := make(chan struct{})
	end := sync.OnceFunc(func() { close(stop) })
	defer end()
	written := make(chan int64, 4)
	for i := range 4 {
		p := newProducer(t, pool, fmt.Sprint("k", i))
		go func() {
			total := int64(0)
			w := p.begin()
			for {
				select {
				case <-stop:
					written <- total
					return
				default:
				}
				w.enter().append("b", "x", "y").append("a", "z").again()
				time.Sleep(6 * time.Millisecond) // not a matter of order: the relay has to be the faster one
				total += 2
			}
		}()
	}
	recorded := func() bool {
		return query[bool](t, pool, "select exists (select from fenceline.relay_fork where topic = 'b')")
	}
	for range 6 {
		// As long as the last join isn't recorded, a crash loads the fork of before
		// again, whose refusal would be no news.
		eventually(t, "no fork is recorded", func() bool { return !recorded() })
		forked, joined := forks.Load(), joins.Load()
		kafka.remove("b")
		eventually(t, "the topic is refused", func() bool { return forks.Load() > forked })
		// Before it is recorded, a crash forgets the fork. That is right, nothing was
		// left out yet; but if the topic were back by then, nothing would join.
		eventually(t, "the fork is recorded", recorded)
		kafka.create("b", 3)
		eventually(t, "it joins", func() bool { return joins.Load() > joined })
	}
	end()
	total := int64(0)
	for range 4 {
		total += <-written
	}
	count := func() int64 {
		kafka.mu.Lock()
		defer kafka.mu.Unlock()
		seen := map[string]bool{}
		for _, r := range kafka.logs["b"] {
			seen[fmt.Sprint(r.Key, r.Seq)] = true
		}
		return int64(len(seen))
	}
	eventually(t, "all is published", func() bool { return count() == total })
	r.end()
	kafka.mu.Lock()
	defer kafka.mu.Unlock()
	firsts(t, kafka.logs["b"])
	firsts(t, kafka.logs["a"])
	t.Logf("%d events, %d forks, %d joins, %d crashes", total, forks.Load(), joins.Load(), crashes.Load())
}

func TestATopicThatWouldBreakAPromiseIsRefused(t *testing.T) {
	t.Parallel()
	good := Topic{Name: "t", Partitions: 3, CleanupPolicy: "delete", MaxMessageBytes: 1048588}
	for name, change := range map[string]func(*Topic){
		"cleanup.policy":    func(d *Topic) { d.CleanupPolicy = "compact,delete" },
		"max.message.bytes": func(d *Topic) { d.MaxMessageBytes = 1000 },
	} {
		t.Run(name, func(t *testing.T) {
			pool, kafka := fresh(t, "a")
			bad := good
			change(&bad)
			kafka.set(bad)
			p := newProducer(t, pool, "k")
			p.publish("t", "1")
			p.publish("a", "other")
			reasons := make(chan string, 10)
			cfg := quick()
			cfg.Hooks.Forked = func(_, reason string) { reasons <- reason }
			r := startRelay(t, pool, kafka, cfg)
			if reason := receive(t, "the topic is refused", reasons); !strings.Contains(reason, name) || !strings.Contains(reason, "set ") {
				t.Errorf("the reason is %q", reason)
			}
			eventually(t, "the rest flows", func() bool { return kafka.has("a", "other") })
			if kafka.has("t", "1") {
				t.Error("published all the same")
			}
			kafka.set(good)
			eventually(t, "it is published once that is changed", func() bool { return kafka.has("t", "1") })
			r.end()
		})
	}
}

func TestAPartitionCountThatChangesUnderTheRelayIsRefused(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	reasons := make(chan string, 10)
	cfg := quick()
	cfg.Hooks.Forked = func(_, reason string) { reasons <- reason }
	r := startRelay(t, pool, kafka, cfg)
	p := newProducer(t, pool, "k")
	p.publish("a", "1")
	eventually(t, "it is published", func() bool { return kafka.has("a", "1") })
	kafka.create("a", 4)
	if reason := receive(t, "the topic is refused", reasons); !strings.Contains(reason, "4 partitions") || !strings.Contains(reason, "relay topic accept") {
		t.Errorf("the reason is %q", reason)
	}
	// A lost connection makes nobody forget it.
	loads := r.loads.Load()
	query[bool](t, pool, "select bool_and(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'fenceline relay reader'")
	eventually(t, "the cursor is loaded again", func() bool { return r.loads.Load() > loads })
	p.publish("a", "2")
	p.publish("b", "other")
	eventually(t, "the rest flows", func() bool { return kafka.has("b", "other") })
	if kafka.has("a", "2") {
		t.Error("published all the same")
	}
	kafka.create("a", 3)
	eventually(t, "it flows when the count is as before", func() bool { return kafka.has("a", "2") })
	r.end()
}

func TestAnOutageIsWaitedOutAndToldOnce(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a", "b")
	var log safeBuffer
	cfg := quick()
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	var began, ended, retried atomic.Int32
	cfg.Hooks.OutageBegan = func(error) { began.Add(1) }
	cfg.Hooks.OutageEnded = func(time.Duration) { ended.Add(1) }
	cfg.Hooks.Retried = func(string, int, int, error) { retried.Add(1) }
	kafka.answer(func(context.Context, *Batch) error { return errAway })
	publishMany(t, pool, 12)
	r := startRelay(t, pool, kafka, cfg)
	eventually(t, "it tries for a while", func() bool { return retried.Load() > 30 })
	if n := query[int](t, pool, "select count(*) from fenceline.relay_held") + query[int](t, pool, "select count(*) from fenceline.relay_fork"); n != 0 {
		t.Errorf("an outage has held or forked %d times", n)
	}
	kafka.answer(nil)
	eventually(t, "all is published", func() bool { return len(kafka.payloads("a")) == 24 && len(kafka.payloads("b")) == 24 })
	eventually(t, "the outage is over", func() bool { return ended.Load() == 1 })
	r.end()
	if began.Load() != 1 || ended.Load() != 1 || strings.Count(log.String(), "level=WARN") != 1 {
		t.Errorf("an outage began %d times and ended %d times; the log says\n%s", began.Load(), ended.Load(), log.String())
	}
	firsts(t, kafka.logs["a"])
}

func publishMany(t *testing.T, pool *pgxpool.Pool, keys int) {
	for i := range keys {
		newProducer(t, pool, fmt.Sprint("k", i)).begin().enter().append("a", "1", "2").append("b", "1", "2").commit()
	}
}

func TestABatchOfUnknownOutcomeGoesOutAgainAsItWas(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	var sent []*Batch
	lost := 0
	kafka.after = func(b *Batch) error { // appended, but the answer is lost
		sent = append(sent, b)
		if lost < 5 {
			lost++
			return errAway
		}
		return nil
	}
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "2", "3")
	r := startRelay(t, pool, kafka, quick())
	eventually(t, "it is sent again", func() bool { return len(kafka.payloads("a")) >= 18 })
	p.publish("a", "4")
	eventually(t, "what follows is sent", func() bool { return kafka.has("a", "4") })
	r.end()
	for _, b := range sent[1:6] {
		if b != sent[0] {
			t.Error("another batch was sent instead")
		}
	}
	if n, again, _ := firsts(t, kafka.logs["a"]); n != 4 || again != 15 {
		t.Errorf("%d events, %d copies", n, again)
	}
}
