package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// job is what an arm is told.
type job struct {
	dsn, kafka, topic string
	events            int
	// tracer sees the statements of an arm that runs in this process; no child
	// has one.
	tracer pgx.QueryTracer
}

const (
	envArm    = "BENCH_ARM"
	envDSN    = "BENCH_DSN"
	envKafka  = "BENCH_KAFKA"
	envTopic  = "BENCH_TOPIC"
	envEvents = "BENCH_EVENTS"
)

func (j job) environ(name string) []string {
	return append(os.Environ(), envArm+"="+name, envDSN+"="+j.dsn, envKafka+"="+j.kafka, envTopic+"="+j.topic, envEvents+"="+strconv.Itoa(j.events))
}

// pool connects an arm to its database.
func (j job) pool(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(j.dsn)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.Tracer = j.tracer
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (j job) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(j.dsn)
	if err != nil {
		return nil, err
	}
	cfg.Tracer = j.tracer
	return pgx.ConnectConfig(ctx, cfg)
}

// worker is what an arm does in a process of its own until ctx ends. It calls
// ready once connected and loaded; what follows is measured.
type worker func(ctx context.Context, j job, ready func()) error

// findWorker gives what the arm of that name does.
func findWorker(name string) worker {
	for i := range drainArms {
		if drainArms[i].name == name {
			return drainArms[i].work
		}
	}
	for i := range applyArms {
		if applyPrefix+applyArms[i].name == name {
			return applyArms[i].work
		}
	}
	return nil
}

// child is the whole of a child process: it says "ready", waits for a line, and
// works until its standard input ends.
func child(name string) error {
	work := findWorker(name)
	if work == nil {
		return fmt.Errorf("there is no arm %q", name)
	}
	events, err := strconv.Atoi(os.Getenv(envEvents))
	if err != nil {
		return err
	}
	j := job{dsn: os.Getenv(envDSN), kafka: os.Getenv(envKafka), topic: os.Getenv(envTopic), events: events}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	in := bufio.NewReader(os.Stdin)
	err = work(ctx, j, func() {
		fmt.Println("ready")
		_, _ = in.ReadString('\n')
		go func() {
			_, _ = in.ReadString('\n')
			cancel()
		}()
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// childProcess is an arm that runs in a process of its own.
type childProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	stderr lastWords
}

// startChild starts an arm and returns when it is ready to begin. End it with
// kill.
func (s *stack) startChild(name string, j job) (*childProcess, error) {
	if a := findArm(name); a != nil && a.program {
		return startProcess(relayRun(s.relay, j))
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = j.environ(name)
	return startProcess(cmd)
}

// startProcess starts what says "ready" and waits for a line before it begins.
func startProcess(cmd *exec.Cmd) (c *childProcess, err error) {
	c = &childProcess{cmd: cmd}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Stderr = &c.stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		c.kill()
		return nil, errors.Join(fmt.Errorf("it did not become ready, and said %q: %s", line, c.stderr.String()), err)
	}
	return c, nil
}

func (c *childProcess) pid() int { return c.cmd.Process.Pid }

// begin lets it work.
func (c *childProcess) begin() error {
	_, err := io.WriteString(c.in, "go\n")
	return err
}

// kill ends it as a power cut would: it gets no chance to put anything in order.
func (c *childProcess) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	_ = c.in.Close()
}

// lastWords keeps the end of what a process says.
type lastWords struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	l.text = bytes.Clone(l.text[max(0, len(l.text)-1000):])
	return len(p), nil
}

func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
