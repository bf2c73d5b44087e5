package apachekafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/supervise"
)

// Config configures Start.
type Config struct {
	// Properties are further lines of server.properties; they win over ours. Defaults to none.
	Properties map[string]string

	// MaxHeapMB is the Java heap's limit. Defaults to 384, enough for functional tests.
	MaxHeapMB int

	// Secure adds a listener with encryption and authentication. Defaults to none.
	Secure *Secure

	// Progress is told what a person waiting should know: that jars are being fetched. Defaults to nobody.
	Progress func(string)

	// StartTimeout bounds each start. Defaults to one minute: a busy machine takes several times as long as an idle
	// one.
	StartTimeout time.Duration
}

// Broker is a running Apache Kafka. Its methods may be called from several goroutines; Stop, Kill and Restart wait for
// each other.
type Broker struct {
	cfg   Config
	kafka install
	extra []string // further flags for Java
	dir   string   // scratch: data, configuration, log
	port  int
	// securePort is the port of the listener of Config.Secure.
	securePort int
	guard      *supervise.Guard
	// member is what a broker of a Cluster knows of it; nil for a node alone.
	member *member

	mu      sync.Mutex
	process *supervise.Process // nil while none runs
	stopped bool
}

// Start starts a Kafka with empty data and returns when it serves clients; the first start on a machine fetches the
// jars. ctx bounds the start alone. Call Stop when done; if this process dies before that, Kafka ends and its data go
// all the same.
func Start(ctx context.Context, cfg Config) (*Broker, error) {
	progress := cfg.Progress
	if progress == nil {
		progress = func(string) {}
	}
	kafka, err := find(ctx, progress)
	if err != nil {
		return nil, err
	}
	return start(ctx, kafka, cfg)
}

func start(ctx context.Context, kafka install, cfg Config, extra ...string) (_ *Broker, err error) {
	b, err := prepare(kafka, cfg, extra...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = b.discard()
		}
	}()
	for attempt := 1; ; attempt++ {
		if err := b.configure(); err != nil {
			return nil, err
		}
		if attempt == 1 {
			if err := b.format(ctx); err != nil {
				return nil, err
			}
		}
		err := b.run(ctx)
		if err == nil {
			return b, nil
		}
		// Another process was faster with one of the ports. The formatted data don't depend on them.
		if attempt == 5 || !strings.Contains(err.Error(), "Address already in use") {
			return nil, err
		}
	}
}

// prepare makes a broker that has a folder and nothing else yet.
func prepare(kafka install, cfg Config, extra ...string) (_ *Broker, err error) {
	if cfg.MaxHeapMB == 0 {
		cfg.MaxHeapMB = 384
	}
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = time.Minute
	}
	b := &Broker{cfg: cfg, kafka: kafka, extra: extra}
	if b.dir, err = devstack.ScratchDir("kafka", true, nil); err != nil {
		return nil, err
	}
	if b.guard, err = supervise.NewGuard(b.dir); err != nil {
		_ = os.RemoveAll(b.dir)
		return nil, err
	}
	return b, nil
}

// Addr is the address that clients connect to, host:port. It stays the same over Restart.
func (b *Broker) Addr() string { return "127.0.0.1:" + strconv.Itoa(b.port) }

// Stop ends Kafka in order and removes its data. When ctx ends, or after 15 seconds, it is killed; the error then says
// so. A second Stop does nothing.
func (b *Broker) Stop(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return nil
	}
	b.stopped = true
	return errors.Join(b.end(ctx), b.discard())
}

// Kill ends Kafka with SIGKILL and keeps its data.
func (b *Broker) Kill(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.process == nil {
		return nil
	}
	if err := b.process.Crash(ctx); err != nil {
		return err
	}
	b.process = nil
	return nil
}

// Restart starts Kafka again on its data and its address, and returns when it serves clients. One that still runs is
// stopped in order first.
func (b *Broker) Restart(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return errors.New("apachekafka: restart: it was stopped and its data are gone")
	}
	if err := b.end(ctx); err != nil {
		return err
	}
	return b.run(ctx)
}

// configure chooses ports and writes server.properties.
func (b *Broker) configure() error {
	port, err := devstack.FreePort()
	if err != nil {
		return err
	}
	controller, err := devstack.FreePort()
	if err != nil {
		return err
	}
	b.port = port
	properties := map[string]string{
		"process.roles":                       "broker,controller",
		"node.id":                             strconv.Itoa(b.id()),
		"controller.quorum.bootstrap.servers": fmt.Sprintf("127.0.0.1:%d", controller),
		"controller.listener.names":           "CONTROLLER",
		"listeners":                           fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, controller),
		"log.dirs":                            filepath.Join(b.dir, "data"),
		"auto.create.topics.enable":           "false",
		// One node: internal topics can have one replica only.
		"offsets.topic.replication.factor":         "1",
		"offsets.topic.num.partitions":             "1",
		"transaction.state.log.replication.factor": "1",
		"transaction.state.log.num.partitions":     "1",
		"transaction.state.log.min.isr":            "1",
		// A group's first member need not wait for others.
		"group.initial.rebalance.delay.ms": "0",
		// After SIGKILL the node must wait for its own old session to end before it may come back.
		"broker.session.timeout.ms":    "1000",
		"broker.heartbeat.interval.ms": "250",
		// The default takes 128 MB of heap.
		"log.cleaner.dedupe.buffer.size": "2097152",
	}
	if err := b.secure(properties); err != nil {
		return err
	}
	return b.write(properties)
}

// write makes server.properties of ours and the caller's.
func (b *Broker) write(properties map[string]string) error {
	maps.Copy(properties, b.cfg.Properties)
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&lines, "%s=%s\n", name, properties[name])
	}
	if err := os.WriteFile(b.properties(), []byte(lines.String()), 0o600); err != nil {
		return fmt.Errorf("apachekafka: %w", err)
	}
	return nil
}

// id is the broker's node id.
func (b *Broker) id() int {
	if b.member != nil {
		return b.member.id
	}
	return 1
}

func (b *Broker) properties() string { return filepath.Join(b.dir, "server.properties") }
func (b *Broker) logFile() string    { return filepath.Join(b.dir, "kafka.log") }

// java starts a program of Kafka's; its output is appended to the log.
func (b *Broker) java(flags []string, program string, args ...string) (*supervise.Process, error) {
	log, err := os.OpenFile(b.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("apachekafka: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	all := append([]string{"-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}, flags...)
	all = append(all, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", b.kafka.lib+"/*", program)
	return b.guard.Start(supervise.Spec{
		Path:    b.kafka.java,
		Args:    append(all, args...),
		Env:     []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"},
		Dir:     b.dir,
		Output:  log,
		EndWith: "KILL", // its data go at the same moment: there is nothing to write down in order
	})
}

// format prepares an empty data directory.
func (b *Broker) format(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.StartTimeout)
	defer cancel()
	// The cluster id is any 22 characters of base64: nothing but this node ever joins.
	args := []string{"format", "-t", "fenceline-test-cluster", "-c", b.properties()}
	if b.member == nil {
		args = append(args, "--standalone")
	}
	process, err := b.java([]string{"-Xshare:auto"}, "kafka.tools.StorageTool", args...)
	if err != nil {
		return err
	}
	if err := process.Wait(ctx); err != nil {
		_ = process.Crash(context.WithoutCancel(ctx))
		return fmt.Errorf("apachekafka: format the data directory: %w", err)
	}
	if process.Err() != nil {
		return fmt.Errorf("apachekafka: format the data directory: %w: %s", process.Err(), supervise.Tail(b.logFile()))
	}
	return nil
}

// run starts the node and waits until it serves clients. The caller holds b.mu or is alone.
func (b *Broker) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.StartTimeout)
	defer cancel()
	if err := os.Truncate(b.logFile(), 0); err != nil {
		return fmt.Errorf("apachekafka: %w", err)
	}
	flags := append([]string{"-Xms64m", fmt.Sprintf("-Xmx%dm", b.cfg.MaxHeapMB)}, b.extra...)
	if b.kafka.archive != "" {
		flags = append(flags, "-XX:SharedArchiveFile="+b.kafka.archive)
	}
	process, err := b.java(flags, "kafka.Kafka", b.properties())
	if err != nil {
		return err
	}
	ready := make(chan error, 1)
	readyCtx, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	go func() { ready <- waitReady(readyCtx, b.Addr(), b.id()) }()
	select {
	case <-process.Done():
		return fmt.Errorf("apachekafka: Kafka ended while starting: %w: %s", process.Err(), supervise.Tail(b.logFile()))
	case err := <-ready:
		if err != nil {
			_ = process.Crash(context.WithoutCancel(ctx))
			return fmt.Errorf("apachekafka: Kafka was not ready in time: %w: %s", err, supervise.Tail(b.logFile()))
		}
		b.process = process
		return nil
	}
}

// end asks Kafka to end, and kills it if it doesn't. The caller holds b.mu.
func (b *Broker) end(ctx context.Context) error {
	if b.process == nil {
		return nil
	}
	polite, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := b.process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := b.process.Wait(polite); err != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		crashed := b.process.Crash(last)
		b.process = nil
		return errors.Join(fmt.Errorf("apachekafka: Kafka didn't stop in order: %w: %s", err, supervise.Tail(b.logFile())), crashed)
	}
	b.process = nil
	return nil
}

// discard kills what still runs and removes everything the broker had.
func (b *Broker) discard() error {
	if b.process != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = b.process.Crash(ctx)
		b.process = nil
	}
	err := b.guard.Close()
	return errors.Join(err, os.RemoveAll(b.dir))
}
