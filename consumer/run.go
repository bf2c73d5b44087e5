package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/dbcheck"
	"github.com/fenceline/fenceline/internal/schema"
)

// Run consumes until ctx ends, and returns nil then: batches that are being
// applied are finished, or cut behind the event in hand where that would take
// long, their offsets committed and the group is left. It takes the source over
// and closes it.
//
// It returns an error only for what does not pass: a configuration that can't
// work, a schema that doesn't fit, a stream whose policy was changed, a topic
// that must not be read, a refused login. Outages of Kafka (after the group
// was joined once) and of the database (after the schema was checked) are
// waited out.
//
// Each partition has a goroutine, and each batch one transaction on a
// connection of pool: the guard, the handler's statements and the offset
// commit together, or not at all. pool should allow as many connections as
// partitions are to be worked on at once, and two more.
func Run(ctx context.Context, pool *pgxpool.Pool, source Source, cfg Config, h Handler) (err error) {
	if source != nil {
		defer func() {
			if cerr := source.Close(); cerr != nil && err == nil {
				cfg.logger().Warn("leaving the consumer group failed", "err", cerr)
			}
		}()
	}
	var missing []error
	if pool == nil {
		missing = append(missing, errors.New("consumer: no pool: the guards live in the database that the handler writes to"))
	}
	if source == nil {
		missing = append(missing, errors.New("consumer: no source: see package kafkasource"))
	}
	if h == nil {
		missing = append(missing, errors.New("consumer: no handler"))
	}
	if err := errors.Join(append(missing, cfg.check())...); err != nil {
		return err
	}
	if err := checkDatabase(ctx, pool, cfg.Schema); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return pooled(err)
	}
	r, err := newRunner(pool, cfg, h)
	if err != nil {
		return err
	}
	for {
		gen, err := source.Next(ctx)
		if err == nil {
			err = r.generation(ctx, gen)
		}
		if ctx.Err() != nil {
			return nil // not released: Close does that, and leaves at the same time
		}
		if err != nil {
			return err
		}
		gen.Release()
	}
}

// checkDatabase refuses a schema that doesn't fit, and a session that would store
// keys as others: two members, or one before and after the setting was changed, would
// have a guard each for the same key, and apply an event twice.
func checkDatabase(ctx context.Context, pool *pgxpool.Pool, name string) error {
	if err := schema.Check(ctx, pool, name, schema.Consumer); err != nil {
		return err
	}
	if err := dbcheck.Encoding(ctx, pool); err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	return nil
}

func (c *Config) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.Default()
}

// runner is what the generations of one Run share.
type runner struct {
	pool      *pgxpool.Pool
	cfg       Config
	guard     *Guard
	handler   Handler
	offsets   *offsets
	overflows *overflows
	poked     chan struct{} // there may be a dead letter to hand out
	polled    *polled
	exited    *atomic.Pointer[Position]
	log       *slog.Logger
}

func newRunner(pool *pgxpool.Pool, cfg Config, h Handler) (*runner, error) {
	g, err := NewGuard(cfg.guard())
	if err != nil {
		return nil, err
	}
	exited := new(atomic.Pointer[Position])
	return &runner{
		pool: pool, cfg: cfg, guard: g, exited: exited,
		handler:   bounded{h, cfg.HandlerTimeout, exited},
		offsets:   newOffsets(cfg.Schema, cfg.Name),
		overflows: newOverflows(),
		poked:     make(chan struct{}, 1),
		polled:    new(polled),
		log:       cfg.Logger.With("consumer", cfg.Name),
	}, nil
}

// generation works on the partitions of one generation until it ends, or ctx
// does. An error is one that ends Run.
func (r *runner) generation(ctx context.Context, gen Generation) error {
	// Reading stops at once when either ends; what is being applied then may go
	// on for DrainTimeout.
	reading, stop := context.WithCancelCause(gen.Context())
	defer stop(nil)
	defer context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })()
	applying, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	whole, cut := context.WithCancel(applying)
	defer cut()
	defer r.drain(reading, cut, giveUp)()

	r.log.Info("partitions assigned", "partitions", len(gen.Assigned()))
	commits := newCommitter(gen, r.cfg.OffsetInterval, r.log)
	var work sync.WaitGroup
	on := func(a Assignment, log *slog.Logger) *partition {
		return &partition{runner: r, gen: gen, assigned: a, commits: commits, applying: applying, whole: whole, log: log, unread: NoOffset, over: NoOffset,
			fetchBytes: r.cfg.fetchBytes(len(gen.Assigned()))}
	}
	start := func(p *partition, run func(*partition, context.Context) error) {
		work.Go(func() {
			returned := false
			defer func() {
				// A handler has called runtime.Goexit. (A panic comes by here too, and
				// ends the process right after.)
				if !returned {
					stop(&fatalError{r.errExited()})
				}
			}()
			// What can't go on ends everything: the error is for whoever runs the
			// process.
			if err := run(p, reading); err != nil && !errors.Is(err, errStopped) {
				stop(err)
			}
			returned = true
		})
	}
	if err := on(Assignment{}, r.log).pin(reading); err != nil {
		stop(err)
	}
	for _, run := range []func(*partition, context.Context) error{(*partition).poll, (*partition).letters} {
		p := on(Assignment{}, r.log)
		p.inTurn = true
		start(p, run)
	}
	for _, a := range gen.Assigned() {
		start(on(a, r.log.With("topic", a.Topic, "partition", a.ID)), (*partition).run)
	}
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		commits.run(reading)
	}()
	work.Wait()
	if len(gen.Assigned()) == 0 {
		<-reading.Done()
	}
	var fatal *fatalError
	cause := context.Cause(reading)
	stop(nil)
	<-flushed
	// Only now has every partition said how far it came.
	commits.flush(applying)
	r.log.Info("partitions released")
	if errors.As(cause, &fatal) {
		return fatal.err
	}
	return nil
}

// wholeDrain is which part of DrainTimeout batches have to get to their end. A
// variable only for tests.
var wholeDrain time.Duration = 2

// drain lets the work go on for a while after reading has ended: batches to their
// end for half of the time, then up to the event in hand, so that what was done
// is kept: given up whole, batches that take longer would begin anew after each
// rebalance, and never get on where these come often. The returned function ends
// the watch.
func (r *runner) drain(reading context.Context, cut, giveUp context.CancelFunc) (end func()) {
	done := make(chan struct{})
	whole := r.cfg.DrainTimeout / wholeDrain
	go func() {
		select {
		case <-reading.Done():
		case <-done:
			return
		}
		sleep(done, whole)
		cut()
		sleep(done, r.cfg.DrainTimeout-whole)
		giveUp()
	}()
	return func() { close(done) }
}
