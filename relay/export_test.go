package relay

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// What the tests against a broker, in package relay_test, share with the others.
var (
	Quick      = quick
	Start      = startRelay
	Eventually = eventually
	Writing    = writing
)

// Producer makes a producer.
func Producer(t testing.TB, pool *pgxpool.Pool, key string) *producer {
	return newProducer(t, pool, key)
}

// Publish appends and commits.
func (p *producer) Publish(topic string, payloads ...string) {
	p.t.Helper()
	p.publish(topic, payloads...)
}

// End stops the relay and wants a clean stop.
func (r *running) End() { r.t.Helper(); r.end() }

// CrashAt makes c's relay die where crash says so.
func CrashAt(c *Config, crash func(point string) bool) { c.signals.crash = crash }

// Checkpoints is the number of cursors ever stored.
func Checkpoints(t testing.TB, pool *pgxpool.Pool) int64 { return checkpointsOf(t, pool) }

// Receive waits for what a hook sends.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	return receive(t, what, from)
}
