package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/internal/schema"
)

// pauseWord is what NOTIFY carries when an operator has spoken.
const pauseWord = "pause"

// Pause is whether the relays of a schema publish.
type Pause struct {
	// Paused says that they don't.
	Paused bool
	// Who said so last, with which login, why, and when on the database's clock.
	// Empty if nobody ever did.
	Who, Login, Reason string
	At                 time.Time
}

// sentence is empty if relays are not paused.
func (p Pause) sentence() string {
	if !p.Paused {
		return ""
	}
	s := fmt.Sprintf("the relays are paused by %q since %s", p.Who, p.At.UTC().Format(time.RFC3339))
	if p.Reason != "" {
		s += ": " + p.Reason
	}
	return s
}

const readPauseSQL = "select paused, who, login, reason, at from @schema@.relay_pause order by n desc limit 1"

// ReadPause reads it. A login needs the role fenceline_monitor or
// fenceline_relay. An empty name stands for "fenceline".
func ReadPause(ctx context.Context, pool *pgxpool.Pool, name string) (p Pause, err error) {
	if name == "" {
		name = schema.Default
	}
	return readPause(ctx, pool, name)
}

func readPause(ctx context.Context, q schema.Querier, name string) (p Pause, err error) {
	err = q.QueryRow(ctx, schema.Expand(readPauseSQL, name)).Scan(&p.Paused, &p.Who, &p.Login, &p.Reason, &p.At)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Pause{}, fmt.Errorf("relay: read whether relays are paused: %w", err)
	}
	return p, nil
}

// SetPause tells all relays of a schema to publish nothing, or to go on; who
// says so, 1 to 255 bytes, and why, up to 1024, stays on record. It holds until the next call, over restarts.
// Each instance finishes what is on its way to Kafka, keeps its shards, and
// heeds it at once, or within five seconds where its LISTEN connection is lost.
// changed is false if it was so already. A login needs the role
// fenceline_operator.
func SetPause(ctx context.Context, pool *pgxpool.Pool, name string, paused bool, who, reason string) (changed bool, err error) {
	if name == "" {
		name = schema.Default
	}
	if len(who) < 1 || len(who) > 255 {
		return false, fmt.Errorf("relay: pause or resume: who does this has %d bytes: use 1 to 255", len(who))
	}
	if len(reason) > 1024 {
		return false, fmt.Errorf("relay: pause or resume: the reason has %d bytes: use at most 1024", len(reason))
	}
	if err := schema.Check(ctx, pool, name, schema.Producer); err != nil {
		return false, fmt.Errorf("relay: %w", err)
	}
	if err := write(ctx, pool, schema.Expand("select @schema@.relay_set_pause($1, $2, $3)", name), []any{paused, who, reason}, &changed); err != nil {
		return false, fmt.Errorf("relay: pause or resume: %w", err)
	}
	return changed, nil
}

// brake keeps an instance's reader from reading while the relays are paused,
// and until it is known whether they are.
type brake struct {
	pool   *pgxpool.Pool
	name   string
	log    *slog.Logger
	hook   func(bool)
	health *Health
	every  time.Duration
	said   <-chan struct{} // an operator may have spoken
	// fail ends Run: whether relays are paused can't be known before an operator has
	// done something.
	fail func(error)

	mu   sync.Mutex
	free chan struct{} // closed while the reader may read
	off  bool          // free is closed
}

func newBrake(pool *pgxpool.Pool, cfg Config, said <-chan struct{}, fail func(error)) *brake {
	return &brake{pool: pool, name: cfg.Schema, log: cfg.Logger, hook: cfg.Hooks.Paused, health: cfg.Health, every: 5 * time.Second, said: said, fail: fail, free: make(chan struct{})}
}

// open waits until the reader may read; false if ctx ends first.
func (b *brake) open(ctx context.Context) bool {
	b.mu.Lock()
	free := b.free
	b.mu.Unlock()
	select {
	case <-free:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (b *brake) set(p Pause) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case p.Paused && b.off:
		b.free, b.off = make(chan struct{}), false
	case !p.Paused && !b.off:
		close(b.free)
		b.off = true
	}
}

// run keeps the brake as the database has it.
func (b *brake) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	known, was, told := false, false, false
	for {
		select {
		case <-timer.C:
		case <-b.said:
		case <-ctx.Done():
			return
		}
		asked, cancel := context.WithTimeout(ctx, b.every)
		p, err := ReadPause(asked, b.pool, b.name)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case fatal(err):
			b.fail(err)
			return
		case err != nil:
			if !told {
				told = true
				b.log.Warn("cannot look whether relays are paused, trying again; nothing is published before that is known once", "known", known, "error", err)
			}
		default:
			told = false
			b.set(p)
			b.health.note("pause", p.sentence())
			switch {
			case p.Paused && !was:
				b.log.Warn("relays are paused: nothing is published", "by", p.Who, "login", p.Login, "since", p.At, "reason", p.Reason, "remedy", `run "relay resume"`)
			case !p.Paused && known && was:
				b.log.Info("relays go on", "by", p.Who, "login", p.Login, "reason", p.Reason)
			}
			if b.hook != nil && (p.Paused != was || !known) {
				b.hook(p.Paused)
			}
			known, was = true, p.Paused
		}
		if known {
			timer.Reset(b.every)
		} else {
			timer.Reset(200 * time.Millisecond) // nothing is published until it is
		}
	}
}
