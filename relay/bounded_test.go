package relay

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// still gives a session that reads, and sends nothing: its topic is usable and has
// lanes in which nothing goes on.
func still(t *testing.T, pool *pgxpool.Pool, cfg Config, partitions int) *session {
	t.Helper()
	sql := newStatements("fenceline")
	var own []fencing.Position
	for n := range outbox.Shards {
		own = append(own, fencing.Position{Key: ShardKey(n)})
	}
	s, err := openSession(bg, pool, newMemory(t), cfg.withDefaults(), &sql, own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	s.soft, s.ending = bg, true
	a := &topic{s: s, name: "a", usable: true, partitions: partitions, batchBytes: s.cfg.BatchBytes}
	for n := range partitions {
		a.lanes = append(a.lanes, &lane{s: s, topic: a, partition: n, wake: make(chan struct{}, 1)})
	}
	s.topics["a"] = a
	return s
}

// Whatever an operator, or a limit that was raised, asks for: a page of each of these
// streams is many times what may be in flight.
func TestManyHeldStreamsThatAreRetriedAreReadAsThereIsRoom(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	cfg := quick()
	cfg.MaxBytesInFlight, cfg.PageBytes = 4<<20, 1<<20
	payload := strings.Repeat("x", 100<<10)
	var holds []*hold
	for i := range 12 {
		p := newProducer(t, pool, fmt.Sprint("k", i))
		p.publish("a", payload, payload, payload, payload, payload, payload, payload, payload)
		h := &hold{HeldStream: HeldStream{Topic: "a", Key: p.key, Pos: 1, Epoch: p.epoch, Seq: 1}, recorded: true, wanted: true}
		holds = append(holds, h)
	}
	s := still(t, pool, cfg, 1)
	s.look = true
	for _, h := range holds {
		s.held[streamKey{h.Topic, h.Key}] = h
	}
	at, err := parseSnapshot(query[string](t, pool, "select pg_current_snapshot()::text"))
	if err != nil {
		t.Fatal(err)
	}
	s.main.read, s.main.acked = cursor{s1: at}, cursor{s1: at}
	for range 3 {
		if _, _, err := s.step(); err != nil {
			t.Fatal(err)
		}
	}
	if most := cfg.MaxBytesInFlight + 200<<10; s.inFlight > most || s.inFlight == 0 {
		t.Errorf("%d bytes are in flight, of at most %d", s.inFlight, cfg.MaxBytesInFlight)
	}
}

// Small ones keep the rest waiting as long as it takes to ask for each.
func TestTheRestIsReadBetweenHeldStreamsThatAreRetried(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	s := still(t, pool, quick(), 1)
	s.look = true
	for i := range 10 * resumedAtOnce {
		k := streamKey{"a", fmt.Sprint("k", i)}
		s.held[k] = &hold{HeldStream: HeldStream{Topic: k.topic, Key: k.key, Pos: 1, Epoch: 1, Seq: 1}, recorded: true, wanted: true}
	}
	joined := func() (n int) {
		for _, h := range s.held {
			if h.side != nil && h.side.joined {
				n++
			}
		}
		return n
	}
	for i := 1; i <= 10; i++ {
		_, more, err := s.step()
		if n := joined(); err != nil || n != i*resumedAtOnce || !more && i < 10 {
			t.Fatalf("after %d looks %d streams are resumed, more: %t, %v; want %d each time", i, n, more, err, resumedAtOnce)
		}
	}
}

// Of large ones a few take all the room there is, again and again.
func TestTheRestIsReadBetweenLargeHeldStreamsThatAreRetried(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	cfg := quick()
	cfg.MaxBytesInFlight, cfg.PageBytes = 4<<20, 1<<20
	payload := strings.Repeat("x", 100<<10)
	s := still(t, pool, cfg, 1)
	s.look = true
	const streams = 16
	for i := range streams {
		p := newProducer(t, pool, fmt.Sprint("k", i))
		p.publish("a", payload, payload, payload, payload, payload, payload, payload, payload)
		s.held[streamKey{"a", p.key}] = &hold{HeldStream: HeldStream{Topic: "a", Key: p.key, Pos: 1, Epoch: p.epoch, Seq: 1}, recorded: true, wanted: true}
	}
	at, err := parseSnapshot(query[string](t, pool, "select pg_current_snapshot()::text"))
	if err != nil {
		t.Fatal(err)
	}
	s.main.read, s.main.acked = cursor{s1: at}, cursor{s1: at}
	newProducer(t, pool, "new").publish("a", "new")
	l := s.topics["a"].lanes[0]
	for s.main.read.s1.text == at.text {
		if _, _, err := s.step(); err != nil {
			t.Fatal(err)
		}
		resumed := 0
		for _, h := range s.held {
			if h.side != nil && h.side.joined {
				resumed++
			}
		}
		if resumed > streams/2 {
			t.Fatalf("%d of %d held streams are resumed, and nothing else was read", resumed, streams)
		}
		s.mu.Lock() // a stream's worth is acknowledged
		n := min(8, len(l.queue))
		for i := range n {
			s.settle(&l.queue[i])
		}
		l.queue = l.queue[n:]
		s.mu.Unlock()
	}
}

// Where it is not for lack of room that the main flow waits, nobody waits for it.
func TestHeldStreamsAreReadWhileTheMainFlowWaitsForItsPartitions(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	s := still(t, pool, quick(), 1)
	s.look, s.mainsTurn = true, true
	s.main.ahead = maxAhead
	s.held[streamKey{"a", "k"}] = &hold{HeldStream: HeldStream{Topic: "a", Key: "k", Pos: 1, Epoch: 1, Seq: 1}, recorded: true, wanted: true}
	for i := range 2 {
		if _, more, err := s.step(); err != nil || !more && i == 0 {
			t.Fatalf("more: %t, %v; want the stream to be read at once", more, err)
		}
	}
	if h := s.held[streamKey{"a", "k"}]; h.side == nil || !h.side.joined {
		t.Error("the stream was not read")
	}
}

// All of them lost their leader at once, and are due at once.
func TestFewPartitionsThatAreSetAsideAreTriedAtOnce(t *testing.T) {
	t.Parallel()
	pool, _ := fresh(t)
	const partitions = 10
	s := still(t, pool, quick(), partitions)
	for n, have := 0, map[int]bool{}; len(have) < partitions; n++ {
		k := fmt.Sprint("key ", n)
		if i := outbox.Partition([]byte(k), partitions); !have[i] {
			have[i] = true
			newProducer(t, pool, k).publish("a", "1")
			s.forks = append(s.forks, partitioned(allShards, i, partitions, start()))
		}
	}
	for range 3 {
		if _, _, err := s.step(); err != nil {
			t.Fatal(err)
		}
		trying := 0
		for _, f := range s.forks {
			if f.flow.ahead > 0 {
				trying++
			}
		}
		if trying != mostTries {
			t.Fatalf("%d partitions are tried at once, want %d", trying, mostTries)
		}
	}
}
