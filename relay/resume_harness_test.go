package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/outbox"
)

// poison is what a broker refuses, as a test changes its mind.
type poison struct {
	mu  sync.Mutex
	bad map[string]bool
}

func (p *poison) set(payloads ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad = map[string]bool{}
	for _, x := range payloads {
		p.bad[x] = true
	}
}

func (p *poison) refuses(payload string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bad[payload]
}

// poisoned is a broker that refuses some payloads, without saying which record
// of a batch is meant.
func poisoned(kafka *memory, payloads ...string) *poison {
	p := &poison{}
	p.set(payloads...)
	kafka.answer(func(_ context.Context, b *Batch) error {
		for i := range b.Records {
			if p.refuses(string(b.Records[i].Payload)) {
				e := &RefusedError{Reason: "poison", Err: errors.New("invalid record")}
				if len(b.Records) == 1 {
					e.Indexes = []int{0}
				}
				return e
			}
		}
		return nil
	})
	return p
}

func operator(t testing.TB, pool *pgxpool.Pool) *Operator {
	t.Helper()
	o, err := NewOperator(bg, pool, "")
	if err != nil {
		t.Fatal(err)
	}
	return o
}

var me = By{Who: "test", Why: "because"}

// isHeld waits until the database says that a stream is held and nothing was
// decided about it.
func isHeld(t testing.TB, pool *pgxpool.Pool, topic, key string) {
	t.Helper()
	patiently(t, "the hold of "+topic+"/"+key+" is stored", func() bool { return heldState(t, pool, topic, key) == "held" })
}

func heldState(t testing.TB, pool *pgxpool.Pool, topic, key string) string {
	t.Helper()
	return query[string](t, pool, "select coalesce((select state from fenceline.relay_held where topic = $1 and key = $2), '')", topic, key)
}

func isGone(t testing.TB, pool *pgxpool.Pool, topic, key string) {
	t.Helper()
	patiently(t, "the row of "+topic+"/"+key+" is gone", func() bool { return heldState(t, pool, topic, key) == "" })
}

func retry(t testing.TB, pool *pgxpool.Pool, topic, key string) {
	t.Helper()
	if _, err := operator(t, pool).Retry(bg, topic, key, me); err != nil {
		t.Fatal(err)
	}
}

func skip(t testing.TB, pool *pgxpool.Pool, topic, key string, through int64) Skipped {
	t.Helper()
	s, err := operator(t, pool).Skip(bg, topic, key, through, me)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// notPossible wants a decision to be refused, with texts in the answer.
func notPossible(t testing.TB, err error, texts ...string) {
	t.Helper()
	var e *NotPossibleError
	if !errors.Is(err, ErrNotPossible) || !errors.As(err, &e) || e.Remedy == "" {
		t.Errorf("the answer is %v, want a refusal with a remedy", err)
		return
	}
	for _, s := range texts {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the answer is %q, without %q", err, s)
		}
	}
}

// log copies what has arrived in a topic.
func (m *memory) log(topic string) []outbox.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.logs[topic])
}

// said is a topic's log as text, without what was there before: "1" for the
// payload of an event, "skip 2-4" and "end 5" for markers.
func said(records []outbox.Record) []string {
	said := []string{}
	seen := map[string]bool{}
	for _, r := range records {
		s := string(r.Payload)
		switch r.Kind {
		case outbox.KindSkip:
			s = fmt.Sprintf("skip %d-%d", r.From, r.Seq)
		case outbox.KindEnd:
			s = fmt.Sprintf("end %d", r.Seq)
		}
		if at := fmt.Sprint(r.Key, r.Epoch, r.Seq, s); !seen[at] {
			seen[at] = true
			said = append(said, s)
		}
	}
	return said
}

// complete checks that in each stream and epoch the first copies are in order
// and without holes, markers counted as what they stand for, and that all copies
// of a record are the same; it gives the number of seqs that are covered.
func complete(t testing.TB, records []outbox.Record) (covered int64) {
	t.Helper()
	type life struct {
		topic, key string
		epoch      int64
	}
	next, epoch, wire := map[life]int64{}, map[streamKey]int64{}, map[string]string{}
	for i := range records {
		r := &records[i]
		l := life{r.Stream, r.Key, r.Epoch}
		k := streamKey{r.Stream, r.Key}
		bytes := fmt.Sprintf("%q %q %d", outbox.AppendWireHeaders(nil, r), outbox.WireValue(r), r.CreatedAt.UnixMilli())
		if before, again := wire[fmt.Sprint(l, r.Seq)]; again && before != bytes {
			t.Errorf("two copies differ:\n%s\n%s", before, bytes)
		}
		wire[fmt.Sprint(l, r.Seq)] = bytes
		if r.Seq <= next[l] {
			continue
		}
		if r.First() != next[l]+1 {
			t.Errorf("%v: the first copy of seq %d (from %d, pos %d) comes where %d is due", l, r.Seq, r.First(), r.Pos, next[l]+1)
		}
		if r.Epoch < epoch[k] {
			t.Errorf("%v: the first copy of an earlier life comes behind epoch %d", l, epoch[k])
		}
		epoch[k] = r.Epoch
		covered += r.Seq - next[l]
		next[l] = r.Seq
	}
	return covered
}

// reopen ends the life of the producer's key, and begins the next.
func (p *producer) reopen() {
	p.t.Helper()
	p.close()
	if err := p.pool.QueryRow(bg, "select epoch from fenceline.open($1)", p.key).Scan(&p.epoch); err != nil {
		p.t.Fatal(err)
	}
	q := newProducer(p.t, p.pool, p.key)
	p.epoch, p.token = q.epoch, q.token
}

func (p *producer) close() {
	p.t.Helper()
	if _, err := p.pool.Exec(bg, "select fenceline.close($1, $2, $3)", p.key, p.epoch, p.token); err != nil {
		p.t.Fatal(err)
	}
}

// patiently is eventually, with the patience that tests need that crash, back
// off and ask again, on a machine that is busy.
func patiently(t testing.TB, what string, so func() bool) {
	t.Helper()
	eventuallyIn(t, 2*time.Minute, what, so)
}

func eventuallyIn(t testing.TB, patience time.Duration, what string, so func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !so() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// seat is a broker in memory as one of several instances sees it: two of them
// may write to one partition at the same time.
type seat struct{ *memory }

func (s seat) Produce(ctx context.Context, b *Batch) error {
	m := s.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.before; f != nil {
		m.mu.Unlock()
		err := f(ctx, b)
		m.mu.Lock()
		if err != nil {
			return err
		}
	}
	if _, ok := m.topics[b.Topic]; !ok {
		return &TopicError{Topic: b.Topic, Reason: "unknown to the broker in memory", Err: errors.New("unknown topic")}
	}
	m.logs[b.Topic] = append(m.logs[b.Topic], b.Records...)
	return nil
}
