package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
)

// Waker tells the relays of a schema that there is something to publish, so
// that an idle one need not find out by looking. Give its Wake to
// fencing.Config, and every commit with events calls it:
//
//	waker, err := outbox.NewWaker(pool, outbox.WakerConfig{})
//	defer waker.Close()
//	fences, err := fencing.New(ctx, pool, fencing.Config{Wake: waker.Wake})
//
// It sends NOTIFY in statements of its own, after the commits and never inside
// one: a transaction that notifies takes a lock that all such transactions of
// the server share, from before its commit to the end of it, and with that
// commits would go one by one. However many commits there are, one NOTIFY is
// sent in an interval. It is a hint: if it is lost, the relay's next look finds
// the events. It works through a pooler in transaction mode.
type Waker struct {
	pool *pgxpool.Pool
	cfg  WakerConfig
	sql  string

	ctx    context.Context // ended by Close, when it waits no longer
	cancel context.CancelFunc

	mu       sync.Mutex
	running  bool // a goroutine sends, or waits for the end of the interval
	again    bool // Wake was called since the last NOTIFY was sent off
	closed   bool
	closing  chan struct{} // closed by Close
	troubled bool
	done     sync.WaitGroup
}

// WakerConfig configures [NewWaker]. The zero value is usable.
type WakerConfig struct {
	// Schema is the schema that the events are in. Defaults to "fenceline".
	Schema string
	// Interval is the shortest time between two NOTIFYs. The first after a
	// pause is sent at once. Defaults to 5 ms.
	Interval time.Duration
	// Timeout bounds one NOTIFY, the wait for a connection of the pool
	// included, and Close. Defaults to 5 s.
	Timeout time.Duration
	// Logger is told when waking fails, and when it works again. Defaults to
	// slog.Default.
	Logger *slog.Logger
}

// WakerError is returned by [NewWaker] for an argument that it can't work with.
type WakerError struct {
	// Field is the argument at fault.
	Field string
	// Reason says what is wrong and what to do.
	Reason string
}

// Error implements error.
func (e *WakerError) Error() string { return fmt.Sprintf("outbox: waker: %s %s", e.Field, e.Reason) }

// NewWaker makes a Waker that takes a connection of pool for each NOTIFY. It
// sends nothing before the first Wake. The pool stays the caller's; close the
// Waker first. A login needs no right for it. An argument that can't be used is a
// [*WakerError].
func NewWaker(pool *pgxpool.Pool, cfg WakerConfig) (*Waker, error) {
	if pool == nil {
		return nil, &WakerError{"pool", "is nil: make one with pgxpool.New, and look at its error"}
	}
	if cfg.Schema == "" {
		cfg.Schema = schema.Default
	}
	if err := schema.Validate(cfg.Schema); err != nil {
		return nil, &WakerError{"schema", fmt.Sprintf("cannot be used: %v", err)}
	}
	if cfg.Interval < 0 {
		return nil, &WakerError{"interval", fmt.Sprintf("is %v: use a positive duration, or leave it out for the default", cfg.Interval)}
	}
	if cfg.Timeout < 0 {
		return nil, &WakerError{"timeout", fmt.Sprintf("is %v: use a positive duration, or leave it out for the default", cfg.Timeout)}
	}
	if cfg.Interval == 0 {
		cfg.Interval = 5 * time.Millisecond
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	w := &Waker{pool: pool, cfg: cfg, sql: "notify " + schema.Quote(schema.WakeChannel(cfg.Schema)), closing: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w, nil
}

// Wake says that events were committed. It never blocks, and may be called from
// many goroutines; after Close it does nothing. Whoever commits by himself, with
// fencing's Enter, calls it when his commit has succeeded.
func (w *Waker) Wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
	case w.running:
		w.again = true
	default:
		w.running = true
		w.done.Add(1)
		go w.run()
	}
}

// Close sends at once what waits for the end of an interval, so that a process that
// commits and ends has woken the relay. It waits for that, and for a NOTIFY under
// way, for WakerConfig.Timeout in all at most.
func (w *Waker) Close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.closing)
	}
	w.mu.Unlock()
	defer time.AfterFunc(w.cfg.Timeout, w.cancel).Stop()
	w.done.Wait()
	w.cancel()
}

// run notifies until an interval has passed without a Wake. There is a
// goroutine only while there is something to do.
func (w *Waker) run() {
	defer w.done.Done()
	pause := time.NewTimer(w.cfg.Interval)
	defer pause.Stop()
	for {
		w.notify()
		pause.Reset(w.cfg.Interval)
		select {
		case <-pause.C:
		case <-w.closing:
		}
		w.mu.Lock()
		if !w.again || w.ctx.Err() != nil {
			w.running = false
			w.mu.Unlock()
			return
		}
		// Before the NOTIFY is sent: what is committed from here on and not
		// covered by it asks again.
		w.again = false
		w.mu.Unlock()
	}
}

func (w *Waker) notify() {
	ctx, cancel := context.WithTimeout(w.ctx, w.cfg.Timeout)
	defer cancel()
	// In one message, so that a pooler in transaction mode has nothing to keep.
	_, err := w.pool.Exec(ctx, w.sql, pgx.QueryExecModeSimpleProtocol)
	switch {
	case w.ctx.Err() != nil:
	case err != nil && !w.troubled:
		w.troubled = true
		w.cfg.Logger.Warn("cannot wake the relay; it finds events by looking, a little later", "error", err)
	case err == nil && w.troubled:
		w.troubled = false
		w.cfg.Logger.Info("waking the relay works again")
	}
}
