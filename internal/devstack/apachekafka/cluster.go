package apachekafka

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/fenceline/fenceline/internal/devstack"
)

// Cluster is several brokers that are one Kafka: each is a controller too, topics have three replicas by default, and
// an acknowledgement of all in-sync replicas needs two. One of three can be killed, and nothing that was acknowledged
// is lost.
type Cluster struct {
	// Brokers are the nodes. Kill and Restart them one by one; their Stop is the cluster's affair.
	Brokers []*Broker
}

// member is what a broker knows of its cluster.
type member struct {
	id         int
	controller int      // its controller's port
	voters     []string // all controllers, as controller.quorum.voters wants them
	replicas   int
}

// StartCluster starts nodes brokers with empty data and returns when each serves clients and sees all others. ctx
// bounds the start alone. Call Stop when done.
func StartCluster(ctx context.Context, nodes int, cfg Config) (*Cluster, error) {
	progress := cfg.Progress
	if progress == nil {
		progress = func(string) {}
	}
	kafka, err := find(ctx, progress)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		c, err := startCluster(ctx, kafka, nodes, cfg)
		// Another process was faster with one of the ports.
		if err == nil || attempt == 3 || !strings.Contains(err.Error(), "Address already in use") {
			return c, err
		}
	}
}

func startCluster(ctx context.Context, kafka install, nodes int, cfg Config) (_ *Cluster, err error) {
	c := &Cluster{}
	defer func() {
		if err != nil {
			for _, b := range c.Brokers {
				_ = b.discard()
			}
		}
	}()
	var voters []string
	for id := 1; id <= nodes; id++ {
		b, err := prepare(kafka, cfg)
		if err != nil {
			return nil, err
		}
		c.Brokers = append(c.Brokers, b)
		b.member = &member{id: id, replicas: min(3, nodes)}
		if b.port, err = devstack.FreePort(); err != nil {
			return nil, err
		}
		if b.member.controller, err = devstack.FreePort(); err != nil {
			return nil, err
		}
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", id, b.member.controller))
	}
	for _, b := range c.Brokers {
		b.member.voters = voters
	}
	first := c.Brokers[0]
	if err := first.join(); err != nil {
		return nil, err
	}
	if err := first.format(ctx); err != nil {
		return nil, err
	}
	return c, c.each(func(b *Broker) error {
		if b != first {
			if err := b.join(); err != nil {
				return err
			}
			if err := b.formatLike(first); err != nil {
				return err
			}
		}
		return b.run(ctx)
	})
}

// formatLike prepares an empty data directory by one that was formatted, for another node of its cluster: a JVM less
// to wait for. The two differ in what tells nodes and directories apart.
func (b *Broker) formatLike(other *Broker) error {
	data := filepath.Join(b.dir, "data")
	if err := os.CopyFS(data, os.DirFS(filepath.Join(other.dir, "data"))); err != nil {
		return fmt.Errorf("apachekafka: format the data directory: %w", err)
	}
	file := filepath.Join(data, "meta.properties")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("apachekafka: format the data directory: %w", err)
	}
	own := map[string]string{"node.id": strconv.Itoa(b.member.id), "directory.id": directoryID()}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		name, _, _ := strings.Cut(line, "=")
		if value, ok := own[name]; ok {
			lines[i] = name + "=" + value
			delete(own, name)
		}
	}
	if len(own) > 0 {
		return fmt.Errorf("apachekafka: format the data directory: %s has no %v", file, own)
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		return fmt.Errorf("apachekafka: format the data directory: %w", err)
	}
	if err := os.WriteFile(b.logFile(), nil, 0o600); err != nil { // which formatting makes
		return fmt.Errorf("apachekafka: format the data directory: %w", err)
	}
	return nil
}

// directoryID makes an id as Kafka does: 16 random bytes in base64, which do not begin with a dash.
func directoryID() string {
	for {
		id := make([]byte, 16)
		_, _ = rand.Read(id) // never fails
		if text := base64.RawURLEncoding.EncodeToString(id); text[0] != '-' {
			return text
		}
	}
}

// join writes a member's server.properties.
func (b *Broker) join() error {
	m := b.member
	replicas := strconv.Itoa(m.replicas)
	insync := strconv.Itoa(max(1, m.replicas-1))
	return b.write(map[string]string{
		"process.roles":                            "broker,controller",
		"node.id":                                  strconv.Itoa(m.id),
		"controller.quorum.voters":                 strings.Join(m.voters, ","),
		"controller.listener.names":                "CONTROLLER",
		"listeners":                                fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", b.port, m.controller),
		"log.dirs":                                 filepath.Join(b.dir, "data"),
		"auto.create.topics.enable":                "false",
		"default.replication.factor":               replicas,
		"min.insync.replicas":                      insync,
		"offsets.topic.replication.factor":         replicas,
		"offsets.topic.num.partitions":             "1",
		"transaction.state.log.replication.factor": replicas,
		"transaction.state.log.num.partitions":     "1",
		"transaction.state.log.min.isr":            insync,
		"group.initial.rebalance.delay.ms":         "0",
		// A killed broker's partitions get other leaders when its session ends. Not as short as for a node alone:
		// several of these share a machine with everything else.
		"broker.session.timeout.ms":      "3000",
		"broker.heartbeat.interval.ms":   "500",
		"replica.lag.time.max.ms":        "5000",
		"log.cleaner.dedupe.buffer.size": "2097152",
	})
}

// Addrs are the addresses that clients connect to, host:port each.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, b := range c.Brokers {
		addrs = append(addrs, b.Addr())
	}
	return addrs
}

// Kill ends all brokers with SIGKILL and keeps their data.
func (c *Cluster) Kill(ctx context.Context) error {
	return c.each(func(b *Broker) error { return b.Kill(ctx) })
}

// Restart starts all brokers again on their data and their addresses, and returns when they serve clients. None of
// them can alone: they need a majority of controllers.
func (c *Cluster) Restart(ctx context.Context) error {
	return c.each(func(b *Broker) error { return b.Restart(ctx) })
}

// Stop ends all brokers and removes their data. They are not asked to hand their partitions over first: the last one
// would wait for controllers that are gone.
func (c *Cluster) Stop(ctx context.Context) error {
	return errors.Join(c.Kill(ctx), c.each(func(b *Broker) error { return b.Stop(ctx) }))
}

// each does something to all brokers at once.
func (c *Cluster) each(do func(b *Broker) error) error {
	errs := make([]error, len(c.Brokers))
	var all sync.WaitGroup
	for i, b := range c.Brokers {
		all.Go(func() {
			if err := do(b); err != nil {
				errs[i] = fmt.Errorf("broker %d: %w", b.id(), err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
