package pgpooler

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Config configures Listen.
type Config struct {
	// Backends are the connection strings of the backends, one session for each.
	Backends []string
	// Reset runs DISCARD ALL on a backend behind each transaction. Defaults to
	// false, as PgBouncer does in transaction mode.
	Reset bool
}

// Pooler is a running pooler. Safe for use by many goroutines.
type Pooler struct {
	cfg      Config
	listener net.Listener
	free     chan *backend // in the order in which they were given back
	running  sync.WaitGroup
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc

	mu      sync.Mutex
	clients map[uint32]*client
	last    uint32 // number of the last client
	closed  bool
	held    []*backend
}

// backend is a session, or the place for one.
type backend struct {
	dsn  string
	conn *pgconn.HijackedConn // nil until it is needed
}

// Listen starts a pooler on a free loopback port. Close it.
func Listen(cfg Config) (*Pooler, error) {
	if len(cfg.Backends) == 0 {
		return nil, errors.New("pgpooler: no backends")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("pgpooler: %w", err)
	}
	p := &Pooler{cfg: cfg, listener: listener, free: make(chan *backend, len(cfg.Backends)), clients: map[uint32]*client{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	for _, dsn := range cfg.Backends {
		b := &backend{dsn: dsn}
		p.held = append(p.held, b)
		p.free <- b
	}
	p.running.Go(p.accept)
	return p, nil
}

// DSN is how a client connects, with further parameters of the connection.
func (p *Pooler) DSN(parameters string) string {
	dsn := "postgres://anybody@" + p.listener.Addr().String() + "/any?sslmode=disable"
	if parameters != "" {
		dsn += "&" + parameters
	}
	return dsn
}

// Close ends all sessions, and returns when nothing of the pooler runs any more.
func (p *Pooler) Close() error {
	p.mu.Lock()
	p.closed = true
	for _, c := range p.clients {
		_ = c.conn.Close()
		if b := c.has; b != nil && b.conn != nil {
			_ = b.conn.Conn.Close()
		}
	}
	p.mu.Unlock()
	p.cancel()
	err := p.listener.Close()
	p.running.Wait()
	for _, b := range p.held {
		b.drop()
	}
	return err
}

func (p *Pooler) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() {
			defer func() { _ = conn.Close() }()
			p.serve(conn)
		})
	}
}

func (p *Pooler) serve(conn net.Conn) {
	c := &client{p: p, conn: conn, proto: pgproto3.NewBackend(conn, conn)}
	for {
		message, err := c.proto.ReceiveStartupMessage()
		if err != nil {
			return
		}
		switch m := message.(type) {
		case *pgproto3.CancelRequest:
			p.cancelOf(m.ProcessID)
			return
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := conn.Write([]byte{'N'}); err != nil {
				return
			}
			continue
		}
		break
	}
	number, ok := p.register(c)
	if !ok {
		return
	}
	defer p.forget(number)
	if c.welcome(number) == nil {
		_ = c.run()
	}
}

func (p *Pooler) register(c *client) (uint32, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, false
	}
	p.last++
	p.clients[p.last] = c
	return p.last, true
}

func (p *Pooler) forget(number uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.clients, number)
}

// cancelOf passes a request to cancel on to the backend that the client has.
func (p *Pooler) cancelOf(number uint32) {
	p.mu.Lock()
	c := p.clients[number]
	var target *pgconn.HijackedConn
	if c != nil && c.has != nil {
		target = c.has.conn
	}
	p.mu.Unlock()
	if target == nil {
		return
	}
	conn, err := net.Dial("tcp", target.Conn.RemoteAddr().String())
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	request := make([]byte, 12, 12+len(target.SecretKey))
	binary.BigEndian.PutUint32(request, uint32(12+len(target.SecretKey)))
	binary.BigEndian.PutUint32(request[4:], 80877102)
	binary.BigEndian.PutUint32(request[8:], target.PID)
	if _, err := conn.Write(append(request, target.SecretKey...)); err == nil {
		_, _ = conn.Read(make([]byte, 1)) // the server closes it when it has passed the request on
	}
}

// take waits for the backend that has rested longest.
func (p *Pooler) take(c *client) error {
	var b *backend
	select {
	case b = <-p.free:
	case <-p.ctx.Done():
		return net.ErrClosed
	}
	if b.conn == nil {
		ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
		defer cancel()
		conn, err := pgconn.Connect(ctx, b.dsn)
		if err == nil {
			b.conn, err = conn.Hijack()
		}
		if err != nil {
			p.free <- b
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.has = b
	if p.closed {
		return net.ErrClosed
	}
	return nil
}

// giveBack takes the client's backend from it, and ends its session in the middle
// of a transaction.
func (p *Pooler) giveBack(c *client, middle bool) {
	p.mu.Lock()
	b := c.has
	c.has = nil
	p.mu.Unlock()
	if middle || p.cfg.Reset && b.reset() != nil {
		b.drop()
	}
	p.free <- b
}

func (b *backend) drop() {
	if b.conn != nil {
		_ = b.conn.Conn.Close()
		b.conn = nil
	}
}

func (b *backend) reset() error {
	f := b.conn.Frontend
	f.Send(&pgproto3.Query{String: "discard all"})
	if err := f.Flush(); err != nil {
		return err
	}
	for {
		message, err := f.Receive()
		if err != nil {
			return err
		}
		switch message.(type) {
		case *pgproto3.ErrorResponse:
			return errors.New("pgpooler: discard all was refused")
		case *pgproto3.ReadyForQuery:
			return nil
		}
	}
}
