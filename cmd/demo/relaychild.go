package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

// relayChild runs the relay as cmd/relay does. In the scene in which it is
// killed it stops between Kafka's acknowledgement and its own bookkeeping.
func relayChild(ctx context.Context, stop context.CancelFunc, c *control, cfg childConfig) error {
	pool, err := cfg.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	publisher, err := kafkapub.New(kafkapub.Config{Brokers: cfg.Brokers, ClientID: cfg.Name})
	if err != nil {
		return err
	}
	defer publisher.Close() //nolint:errcheck // at the end of the process
	var armed atomic.Bool
	go c.serve(ctx, stop, func(_ context.Context, verb string, _ json.RawMessage) (any, error) {
		if verb != "hold" {
			return nil, fmt.Errorf("unknown request %q", verb)
		}
		armed.Store(true)
		return nil, nil
	})
	var published atomic.Int64
	return relay.Run(ctx, pool, publisher, relay.Config{
		Schema: cfg.Schema, Name: cfg.Name, LeaseTTL: relayTTL,
		Hooks: relay.Hooks{
			Acknowledged: func(*relay.Batch) {
				if armed.CompareAndSwap(true, false) {
					c.at("acknowledged")
				}
			},
			Published: func(_ string, _, records, _ int, _ time.Duration) {
				c.event("totals", totals{"published": int(published.Add(int64(records)))})
			},
		},
	})
}
