package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// small has pages so small that a stream that waits has several. Its leases are
// long, so that on a busy machine none is lost that a test doesn't take away: a
// new session means copies, and forgets what only a session knows.
func small() Config {
	cfg := steady()
	cfg.PageSize = 3
	return cfg
}

func steady() Config {
	cfg := quick()
	cfg.LeaseTTL = time.Minute
	return cfg
}

func TestAHeldStreamThatIsRetriedGoesOnInOrderThroughAllItsLives(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.create("a", 1)
	bad := poisoned(kafka, "bad")
	p, other := newProducer(t, pool, "k"), newProducer(t, pool, "other")
	p.publish("a", "1", "bad", "3")
	var resumed atomic.Int32
	cfg := small()
	cfg.Hooks.Resumed = func(h HeldStream) {
		if h.Key == "k" {
			resumed.Add(1)
		}
	}
	r := startRelay(t, pool, kafka, cfg)
	isHeld(t, pool, "a", "k")
	p.publish("a", "4", "5", "6", "7", "8")
	p.reopen()
	p.publish("a", "1'", "2'", "3'", "4'", "5'")
	other.publish("a", "other")
	patiently(t, "the rest flows", func() bool { return kafka.has("a", "other") })
	if got := said(kafka.log("a")); !slices.Equal(got, []string{"1", "other"}) {
		t.Errorf("while the stream is held, %q is published", got)
	}
	bad.set()
	retry(t, pool, "a", "k")
	isGone(t, pool, "a", "k")
	p.publish("a", "6'")
	patiently(t, "what comes then is published", func() bool { return kafka.has("a", "6'") })
	r.end()
	log := kafka.log("a")
	want := []string{"1", "other", "bad", "3", "4", "5", "6", "7", "8", "end 9", "1'", "2'", "3'", "4'", "5'", "6'"}
	if got := said(log); !slices.Equal(got, want) || len(log) != len(want) {
		t.Errorf("published %q\nwant      %q, and no copies", got, want)
	}
	if n := complete(t, log); n != 16 {
		t.Errorf("%d seqs are covered", n)
	}
	if n := resumed.Load(); n != 1 {
		t.Errorf("told %d times that it was resumed", n)
	}
}

// The row is committed after the side has read its last page, and before the
// main flow takes its next snapshot: no later, no earlier. Were the stream given
// back one window later, nobody would read it.
func TestARowThatIsCommittedWhileTheStreamIsGivenBackIsPublished(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	bad := poisoned(kafka, "bad")
	p := newProducer(t, pool, "k")
	p.publish("a", "bad", "2")
	cfg := small()
	var once sync.Once
	cfg.signals.crash = func(point string) bool {
		if point == "read held" {
			once.Do(func() { p.publish("a", "3") })
		}
		return false
	}
	r := startRelay(t, pool, kafka, cfg)
	isHeld(t, pool, "a", "k")
	bad.set()
	retry(t, pool, "a", "k")
	patiently(t, "the row is published", func() bool { return kafka.has("a", "3") })
	isGone(t, pool, "a", "k")
	r.end()
	if got := said(kafka.log("a")); !slices.Equal(got, []string{"bad", "2", "3"}) {
		t.Errorf("published %q", got)
	}
}

// What is visible in the boundary's snapshot, and that alone, is the side's. Here
// a row is committed between every boundary and the side's read at it: were it
// the side's too, the main flow would publish it a second time.
func TestTheSideReadsNothingBeyondTheBoundary(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	bad := poisoned(kafka, "bad")
	p := newProducer(t, pool, "k")
	p.publish("a", "bad", "2")
	var mu sync.Mutex
	rows, commits := int64(2), false
	cfg := steady()
	cfg.signals.read = func(cursor, int) {
		mu.Lock()
		defer mu.Unlock()
		if commits {
			p.publish("a", "x")
			rows++
		}
	}
	set := func(to bool) {
		mu.Lock()
		defer mu.Unlock()
		commits = to
	}
	r := startRelay(t, pool, kafka, cfg)
	isHeld(t, pool, "a", "k")
	bad.set()
	set(true) // from here on after each read, so also after each that ends at a boundary
	r.passed(2)
	retry(t, pool, "a", "k")
	isGone(t, pool, "a", "k")
	set(false)
	p.publish("a", "last")
	patiently(t, "all is published", func() bool { return kafka.has("a", "last") })
	r.end()
	log := kafka.log("a")
	if n := complete(t, log); n != rows+1 || int64(len(log)) != n || rows == 2 {
		t.Errorf("%d events, of which %d are published, with copies %d", rows+1, n, len(log))
	}
}

func TestAStreamThatIsRefusedAgainWhileItIsResumedIsHeldAgain(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.create("a", 1)
	bad := poisoned(kafka, "bad", "worse")
	p, other := newProducer(t, pool, "k"), newProducer(t, pool, "other")
	p.publish("a", "1", "bad", "3", "4", "5", "6", "worse", "8", "9", "10", "11")
	r := startRelay(t, pool, kafka, small())
	isHeld(t, pool, "a", "k")

	// The same record again.
	retry(t, pool, "a", "k")
	isHeld(t, pool, "a", "k")
	at := func() int64 {
		return query[int64](t, pool, "select seq from fenceline.relay_held where topic = 'a' and key = 'k'")
	}
	if at() != 2 {
		t.Errorf("held at seq %d", at())
	}
	// One behind it: what stands before goes out.
	bad.set("worse")
	retry(t, pool, "a", "k")
	patiently(t, "it is held again", func() bool { return heldState(t, pool, "a", "k") == "held" && at() == 7 })
	other.publish("a", "other")
	patiently(t, "the rest flows", func() bool { return kafka.has("a", "other") })
	if got := said(kafka.log("a")); !slices.Equal(got, []string{"1", "bad", "3", "4", "5", "6", "other"}) {
		t.Errorf("published %q", got)
	}
	reason := query[string](t, pool, "select reason from fenceline.relay_held")
	if o := query[int64](t, pool, "select pos from fenceline.outbox where payload = 'worse'"); o != query[int64](t, pool, "select pos from fenceline.relay_held") || reason != "poison" {
		t.Errorf("held for %q at another pos than that of the record that is refused, %d", reason, o)
	}
	bad.set()
	retry(t, pool, "a", "k")
	isGone(t, pool, "a", "k")
	r.end()
	if log := kafka.log("a"); complete(t, log) != 12 {
		t.Errorf("published %q", said(log))
	}
	got := query[string](t, pool, "select string_agg(action, ', ' order by n) from fenceline.relay_audit where key = 'k'")
	if got != "held retry, held again, held retry, held again, held retry, resumed" {
		t.Errorf("on record: %s", got)
	}
}

// A record of the main flow's is refused when the stream has been given back,
// before the row is gone and after.
func TestARecordRefusedBehindTheJoinIsHeld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		point   string
		restart bool
	}{{"settle held", false}, {"settled held", true}, {"settled held", false}} {
		point := c.point
		t.Run(fmt.Sprintf("%s, restart %v", point, c.restart), func(t *testing.T) {
			t.Parallel()
			pool, kafka := fresh(t, "a")
			bad := poisoned(kafka, "bad")
			p := newProducer(t, pool, "k")
			p.publish("a", "bad", "2")
			var once sync.Once
			refused := make(chan struct{})
			cfg := small()
			var armed atomic.Bool
			told := sync.OnceFunc(func() { close(refused) })
			cfg.Hooks.Held = func(HeldStream) {
				if armed.Load() {
					told()
				}
			}
			cfg.signals.crash = func(at string) bool {
				if at == point && armed.Load() {
					once.Do(func() {
						p.publish("a", "worse", "4")
						<-refused
					})
				}
				return false
			}
			r := startRelay(t, pool, kafka, cfg)
			isHeld(t, pool, "a", "k")
			bad.set("worse")
			armed.Store(true)
			retry(t, pool, "a", "k")
			patiently(t, "it is held at the other record", func() bool {
				return query[bool](t, pool, "select exists (select from fenceline.relay_held where seq = 3 and state = 'held')")
			})
			if got := said(kafka.log("a")); !slices.Equal(got, []string{"bad", "2"}) {
				t.Errorf("published %q", got)
			}
			armed.Store(false)
			bad.set()
			if c.restart { // it doesn't depend on this instance
				r.end()
				r = startRelay(t, pool, kafka, quick())
			}
			retry(t, pool, "a", "k")
			isGone(t, pool, "a", "k")
			r.end()
			if n := complete(t, kafka.log("a")); n != 4 {
				t.Errorf("published %q", said(kafka.log("a")))
			}
		})
	}
}

func TestACrashAtAnyStepOfAResumeLosesAndReordersNothing(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"read held", "acknowledged", "settle held", "settled held", "checkpoint", "checkpointed", "read"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			pool, kafka := fresh(t, "a")
			kafka.create("a", 1)
			bad := poisoned(kafka, "bad")
			p := newProducer(t, pool, "k")
			p.publish("a", "1", "bad", "3", "4", "5", "6", "7", "8")
			cfg := small()
			var armed, crashes atomic.Int32
			cfg.signals.crash = func(at string) bool {
				return at == point && armed.Load() == 1 && crashes.Add(1) <= 4
			}
			r := startRelay(t, pool, kafka, cfg)
			isHeld(t, pool, "a", "k")
			bad.set()
			armed.Store(1)
			retry(t, pool, "a", "k")
			p.publish("a", "9", "10")
			isGone(t, pool, "a", "k")
			p.publish("a", "11")
			patiently(t, "all is published", func() bool { return kafka.has("a", "11") })
			r.end()
			if n := complete(t, kafka.log("a")); n != 11 {
				t.Errorf("published %q", said(kafka.log("a")))
			}
			if crashes.Load() == 0 {
				t.Error("it never crashed")
			}
		})
	}
}

func TestAnInstanceThatTakesOverGoesOnWithAResume(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	bad := poisoned(kafka, "bad")
	p := newProducer(t, pool, "k")
	p.publish("a", "bad", "2")
	r := startRelay(t, pool, kafka, small())
	isHeld(t, pool, "a", "k")
	r.end()
	bad.set()
	retry(t, pool, "a", "k") // nobody is there
	if isNew, err := operator(t, pool).Retry(bg, "a", "k", me); isNew || err != nil {
		t.Errorf("a second request gives %v, %v", isNew, err)
	}
	r = startRelay(t, pool, kafka, small())
	isGone(t, pool, "a", "k")
	r.end()
	if got := said(kafka.log("a")); !slices.Equal(got, []string{"bad", "2"}) {
		t.Errorf("published %q", got)
	}
}

// The topic goes while a stream of it is being resumed: what of the stream is in
// the lanes then is nobody's unless the hold takes it back.
func TestATopicRefusedWhileItsStreamIsResumedLosesNothing(t *testing.T) {
	t.Parallel()
	for _, joined := range []bool{false, true} {
		t.Run(fmt.Sprint("joined ", joined), func(t *testing.T) {
			t.Parallel()
			pool, kafka := fresh(t, "a")
			kafka.create("a", 1)
			bad := poisoned(kafka, "bad")
			p := newProducer(t, pool, "k")
			p.publish("a", "1", "bad", "3", "4", "5", "6")
			forked := make(chan struct{}, 8)
			resumed := make(chan struct{}, 8)
			cfg := small()
			cfg.BatchRecords = 1
			cfg.TopicCheck = time.Hour // only the lanes notice
			cfg.Hooks.Forked = func(string, string) { forked <- struct{}{} }
			cfg.Hooks.Resumed = func(HeldStream) { resumed <- struct{}{} }
			r := startRelay(t, pool, kafka, cfg)
			isHeld(t, pool, "a", "k")
			gate := make(chan struct{})
			var armed atomic.Bool
			kafka.answer(func(ctx context.Context, b *Batch) error {
				if armed.Load() && string(b.Records[0].Payload) == "3" {
					return blockUntil(gate)(ctx, b)
				}
				return nil
			})
			armed.Store(true)
			bad.set()
			retry(t, pool, "a", "k")
			patiently(t, "it is being resumed", func() bool { return kafka.has("a", "bad") })
			if joined {
				receive(t, "it joins", resumed)
				p.publish("a", "7")
			}
			kafka.remove("a")
			armed.Store(false)
			close(gate)
			receive(t, "the topic is refused", forked)
			p.publish("a", "8")
			kafka.create("a", 1)
			isGone(t, pool, "a", "k")
			p.publish("a", "9")
			patiently(t, "all is published", func() bool { return kafka.has("a", "9") })
			r.end()
			want := int64(8)
			if joined {
				want = 9
			}
			if n := complete(t, kafka.log("a")); n != want {
				t.Errorf("published %q", said(kafka.log("a")))
			}
		})
	}
}

// A broker that refuses at random, an operator who retries all the time, a relay
// that is killed, and writers on few keys: at every join something could fall
// between the two flows.
func TestNothingFallsBetweenAHeldStreamAndTheMainFlow(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "a")
	kafka.create("a", 2)
	var quiet atomic.Bool
	kafka.answer(func(_ context.Context, b *Batch) error {
		if quiet.Load() {
			return nil
		}
		var named []int
		for i := range b.Records {
			if rand.IntN(120) == 0 {
				named = append(named, i)
			}
		}
		if named == nil {
			return nil
		}
		return &RefusedError{Indexes: named, Reason: "a whim"}
	})
	cfg := quick()
	cfg.PageSize = 10
	var joins, crashes, points atomic.Int32
	cfg.Hooks.Resumed = func(HeldStream) { joins.Add(1) }
	cfg.signals.crash = func(string) bool {
		if points.Add(1)%2500 == 0 && !quiet.Load() {
			crashes.Add(1)
			return true
		}
		return false
	}
	r := startRelay(t, pool, kafka, cfg)
	const keys = 4
	stop, written := make(chan struct{}), make(chan int64, keys)
	var appended atomic.Int64
	behind := func() bool { return appended.Load()-int64(kafka.distinct("a")) > 5000 }
	for i := range keys {
		p := newProducer(t, pool, fmt.Sprint("k", i))
		go func() {
			w, n := p.begin(), int64(0)
			for {
				select {
				case <-stop:
					written <- n
					return
				default:
				}
				time.Sleep(2 * time.Millisecond) // not a matter of order: the relay has to be the faster one
				if n%200 == 0 && behind() {      // which on a busy machine it isn't
					continue
				}
				w.enter().append("a", "x", "y").again()
				n += 2
				appended.Add(2)
			}
		}()
	}
	wanted := int32(30)
	if os.Getenv("FENCELINE_LONG") != "" {
		wanted = 1000
	}
	o := operator(t, pool)
	again := func() bool {
		held, err := o.Held(bg, HeldFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range held {
			if _, err := o.Retry(bg, h.Topic, h.Key, me); err != nil {
				if !errors.Is(err, ErrNotPossible) {
					t.Fatal(err)
				}
			}
		}
		return len(held) == 0
	}
	eventuallyIn(t, time.Minute*time.Duration(1+wanted/100), "it has joined often", func() bool { again(); return joins.Load() >= wanted })
	close(stop)
	quiet.Store(true)
	total := int64(0)
	for range keys {
		total += <-written
	}
	patiently(t, "nothing is held", again)
	covered := func() int64 {
		seen := map[string]bool{}
		for _, r := range kafka.log("a") {
			seen[fmt.Sprint(r.Key, "/", r.Seq)] = true
		}
		return int64(len(seen))
	}
	patiently(t, "all is published", func() bool { return covered() == total })
	r.end()
	if n := complete(t, kafka.log("a")); n != total {
		t.Errorf("%d of %d events are published in order", n, total)
	}
	t.Logf("%d events, %d joins, %d crashes", total, joins.Load(), crashes.Load())
}

// The answer to a request is being stored when the topic is refused. The request is over
// then: an operator may skip the record, which must not be on its way.
func TestARequestThatIsAnsweredIsNotTakenUpAgainForARefusalMeanwhile(t *testing.T) {
	t.Parallel()
	sd := &side{asked: 1, stopped: true, next: place{7, 1, 7}, flow: flow{beside: true}}
	h := &hold{HeldStream: HeldStream{Topic: "a", Key: "k", Pos: 6, Epoch: 1, Seq: 6}, recorded: true, asked: 1, wanted: true, side: sd}
	s := &session{held: map[streamKey]*hold{{"a", "k"}: h}}
	x := settled{h: h, sd: sd, Topic: "a", Key: "k", Became: becameHeld, Asked: 1}
	s.unresume("a")
	s.applySettled(x)
	if h.wanted || h.side != nil || h.Pos != 6 {
		t.Errorf("wanted %t, held at pos %d, beside it %v; want what is stored: held at 6, and no request", h.wanted, h.Pos, h.side)
	}
	// One that came after it stands.
	h.wanted, h.asked = true, 2
	s.applySettled(x)
	if !h.wanted {
		t.Error("a newer request is forgotten")
	}
}

// The stream has caught up and the main flow took its events over, of which one was
// refused: it is held there, where it is being stored. What the main flow has before
// it is not the stream's to wait for.
func TestAStreamIsHeldWhereItIsStoredThoughItsTopicIsRefusedMeanwhile(t *testing.T) {
	t.Parallel()
	sd := &side{asked: 1, stopped: true, joined: true, next: place{7, 1, 7}, flow: flow{beside: true}}
	h := &hold{HeldStream: HeldStream{Topic: "a", Key: "k", Pos: 9, Epoch: 1, Seq: 8}, recorded: true, asked: 1, wanted: true, side: sd}
	s := &session{held: map[streamKey]*hold{{"a", "k"}: h}}
	s.unresume("a")
	s.applySettled(settled{h: h, sd: sd, Topic: "a", Key: "k", Became: becameHeld, Asked: 1, Pos: 9})
	if h.Pos != 9 || h.Seq != 8 || h.wanted {
		t.Errorf("held at pos %d, seq %d, wanted %t; want what is stored: 9, 8, and no request", h.Pos, h.Seq, h.wanted)
	}
}
