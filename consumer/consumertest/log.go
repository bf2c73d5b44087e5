package consumertest

import (
	"context"
	"errors"
	"sync"

	"github.com/fenceline/fenceline/consumer"
)

// log is a topic of one partition in memory, and a group of one member.
type log struct {
	partition consumer.Partition
	turn      chan struct{}
	closed    chan struct{}
	close     sync.Once

	mu        sync.Mutex
	records   []consumer.KafkaRecord
	committed int64
	more      chan struct{} // closed when there is more
}

func newLog(topic string) *log {
	return &log{partition: consumer.Partition{Topic: topic}, committed: consumer.NoOffset,
		turn: make(chan struct{}, 1), closed: make(chan struct{}), more: make(chan struct{})}
}

// append gives the offset of the first.
func (l *log) append(recs []consumer.KafkaRecord) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := int64(len(l.records))
	for i, r := range recs {
		r.Offset = first + int64(i)
		l.records = append(l.records, r)
	}
	close(l.more)
	l.more = make(chan struct{})
	return first
}

// Next implements consumer.Source.
func (l *log) Next(ctx context.Context) (consumer.Generation, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.closed:
		return nil, errors.New("consumertest: the bench is closed")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g := &generation{log: l, assigned: l.committed}
	g.ctx, g.end = context.WithCancel(context.Background())
	return g, nil
}

// Close implements consumer.Source.
func (l *log) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

type generation struct {
	*log
	assigned int64
	ctx      context.Context
	end      context.CancelFunc
	release  sync.Once
}

func (g *generation) Context() context.Context { return g.ctx }

func (g *generation) Assigned() []consumer.Assignment {
	return []consumer.Assignment{{Partition: g.partition, Committed: g.assigned}}
}

func (g *generation) Partitions() map[string]int { return map[string]int{g.partition.Topic: 1} }

func (g *generation) Bounds(context.Context, consumer.Partition) (start, end int64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return 0, int64(len(g.records)), nil
}

func (g *generation) Fetch(ctx context.Context, p consumer.Partition, offset int64, _ int) (consumer.Fetched, error) {
	for {
		g.mu.Lock()
		end, more := int64(len(g.records)), g.more
		switch {
		case offset > end:
			g.mu.Unlock()
			return consumer.Fetched{}, &consumer.OffsetError{Partition: p, Offset: offset, End: end}
		case offset < end:
			recs := append([]consumer.KafkaRecord(nil), g.records[offset:]...)
			g.mu.Unlock()
			return consumer.Fetched{Records: recs, Next: end, HighWatermark: end}, nil
		}
		g.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return consumer.Fetched{}, ctx.Err()
		}
	}
}

func (g *generation) Commit(_ context.Context, next map[consumer.Partition]int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o, ok := next[g.partition]; ok {
		g.committed = o
	}
	return nil
}

func (g *generation) Release() {
	g.release.Do(func() {
		g.end()
		<-g.turn
	})
}
