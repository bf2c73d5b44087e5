package kafkapub

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/internal/kafkasec"
)

const (
	// dialTimeout bounds the connection to one address; connectTimeout the
	// attempts at all of the bootstrap addresses, with TLS and SASL.
	dialTimeout    = 3 * time.Second
	connectTimeout = 10 * time.Second
	// Below a broker's connections.max.idle.ms, 10 minutes by default.
	idleTimeout = time.Minute
)

// route is the way to the brokers for one topic: a client, and kafka-go's
// cache of where the topic's partitions are led.
type route struct {
	client    *kafka.Client
	transport *kafka.Transport

	mu         sync.Mutex
	generation int
}

// newRoute makes a route whose goroutines end with ctx at the latest.
func newRoute(ctx context.Context, c *Config, topic string, d *dialer) *route {
	t := &kafka.Transport{
		Dial:        d.dial,
		DialTimeout: connectTimeout,
		IdleTimeout: idleTimeout,
		MetadataTTL: c.MetadataTTL,
		// Without this, each refresh would fetch every topic of the cluster.
		MetadataTopics: []string{topic},
		ClientID:       c.ClientID,
		TLS:            c.TLS,
		SASL:           c.SASL,
		Context:        ctx,
	}
	if c.TLS == nil { // else it is kafka-go that encrypts, and a TLS client that listens first
		t.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := d.dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return kafkasec.Heard(nc), nil
		}
	}
	return &route{
		transport: t,
		client: &kafka.Client{
			Addr:      kafka.TCP(c.Brokers...),
			Transport: t,
			// Half of this goes into the request as the broker's own limit.
			// Without it that limit is 500 ms, and a slow replica makes a
			// timeout of a batch that was appended.
			Timeout: c.Timeout,
		},
	}
}

// seen gives the generation to hand to forget.
func (r *route) seen() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.generation
}

// forget drops idle connections and the cached layout; requests under way on
// other lanes keep theirs until they are answered. It does nothing if someone
// did it since the caller looked at generation: twelve lanes that lost the same
// broker drop it once, and don't throw away each other's fresh connections.
func (r *route) forget(generation int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.generation != generation {
		return
	}
	r.generation++
	r.transport.CloseIdleConnections()
}

// close ends the route for good.
func (r *route) close() { r.transport.CloseIdleConnections() }

// dialer opens connections and can end all of them: kafka-go has no way to
// interrupt a request that waits for its answer.
type dialer struct {
	mu     sync.Mutex
	open   map[*conn]struct{}
	closed bool
}

type conn struct {
	net.Conn
	dialer *dialer
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	nd := net.Dialer{Timeout: dialTimeout}
	nc, err := nd.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = nc.Close()
		return nil, net.ErrClosed
	}
	c := &conn{nc, d}
	if d.open == nil {
		d.open = make(map[*conn]struct{})
	}
	d.open[c] = struct{}{}
	return c, nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.open, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}

// close ends all connections and those that are being opened.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for c := range d.open {
		_ = c.Conn.Close()
	}
	d.open = nil
}
