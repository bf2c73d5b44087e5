package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	wmessage "github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// latencyArm is a relay under a steady load: how events are committed, and what
// carries them on.
type latencyArm struct {
	name, note string
	relay      string // a drain arm's name, of which this is the relay
	java       *connectArm
	effect     bool // until a consumer's transaction has committed, not until it is read
	commits    func(ctx context.Context, dsn, topic string) (commit commitFunc, close func(), err error)
}

var latencyArms = []latencyArm{
	{name: "fenceline", note: "relay run, as it comes; events committed by CommitBatch, with a Waker", relay: "fenceline", commits: commitFenced},
	{name: "fenceline, to the effect", note: "the same, until consumer.Run has committed a row for the event", relay: "fenceline", commits: commitFenced, effect: true},
	{name: "naive relay", note: "poll every 10 ms when idle, Writer with a BatchTimeout of 10 ms, delete", relay: "naive relay", commits: commitPlain},
	{name: "watermill forwarder", note: "PollInterval 10 ms", relay: "watermill forwarder", commits: commitWatermill},
	{name: "Debezium, default", note: "as it comes: poll.interval.ms=500", java: &connectArm{"worker.properties", "outbox-default.properties"}, commits: commitDebezium},
	{name: "Debezium, tuned", note: "poll.interval.ms=10, producer.linger.ms=5", java: &connectArm{"worker-tuned.properties", "outbox-tuned.properties"}, commits: commitDebezium},
	{name: "Debezium, lowest latency", note: "poll.interval.ms=1, producer.linger.ms=0", java: &connectArm{"worker-lowlat.properties", "outbox-lowlat.properties"}, commits: commitDebezium},
}

func committerPool(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.MinConns = committers+4, committers
	return pgxpool.NewWithConfig(ctx, cfg)
}

// commitFenced commits as a producer of ours does, which tells the relay of it.
func commitFenced(ctx context.Context, dsn, topic string) (commitFunc, func(), error) {
	pool, err := committerPool(ctx, dsn)
	if err != nil {
		return nil, nil, err
	}
	waker, err := outbox.NewWaker(pool, outbox.WakerConfig{})
	if err != nil {
		return nil, nil, err
	}
	fences, err := fencing.New(ctx, pool, fencing.Config{Holder: "bench", Logger: slog.New(slog.DiscardHandler), Wake: waker.Wake})
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
		waker.Close()
		pool.Close()
	}, nil
}

func commitPlain(ctx context.Context, dsn, topic string) (commitFunc, func(), error) {
	pool, err := committerPool(ctx, dsn)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, i int, payload []byte) error {
		_, err := pool.Exec(ctx, "insert into outbox (event_id, topic, key, type, payload) values (gen_random_uuid(), $1, $2, 'bench.event', $3)", topic, steadyWorkload.key(i), payload)
		return err
	}, pool.Close, nil
}

func commitDebezium(ctx context.Context, dsn, topic string) (commitFunc, func(), error) {
	pool, err := committerPool(ctx, dsn)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, i int, payload []byte) error {
		_, err := pool.Exec(ctx, "insert into outbox (id, aggregatetype, aggregateid, type, payload) values (gen_random_uuid(), $1, $2, 'bench.event', $3)", topic, steadyWorkload.key(i), payload)
		return err
	}, pool.Close, nil
}

func commitWatermill(ctx context.Context, dsn, topic string) (commitFunc, func(), error) {
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
			m.Metadata.Set("key", steadyWorkload.key(i))
			return forwarder.NewPublisher(p, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic}).Publish(topic, m)
		})
	}, pool.Close, nil
}

// latencySample is one arm's run.
type latencySample struct {
	// From is what the time begins at: the intended moment of the commit, so
	// that an event that had to wait for its turn counts with the waiting
	// (coordinated omission), or the moment at which its commit was acknowledged.
	Intended, Acknowledged []float64 // in ms, sorted
	Missing                int
	Late                   float64 // ms that the last commit was behind its time
	// Idle is the processor time, in percent of a core, of relay and PostgreSQL
	// while nothing happens.
	IdleClient, IdleServer float64
	// CPU µs an event; that of PostgreSQL includes the commits.
	Client, Server, Broker float64
	Peak                   int64
	Verdict                verdict
}

type timing struct {
	rate   int
	length time.Duration
	warm   time.Duration
	idle   time.Duration
}

// latency runs one arm once.
func (s *stack) latency(ctx context.Context, a *latencyArm, n int, tm timing, say func(string, ...any)) (_ *latencySample, err error) {
	at, err := s.place(ctx, "latency", n, a.prepare)
	if err != nil {
		return nil, err
	}
	defer at.leave()
	commit, done, err := a.commits(ctx, at.dsn, at.topic)
	if err != nil {
		return nil, err
	}
	defer done()
	pid, stop, err := s.carry(ctx, a, at.job(), say)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()

	next, end, err := s.read(at.topic)
	if a.effect {
		next, end, err = apply(ctx, at.job())
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	if _, err := s.steady(ctx, next, commit, tm.rate, tm.warm, 0); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	client, server, broker := cpuOf(pid), cpuOf(s.postgres.PID()), cpuOf(s.kafka.PID())
	offset := int(float64(tm.rate) * tm.warm.Seconds())
	sm, err := s.steady(ctx, next, commit, tm.rate, tm.length, offset)
	if err != nil {
		return nil, err
	}
	per := func(before time.Duration, pid int) float64 {
		return float64((cpuOf(pid) - before).Microseconds()) / (float64(tm.rate) * tm.length.Seconds())
	}
	sm.Client, sm.Server, sm.Broker = per(client, pid), per(server, s.postgres.PID()), per(broker, s.kafka.PID())
	// Idle: what the load has left is vacuumed at once, where autovacuum would do it
	// within its naptime, in the middle of what is measured; and after a pause in which
	// everybody backs off as far as they do.
	if _, err := at.pool.Exec(ctx, "vacuum (analyze)"); err != nil {
		return nil, err
	}
	pause(ctx, 2*time.Second)
	client, server = cpuOf(pid), cpuOf(s.postgres.PID())
	began := time.Now()
	pause(ctx, tm.idle)
	took := time.Since(began)
	sm.IdleClient, sm.IdleServer = 100*(cpuOf(pid)-client).Seconds()/took.Seconds(), 100*(cpuOf(s.postgres.PID())-server).Seconds()/took.Seconds()
	sm.Peak = peakOf(pid)
	all := steadyWorkload
	all.Events = offset + int(float64(tm.rate)*tm.length.Seconds())
	if sm.Verdict, err = s.check(ctx, at.topic, all.counts()); err != nil {
		return nil, err
	}
	if a.effect {
		if err := inTable(ctx, at.pool, all.Events); err != nil {
			return nil, err
		}
	}
	return sm, ctx.Err()
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// prepare makes the arm's tables.
func (a *latencyArm) prepare(ctx context.Context, conn *pgx.Conn) error {
	switch {
	case a.java != nil:
		return createDebezium(ctx, conn)
	case a.relay == "fenceline":
		return migrateFenceline(ctx, conn)
	case a.relay == "watermill forwarder":
		return initWatermill(ctx, conn)
	}
	return createPlain(ctx, conn)
}

// carry starts the relay of an arm.
func (s *stack) carry(ctx context.Context, a *latencyArm, j job, say func(string, ...any)) (pid int, stop func() error, err error) {
	if a.java != nil {
		w, err := a.java.start(ctx, s, j.dsn, say)
		if err != nil {
			return 0, nil, err
		}
		return w.PID(), func() error { return w.Stop(ctx) }, nil
	}
	c, err := s.startChild(a.relay, j)
	if err != nil {
		return 0, nil, err
	}
	stop = func() error { c.kill(); return nil }
	if err := c.begin(); err != nil {
		return 0, nil, errors.Join(err, stop())
	}
	return c.pid(), stop, nil
}

// steady commits events at a fixed rate, whatever becomes of them (an open
// loop), and waits for them at the other end. first numbers them on.
func (s *stack) steady(ctx context.Context, next arrivals, commit commitFunc, rate int, length time.Duration, first int) (*latencySample, error) {
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
			arrived, err := next(ctx)
			now := time.Since(began)
			if ctx.Err() != nil {
				received <- nil
				return
			}
			if err != nil {
				received <- err
				return
			}
			for _, i := range arrived {
				if i >= first && i-first < n && got[i-first] == 0 {
					got[i-first] = now
					left--
				}
			}
		}
		received <- nil
	}()

	// What a failed commit leaves unread is not waited for.
	if _, err := openLoop(ctx, commit, first, n, began, interval, nil, func(i int) { acked[i] = time.Since(began) }); err != nil {
		return nil, err
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
	slices.Sort(intended)
	slices.Sort(acknowledged)
	sm.Intended, sm.Acknowledged = intended, acknowledged
	return sm, nil
}

// steadyIndex is which event of the steady workload a record is.
func steadyIndex(r *kgo.Record) (int, bool) {
	seq, ok := seqOf(r.Value)
	text, found := strings.CutPrefix(string(r.Key), "key-")
	key, err := strconv.Atoi(text)
	return (seq-1)*latencyKeys + key, ok && found && err == nil
}

// result makes figures of a sample.
func (s *latencySample) result() result {
	r := result{verdict: &s.Verdict, figures: map[string]float64{
		"p50": percentile(s.Intended, 50), "p99": percentile(s.Intended, 99), "max": percentile(s.Intended, 100), "ack50": percentile(s.Acknowledged, 50), "ack99": percentile(s.Acknowledged, 99),
		"client": s.Client, "server": s.Server, "broker": s.Broker, "idle": s.IdleClient, "idleserver": s.IdleServer, "peak": float64(s.Peak) / (1 << 20), "late": s.Late}}
	for _, p := range []float64{0, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.8, 99.9} {
		r.curve = append(r.curve, point{p, percentile(s.Intended, p)})
	}
	return r
}

func (b *bench) latency(ctx context.Context) (*figures, error) {
	tm := b.size.Latency
	f := &figures{ID: "latency", Title: "From commit to consumer", Bars: "p50", Curves: &curves{X: "percentile", Y: "from commit to consumer, ms (logarithmic)", Logarithmic: true, Percentiles: true},
		Text: fmt.Sprintf("%d events a second for %.0f s in an open loop, after %.0f s of the same to warm up. The time begins when an event was due to be committed, so that one that had to wait for its turn counts with the waiting; beside it, from when its commit was acknowledged. PostgreSQL's processor time includes the commits. Idle: relay and PostgreSQL while nothing happens, in percent of a core, when what the load has left is vacuumed.", tm.rate, tm.length.Seconds(), tm.warm.Seconds()),
		Columns: []column{{Key: "p50", Title: "p50 ms", Digits: 1}, {Key: "p99", Title: "p99 ms", Digits: 1}, {Key: "max", Title: "max ms", Brief: true}, {Key: "ack50", Title: "from the acknowledgement: p50", Digits: 1, Brief: true}, {Key: "ack99", Title: "p99", Digits: 1, Brief: true},
			{Key: "client", Title: "relay CPU µs an event", Brief: true}, {Key: "server", Title: "PostgreSQL", Brief: true}, {Key: "broker", Title: "Kafka", Brief: true},
			{Key: "idle", Title: "idle %: relay", Digits: 1, Brief: true}, {Key: "idleserver", Title: "PostgreSQL", Digits: 1, Brief: true}, {Key: "peak", Title: "peak MiB", Brief: true}}}
	var trials []trial
	n := 0
	for i := range latencyArms {
		a := &latencyArms[i]
		if b.picked(a.name, "") {
			trials = append(trials, trial{a.name, a.note, "", func(ctx context.Context) (result, error) {
				n++
				sm, err := b.stack.latency(ctx, a, n, tm, b.say)
				if err != nil {
					return result{}, err
				}
				return sm.result(), nil
			}})
		}
	}
	return f, f.measure(ctx, trials, b.size.LatencyRounds, b.say)
}
