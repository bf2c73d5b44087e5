package verify_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/kafkasource"
	"github.com/fenceline/fenceline/verify"
)

// topics reads Kafka for a comparison.
type topics struct{ log *kafkasource.Log }

// Spans implements verify.Log.
func (t topics) Spans(ctx context.Context, topic string) (all []verify.Span, err error) {
	spans, err := t.log.Spans(ctx, topic)
	if errors.Is(err, kafkasource.ErrTopicMissing) {
		return nil, verify.ErrNoTopic
	}
	for _, s := range spans {
		all = append(all, verify.Span(s))
	}
	return all, err
}

// Read implements verify.Log.
func (t topics) Read(ctx context.Context, topic string, partition int, from, to int64, f func(verify.LogRecord) error) error {
	return t.log.Read(ctx, topic, partition, from, to, func(r consumer.KafkaRecord) error {
		return f(verify.LogRecord{Offset: r.Offset, TimestampMS: r.Time.UnixMilli(), Key: r.Key, Value: r.Value, Headers: r.Headers})
	})
}

// The log is read by kafkasource.OpenLog; with another Kafka client it is as short.
func ExampleRun() {
	compare := func(ctx context.Context, outbox, theirs *pgxpool.Pool) (*verify.Report, error) {
		log, err := kafkasource.OpenLog(kafkasource.LogConfig{Brokers: []string{"127.0.0.1:9092"}})
		if err != nil {
			return nil, err
		}
		defer log.Close()
		return verify.Run(ctx, verify.Config{
			Producer:  outbox,
			Log:       topics{log},
			Consumers: []verify.Consumer{{Name: "quake-report", Pool: theirs}},
			Found:     func(f verify.Finding) { fmt.Println(f) },
		})
	}
	_ = compare
}
