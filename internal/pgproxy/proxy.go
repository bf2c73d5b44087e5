package pgproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
)

// Proxy forwards connections to one PostgreSQL server. Safe for use by many
// goroutines.
type Proxy struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond // frozen or closed has changed
	frozen  bool
	closed  bool
	links   map[*link]struct{}
	drop    *drop // what to lose next, nil for nothing
}

// drop is an order to lose an answer.
type drop struct {
	marker  string
	instead []byte // what the client is told; nil for nothing, and the connection is cut
	done    chan struct{}
}

// Listen starts a proxy on a free loopback port in front of the server at
// target (host:port). Close it.
func Listen(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("pgproxy: %w", err)
	}
	p := &Proxy{listener: listener, target: target, links: map[*link]struct{}{}}
	p.changed.L = &p.mu
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// DSN is dsn, a URL, with the proxy's address in place of the server's.
func (p *Proxy) DSN(dsn string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Host == "" {
		return "", errors.New("pgproxy: the connection string is not a URL with a host") // it may hold a password
	}
	u.Host = p.Addr()
	return u.String(), nil
}

// DropNextCommitAnswer loses the answer to the next COMMIT that succeeds, and
// cuts its connection. The server has committed by then. Where marker is not
// empty, only a transaction counts one of whose messages contains it: a step
// or a key among the arguments, say. The channel is closed when it has
// happened. A second order replaces one that has not been carried out.
func (p *Proxy) DropNextCommitAnswer(marker string) <-chan struct{} {
	return p.order(&drop{marker: marker, done: make(chan struct{})})
}

// FailNextCommitAnswer is DropNextCommitAnswer, but the client is told an error of
// the proxy's own, as a pooler does that has lost its server: with a severity, a
// SQLSTATE and a message, and without the place in the source by which the server's
// errors can be told. The connection stays.
func (p *Proxy) FailNextCommitAnswer(marker, severity, code, message string) <-chan struct{} {
	body := "S" + severity + "\x00V" + severity + "\x00C" + code + "\x00M" + message + "\x00\x00"
	frame := binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(body)))
	return p.order(&drop{marker: marker, instead: append(frame, body...), done: make(chan struct{})})
}

func (p *Proxy) order(d *drop) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = d
	return d.done
}

// Freeze stops all traffic, also of new connections, without closing any.
func (p *Proxy) Freeze() { p.setFrozen(true) }

// Thaw lets the traffic flow again, beginning with what waits.
func (p *Proxy) Thaw() { p.setFrozen(false) }

func (p *Proxy) setFrozen(frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = frozen
	p.changed.Broadcast()
}

// Close cuts all connections and returns when nothing of the proxy runs any
// more.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.cut()
	}
	p.changed.Broadcast()
	p.mu.Unlock()
	err := p.listener.Close()
	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	l := &link{proxy: p, client: client, server: server, marked: map[*drop]bool{}}
	defer l.cut()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	}()
	l.run()
}

// pass waits while the proxy is frozen. It says false when it was closed.
func (p *Proxy) pass() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.frozen && !p.closed {
		p.changed.Wait()
	}
	return !p.closed
}
