package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

func TestATakeoverAfterADeathTakesOneLeaseTime(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	// An instance that dies without a word.
	id := uuid.New()
	query[[]uuid.UUID](t, pool, "select ids from fenceline.relay_meet($1, 'dead', 'dead', interval '2 s')", id)
	if n := query[int](t, pool, `select count(*) from generate_series(0, 63) s,
		lateral fenceline.relay_acquire('fenceline:relay/' || lpad(s::text, 2, '0'), 'dead', interval '2 s', gen_random_uuid(), interval '1 s') a where a.won`); n != 64 {
		t.Fatalf("the dead one had %d shards", n)
	}
	expires := query[time.Time](t, pool, "select expires_at from fenceline.lease where key = $1", ShardKey(outbox.Shard("k")))
	r := startRelay(t, pool, kafka, quick())
	newProducer(t, pool, "k").publish("a", "x")
	eventually(t, "the relay publishes", func() bool { return kafka.has("a", "x") })
	if late := query[time.Time](t, pool, "select clock_timestamp()").Sub(expires); late < 0 || late > 15*time.Second {
		t.Errorf("it published %v after the lease's end", late)
	}
	r.end()
}

// The relay is paused for so long that another one has taken a shard over: it
// can't move that shard's cursor, and stops publishing it when it finds out.
func TestARelayThatWasOvertakenMovesNothingAndGoesOnWithTheRest(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	cfg := quick()
	cfg.LeaseTTL = time.Minute
	has := make(chan []int, 100)
	cfg.Hooks.Shards = func(shards []int) { has <- shards }
	r := startRelay(t, pool, kafka, cfg)
	for len(receive(t, "the relay has all shards", has)) < outbox.Shards {
	}
	p, q := newProducer(t, pool, "k"), newProducer(t, pool, "another shard")
	shard := outbox.Shard("k")
	if shard == outbox.Shard("another shard") {
		t.Fatal("the keys are of one shard: the test proves nothing")
	}
	p.publish("a", "1")
	eventually(t, "a checkpoint", func() bool { return checkpointsOf(t, pool) > 0 })

	seize(t, pool, shard, time.Hour)
	before := checkpointsOf(t, pool)
	p.publish("a", "2")
	if got := receive(t, "the relay has lost the shard", has); len(got) != outbox.Shards-1 || slices.Contains(got, shard) {
		t.Errorf("it goes on with %v", got)
	}
	q.publish("a", "of another shard")
	eventually(t, "the rest is published", func() bool { return kafka.has("a", "of another shard") })
	eventually(t, "and stored", func() bool { return checkpointsOf(t, pool) > before })
	if n := query[int](t, pool, "select count(*) from fenceline.relay_checkpoint where n > $1 and $2 = any (shards)", before, shard); n != 0 {
		t.Errorf("an overtaken relay has stored %d cursors of the shard", n)
	}
	if _, err := pool.Exec(bg, "update fenceline.lease set expires_at = '-infinity' where key = $1", ShardKey(shard)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the relay publishes the shard again when the other's lease has ended", func() bool { return kafka.has("a", "2") })
	r.end()
	firsts(t, kafka.logs["a"])
}

func TestALostConnectionIsReplacedAndNothingIsLost(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	r := startRelay(t, pool, kafka, quick())
	p := newProducer(t, pool, "k")
	for i, name := range []string{"fenceline relay reader", "fenceline relay checkpoint"} {
		p.publish("a", fmt.Sprint("before ", i))
		eventually(t, "it is published", func() bool { return kafka.has("a", fmt.Sprint("before ", i)) })
		loads := r.loads.Load()
		query[bool](t, pool, "select bool_and(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = $1", name)
		p.publish("a", fmt.Sprint("after ", i))
		eventually(t, "the cursor is loaded again", func() bool { return r.loads.Load() > loads })
		eventually(t, "what came after is published", func() bool { return kafka.has("a", fmt.Sprint("after ", i)) })
	}
	r.end()
	n, _, _ := firsts(t, kafka.logs["a"])
	if n != 4 {
		t.Errorf("%d events published", n)
	}
}

func TestAStopFinishesRequestsInFlightAndStoresTheCursor(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	cfg := quick()
	cfg.CheckpointInterval, cfg.CheckpointEvery = time.Hour, 1<<30
	gate, began := make(chan struct{}), make(chan struct{}, 100)
	wait := blockUntil(gate)
	kafka.answer(func(ctx context.Context, b *Batch) error {
		began <- struct{}{}
		return wait(ctx, b)
	})
	p := newProducer(t, pool, "k")
	p.publish("a", "1", "2", "3")
	r := startRelay(t, pool, kafka, cfg)
	receive(t, "a request is sent", began)
	p.publish("a", "behind the request in flight")
	r.passed(3)
	r.stop()
	close(gate)
	r.end()
	if got := kafka.payloads("a"); len(got) != 3 {
		t.Errorf("published %q", got)
	}
	kafka.answer(nil)
	r = startRelay(t, pool, kafka, quick())
	eventually(t, "the next one publishes the rest", func() bool { return len(kafka.payloads("a")) >= 4 })
	r.end()
	if got := kafka.payloads("a"); len(got) != 4 {
		t.Errorf("published %q", got)
	}
}

func TestAStopDoesNotWaitForABrokerLongerThanTheGraceTime(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	cfg := quick()
	cfg.Grace = 50 * time.Millisecond
	began := make(chan struct{}, 100)
	never := blockUntil(nil)
	kafka.answer(func(ctx context.Context, b *Batch) error {
		began <- struct{}{}
		return never(ctx, b)
	})
	newProducer(t, pool, "k").publish("a", "1")
	r := startRelay(t, pool, kafka, cfg)
	receive(t, "a request is sent", began)
	stop := time.Now()
	r.end()
	if took := time.Since(stop); took > 15*time.Second { // it would wait for ever
		t.Errorf("the stop took %v", took)
	}
	kafka.answer(nil)
	r = startRelay(t, pool, kafka, quick())
	eventually(t, "what was abandoned is published", func() bool { return kafka.has("a", "1") })
	r.end()
}

func TestAnIdleRelayStoresNothing(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	cfg := quick()
	cfg.CheckpointInterval = time.Millisecond
	r := startRelay(t, pool, kafka, cfg)
	newProducer(t, pool, "k").publish("a", "1")
	eventually(t, "a checkpoint", func() bool { return checkpointsOf(t, pool) > 0 })
	// What is under way when it falls idle may still be stored; then nothing is.
	eventually(t, "twenty passes that store nothing", func() bool {
		n := checkpointsOf(t, pool)
		query[uint64](t, pool, "select pg_current_xact_id()") // so that windows differ
		r.passed(20)
		return checkpointsOf(t, pool) == n
	})
	r.end()
}

// Polls must not walk over ever more rows while the relay has nothing of its
// own to store, as when all traffic is of a topic that is refused.
func TestTheLowBoundFollowsWhenOthersUseTheSequence(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	r := startRelay(t, pool, kafka, quick())
	r.passed(3)
	if _, err := pool.Exec(bg, "select setval('fenceline.outbox_pos', $1)", 5*refreshAfter); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the low bound follows", func() bool { return r.cursor().low >= 5*refreshAfter })
	eventually(t, "and is stored for the next session", func() bool {
		return query[int64](t, pool, "select coalesce(max(pair_low), 0) from fenceline.relay_checkpoint") >= 5*refreshAfter
	})
	n := checkpointsOf(t, pool)
	r.passed(10)
	if m := checkpointsOf(t, pool); m > n+1 {
		t.Errorf("%d more cursors stored for it", m-n)
	}
	r.end()
}

func TestRunSaysAtOnceWhatOnlyAnOperatorCanChange(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t)
	for name, change := range map[string]func(*Config){
		"schema": func(c *Config) { c.Schema = `x";drop` },
		"lease":  func(c *Config) { c.LeaseTTL = time.Millisecond },
		"page":   func(c *Config) { c.PageSize = -1 },
		"flight": func(c *Config) { c.MaxBytesInFlight = 1 },
		"bytes":  func(c *Config) { c.PageBytes = 15 << 20 },
		"polls":  func(c *Config) { c.PollMin, c.PollMax = time.Second, time.Millisecond },
		"name":   func(c *Config) { c.Name = strings.Repeat("n", 256) },
	} {
		cfg := quick()
		change(&cfg)
		err := runFor(t, pool, kafka, cfg)
		if err == nil || !strings.HasPrefix(err.Error(), "relay: ") {
			t.Errorf("%s: Run gives %v", name, err)
		}
	}
	cfg := quick()
	cfg.Schema = "elsewhere"
	var version *schema.VersionError
	if err := runFor(t, pool, kafka, cfg); !errors.As(err, &version) {
		t.Errorf("without the schema: Run gives %v", err)
	}
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero Config: %v", err)
	}
}

func TestAnotherHistoryStopsTheRelay(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	r := startRelay(t, pool, kafka, quick())
	r.passed(2)
	p := newProducer(t, pool, "k")
	w := p.begin().enter().append("a", "x")
	if _, err := pool.Exec(bg, "update fenceline.history set timeline = 'FFFFFFFF'"); err != nil {
		t.Fatal(err)
	}
	w.commit()
	select {
	case <-r.done:
	case <-time.After(time.Minute):
		t.Fatal("the relay goes on")
	}
	if !errors.Is(r.err, fencing.ErrHistory) || !strings.Contains(r.err.Error(), "restored") || !strings.Contains(r.err.Error(), "relay history confirm") {
		t.Errorf("Run gives %v", r.err)
	}
	// What can be dropped is asked for under the same condition.
	if _, err := pool.Exec(bg, "select setval('fenceline.outbox_pos', 1::bigint << 40)"); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(bg, "truncate fenceline.outbox"); err != nil {
		t.Fatal(err)
	}
	if _, err := Retain(bg, pool, "", RetentionConfig{}); !errors.Is(err, fencing.ErrHistory) {
		t.Errorf("Retain gives %v", err)
	}
}

func TestAFencedProducerStopsTheRelay(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.answer(func(context.Context, *Batch) error { return fmt.Errorf("%w: by a test", ErrFenced) })
	newProducer(t, pool, "k").publish("a", "x")
	if err := runFor(t, pool, kafka, quick()); !errors.Is(err, ErrFenced) {
		t.Errorf("Run gives %v", err)
	}
	if holder := query[int64](t, pool, "select count(*) from fenceline.lease where starts_with(key, 'fenceline:relay/') and expires_at > now()"); holder != 0 {
		t.Error("the shards were not given up")
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestASessionThatIsOverHearsNothingThatIsSaidToTheNextOne(t *testing.T) {
	t.Parallel()
	said := make(chan struct{}, 1)
	for range 10_000 {
		_, stop := untilSaid(bg, said)
		stop()
		signal(said)
		runtime.Gosched()
		select {
		case <-said:
		default:
			t.Fatal("it was heard by a session that is over")
		}
	}
	ctx, stop := untilSaid(bg, said)
	defer stop()
	signal(said)
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Second):
		t.Error("a session hears nothing")
	}
}
