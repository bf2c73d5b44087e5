package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Workers, relay and consumer are this same program, started again with its
// role in the environment. Parent and child speak JSON lines over a connection
// on loopback that the child opens; when it ends, the child does.
const childEnv = "FENCELINE_DEMO_CHILD"

// childConfig is what a child is told at its start.
type childConfig struct {
	Role    string // worker, relay, consumer
	Name    string // as it appears in the story and as lease holder
	Control string // the parent's address
	Secret  string // shows the parent that this is its child

	DSN         string
	PGRole      string // the group role whose rights the child has, and no more
	Schema      string
	WorkSchema  string // of the workers' results
	ModelSchema string // of the consumer's read model
	Brokers     []string
	Topic       string
	Group       string
	LeaseTTL    time.Duration
	Input       string // a file of reports, empty for the embedded ones
	Scene       string // "stop after the acknowledgement" for a relay that is about to be killed
}

// message goes both ways. A request has an ID, its answer the same; an event
// has none.
type message struct {
	ID    int             `json:"id,omitempty"`
	Verb  string          `json:"verb,omitempty"`
	Error string          `json:"error,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
}

func isChild() bool { return os.Getenv(childEnv) != "" }

// control is the child's end of the connection.
type control struct {
	conn net.Conn
	mu   sync.Mutex // of writing

	waiting sync.Mutex
	goes    map[string]chan struct{} // by point: closed when the parent says go
}

func (c *control) send(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := json.Marshal(m)
	if err == nil {
		_, err = c.conn.Write(append(b, '\n'))
	}
	if err != nil {
		os.Exit(1) // the parent is gone
	}
}

func (c *control) event(verb string, body any) {
	b, _ := json.Marshal(body) // plain data
	c.send(message{Verb: verb, Body: b})
}

// at tells the parent that a point of the story is reached, and waits for go.
func (c *control) at(point string) {
	c.waiting.Lock()
	ch := make(chan struct{})
	c.goes[point] = ch
	c.waiting.Unlock()
	c.event("at", point)
	<-ch
}

func (c *control) release(point string) {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	if ch := c.goes[point]; ch != nil {
		close(ch)
		delete(c.goes, point)
	}
}

// handler answers a request.
type handler func(ctx context.Context, verb string, body json.RawMessage) (any, error)

// serve reads requests until the parent is gone or asks to stop; each is
// answered from a goroutine of its own, since some wait for a later one.
func (c *control) serve(ctx context.Context, stop context.CancelFunc, h handler) {
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			break
		}
		switch m.Verb {
		case "go":
			var point string
			_ = json.Unmarshal(m.Body, &point)
			c.release(point)
		case "stop":
			stop()
		default:
			go func() {
				answer := message{ID: m.ID}
				result, err := h(ctx, m.Verb, m.Body)
				if err != nil {
					answer.Error = err.Error()
				}
				answer.Body, _ = json.Marshal(result) // plain data
				c.send(answer)
			}()
		}
	}
	os.Exit(1) // the parent is gone
}

func childMain() int {
	var cfg childConfig
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, "demo: bad child configuration:", err)
		return 2
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)).With("who", cfg.Name))
	conn, err := net.Dial("tcp", cfg.Control)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo: the parent is gone:", err)
		return 1
	}
	c := &control{conn: conn, goes: map[string]chan struct{}{}}
	c.event("hello", hello{cfg.Name, cfg.Secret, os.Getpid()})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	roles := map[string]func(context.Context, context.CancelFunc, *control, childConfig) error{
		"worker": workerChild, "relay": relayChild, "consumer": consumerChild,
	}
	role := roles[cfg.Role]
	if role == nil {
		fmt.Fprintf(os.Stderr, "demo: unknown role %q\n", cfg.Role)
		return 2
	}
	if err := role(ctx, stop, c, cfg); err != nil && !errors.Is(err, context.Canceled) {
		c.event("failed", err.Error())
		fmt.Fprintf(os.Stderr, "demo: %s: %v\n", cfg.Name, err)
		return 1
	}
	c.event("bye", nil)
	return 0
}

type hello struct {
	Name   string
	Secret string
	PID    int
}

// poolConfig is for a pool with no more rights than those of the child's group
// role.
func (cfg childConfig) poolConfig() (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig(cfg.DSN)
	if err != nil {
		return nil, errors.New("the DSN can't be parsed")
	}
	pc.ConnConfig.RuntimeParams["application_name"] = "demo " + cfg.Name
	pc.ConnConfig.RuntimeParams["role"] = cfg.PGRole
	pc.MaxConns = 6
	return pc, nil
}

func (cfg childConfig) pool(ctx context.Context) (*pgxpool.Pool, error) {
	pc, err := cfg.poolConfig()
	if err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, pc)
}
