package topiclog

import (
	"context"
	"errors"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/kafkasource"
	"github.com/fenceline/fenceline/verify"
)

// New reads what l reads.
func New(l *kafkasource.Log) verify.Log { return reader{l} }

type reader struct{ log *kafkasource.Log }

// Spans implements verify.Log.
func (r reader) Spans(ctx context.Context, topic string) ([]verify.Span, error) {
	spans, err := r.log.Spans(ctx, topic)
	if errors.Is(err, kafkasource.ErrTopicMissing) {
		return nil, verify.ErrNoTopic
	}
	var all []verify.Span
	for _, s := range spans {
		all = append(all, verify.Span(s))
	}
	return all, err
}

// Read implements verify.Log.
func (r reader) Read(ctx context.Context, topic string, partition int, from, to int64, f func(verify.LogRecord) error) error {
	return r.log.Read(ctx, topic, partition, from, to, func(k consumer.KafkaRecord) error {
		return f(verify.LogRecord{Offset: k.Offset, TimestampMS: k.Time.UnixMilli(), Key: k.Key, Value: k.Value, Headers: k.Headers})
	})
}
