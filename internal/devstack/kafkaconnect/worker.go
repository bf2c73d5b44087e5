package kafkaconnect

import (
	"bytes"
	"context"
	_ "embed" // the log's configuration
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// logging is the log4j2.properties of a worker, to its standard output.
//
//go:embed log4j2.properties
var logging []byte

// Config configures Start.
type Config struct {
	// Worker is the text of worker.properties. Where the plugins, the REST
	// interface and the offsets are is added to it.
	Worker string

	// Connector is the text of the one connector's properties, which begin with
	// its name.
	Connector string

	// Env are variables of its environment, NAME=value. Defaults to none.
	Env []string

	// MaxHeapMB is the Java heap's limit. Defaults to 512.
	MaxHeapMB int

	// Progress is told what a person waiting should know: that jars are being
	// fetched. Defaults to nobody.
	Progress func(string)

	// StartTimeout bounds each start, until the connector streams. Defaults to
	// three minutes: a busy machine takes ten times as long as an idle one.
	StartTimeout time.Duration
}

// Worker is a running Kafka Connect. Its methods may be called from several
// goroutines; Stop, Kill and Restart wait for each other.
type Worker struct {
	cfg   Config
	jars  jars
	name  string // the connector's
	dir   string // scratch: configuration, offsets, log
	guard *supervise.Guard

	mu      sync.Mutex
	url     string
	process *supervise.Process // nil while none runs
	stopped bool
}

// Start starts a worker and returns when its connector streams: what is
// committed from then on it takes. ctx bounds the start alone. Call Stop when
// done.
func Start(ctx context.Context, cfg Config) (_ *Worker, err error) {
	if cfg.MaxHeapMB == 0 {
		cfg.MaxHeapMB = 512
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = 3 * time.Minute
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	w := &Worker{cfg: cfg}
	if m := regexp.MustCompile(`(?m)^name=(\S+)$`).FindStringSubmatch(cfg.Connector); m != nil {
		w.name = m[1]
	} else {
		return nil, errors.New("kafkaconnect: the connector's properties have no name")
	}
	if w.jars, err = find(ctx, cfg.Progress); err != nil {
		return nil, err
	}
	if w.dir, err = devstack.ScratchDir("connect", true, nil); err != nil {
		return nil, err
	}
	if w.guard, err = supervise.NewGuard(w.dir); err != nil {
		_ = os.RemoveAll(w.dir)
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = w.Stop(context.WithoutCancel(ctx))
		}
	}()
	return w, w.run(ctx)
}

// PID is the worker's process; 0 while none runs.
func (w *Worker) PID() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.process == nil {
		return 0
	}
	return w.process.PID()
}

func (w *Worker) logFile() string { return filepath.Join(w.dir, "connect.log") }

// Log is the end of what the worker has written, to explain a failure by.
func (w *Worker) Log() string { return supervise.Tail(w.logFile()) }

// run starts the process. A port that another process was faster with is
// replaced by another.
func (w *Worker) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.StartTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		err := w.try(ctx)
		if err == nil || attempt == 5 || !strings.Contains(err.Error(), "Address already in use") && !strings.Contains(err.Error(), "Failed to bind") {
			return err
		}
	}
}

func (w *Worker) try(ctx context.Context) error {
	port, err := devstack.FreePort()
	if err != nil {
		return err
	}
	w.url = fmt.Sprintf("http://127.0.0.1:%d", port)
	own := fmt.Sprintf("\nplugin.path=%s\nlisteners=HTTP://127.0.0.1:%d\noffset.storage.file.filename=%s\n", w.jars.Plugins, port, filepath.Join(w.dir, "offsets"))
	for name, text := range map[string]string{"worker.properties": w.cfg.Worker + own, "connector.properties": w.cfg.Connector, "log4j2.properties": string(logging)} {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil { // it has passwords
			return fmt.Errorf("kafkaconnect: %w", err)
		}
	}
	log, err := os.OpenFile(w.logFile(), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("kafkaconnect: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	process, err := w.guard.Start(supervise.Spec{
		Path: w.jars.Java,
		Args: []string{fmt.Sprintf("-Xmx%dm", w.cfg.MaxHeapMB), "-Dlog4j2.configurationFile=" + filepath.Join(w.dir, "log4j2.properties"), "-cp", w.jars.Libs + "/*",
			"org.apache.kafka.connect.cli.ConnectStandalone", filepath.Join(w.dir, "worker.properties"), filepath.Join(w.dir, "connector.properties")},
		Env:     append([]string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC"}, w.cfg.Env...),
		Dir:     w.dir,
		Output:  log,
		EndWith: "KILL",
	})
	if err != nil {
		return fmt.Errorf("kafkaconnect: %w", err)
	}
	w.process = process
	if err := w.streams(ctx); err != nil {
		return errors.Join(fmt.Errorf("kafkaconnect: the connector doesn't stream: %w\n%s", err, w.Log()), w.crash(ctx))
	}
	return nil
}

// streams waits for the line of the log that says so; the REST interface calls
// the connector running before it has asked for its slot.
func (w *Worker) streams(ctx context.Context) error {
	return w.await(ctx, func() error {
		text, err := os.ReadFile(w.logFile())
		switch {
		case err != nil:
			return err
		case bytes.Contains(text, []byte("Processing messages")):
			return nil
		}
		return errors.New("not yet")
	})
}

// await asks until there is no error, or until it is too late.
func (w *Worker) await(ctx context.Context, ask func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-w.process.Done():
			return fmt.Errorf("the worker has ended: %w", errors.Join(w.process.Err(), err))
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-tick.C:
		}
	}
}

// Pause has the connector stopped, its slot left where it is, until Resume.
func (w *Worker) Pause(ctx context.Context) error { return w.put(ctx, "stop", "STOPPED") }

// Resume has the connector go on, and returns when it was told to: it streams
// soon after.
func (w *Worker) Resume(ctx context.Context) error { return w.put(ctx, "resume", "") }

// Forget has a connector that is paused forget how far it has come: it then
// begins as one that was never there.
func (w *Worker) Forget(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.process == nil {
		return errors.New("kafkaconnect: no worker runs")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	// Its task may take a moment to end.
	return w.await(ctx, func() error {
		_, err := w.ask(ctx, http.MethodDelete, "offsets")
		return err
	})
}

// put asks for an action, and waits until the connector is in a state.
func (w *Worker) put(ctx context.Context, action, state string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.process == nil {
		return errors.New("kafkaconnect: no worker runs")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if _, err := w.ask(ctx, http.MethodPut, action); err != nil || state == "" {
		return err
	}
	return w.await(ctx, func() error {
		body, err := w.ask(ctx, http.MethodGet, "status")
		if err == nil && !strings.Contains(body, `"state":"`+state+`"`) {
			err = fmt.Errorf("kafkaconnect: the connector is not %s: %s", state, body)
		}
		return err
	})
}

func (w *Worker) ask(ctx context.Context, method, what string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.url+"/connectors/"+w.name+"/"+what, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("kafkaconnect: %s %s: %s: %s", method, what, res.Status, body)
	}
	return string(body), err
}

// Kill ends the worker with SIGKILL and keeps its offsets.
func (w *Worker) Kill(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.crash(ctx)
}

func (w *Worker) crash(ctx context.Context) error {
	if w.process == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := w.process.Crash(ctx)
	w.process = nil
	return err
}

// Restart starts the worker again where its offsets are, ending it in order
// before if it runs. It returns when the connector streams.
func (w *Worker) Restart(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return errors.New("kafkaconnect: restart: it was stopped and its offsets are gone")
	}
	if err := w.end(ctx); err != nil {
		return err
	}
	return w.run(ctx)
}

// end ends it in order; a worker that takes longer than 20 seconds is killed.
func (w *Worker) end(ctx context.Context) error {
	if w.process == nil {
		return nil
	}
	polite, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := w.process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if w.process.Wait(polite) != nil {
		return w.crash(ctx)
	}
	w.process = nil
	return nil
}

// Stop ends the worker and removes its offsets. Its replication slot stays in
// the database. A second Stop does nothing.
func (w *Worker) Stop(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return nil
	}
	w.stopped = true
	return errors.Join(w.end(ctx), w.guard.Close(), os.RemoveAll(w.dir))
}
