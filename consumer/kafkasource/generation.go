package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/consumer"
)

// generation is one kafka-go generation. kafka-go's Reader is not used: it
// keeps records that it fetched before a rebalance (kafka-go #1398), its commit
// can move a group's offset backwards (kafka-go #1308), it delivers control and
// aborted records, and passes silently over what the log no longer has.
type generation struct {
	src      *Source
	kgen     *kafka.Generation
	counts   map[string]int
	assigned []consumer.Assignment

	ctx      context.Context
	released chan struct{}
	once     sync.Once
	commits  sync.Mutex // one commit at a time: a later one must not be overtaken
}

func newGeneration(s *Source, kgen *kafka.Generation, counts map[string]int) *generation {
	g := &generation{src: s, kgen: kgen, counts: counts, released: make(chan struct{})}
	for topic, parts := range kgen.Assignments {
		for _, p := range parts {
			committed := p.Offset
			if committed < 0 { // kafka-go puts its StartOffset here when there is none
				committed = consumer.NoOffset
			}
			g.assigned = append(g.assigned, consumer.Assignment{
				Partition: consumer.Partition{Topic: topic, ID: p.ID}, Committed: committed,
			})
		}
	}
	slices.SortFunc(g.assigned, func(a, b consumer.Assignment) int {
		if a.Topic != b.Topic {
			if a.Topic < b.Topic {
				return -1
			}
			return 1
		}
		return a.ID - b.ID
	})
	ctx, cancel := context.WithCancelCause(context.Background())
	g.ctx = ctx
	// kafka-go closes the connection to the coordinator and joins again only
	// when every function started here has returned. So this one stays until
	// Release: until then offsets can still be committed.
	kgen.Start(func(kctx context.Context) {
		select {
		case <-kctx.Done():
		case <-g.released:
		}
		cancel(kafka.ErrGenerationEnded)
		<-g.released
	})
	kgen.Start(g.watch)
	return g
}

// Context implements consumer.Generation.
func (g *generation) Context() context.Context { return g.ctx }

// Assigned implements consumer.Generation.
func (g *generation) Assigned() []consumer.Assignment { return g.assigned }

// Partitions implements consumer.Generation.
func (g *generation) Partitions() map[string]int { return g.counts }

// Release implements consumer.Generation.
func (g *generation) Release() { g.once.Do(func() { close(g.released) }) }

// Bounds implements consumer.Generation.
func (g *generation) Bounds(ctx context.Context, p consumer.Partition) (start, end int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.src.cfg.RequestTimeout)
	defer cancel()
	res, err := g.src.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{p.Topic: {kafka.FirstOffsetOf(p.ID), kafka.LastOffsetOf(p.ID)}},
	})
	if err != nil {
		return 0, 0, fmt.Errorf("kafkasource: %s: the log's bounds: %w", p, err)
	}
	for _, o := range res.Topics[p.Topic] {
		if o.Partition == p.ID {
			if o.Error != nil {
				return 0, 0, fmt.Errorf("kafkasource: %s: the log's bounds: %w", p, o.Error)
			}
			return o.FirstOffset, o.LastOffset, nil
		}
	}
	return 0, 0, fmt.Errorf("kafkasource: %s: the broker did not answer for its bounds", p)
}

// Fetch implements consumer.Generation.
func (g *generation) Fetch(ctx context.Context, p consumer.Partition, offset int64, maxBytes int) (consumer.Fetched, error) {
	cfg := &g.src.cfg
	// The connection has no deadline of its own, so this is what ends a fetch
	// from a broker that is gone.
	rctx, cancel := context.WithTimeout(ctx, cfg.MaxWait+cfg.RequestTimeout)
	defer cancel()
	msg, err := g.src.transport.RoundTrip(rctx, g.src.client.Addr,
		newFetchRequest(cfg.ClientID, p, offset, maxBytes, int(cfg.MaxWait/time.Millisecond)))
	if err != nil {
		return consumer.Fetched{}, fmt.Errorf("kafkasource: fetch of %s: %w", p, err)
	}
	res := msg.(*fetchResponse)
	switch code := kafka.Error(res.errorCode); {
	case code == 0:
	case errors.Is(code, kafka.OffsetOutOfRange):
		start, end, err := g.Bounds(ctx, p)
		if err != nil {
			return consumer.Fetched{}, err
		}
		return consumer.Fetched{}, &consumer.OffsetError{Partition: p, Offset: offset, Start: start, End: end}
	case errors.Is(code, kafka.InvalidMessage), code == unsupportedCompression:
		return consumer.Fetched{}, &consumer.BatchError{Partition: p, Offset: offset, Reason: "the broker says: " + code.Description()}
	default:
		return consumer.Fetched{}, fmt.Errorf("kafkasource: fetch of %s: %w", p, code)
	}
	d := decoder{partition: p, offset: offset, maxBytes: maxBytes, maxBatch: cfg.MaxBatchBytes}
	recs, next, err := d.decode(res)
	if err != nil {
		return consumer.Fetched{}, err
	}
	return consumer.Fetched{Records: recs, Next: next, LogStart: res.logStart, HighWatermark: res.highWatermark}, nil
}

// unsupportedCompression is UNSUPPORTED_COMPRESSION_TYPE.
const unsupportedCompression = kafka.Error(76)

// Commit implements consumer.Generation. After the generation has ended
// kafka-go's connection is closed, and the error is that of a closed
// connection, not the broker's "illegal generation": nothing may depend on
// which error it is.
func (g *generation) Commit(_ context.Context, next map[consumer.Partition]int64) error {
	offsets := make(map[string]map[int]int64)
	for p, o := range next {
		if offsets[p.Topic] == nil {
			offsets[p.Topic] = make(map[int]int64)
		}
		offsets[p.Topic][p.ID] = o
	}
	g.commits.Lock()
	defer g.commits.Unlock()
	if err := g.kgen.CommitOffsets(offsets); err != nil {
		return fmt.Errorf("kafkasource: commit of offsets: %w", err)
	}
	return nil
}

// watch ends the generation when the topics have another number of partitions,
// or when the group left partitions without a reader: a leader whose view of
// the topics was old assigns less than there is, and for ever (kafka-go #1314).
func (g *generation) watch(kctx context.Context) {
	tick := time.NewTicker(g.src.cfg.WatchInterval)
	defer tick.Stop()
	covered := false
	for {
		select {
		case <-kctx.Done():
			return
		case <-g.released:
			return
		case <-tick.C:
		}
		// An error is an outage, or a topic that is gone: reading on is right in
		// the first case and harmless in the second.
		counts, err := g.src.partitions(g.ctx)
		if err != nil {
			continue
		}
		for topic, n := range counts {
			if n != g.counts[topic] {
				g.src.log.Error("the number of partitions has changed", "topic", topic, "was", g.counts[topic], "is", n)
				return
			}
		}
		if covered {
			continue
		}
		missing, err := g.uncovered(counts)
		if err != nil {
			continue
		}
		if covered = missing == ""; !covered {
			g.src.log.Warn("the group left partitions without a reader, joining anew", "topic", missing)
			g.src.leaveNext()
			return
		}
	}
}

// uncovered names a topic of which nobody reads some partition. A member can't
// see that in its own assignment, which may rightly be empty.
func (g *generation) uncovered(counts map[string]int) (string, error) {
	ctx, cancel := context.WithTimeout(g.ctx, g.src.cfg.RequestTimeout)
	defer cancel()
	res, err := g.src.client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{g.src.cfg.Group}})
	if err != nil {
		return "", err
	}
	read := make(map[string]int)
	for _, group := range res.Groups {
		if group.Error != nil {
			return "", group.Error
		}
		if group.GroupState != "Stable" {
			return "", errors.New("kafkasource: the group is rebalancing")
		}
		for _, m := range group.Members {
			for _, t := range m.MemberAssignments.Topics {
				read[t.Topic] += len(t.Partitions)
			}
		}
	}
	for topic, n := range counts {
		if read[topic] < n {
			return topic, nil
		}
	}
	return "", nil
}
