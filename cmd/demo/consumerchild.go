package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/fenceline/fenceline/cmd/demo-consumer/readmodel"
	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/kafkasource"
)

// consumerChild is cmd/demo-consumer, and tells the story what it decided.
func consumerChild(ctx context.Context, stop context.CancelFunc, c *control, cfg childConfig) error {
	pool, err := cfg.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	model, err := readmodel.New(cfg.ModelSchema)
	if err != nil {
		return err
	}
	source, err := kafkasource.New(kafkasource.Config{Brokers: cfg.Brokers, Group: cfg.Group, Topics: []string{cfg.Topic}, ClientID: cfg.Name, SessionTimeout: 6 * time.Second, RebalanceTimeout: 6 * time.Second})
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // at the end of the process
	go c.serve(ctx, stop, func(_ context.Context, verb string, _ json.RawMessage) (any, error) {
		return nil, fmt.Errorf("unknown request %q", verb)
	})
	return consumer.Run(ctx, pool, source, consumer.Config{
		Name: cfg.Group, Schema: cfg.Schema, Policy: consumer.Strict, Start: consumer.FromOrigin, DrainTimeout: 3 * time.Second,
		Observer: &counter{control: c, totals: totals{}},
	}, consumer.HandlerFunc(model.Handle))
}

// counter reports how many records had which outcome.
type counter struct {
	control *control
	mu      sync.Mutex
	totals  totals
}

// Committed counts what a transaction has decided.
func (k *counter) Committed(t consumer.Committed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range t.Results {
		k.totals[string(r.Outcome)]++
	}
	k.control.event("totals", k.totals)
}

// Failing counts tries that failed.
func (k *counter) Failing(consumer.Failure) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.totals["failed tries"]++
}

// Alarm counts what an operator should look at.
func (k *counter) Alarm(consumer.Alarm) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.totals["alarms"]++
}
