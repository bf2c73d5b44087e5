package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/fenceline/fenceline/consumer/kafkasource"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

// askTimeout is how long a command that only asks waits for one answer.
const askTimeout = 10 * time.Second

// brokers are a command's way to Kafka: its settings, and all that is opened
// with them. No command makes a Kafka client by itself, so that each encrypts and
// logs in as it was told.
type brokers struct{ config.Kafka }

// publisher opens what publishes and describes topics, as far as it can tell
// without asking a broker. cfg has what is the command's own. The caller must
// close it.
func (b *brokers) publisher(cfg kafkapub.Config) (*kafkapub.Publisher, error) {
	security, err := b.Open()
	if err != nil {
		return nil, err
	}
	cfg.Brokers, cfg.TLS, cfg.SASL = b.Brokers, security.TLS, security.SASL
	p, err := kafkapub.New(cfg)
	if err != nil {
		return nil, &config.UsageError{Err: err}
	}
	return p, nil
}

// log opens what reads whole topics, likewise. The caller must close it.
func (b *brokers) log() (*kafkasource.Log, error) {
	security, err := b.Open()
	if err != nil {
		return nil, err
	}
	log, err := kafkasource.OpenLog(kafkasource.LogConfig{Brokers: b.Brokers, TLS: security.TLS, SASL: security.SASL})
	if err != nil {
		return nil, &config.UsageError{Err: err}
	}
	return log, nil
}

// Reach sees that a broker answers over connections as they are configured:
// encrypted, and logged in. It creates nothing. What a dial alone would let pass
// (a wrong authority, password or port) is told once, before any topic is asked
// about, and with the flags that mend it. The error is a *config.NoBrokerError if
// none can be reached, also if one takes connections, answers nothing, and the
// next is not there; else a *kafkaError, but for the context's.
func (b *brokers) Reach(ctx context.Context) error {
	if err := b.Kafka.Reach(ctx); err != nil {
		return err
	}
	p, err := b.publisher(kafkapub.Config{Timeout: askTimeout, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer p.Close() //nolint:errcheck // it was only asked
	if err := p.Reach(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
			return &config.NoBrokerError{Brokers: b.Brokers, Causes: []string{err.Error()}}
		}
		return b.explain(err)
	}
	return nil
}

// explain makes of what a Kafka client says what its user can act on.
func (b *brokers) explain(err error) error {
	why, remedy := config.ExplainKafka(err)
	return &kafkaError{fmt.Sprintf("can't use Kafka at %s: %s", strings.Join(b.Brokers, ","), why), remedy, err}
}

// kafkaError is that Kafka can't be used, with the remedy apart.
type kafkaError struct {
	text, remedy string
	err          error
}

func (e *kafkaError) Error() string { return e.text + ": " + e.remedy }
func (e *kafkaError) Unwrap() error { return e.err }
