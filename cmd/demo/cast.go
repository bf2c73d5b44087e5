package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// cast starts the children and keeps them from outliving this process.
type cast struct {
	guard    *supervise.Guard
	listener net.Listener
	secret   string
	dir      string // logs
	exe      string

	mu      sync.Mutex
	joining map[string]chan *child // by name, until the child has said hello
	running map[*child]struct{}
	n       int
}

func newCast(dir string) (*cast, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// The logs go with this process, however it ends.
	guard, err := supervise.NewGuard(dir)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_ = guard.Close()
		return nil, err
	}
	c := &cast{guard: guard, listener: l, secret: rand.Text(), dir: dir, exe: exe, joining: map[string]chan *child{}, running: map[*child]struct{}{}}
	go c.accept()
	return c, nil
}

func (c *cast) accept() {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return
		}
		go c.greet(conn)
	}
}

// greet waits for hello; whoever doesn't know the secret is not ours.
func (c *cast) greet(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	r := bufio.NewReader(conn)
	line, err := r.ReadBytes('\n')
	var m message
	var h hello
	if err != nil || json.Unmarshal(line, &m) != nil || json.Unmarshal(m.Body, &h) != nil || h.Secret != c.secret {
		_ = conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	c.mu.Lock()
	join := c.joining[h.Name]
	delete(c.joining, h.Name)
	c.mu.Unlock()
	if join == nil {
		_ = conn.Close()
		return
	}
	join <- &child{name: h.Name, pid: h.PID, conn: conn, answers: map[int]chan message{}, points: map[string]chan struct{}{}, totals: totals{}, r: r, heard: make(chan struct{})}
}

// close ends every child: in order where it answers within a few seconds, so
// that leases are given back and the group is left; else by force.
func (c *cast) close() {
	c.mu.Lock()
	var left []*child
	for ch := range c.running {
		left = append(left, ch)
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for _, ch := range left {
		all.Go(func() {
			_ = ch.resume() // it may be one that the story has stopped
			if ch.stop(ctx) != nil {
				ch.kill()
			}
		})
	}
	all.Wait()
	_ = c.listener.Close()
	_ = c.guard.Close()
}

// child is the parent's end.
type child struct {
	name    string
	pid     int
	conn    net.Conn
	r       *bufio.Reader
	process *supervise.Process
	logFile string
	cast    *cast
	heard   chan struct{} // closed when the connection has ended and all that it brought was read

	mu      sync.Mutex
	id      int
	answers map[int]chan message
	points  map[string]chan struct{}
	failure string
	totals  totals
}

// totals is what a consumer has counted: records by outcome.
type totals map[string]int

// start runs a child and waits until it has joined.
func (c *cast) start(ctx context.Context, cfg childConfig) (*child, error) {
	join := make(chan *child, 1)
	c.mu.Lock()
	c.n++
	logFile := filepath.Join(c.dir, fmt.Sprintf("%02d-%s.log", c.n, cfg.Name))
	c.joining[cfg.Name] = join
	c.mu.Unlock()
	cfg.Control, cfg.Secret = c.listener.Addr().String(), c.secret
	encoded, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	out, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	defer out.Close() //nolint:errcheck // the child has its own descriptor
	p, err := c.guard.Start(supervise.Spec{Path: c.exe, Env: append(os.Environ(), childEnv+"="+string(encoded)), Output: out, EndWith: "KILL"})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Name, err)
	}
	select {
	case ch := <-join:
		ch.process, ch.logFile, ch.cast = p, logFile, c
		c.mu.Lock()
		c.running[ch] = struct{}{}
		c.mu.Unlock()
		go ch.read()
		return ch, nil
	case <-p.Done():
		return nil, fmt.Errorf("%s ended at its start: %s", cfg.Name, tail(logFile))
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (ch *child) read() {
	defer close(ch.heard)
	lines := bufio.NewScanner(ch.r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m message
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			continue
		}
		ch.mu.Lock()
		switch {
		case m.ID != 0:
			if a := ch.answers[m.ID]; a != nil {
				a <- m
				delete(ch.answers, m.ID)
			}
		case m.Verb == "at":
			var point string
			_ = json.Unmarshal(m.Body, &point)
			close(ch.point(point))
		case m.Verb == "totals":
			_ = json.Unmarshal(m.Body, &ch.totals)
		case m.Verb == "failed":
			_ = json.Unmarshal(m.Body, &ch.failure)
		}
		ch.mu.Unlock()
	}
}

// point is closed when the child has reached it. Callers hold mu.
func (ch *child) point(name string) chan struct{} {
	p := ch.points[name]
	if p == nil {
		p = make(chan struct{})
		ch.points[name] = p
	}
	return p
}

// reaches waits until the child is at a point of the story.
func (ch *child) reaches(ctx context.Context, point string) error {
	ch.mu.Lock()
	p := ch.point(point)
	ch.mu.Unlock()
	select {
	case <-p:
	case <-ch.process.Done():
		return ch.died()
	case <-ctx.Done():
		return ctx.Err()
	}
	ch.mu.Lock()
	delete(ch.points, point)
	ch.mu.Unlock()
	return nil
}

func (ch *child) died() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.failure != "" {
		return fmt.Errorf("%s ended: %s", ch.name, ch.failure)
	}
	return fmt.Errorf("%s ended: %s", ch.name, tail(ch.logFile))
}

// proceed lets the child go on from a point.
func (ch *child) proceed(point string) error {
	b, err := json.Marshal(point)
	if err != nil {
		return err
	}
	return ch.write(message{Verb: "go", Body: b})
}

func (ch *child) write(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	_, err = ch.conn.Write(append(b, '\n'))
	return err
}

// begin sends a request; the function that it returns waits for the answer.
func (ch *child) begin(verb string, args any) (wait func(ctx context.Context, into any) error, err error) {
	body, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	answer := make(chan message, 1)
	ch.mu.Lock()
	ch.id++
	id := ch.id
	ch.answers[id] = answer
	ch.mu.Unlock()
	if err := ch.write(message{ID: id, Verb: verb, Body: body}); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", ch.name, verb, err)
	}
	return func(ctx context.Context, into any) error {
		select {
		case m := <-answer:
			if m.Error != "" {
				return fmt.Errorf("%s: %s: %s", ch.name, verb, m.Error)
			}
			if into == nil {
				return nil
			}
			return json.Unmarshal(m.Body, into)
		case <-ch.process.Done():
			return ch.died()
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

func (ch *child) call(ctx context.Context, verb string, args, into any) error {
	wait, err := ch.begin(verb, args)
	if err != nil {
		return err
	}
	return wait(ctx, into)
}

// kill ends the process as a power cut would, and waits until it is gone.
func (ch *child) kill() {
	ch.crash()
	<-ch.process.Done()
	ch.gone()
}

func (ch *child) gone() {
	_ = ch.conn.Close()
	ch.cast.mu.Lock()
	delete(ch.cast.running, ch)
	ch.cast.mu.Unlock()
}

// stop asks the child to end in order and waits for it.
func (ch *child) stop(ctx context.Context) error {
	if err := ch.write(message{Verb: "stop"}); err != nil {
		return err
	}
	select {
	case <-ch.process.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	<-ch.heard
	ch.gone()
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.failure != "" {
		return errors.New(ch.failure)
	}
	return nil
}

// counted is what a consumer has reported so far.
func (ch *child) counted() totals {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	t := totals{}
	for k, v := range ch.totals {
		t[k] = v
	}
	return t
}

// tail is the end of a log, on one line.
func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil || len(bytes.TrimSpace(b)) == 0 {
		return "it has not said why"
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}
