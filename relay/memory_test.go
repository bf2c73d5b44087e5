package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/fenceline/fenceline/outbox"
)

// memory is a broker in memory: topics, logs, and answers that a test chooses.
type memory struct {
	t testing.TB

	mu     sync.Mutex
	topics map[string]Topic
	logs   map[string][]outbox.Record // all partitions of a topic, as they arrived
	busy   map[string]bool

	// before is asked before anything is appended; an error is the answer.
	before func(ctx context.Context, b *Batch) error
	// after is asked once the batch is appended; an error is the answer.
	after func(b *Batch) error
	// describe answers instead of topics.
	describe func(topic string) (Topic, error)
}

// errAway is an outage's.
var errAway = errors.New("the broker is away")

func newMemory(t testing.TB, topics ...string) *memory {
	m := &memory{t: t, topics: map[string]Topic{}, logs: map[string][]outbox.Record{}, busy: map[string]bool{}}
	for _, name := range topics {
		m.create(name, 3)
	}
	return m
}

func (m *memory) create(name string, partitions int) {
	m.set(Topic{Name: name, Partitions: partitions, CleanupPolicy: "delete", MaxMessageBytes: 1048588})
}

func (m *memory) set(topic Topic) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.topics[topic.Name] = topic
}

func (m *memory) remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.topics, name)
}

// answer changes what before answers.
func (m *memory) answer(f func(ctx context.Context, b *Batch) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = f
}

func (m *memory) Describe(_ context.Context, name string) (Topic, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.describe != nil {
		return m.describe(name)
	}
	t, ok := m.topics[name]
	if !ok {
		return t, &TopicError{Topic: name, Reason: "unknown to the broker in memory", Err: errors.New("unknown topic")}
	}
	return t, nil
}

func (m *memory) Produce(ctx context.Context, b *Batch) error { return m.produce(ctx, "", b) }

// member is one of several instances' way to the same broker.
type member struct {
	*memory
	name string
}

func (m *member) Produce(ctx context.Context, b *Batch) error { return m.produce(ctx, m.name, b) }

func (m *memory) produce(ctx context.Context, who string, b *Batch) error {
	lane := fmt.Sprintf("%s %s/%d", who, b.Topic, b.Partition)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy[lane] {
		m.t.Errorf("two requests in flight for %s", lane)
	}
	m.busy[lane] = true
	defer func() { m.busy[lane] = false }()
	if f := m.before; f != nil {
		m.mu.Unlock()
		err := f(ctx, b)
		m.mu.Lock()
		if err != nil {
			return err
		}
	}
	topic, ok := m.topics[b.Topic]
	if !ok {
		return &TopicError{Topic: b.Topic, Reason: "unknown to the broker in memory", Err: errors.New("unknown topic")}
	}
	for i := range b.Records {
		if p := outbox.Partition([]byte(b.Records[i].Key), topic.Partitions); p != b.Partition {
			m.t.Errorf("key %q is in partition %d, not %d", b.Records[i].Key, p, b.Partition)
		}
	}
	m.logs[b.Topic] = append(m.logs[b.Topic], b.Records...)
	if m.after != nil {
		return m.after(b)
	}
	return nil
}

func (m *memory) Close() error { return nil }

// payloads of a topic's records, in the order of arrival.
func (m *memory) payloads(topic string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := []string{}
	for _, r := range m.logs[topic] {
		all = append(all, string(r.Payload))
	}
	return all
}

func (m *memory) has(topic, payload string) bool { return slices.Contains(m.payloads(topic), payload) }

// firsts checks that in each stream the first copies are in order and without
// holes, and counts records and copies beyond the first.
func firsts(t testing.TB, records []outbox.Record) (distinct, again int, next map[streamKey]int64) {
	t.Helper()
	next = map[streamKey]int64{}
	tokens := map[streamKey]int64{}
	for _, r := range records {
		k := streamKey{r.Stream, r.Key}
		switch want := next[k] + 1; {
		case r.Seq == want:
			next[k] = r.Seq
			distinct++
			if r.Token < tokens[k] {
				t.Errorf("%v: token goes back to %d at seq %d", k, r.Token, r.Seq)
			}
			tokens[k] = r.Token
		case r.Seq < want:
			again++
		default:
			t.Errorf("%v: the first copy of seq %d (pos %d) comes where %d is due", k, r.Seq, r.Pos, want)
			next[k] = r.Seq
		}
	}
	return distinct, again, next
}

// blockUntil is an answer that takes until gate is closed.
func blockUntil(gate <-chan struct{}) func(context.Context, *Batch) error {
	return func(ctx context.Context, _ *Batch) error {
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
