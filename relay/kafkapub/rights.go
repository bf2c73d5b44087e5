package kafkapub

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/fenceline/fenceline/relay"
)

var _ relay.Rights = (*Publisher)(nil)

const (
	// metadataVersion is the one in which a broker tells a login's rights, from
	// Kafka 2.3 on, and the last that kafka-go can encode.
	metadataVersion = 8
	// mayWriteBit is Kafka's number of the operation Write, as a bit of the answer.
	mayWriteBit = 1 << 4
	// notTold is the answer of a broker that was not asked, or doesn't tell.
	notTold = math.MinInt32
)

// MayWrite implements [relay.Rights] by the rights that the broker tells of
// this login, which needs no right beyond Describe. A cluster without an
// authorizer lets everybody do everything, and says so. It returns within
// Config.Timeout.
func (p *Publisher) MayWrite(ctx context.Context, topic string) (may, known bool, err error) {
	ctx, leave, err := p.enter(ctx)
	if err != nil {
		return false, false, err
	}
	defer leave()
	errs := p.anyOf(ctx, func(ctx context.Context, address string) (err error) {
		may, known, err = p.mayWrite(ctx, address, topic)
		return err
	})
	if errs != nil {
		return false, false, fmt.Errorf("kafkapub: topic %q: ask for rights: %w", topic, cause(ctx, errors.Join(append(errs, ctx.Err())...)))
	}
	return may, known, nil
}

// mayWrite asks one broker: kafka-go's client answers metadata from memory,
// without rights.
func (p *Publisher) mayWrite(ctx context.Context, address, topic string) (may, known bool, err error) {
	answer, err := p.ask(ctx, address, metadataVersion, &metadata.Request{TopicNames: []string{topic}, IncludeTopicAuthorizedOperations: true})
	if err != nil {
		return false, false, err
	}
	resp, ok := answer.(*metadata.Response)
	if !ok || len(resp.Topics) != 1 {
		return false, false, errors.New("the broker's answer is not about the topic")
	}
	t := resp.Topics[0]
	switch code := kafka.Error(t.ErrorCode); {
	case code == kafka.TopicAuthorizationFailed:
		return false, true, nil
	case t.ErrorCode != 0:
		return false, false, code
	case t.TopicAuthorizedOperations == notTold:
		return false, false, nil
	}
	return t.TopicAuthorizedOperations&mayWriteBit != 0, true, nil
}
