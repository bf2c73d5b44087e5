package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/kafkasec"
)

// ErrClosed is returned by Next after Close.
var ErrClosed = errors.New("kafkasource: the source is closed")

// joinBackoff replaces kafka-go's 5 s between two attempts to join. The first
// attempt on a young cluster always fails: the coordinator is not there yet.
const joinBackoff = 250 * time.Millisecond

// retryBackoff is the pause between two looks at a cluster that does not
// answer, once it has answered before.
const retryBackoff = time.Second

// metadataTTL bounds how long a fetch can go to a leader that is none any more.
const metadataTTL = 2 * time.Second

// Source is a member of a consumer group. It implements [consumer.Source].
type Source struct {
	cfg       Config
	log       *slog.Logger
	transport *kafka.Transport
	client    *kafka.Client
	quit      chan struct{}

	mu     sync.Mutex
	group  *kafka.ConsumerGroup
	renew  bool           // leave and join anew before the next generation
	counts map[string]int // partitions of each topic when we first looked
	last   *generation
	closed bool
}

var _ consumer.Source = (*Source)(nil)

// New checks the configuration. It does not connect: the first Next does. The
// caller, or [consumer.Run], must Close the source.
func New(cfg Config) (*Source, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, log: cfg.Logger.With("group", cfg.Group), quit: make(chan struct{})}
	// A transport of our own: the default one is shared with whoever else uses
	// kafka-go in this process, has no TLS, and can't be closed (kafka-go #599).
	s.transport = &kafka.Transport{
		ClientID:       cfg.ClientID,
		TLS:            cfg.TLS,
		SASL:           cfg.SASL,
		DialTimeout:    cfg.RequestTimeout,
		MetadataTTL:    min(metadataTTL, cfg.WatchInterval),
		MetadataTopics: cfg.Topics,
	}
	if cfg.TLS == nil {
		s.transport.Dial = dial
	}
	s.client = &kafka.Client{Addr: kafka.TCP(cfg.Brokers...), Transport: s.transport, Timeout: cfg.RequestTimeout}
	return s, nil
}

// Next implements [consumer.Source]. The first call reports a cluster that
// can't be reached, a topic that is missing or compacted ([TopicError]) and a
// login that is refused; later calls wait outages out, and report only what
// waiting can't cure.
func (s *Source) Next(ctx context.Context) (consumer.Generation, error) {
	for {
		counts, err := s.prepare(ctx)
		if err == nil {
			var g *generation
			if g, err = s.join(ctx, counts); err == nil {
				return g, nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case s.isClosed():
			return nil, ErrClosed
		case s.fatal(err):
			return nil, err
		}
		s.log.Warn("the consumer group can't be joined, trying again", "err", err)
		select {
		case <-ctx.Done():
		case <-s.quit:
		case <-time.After(retryBackoff):
		}
	}
}

// prepare looks at the topics before the group is joined. kafka-go's group
// would take a missing topic for one without partitions, and keep that empty
// assignment when it appears (kafka-go #1314); or, on a broker that creates
// topics by itself, bring it into being with the wrong number of partitions.
func (s *Source) prepare(ctx context.Context) (map[string]int, error) {
	counts, err := s.partitions(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	known := s.counts
	s.mu.Unlock()
	if known == nil {
		if err := s.checkPolicy(ctx); err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.counts = counts
		s.mu.Unlock()
		return counts, nil
	}
	for topic, n := range counts {
		if known[topic] != n {
			return nil, &TopicError{topic, fmt.Sprintf("its number of partitions is %d now and was %d: events of one key lie in two partitions, and no order holds between them. when everything that was published before is read, and nothing was swept since, run `relay inbox topic accept` and start again", n, known[topic]), ErrPartitionsChanged}
		}
	}
	return counts, nil
}

// join waits for the next generation of the group.
func (s *Source) join(ctx context.Context, counts map[string]int) (*generation, error) {
	group, err := s.member()
	if err != nil {
		return nil, err
	}
	for {
		kgen, err := group.Next(ctx)
		if err == nil {
			g := newGeneration(s, kgen, counts)
			s.mu.Lock()
			s.last = g
			s.mu.Unlock()
			return g, nil
		}
		if ctx.Err() != nil || errors.Is(err, kafka.ErrGroupClosed) || s.fatal(err) {
			return nil, groupError(s.cfg.Group, err)
		}
		// kafka-go goes on joining by itself, after its backoff.
		s.log.Warn("joining the consumer group failed, trying again", "err", err)
	}
}

// member gives the membership, made anew if it must be.
func (s *Source) member() (*kafka.ConsumerGroup, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if s.group != nil && s.renew {
		// Joining again as the same member gives a follower the same
		// generation, without a rebalance (kafka-go #646). Leaving doesn't.
		_ = s.group.Close()
		s.group = nil
	}
	s.renew = false
	if s.group != nil {
		return s.group, nil
	}
	dialer := &kafka.Dialer{
		ClientID:      s.cfg.ClientID,
		Timeout:       s.cfg.RequestTimeout,
		TLS:           s.cfg.TLS,
		SASLMechanism: s.cfg.SASL,
		DualStack:     true,
	}
	if s.cfg.TLS == nil {
		dialer.DialFunc = dial
	}
	var err error
	s.group, err = kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                s.cfg.Group,
		Brokers:           s.cfg.Brokers,
		Topics:            s.cfg.Topics,
		Dialer:            dialer,
		HeartbeatInterval: s.cfg.HeartbeatInterval,
		SessionTimeout:    s.cfg.SessionTimeout,
		RebalanceTimeout:  s.cfg.RebalanceTimeout,
		JoinGroupBackoff:  joinBackoff,
		Timeout:           s.cfg.RequestTimeout,
		// The other choice is to begin at the end, which loses what was
		// published before the first join, and what is unread when offsets expire.
		StartOffset: kafka.FirstOffset,
		// Not kafka-go's watch: it ends the generation over and over while a
		// topic is missing, and can't make the group rebalance (kafka-go #646).
		WatchPartitionChanges: false,
		ErrorLogger:           kafka.LoggerFunc(func(f string, a ...any) { s.log.Debug("kafka-go", "text", fmt.Sprintf(f, a...)) }),
	})
	if err != nil {
		return nil, fmt.Errorf("kafkasource: %w", err)
	}
	return s.group, nil
}

// fatal says that waiting does not help. Before the first generation an outage
// is indistinguishable from a wrong address, so it is reported.
func (s *Source) fatal(err error) bool {
	for _, e := range []error{
		ErrClosed, ErrTopicCompacted, ErrPartitionsChanged,
		kafka.GroupAuthorizationFailed, kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed,
		kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism,
		kafka.InvalidGroupId, kafka.InvalidTopic, kafka.InvalidSessionTimeout, kafka.InconsistentGroupProtocol,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts == nil
}

// groupError adds the remedy to what a broker answers to a join.
func groupError(group string, err error) error {
	remedy := ""
	switch {
	case errors.Is(err, kafka.GroupAuthorizationFailed):
		remedy = "; grant this login READ on the group"
	case errors.Is(err, kafka.InvalidSessionTimeout):
		remedy = "; choose Config.SessionTimeout between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms"
	case errors.Is(err, kafka.InconsistentGroupProtocol):
		remedy = "; other members of this group are another kind of consumer: give it a name of its own"
	}
	return fmt.Errorf("kafkasource: joining group %q: %w%s", group, err, remedy)
}

func (s *Source) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// leaveNext makes the next Next leave the group and join it anew.
func (s *Source) leaveNext() {
	s.mu.Lock()
	s.renew = true
	s.mu.Unlock()
}

// Close implements [consumer.Source]. It takes Config.RequestTimeout at most:
// kafka-go's own Close has no bound when the network is gone (kafka-go #428), or
// while a join waits for the other members.
func (s *Source) Close() error {
	s.mu.Lock()
	group, last, first := s.group, s.last, !s.closed
	s.closed = true
	s.mu.Unlock()
	if !first {
		return nil
	}
	close(s.quit)
	defer s.transport.CloseIdleConnections()
	if group == nil {
		return nil
	}
	left := make(chan struct{})
	go func() {
		_ = group.Close()
		close(left)
	}()
	late := time.NewTimer(s.cfg.RequestTimeout)
	defer late.Stop()
	if last != nil {
		// Released only once kafka-go knows that it is to leave: a generation
		// that merely ends makes it join again first, and wait for everyone.
		select {
		case <-last.ctx.Done():
		case <-late.C:
		}
		last.Release()
	}
	select {
	case <-left:
		return nil
	case <-late.C:
		return fmt.Errorf("kafkasource: leaving group %q took longer than %v; its partitions are given away after %v", s.cfg.Group, s.cfg.RequestTimeout, s.cfg.SessionTimeout)
	}
}

// dial connects to a broker, and to nothing else that listens at its address.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	nd := net.Dialer{Timeout: dialTimeout}
	nc, err := nd.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return kafkasec.Heard(nc), nil
}

// dialTimeout bounds the connection to one address.
const dialTimeout = 3 * time.Second
