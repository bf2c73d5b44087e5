package consumer_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
)

// trips counts the round trips of connections: an answer behind something that
// was sent.
type trips struct{ n atomic.Int64 }

type countedConn struct {
	net.Conn
	trips *trips
	asked atomic.Bool
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(p)
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.asked.CompareAndSwap(true, false) {
		c.trips.n.Add(1)
	}
	return n, err
}

// statements counts what is sent to be executed.
type statements struct{ n atomic.Int64 }

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}
func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (s *statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	s.n.Add(int64(d.Batch.Len()))
	return ctx
}
func (s *statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (s *statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

// At a low rate the round trips are what an event waits for, and the statements what
// it costs. BEGIN goes with its settings, the lock, and what else decides; and
// COMMIT with one statement for the guard's move and the offset.
func TestAnEventThatComesAloneTakesTwoRoundTripsAndItsHandlers(t *testing.T) {
	b := newBench(t)
	var count trips
	var sent statements
	b.connect(func(cfg *pgx.ConnConfig) {
		cfg.Tracer = &sent
		cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &countedConn{Conn: conn, trips: &count}, err
		}
	})
	log := newMemory("t")
	config := b.config()
	config.PollInterval = time.Hour
	committed := make(commits, 100)
	config.Observer = committed
	b.run(log.source(), config, b.apply("x"))
	least, fewest := int64(1000), int64(1000)
	for seq := range int64(20) {
		before, sentBefore := count.n.Load(), sent.n.Load()
		log.publish(event("t", "a", seq+1))
		select {
		case <-committed:
		case <-time.After(patience):
			t.Fatalf("event %d was not applied", seq+1)
		}
		// The first are of a connection that knows no statement, and at the start
		// other things are looked for, which count as well.
		least, fewest = min(least, count.n.Load()-before), min(fewest, sent.n.Load()-sentBefore)
	}
	if least != 3 {
		t.Errorf("an event took %d round trips, want the lock, the handler's insert, and the end", least)
	}
	if fewest != 7 {
		t.Errorf("an event took %d statements, want BEGIN, settings, lock, facts, the handler's insert, the end and COMMIT", fewest)
	}
}

// commits is an observer that tells when something has committed.
type commits chan struct{}

func (c commits) Committed(consumer.Committed) { c <- struct{}{} }
func (c commits) Failing(consumer.Failure)     {}
func (c commits) Alarm(consumer.Alarm)         {}
