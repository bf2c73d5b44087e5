package consumer_test

import (
	"context"
	"errors"
	"sync"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// memory is a Kafka of one partition whose faults a test chooses, including
// those that no broker can be brought to.
type memory struct {
	topic string

	mu        sync.Mutex
	records   []consumer.KafkaRecord
	start     int64
	committed int64
	more      chan struct{} // closed when something changes
	// commitFails makes commits of offsets fail.
	commitFails bool
	// fetchErrs are answered first, one each.
	fetchErrs []error
	// page is how many records a fetch gives at most; 0 for all.
	page int
	// partitions is how many the topic is said to have; 0 for one.
	partitions int
	// all has a member get all partitions, of which the first one has the records.
	all bool
	// asked is how many bytes the last fetch of each partition was to give.
	asked map[int]int
	// fetched is the highest offset that was given out, plus one.
	fetched int64
}

func newMemory(topic string) *memory {
	return &memory{topic: topic, committed: consumer.NoOffset, more: make(chan struct{})}
}

func (m *memory) partition() consumer.Partition { return consumer.Partition{Topic: m.topic} }

func (m *memory) changed() {
	close(m.more)
	m.more = make(chan struct{})
}

// publish appends records.
func (m *memory) publish(recs ...outbox.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range recs {
		r := &recs[i]
		m.records = append(m.records, consumer.KafkaRecord{
			Offset: m.start + int64(len(m.records)), Time: r.CreatedAt, Key: []byte(r.Key),
			Value: outbox.WireValue(r), Headers: outbox.AppendWireHeaders(nil, r),
		})
	}
	m.changed()
}

// raw appends something that is not an event.
func (m *memory) raw(r consumer.KafkaRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Offset = m.start + int64(len(m.records))
	m.records = append(m.records, r)
	m.changed()
}

// fail makes the next fetch fail.
func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fetchErrs = append(m.fetchErrs, err)
	m.changed()
}

// cut removes what is below the offset.
func (m *memory) cut(offset int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records, m.start = m.records[offset-m.start:], offset
}

// recreate empties the log.
func (m *memory) recreate() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records, m.start = nil, 0
}

func (m *memory) rewind(to int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.committed = to
}

func (m *memory) offset() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.committed
}

// source is a member of the group, which gets the partition at once and keeps
// it until it is revoked. Two of them at a time are what a group never has, but
// its members do: one that doesn't know yet that it lost the partition.
func (m *memory) source() *memorySource {
	return &memorySource{memory: m, turn: make(chan struct{}, 1), closed: make(chan struct{})}
}

type memorySource struct {
	*memory
	turn   chan struct{}
	once   sync.Once
	closed chan struct{}

	mu      sync.Mutex
	current *memoryGeneration
}

func (s *memorySource) Next(ctx context.Context) (consumer.Generation, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.closed:
		return nil, errors.New("closed")
	}
	gctx, revoke := context.WithCancel(context.Background())
	g := &memoryGeneration{memorySource: s, ctx: gctx, revoke: revoke, committed: s.offset()}
	s.mu.Lock()
	s.current = g
	s.mu.Unlock()
	return g, nil
}

// revoke ends the current generation.
func (s *memorySource) revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.revoke()
}

// tryRevoke does so if there is a generation.
func (s *memorySource) tryRevoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		s.current.revoke()
	}
}

func (s *memorySource) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

type memoryGeneration struct {
	*memorySource
	ctx       context.Context
	revoke    context.CancelFunc
	committed int64
	once      sync.Once
}

func (g *memoryGeneration) Context() context.Context { return g.ctx }

func (g *memoryGeneration) Assigned() []consumer.Assignment {
	if g.all {
		var all []consumer.Assignment
		for i := range g.partitions {
			all = append(all, consumer.Assignment{Partition: consumer.Partition{Topic: g.topic, ID: i}, Committed: consumer.NoOffset})
		}
		return all
	}
	return []consumer.Assignment{{Partition: g.partition(), Committed: g.committed}}
}

func (g *memoryGeneration) Partitions() map[string]int {
	return map[string]int{g.topic: max(g.partitions, 1)}
}

func (g *memoryGeneration) Bounds(context.Context, consumer.Partition) (start, end int64, err error) {
	g.memory.mu.Lock()
	defer g.memory.mu.Unlock()
	return g.start, g.start + int64(len(g.records)), nil
}

func (g *memoryGeneration) Fetch(ctx context.Context, p consumer.Partition, offset int64, maxBytes int) (consumer.Fetched, error) {
	for {
		m := g.memory
		m.mu.Lock()
		if m.asked == nil {
			m.asked = map[int]int{}
		}
		m.asked[p.ID] = maxBytes
		if p.ID > 0 {
			m.mu.Unlock()
			<-ctx.Done()
			return consumer.Fetched{}, ctx.Err()
		}
		if len(m.fetchErrs) > 0 {
			err := m.fetchErrs[0]
			m.fetchErrs = m.fetchErrs[1:]
			m.mu.Unlock()
			return consumer.Fetched{}, err
		}
		end := m.start + int64(len(m.records))
		if offset < m.start || offset > end {
			m.mu.Unlock()
			return consumer.Fetched{}, &consumer.OffsetError{Partition: p, Offset: offset, Start: m.start, End: end}
		}
		if offset < end {
			recs := append([]consumer.KafkaRecord(nil), m.records[offset-m.start:]...)
			if m.page > 0 && len(recs) > m.page {
				recs = recs[:m.page]
			}
			next := offset + int64(len(recs))
			m.fetched = max(m.fetched, next)
			m.mu.Unlock()
			return consumer.Fetched{Records: recs, Next: next, LogStart: m.start, HighWatermark: end}, nil
		}
		more := m.more
		m.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return consumer.Fetched{}, ctx.Err()
		}
	}
}

func (g *memoryGeneration) Commit(_ context.Context, next map[consumer.Partition]int64) error {
	g.memory.mu.Lock()
	defer g.memory.mu.Unlock()
	if g.commitFails {
		return errors.New("use of closed network connection")
	}
	if o, ok := next[g.partition()]; ok {
		g.memory.committed = o
	}
	return nil
}

func (g *memoryGeneration) Release() {
	g.once.Do(func() {
		g.revoke()
		<-g.turn
	})
}
