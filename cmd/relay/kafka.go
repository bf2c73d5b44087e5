package main

import (
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
