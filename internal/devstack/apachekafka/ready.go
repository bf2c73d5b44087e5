package apachekafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// waitReady waits until the broker at addr, of that node id, has answered everything that a client's first calls need.
func waitReady(ctx context.Context, addr string, id int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		return err
	}
	defer client.Close()
	broker := client.SeedBrokers()[0]

	steps := []struct {
		name string
		ask  func(ctx context.Context) error
	}{
		{"metadata", func(ctx context.Context) error {
			r, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, broker)
			if err != nil {
				return err
			}
			for _, b := range r.Brokers {
				if b.NodeID == int32(id) {
					return nil
				}
			}
			return fmt.Errorf("it lists %d brokers, and not itself", len(r.Brokers))
		}},
		{"group coordinator", func(ctx context.Context) error {
			request := kmsg.NewPtrFindCoordinatorRequest()
			request.CoordinatorKey = "readiness"
			request.CoordinatorKeys = []string{"readiness"} // newer versions of the request ask for several
			r, err := request.RequestWith(ctx, broker)
			if err != nil {
				return err
			}
			for _, c := range r.Coordinators {
				if err := kerr.ErrorForCode(c.ErrorCode); err != nil {
					return err
				}
			}
			return kerr.ErrorForCode(r.ErrorCode)
		}},
		{"producer id", func(ctx context.Context) error {
			r, err := kmsg.NewPtrInitProducerIDRequest().RequestWith(ctx, broker)
			if err != nil {
				return err
			}
			return kerr.ErrorForCode(r.ErrorCode)
		}},
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for _, step := range steps {
		for {
			// A question that an ending predecessor took with it must not be waited for.
			once, cancel := context.WithTimeout(ctx, 2*time.Second)
			err := step.ask(once)
			cancel()
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return errors.Join(fmt.Errorf("waiting for %s: %w", step.name, err), ctx.Err())
			case <-ticker.C:
			}
		}
	}
	return nil
}
