package kafkatest

import (
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
)

// A Proxy stands between clients and a broker and does to them what a network does. Clients that are given its Addr
// reach every node of the cluster through it only: addresses in the broker's answers are replaced by its own. Several
// may stand before one broker, each disturbing only its own clients.
type Proxy struct {
	t    testing.TB
	addr string
	wg   sync.WaitGroup

	mu     sync.Mutex
	fronts map[string]string // broker's address → the address here that leads to it
	ears   []net.Listener
	links  map[*link]struct{}
	faults []*Fault
	down   bool
	closed bool
}

// NewProxy starts a proxy before the broker at addr; it ends with the test.
func NewProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, fronts: map[string]string{}, links: map[*link]struct{}{}}
	t.Cleanup(p.close)
	front, err := p.front(addr)
	if err != nil {
		t.Fatalf("kafkatest: proxy: %v", err)
	}
	p.addr = front
	return p
}

// Addr is the address to give to clients, host:port.
func (p *Proxy) Addr() string { return p.addr }

// Down cuts all connections and lets no new one through, until Up.
func (p *Proxy) Down() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.Cut()
}

// Up ends what Down began.
func (p *Proxy) Up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

// Cut closes all connections at once; new ones are let through.
func (p *Proxy) Cut() {
	for _, l := range p.snapshot() {
		l.close()
	}
}

func (p *Proxy) snapshot() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	var links []*link
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	for _, ear := range p.ears {
		_ = ear.Close()
	}
	faults := p.faults
	p.mu.Unlock()
	for _, f := range faults {
		f.Release()
	}
	p.Cut()
	p.wg.Wait()
}

// front returns the address here that leads to a broker, and starts to listen there at the first call.
func (p *Proxy) front(broker string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr, ok := p.fronts[broker]; ok {
		return addr, nil
	}
	if p.closed {
		return "", net.ErrClosed
	}
	ear, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	p.ears = append(p.ears, ear)
	p.fronts[broker] = ear.Addr().String()
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		for {
			client, err := ear.Accept()
			if err != nil {
				return
			}
			p.wg.Add(1)
			go func() {
				defer p.wg.Done()
				p.serve(client, broker)
			}()
		}
	}()
	return ear.Addr().String(), nil
}

// frontOf replaces a broker's host and port by ours.
func (p *Proxy) frontOf(host *string, port *int32) error {
	addr, err := p.front(net.JoinHostPort(*host, strconv.Itoa(int(*port))))
	if err != nil {
		return err
	}
	h, s, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return err
	}
	*host, *port = h, int32(n)
	return nil
}

func (p *Proxy) serve(client net.Conn, broker string) {
	upstream, err := net.Dial("tcp", broker)
	if err != nil {
		_ = client.Close() // what a client of a broker that is gone sees
		return
	}
	l := &link{proxy: p, client: client, broker: upstream}
	p.mu.Lock()
	refuse := p.down || p.closed
	if !refuse {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	defer func() {
		l.close()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	if refuse {
		return
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		defer l.close()
		l.report(l.answers())
	}()
	l.report(l.requests())
}

// report fails the test if the proxy itself didn't understand something; connections may end at any time.
func (l *link) report(err error) {
	var neterr net.Error
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &neterr) {
		return
	}
	l.proxy.t.Errorf("kafkatest: proxy: %v", err)
}
