package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/internal/schema"
)

func TestAStandbyTakesOverWhenTheActiveOneStopsAndSaysWhoIsActive(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	p := newProducer(t, pool, "k")
	cfg := quick()
	cfg.Name, cfg.LeaseTTL = "first", time.Minute
	first := startRelay(t, pool, kafka, cfg)
	p.publish("a", "1")
	eventually(t, "the first publishes", func() bool { return kafka.has("a", "1") })

	var log safeBuffer
	cfg.Name, cfg.Logger = "second", slog.New(slog.NewTextHandler(&log, nil))
	second := startRelay(t, pool, kafka, cfg)
	eventually(t, "the log says who is active", func() bool { return strings.Contains(log.String(), "holder=first") })
	if n := second.loads.Load(); n != 0 {
		t.Errorf("the standby has loaded the cursor %d times", n)
	}
	first.end()
	p.publish("a", "2")
	eventually(t, "the second publishes", func() bool { return kafka.has("a", "2") })
	second.end()
	if got := kafka.payloads("a"); len(got) != 2 {
		t.Errorf("an orderly hand-over publishes %q", got)
	}
}

func TestATakeoverAfterADeathTakesOneLeaseTime(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	var pos struct{ epoch, token int64 }
	// A holder that dies without a word.
	if err := pool.QueryRow(bg, "select epoch, token from fenceline.relay_acquire($1, 'dead', interval '1 s', gen_random_uuid(), interval '1 s')", LeaseKey).Scan(&pos.epoch, &pos.token); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r := startRelay(t, pool, kafka, quick())
	newProducer(t, pool, "k").publish("a", "x")
	eventually(t, "the relay publishes", func() bool { return kafka.has("a", "x") })
	if took := time.Since(began); took < 500*time.Millisecond || took > 5*time.Second {
		t.Errorf("the takeover took %v", took)
	}
	r.end()
}

// The relay is paused for so long that another one has taken over: it can't
// move the cursor, and stops publishing when it finds out.
func TestARelayThatWasOvertakenMovesNothingAndCampaignsAgain(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	cfg := quick()
	cfg.LeaseTTL = time.Minute
	var gained atomic.Int32
	lost := make(chan error, 1)
	cfg.Hooks.LeaseGained = func(int64, int64) { gained.Add(1) }
	cfg.Hooks.LeaseLost = func(err error) { lost <- err }
	r := startRelay(t, pool, kafka, cfg)
	p := newProducer(t, pool, "k")
	p.publish("a", "1")
	eventually(t, "a checkpoint", func() bool { return checkpointsOf(t, pool) > 0 })

	// Another instance takes over, as it would after the lease has expired.
	var token int64
	if err := pool.QueryRow(bg, `with e as (update fenceline.lease set expires_at = '-infinity' where key = $1)
		select 0`, LeaseKey).Scan(&token); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(bg, "select token from fenceline.relay_acquire($1, 'other', interval '2 s', gen_random_uuid(), interval '1 s')", LeaseKey).Scan(&token); err != nil {
		t.Fatal(err)
	}
	before := checkpointsOf(t, pool)
	p.publish("a", "2")
	if err := receive(t, "the lease is lost", lost); !refusedToken(err) && !errors.Is(err, fencing.ErrLeaseLost) {
		t.Errorf("the lease is lost because of %v", err)
	}
	if n := query[int64](t, pool, "select count(*) from fenceline.relay_checkpoint where n > $1 and token < $2", before, token); n != 0 {
		t.Errorf("an overtaken relay has stored %d cursors", n)
	}
	eventually(t, "the relay is active again when the other's lease ends", func() bool { return gained.Load() == 2 })
	p.publish("a", "3")
	eventually(t, "it publishes", func() bool { return kafka.has("a", "3") })
	r.end()
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
	if took := time.Since(stop); took > 5*time.Second {
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
	r.passed(5)
	n := checkpointsOf(t, pool)
	query[uint64](t, pool, "select pg_current_xact_id()") // so that windows differ
	r.passed(20)
	if m := checkpointsOf(t, pool); m != n {
		t.Errorf("%d cursors stored while idle", m-n)
	}
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
	case <-time.After(20 * time.Second):
		t.Fatal("the relay goes on")
	}
	if r.err == nil || !strings.Contains(r.err.Error(), "restored") {
		t.Errorf("Run gives %v", r.err)
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
	if holder := query[int64](t, pool, "select count(*) from fenceline.lease where key = $1 and expires_at > now()", LeaseKey); holder != 0 {
		t.Error("the lease was not given up")
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
