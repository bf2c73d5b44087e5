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

const listenerSettings = sessionSettings + `
set application_name = 'fenceline relay listener'`

// listener hears the NOTIFYs of outbox.Waker, on a connection of its own, and
// passes them on. One that is lost costs an event one poll interval, nothing
// else: nothing rests on hearing them.
//
// A connection can die without a word. So it is asked for a sign of life
// whenever nothing was heard for a while, and while it isn't known to live, the
// reader polls as if there were none.
type listener struct {
	pool    *pgxpool.Pool
	channel string
	log     *slog.Logger
	health  *Health
	// quiet is the time without a NOTIFY after which the connection is asked for
	// a sign of life; answer how long it has for that.
	quiet, answer time.Duration

	mu       sync.Mutex
	up       bool
	control  chan struct{} // an operator has said something
	sessions map[chan struct{}]struct{}
}

func newListener(pool *pgxpool.Pool, cfg Config) *listener {
	l := &listener{
		pool: pool, channel: schema.WakeChannel(cfg.Schema), log: cfg.Logger, health: cfg.Health,
		quiet: 10 * time.Second, answer: 5 * time.Second, control: make(chan struct{}, 1), sessions: map[chan struct{}]struct{}{},
	}
	if cfg.signals.listenQuiet > 0 {
		l.quiet, l.answer = cfg.signals.listenQuiet, cfg.signals.listenQuiet
	}
	return l
}

// hear has c signalled at each NOTIFY, and when hearing begins or ends, until
// forget is called.
func (l *listener) hear() (c chan struct{}, forget func()) {
	c = make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions[c] = struct{}{}
	return c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.sessions, c)
	}
}

// listening: a NOTIFY would be heard.
func (l *listener) listening() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

func (l *listener) spread(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = up
	if up {
		l.health.note("wake-up", "")
	} else {
		l.health.note("wake-up", "the connection that hears wake-ups is lost; the outbox is looked into more often meanwhile")
	}
	for c := range l.sessions {
		signal(c)
	}
}

// run listens until ctx ends, on one connection after the other.
func (l *listener) run(ctx context.Context) {
	wait := patience(50*time.Millisecond, 5*time.Second)
	for troubled := false; ; troubled = true {
		err := l.listen(ctx, func() {
			wait.Reset()
			if troubled {
				l.log.Info("listening for wake-ups again")
			}
		})
		if ctx.Err() != nil {
			return
		}
		if !troubled {
			l.log.Warn("cannot listen for wake-ups, looking for events more often meanwhile", "error", err)
		}
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// listen uses one connection until it breaks.
func (l *listener) listen(ctx context.Context, up func()) error {
	conn, err := dial(ctx, l.pool, listenerSettings)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if _, err := conn.Exec(ctx, "listen "+schema.Quote(l.channel)); err != nil {
		return fmt.Errorf("relay: listen: %w", err)
	}
	up()
	// Whatever was committed before is not announced to us: whoever hears this
	// looks once.
	l.spread(true)
	signal(l.control)
	defer l.spread(false)
	for {
		quiet, cancel := context.WithTimeout(ctx, l.quiet)
		heard, err := conn.WaitForNotification(quiet)
		silent := quiet.Err() != nil
		cancel()
		switch {
		case err == nil && heard.Payload == pauseWord:
			signal(l.control)
			continue
		case err == nil:
			l.spread(true)
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case !silent || conn.IsClosed():
			return fmt.Errorf("relay: listen: %w", err)
		}
		if err := l.lives(ctx, conn); err != nil {
			return err
		}
	}
}

// lives asks the connection for a sign of life.
func (l *listener) lives(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, l.answer)
	defer cancel()
	if _, err := conn.Exec(ctx, "select"); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("relay: listen: the connection gave no sign of life within %v: %w", l.answer, err)
		}
		return fmt.Errorf("relay: listen: %w", err)
	}
	return nil
}

// pace says how long the reader waits before it looks again.
//
// While events come it looks every least. When none come it backs off, as far
// as most if somebody wakes it, else as far as blind. Whether it is woken is
// known from two things: that the listener listens, and that those who commit
// say so. Events that it finds at a slow look, unannounced, three times in
// between two wake-ups, are of producers without a Waker.
type pace struct {
	least, blind, most time.Duration
	idle               time.Duration
	unannounced        int
}

const unannouncedMost = 3

// shortWait is how long a wait is at most that no wake-up ends. Under a steady load
// one look in ten was early by half of it, and found half an event less.
const shortWait = time.Millisecond

// during gives the wake-ups that end a wait. Those that come in a short one are not
// lost: the next one that is longer ends with them.
func during(wait time.Duration, heard chan struct{}) <-chan struct{} {
	if wait <= shortWait {
		return nil
	}
	return heard
}

func newPace(cfg Config) *pace {
	return &pace{least: cfg.PollMin, blind: max(cfg.PollMin, min(cfg.PollBlind, cfg.PollMax)), most: cfg.PollMax, idle: cfg.PollMin}
}

// next takes what the last look found, and gives the time until the next one.
// announced: it was made because of a wake-up.
func (p *pace) next(rows int, announced, listening bool) time.Duration {
	if announced {
		p.unannounced = 0
	}
	if rows > 0 {
		if !announced && p.idle > p.blind && p.unannounced < unannouncedMost {
			p.unannounced++
		}
		p.idle = p.least
		return p.idle
	}
	wait := p.idle
	most := p.blind
	if listening && p.unannounced < unannouncedMost {
		most = p.most
	}
	p.idle = min(2*p.idle, most)
	return min(wait, most)
}
