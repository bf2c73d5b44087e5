package kafkasource

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/fenceline/fenceline/consumer"
)

// LogConfig is where to read whole topics from and as whom.
type LogConfig struct {
	// Brokers are the addresses (host:port) to find the cluster by. Required.
	Brokers []string
	// ClientID is the name that the brokers log. Defaults to "fenceline".
	ClientID string
	// TLS turns encryption on. Defaults to none.
	TLS *tls.Config
	// SASL is how to authenticate. Defaults to none.
	SASL sasl.Mechanism
	// RequestTimeout bounds each wait for a broker. Defaults to 10 s.
	RequestTimeout time.Duration
	// Patience is how long an outage, or a transaction that stays open in the
	// log, is waited out. Defaults to 30 s.
	Patience time.Duration
}

// Log reads partitions from one offset to another, outside of any consumer
// group: for tools that look at everything.
type Log struct {
	src      *Source
	patience time.Duration
}

// LogSpan is what a partition holds: offsets from Start up to, not including, End.
type LogSpan struct{ Start, End int64 }

// OpenLog checks the configuration. It does not connect: the first call does.
// The caller must Close it.
func OpenLog(cfg LogConfig) (*Log, error) {
	if cfg.Patience == 0 {
		cfg.Patience = 30 * time.Second
	}
	// No group is joined and no list of topics is used: the names only satisfy
	// the check, which is of the same settings.
	src, err := New(Config{
		Brokers: cfg.Brokers, Group: "none", Topics: []string{"none"}, ClientID: cfg.ClientID, TLS: cfg.TLS, SASL: cfg.SASL,
		RequestTimeout: cfg.RequestTimeout,
	})
	if err != nil {
		return nil, err
	}
	src.transport.MetadataTopics = nil
	return &Log{src: src, patience: cfg.Patience}, nil
}

// Close ends the connections.
func (l *Log) Close() { l.src.transport.CloseIdleConnections() }

// Spans gives what each partition of a topic holds, from partition 0 on. It
// answers a [*TopicError] with [ErrTopicMissing] for a topic that isn't there.
func (l *Log) Spans(ctx context.Context, topic string) ([]LogSpan, error) {
	one := &Source{cfg: l.src.cfg, transport: l.src.transport, client: l.src.client}
	one.cfg.Topics = []string{topic}
	counts, err := one.partitions(ctx)
	if err != nil {
		return nil, err
	}
	spans := make([]LogSpan, counts[topic])
	for i := range spans {
		p := consumer.Partition{Topic: topic, ID: i}
		err := l.insist(ctx, func() (err error) {
			spans[i].Start, spans[i].End, err = (&generation{src: l.src}).Bounds(ctx, p)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return spans, nil
}

// fetchBytes is how much one request asks for.
const fetchBytes = 4 << 20

// Read gives the records of a partition with offsets in [from, to), in order,
// and leaves out control records and those of aborted transactions. An error of
// f ends it. It answers a [*consumer.OffsetError] when the log is cut off at its
// start meanwhile.
func (l *Log) Read(ctx context.Context, topic string, partition int, from, to int64, f func(consumer.KafkaRecord) error) error {
	p := consumer.Partition{Topic: topic, ID: partition}
	moved := time.Now()
	for from < to {
		var got consumer.Fetched
		err := l.insist(ctx, func() (err error) {
			got, err = (&generation{src: l.src}).Fetch(ctx, p, from, fetchBytes)
			return err
		})
		if err != nil {
			return err
		}
		for _, r := range got.Records {
			if r.Offset >= to {
				return nil
			}
			if err := f(r); err != nil {
				return err
			}
		}
		switch {
		case got.Next > from:
			from, moved = got.Next, time.Now()
		case time.Since(moved) > l.patience:
			return fmt.Errorf("kafkasource: %s: nothing can be read from offset %d on, though the log goes up to %d, for %v: a transaction may be open there; end it (kafka-transactions.sh find-hanging) and try again", p, from, to, l.patience)
		}
	}
	return nil
}

// insist tries again through an outage, but not through what another try gives
// again.
func (l *Log) insist(ctx context.Context, try func() error) error {
	wait := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond), backoff.WithMaxElapsedTime(l.patience))
	return backoff.Retry(func() error {
		err := try()
		var offset *consumer.OffsetError
		var batch *consumer.BatchError
		switch {
		case errors.As(err, &offset), errors.As(err, &batch), errors.Is(err, kafka.TopicAuthorizationFailed), errors.Is(err, kafka.SASLAuthenticationFailed):
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(wait, ctx))
}
