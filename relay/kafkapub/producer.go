package kafkapub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// producer is an identity under which the broker counts what we send to each
// partition.
type producer struct {
	id    int64
	epoch int16
}

// unnumbered is no identity: the broker counts nothing.
var unnumbered = &producer{id: -1, epoch: -1}

// producers hands out identities. All lanes begin with one and the same, as
// the broker counts per partition anyway; a lane that needs another gets one
// of its own, and the rest keep theirs.
type producers struct {
	log *slog.Logger
	// turn is a lock that can be waited for with a context: the first lanes
	// wait for the one identity instead of asking for one each.
	turn   chan struct{}
	shared *producer
	// refused is set when the broker allows no idempotence: from then on every
	// identity is unnumbered. Only a new publisher tries again.
	refused atomic.Bool
}

func newProducers(log *slog.Logger) *producers {
	return &producers{log: log, turn: make(chan struct{}, 1)}
}

// first gives the shared identity.
func (p *producers) first(ctx context.Context, c *kafka.Client) (*producer, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.shared == nil || p.refused.Load() {
		next, err := p.next(ctx, c)
		if err != nil {
			return nil, err
		}
		p.shared = next
	}
	return p.shared, nil
}

// next gives an identity that was never used, or unnumbered.
func (p *producers) next(ctx context.Context, c *kafka.Client) (*producer, error) {
	if p.refused.Load() {
		return unnumbered, nil
	}
	resp, err := c.InitProducerID(ctx, &kafka.InitProducerIDRequest{
		// Not kafka-go's zeros, which name producer 0 and are an error to some.
		ProducerID:    -1,
		ProducerEpoch: -1,
	})
	if err == nil {
		err = resp.Error
	}
	switch {
	case err == nil:
		return &producer{int64(resp.Producer.ProducerID), int16(resp.Producer.ProducerEpoch)}, nil
	case errors.Is(err, kafka.ClusterAuthorizationFailed),
		errors.Is(err, kafka.UnsupportedVersion),
		!isCode(err) && p.unsupported(ctx, c):
		p.refuse(err)
		return unnumbered, nil
	}
	return nil, fmt.Errorf("no producer id: %w", err)
}

// unsupported tells a broker that doesn't know the request, and ends the
// connection over it, from one that is out of reach.
func (p *producers) unsupported(ctx context.Context, c *kafka.Client) bool {
	resp, err := c.ApiVersions(ctx, &kafka.ApiVersionsRequest{})
	if err != nil || resp.Error != nil {
		return false
	}
	for _, k := range resp.ApiKeys {
		if k.ApiKey == int(protocol.InitProducerId) {
			return false
		}
	}
	return true
}

// refuse gives up idempotence. What that costs is said once.
func (p *producers) refuse(err error) {
	if p.refused.CompareAndSwap(false, true) {
		p.log.Warn("broker refuses idempotent produce; a lost acknowledgement will leave duplicates in the log"+
			" (grant WRITE on the topics, and IdempotentWrite on the cluster before Kafka 2.8)", "error", err)
	}
}

func isCode(err error) bool {
	var code kafka.Error
	return errors.As(err, &code)
}
