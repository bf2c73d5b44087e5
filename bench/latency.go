package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	wmessage "github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/migrations"
	"github.com/fenceline/fenceline/outbox"
)

// latencyArm is a relay under a steady load: how events are committed, and what
// carries them on.
type latencyArm struct {
	name, note string
	relay      string // a drain arm's name, of which this is the relay
	java       *connectArm
	commits    func(ctx context.Context, dsn, topic string) (commit func(ctx context.Context, i int, payload []byte) error, close func(), err error)
}

var latencyArms = []latencyArm{
	{name: "fenceline", note: "relay run, as it comes; events committed by CommitBatch", relay: "fenceline", commits: commitFenced},
	{name: "naive relay", note: "poll every 10 ms when idle, Writer with a BatchTimeout of 10 ms, delete", relay: "naive relay", commits: commitPlain},
	{name: "watermill forwarder", note: "PollInterval 10 ms", relay: "watermill forwarder", commits: commitWatermill},
	{name: "Debezium, default", note: "as it comes: poll.interval.ms=500", java: &connectArm{"worker.properties", "outbox-default.properties"}, commits: commitDebezium},
	{name: "Debezium, tuned", note: "poll.interval.ms=10, producer.linger.ms=5", java: &connectArm{"worker-tuned.properties", "outbox-tuned.properties"}, commits: commitDebezium},
	{name: "Debezium, lowest latency", note: "poll.interval.ms=1, producer.linger.ms=0", java: &connectArm{"worker-lowlat.properties", "outbox-lowlat.properties"}, commits: commitDebezium},
}

// committers is how many sessions commit: enough that a rate is kept.
const committers = 16

// latencyKeys are those of the events.
const latencyKeys = 100

func committerPool(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.MinConns = committers+4, committers
	return pgxpool.NewWithConfig(ctx, cfg)
}

func commitFenced(ctx context.Context, dsn, topic string) (func(context.Context, int, []byte) error, func(), error) {
	pool, err := committerPool(ctx, dsn)
	if err != nil {
		return nil, nil, err
	}
	fences, err := fencing.New(ctx, pool, fencing.Config{Holder: "bench", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	var leases []*fencing.Lease
	for i := range latencyKeys {
		l, err := fences.Acquire(ctx, fmt.Sprintf("key-%d", i), fencing.LeaseConfig{TTL: time.Hour})
		if err != nil {
			return nil, nil, err
		}
		leases = append(leases, l)
	}
	commit := func(ctx context.Context, i int, payload []byte) error {
		_, err := leases[i%latencyKeys].CommitBatch(ctx, fencing.Content{Step: strconv.Itoa(i), Bytes: payload}, func(b *fencing.Batch) error {
			return outbox.Append(ctx, b, outbox.Event{Topic: topic, Type: "bench.event", Payload: payload})
		})
		return err
	}
	return commit, func() {
		for _, l := range leases {
			_ = l.Release(context.Background())
		}
		pool.Close()
	}, nil
}

func commitPlain(ctx context.Context, dsn, topic string) (func(context.Context, int, []byte) error, func(), error) {
	pool, err := committerPool(ctx, dsn)
	if err != nil {
		return nil, nil, err
	}
	if _, err := pool.Exec(ctx, plainTable); err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, i int, payload []byte) error {
		_, err := pool.Exec(ctx, "insert into outbox (event_id, topic, key, type, payload) values (gen_random_uuid(), $1, $2, 'bench.event', $3)", topic, fmt.Sprintf("key-%d", i%latencyKeys), payload)
		return err
	}, pool.Close, nil
}

func commitDebezium(ctx context.Context, dsn, topic string) (func(context.Context, int, []byte) error, func(), error) {
	pool, err := committerPool(ctx, dsn)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, i int, payload []byte) error {
		_, err := pool.Exec(ctx, "insert into outbox (id, aggregatetype, aggregateid, type, payload) values (gen_random_uuid(), $1, $2, 'bench.event', $3)", topic, fmt.Sprintf("key-%d", i%latencyKeys), payload)
		return err
	}, pool.Close, nil
}

func commitWatermill(ctx context.Context, dsn, topic string) (func(context.Context, int, []byte) error, func(), error) {
	pool, err := committerPool(ctx, dsn)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, i int, payload []byte) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			p, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: watermillSchema(100)}, watermill.NopLogger{})
			if err != nil {
				return err
			}
			m := wmessage.NewMessage(watermill.NewUUID(), payload)
			m.Metadata.Set("key", fmt.Sprintf("key-%d", i%latencyKeys))
			return forwarder.NewPublisher(p, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic}).Publish(topic, m)
		})
	}, pool.Close, nil
}

// latencySample is one arm's run.
type latencySample struct {
	// From is what the time begins at: the intended moment of the commit, so
	// that an event that had to wait for its turn counts with the waiting
	// (coordinated omission), or the moment at which its commit was acknowledged.
	Intended, Acknowledged []float64 // p50, p99, max in ms
	Missing                int
	Late                   float64 // ms that the last commit was behind its time
	// Idle is the processor time, in percent of a core, of relay and PostgreSQL
	// while nothing happens.
	IdleClient, IdleServer float64
	Client                 float64 // CPU µs an event
	Peak                   int64
}

type timing struct {
	rate   int
	length time.Duration
	warm   time.Duration
	idle   time.Duration
}

// latency runs one arm once.
func (s *stack) latency(ctx context.Context, a *latencyArm, n int, tm timing, say func(string, ...any)) (_ *latencySample, err error) {
	name := fmt.Sprintf("latency_%d", n)
	topic := fmt.Sprintf("latency-%d", n)
	if err := s.topic(ctx, topic); err != nil {
		return nil, err
	}
	dsn, err := s.database(ctx, name)
	if err != nil {
		return nil, err
	}
	defer s.pool.Exec(context.WithoutCancel(ctx), "drop database if exists "+name+" with (force)")
	if err := s.prepare(ctx, a, dsn); err != nil {
		return nil, err
	}
	commit, done, err := a.commits(ctx, dsn, topic)
	if err != nil {
		return nil, err
	}
	defer done()
	pid, stop, err := s.carry(ctx, a, dsn, topic, say)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()

	reader, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Addr()), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	if _, err := s.steady(ctx, reader, commit, tm.rate, tm.warm, 0); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	client := cpuOf(pid)
	offset := int(float64(tm.rate) * tm.warm.Seconds())
	sm, err := s.steady(ctx, reader, commit, tm.rate, tm.length, offset)
	if err != nil {
		return nil, err
	}
	sm.Client = float64((cpuOf(pid) - client).Microseconds()) / (float64(tm.rate) * tm.length.Seconds())
	// Idle: after a pause in which everybody backs off as far as they do.
	pause(ctx, 2*time.Second)
	client, server := cpuOf(pid), cpuOf(s.postgres.PID())
	began := time.Now()
	pause(ctx, tm.idle)
	took := time.Since(began)
	sm.IdleClient, sm.IdleServer = 100*(cpuOf(pid)-client).Seconds()/took.Seconds(), 100*(cpuOf(s.postgres.PID())-server).Seconds()/took.Seconds()
	sm.Peak = peakOf(pid)
	return sm, ctx.Err()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (s *stack) prepare(ctx context.Context, a *latencyArm, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	switch {
	case a.java != nil:
		schema, err := debeziumFiles.ReadFile("debezium/schema.sql")
		if err == nil {
			_, err = conn.Exec(ctx, string(schema))
		}
		return err
	case a.relay == "fenceline":
		m, err := migrations.New(conn, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			_, err = m.Up(ctx, migrations.UpOptions{})
		}
		return err
	case a.relay == "watermill forwarder":
		return initWatermill(ctx, conn)
	}
	return nil
}

// carry starts the relay of an arm.
func (s *stack) carry(ctx context.Context, a *latencyArm, dsn, topic string, say func(string, ...any)) (pid int, stop func() error, err error) {
	if a.java != nil {
		w, err := startConnect(ctx, a.java, s, dsn, topic, say)
		if err != nil {
			return 0, nil, err
		}
		return w.cmd.Process.Pid, w.stop, nil
	}
	self, err := os.Executable()
	if err != nil {
		return 0, nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = job{dsn: dsn, kafka: s.kafka.Addr(), topic: topic}.environ(a.relay)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	stop = func() error {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return 0, nil, errors.Join(fmt.Errorf("it did not become ready (%q, %v): %s", line, err, tail(stderr.String())), stop())
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		return 0, nil, errors.Join(err, stop())
	}
	return cmd.Process.Pid, stop, nil
}

// steady commits events at a fixed rate, whatever becomes of them (an open
// loop), and waits for them at the other end. first numbers them on.
func (s *stack) steady(ctx context.Context, reader *kgo.Client, commit func(context.Context, int, []byte) error, rate int, length time.Duration, first int) (*latencySample, error) {
	n := int(float64(rate) * length.Seconds())
	acked := make([]time.Duration, n) // since began
	got := make([]time.Duration, n)
	began := time.Now().Add(50 * time.Millisecond)
	interval := time.Second / time.Duration(rate)

	ctx, cancel := context.WithTimeout(ctx, length+time.Minute)
	defer cancel()
	received := make(chan error, 1)
	go func() {
		left := n
		for left > 0 {
			fetches := reader.PollFetches(ctx)
			now := time.Since(began)
			if ctx.Err() != nil {
				received <- nil
				return
			}
			if err := fetches.Err(); err != nil {
				received <- err
				return
			}
			fetches.EachRecord(func(r *kgo.Record) {
				i, err := strconv.Atoi(strings.TrimLeft(string(r.Value[:min(20, len(r.Value))]), "0 "))
				if err == nil && i-1 >= first && i-1-first < n && got[i-1-first] == 0 {
					got[i-1-first] = now
					left--
				}
			})
		}
		received <- nil
	}()

	work := make(chan int, n)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range committers {
		wg.Go(func() {
			for i := range work {
				// Numbered from 1: a payload of zeros is none.
				payload := fmt.Appendf(nil, "%020d%s", first+i+1, strings.Repeat("x", 480))
				if err := commit(ctx, first+i, payload); err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
				acked[i] = time.Since(began)
			}
		})
	}
	for i := range n {
		time.Sleep(time.Until(began.Add(time.Duration(i) * interval)))
		work <- i
	}
	close(work)
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	if err := <-received; err != nil {
		return nil, err
	}
	sm := &latencySample{Late: (acked[n-1] - time.Duration(n-1)*interval).Seconds() * 1e3}
	var intended, acknowledged []float64
	for i := range n {
		if got[i] == 0 {
			sm.Missing++
			continue
		}
		intended = append(intended, (got[i]-time.Duration(i)*interval).Seconds()*1e3)
		acknowledged = append(acknowledged, max(0, (got[i]-acked[i]).Seconds()*1e3))
	}
	three := func(v []float64) []float64 {
		slices.Sort(v)
		return []float64{percentile(v, 50), percentile(v, 99), percentile(v, 100)}
	}
	sm.Intended, sm.Acknowledged = three(intended), three(acknowledged)
	return sm, nil
}
