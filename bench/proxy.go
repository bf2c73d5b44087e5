package main

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// slowProxy stands before a broker and holds back its answers for a while, as a
// broker far away, or one that waits for its replicas, does. It delays and
// doesn't throttle: answers can follow each other closely.
type slowProxy struct {
	listener net.Listener
	target   atomic.Pointer[string]
	delay    atomic.Int64 // nanoseconds
	wg       sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]struct{}
	closed   bool
}

func newSlowProxy() (*slowProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &slowProxy{listener: l, open: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

func (p *slowProxy) addr() string { return p.listener.Addr().String() }

// to says where the broker is. Until then connections are refused.
func (p *slowProxy) to(addr string) { p.target.Store(&addr) }

func (p *slowProxy) setDelay(d time.Duration) { p.delay.Store(int64(d)) }

func (p *slowProxy) close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	return err
}

// keep remembers a connection for close; false if it is too late.
func (p *slowProxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.open[c] = struct{}{}
	return true
}

func (p *slowProxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	_ = c.Close()
}

func (p *slowProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.keep(client) {
			p.wg.Go(func() { p.serve(client) })
		}
	}
}

func (p *slowProxy) serve(client net.Conn) {
	defer p.drop(client)
	target := p.target.Load()
	if target == nil {
		return
	}
	var d net.Dialer
	broker, err := d.DialContext(context.Background(), "tcp", *target)
	if err != nil || !p.keep(broker) {
		return
	}
	defer p.drop(broker)
	p.wg.Go(func() {
		_, _ = io.Copy(broker, client)
		_ = broker.Close()
	})
	p.answers(client, broker)
}

// late is a piece of an answer, and when it may go on.
type late struct {
	at   time.Time
	data []byte
}

// answers carries what the broker says, each piece when its time has come.
func (p *slowProxy) answers(client io.Writer, broker io.Reader) {
	queue := make(chan late, 1024)
	var writer sync.WaitGroup
	writer.Go(func() {
		failed := false
		for l := range queue {
			if failed {
				continue
			}
			time.Sleep(time.Until(l.at))
			_, err := client.Write(l.data)
			failed = err != nil
		}
	})
	for {
		data := make([]byte, 16<<10)
		n, err := broker.Read(data)
		if n > 0 {
			queue <- late{time.Now().Add(time.Duration(p.delay.Load())), data[:n]}
		}
		if err != nil {
			break // closed from our side, or by a broker that died: the same to the client
		}
	}
	close(queue)
	writer.Wait()
}
