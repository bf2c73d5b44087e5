package relay

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/fencing"
)

// beside is what goes on in an instance beside publishing, from the beginning
// of Run to its end, whether or not the instance has anything to publish.
type beside struct {
	ears   *listener
	brake  *brake
	health *Health

	cancel context.CancelFunc
	done   sync.WaitGroup
}

// startBeside begins it; fail is told what nobody but an operator can change.
func startBeside(ctx context.Context, pool *pgxpool.Pool, fences *fencing.Fences, cfg Config, fail func(error)) *beside {
	ctx, cancel := context.WithCancel(ctx)
	b := &beside{ears: newListener(pool, cfg), health: cfg.Health, cancel: cancel}
	b.brake = newBrake(pool, cfg, b.ears.control, fail)
	b.done.Go(func() { b.ears.run(ctx) })
	b.done.Go(func() { b.brake.run(ctx) })
	if cfg.Retention != nil {
		k := &keeper{pool: pool, fences: fences, cfg: cfg, retention: cfg.Retention.withDefaults()}
		b.done.Go(func() { k.run(ctx) })
	}
	b.health.start()
	return b
}

// stop waits for the end of all of it.
func (b *beside) stop() {
	b.health.end()
	b.cancel()
	b.done.Wait()
}

// turn waits until the reader may look, and takes note that it does; false if
// ctx ends first. Whoever has had a turn rests.
func (b *beside) turn(ctx context.Context) bool {
	if !b.brake.open(ctx) {
		return false
	}
	b.health.look()
	return true
}

func (b *beside) rest() { b.health.rest() }
