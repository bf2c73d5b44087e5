package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/devstack/kafkaconnect"
)

// drainArms are compared by how fast they empty a backlog. The ceilings send
// from memory what the relay has to read first.
var drainArms = []arm{
	{name: "kafka-go Client.Produce", note: "ceiling: from memory, 500 records a request, a goroutine for each partition, acks=all", fill: fillFenceline, work: rawProduce},
	{name: "kafka-go Writer", note: "ceiling: from memory, BatchSize 500, BatchTimeout 1 ms, a caller for each partition, acks=all", fill: fillFenceline, work: rawWriter},
	{name: "franz-go", note: "ceiling: from memory, as it comes: idempotent, no linger", fill: fillFenceline, work: rawFranz},
	{name: "fenceline", note: "the program: relay run, as it comes", fill: fillFenceline, program: true},
	{name: "naive relay", note: "floor: poll by id, Writer with a BatchTimeout of 10 ms, delete", fill: fillPlain, work: naive},
	{name: "SKIP LOCKED relay", note: "the same, rows locked, batches of 500", fill: fillPlain, work: skipLocked},
	{name: "watermill forwarder", note: "watermill-sql v4 and watermill-kafka v3, SubscribeBatchSize 1000, PollInterval 10 ms; a fifth of the events, since it takes long", fill: fillWatermill, work: watermillForwarder(1000), divide: 5},
	{name: "watermill forwarder, default", note: "the same with its SubscribeBatchSize of 100", fill: fillWatermill, work: watermillForwarder(100), divide: 5},
	{name: "Debezium, default", note: "outbox event router in Kafka Connect, as it comes, warm", fill: fillDebezium, java: &connectArm{"worker.properties", "outbox-default.properties"}},
	{name: "Debezium, tuned", note: "larger batches and queues, poll.interval.ms=10, producer.linger.ms=5, warm", fill: fillDebezium, java: &connectArm{"worker-tuned.properties", "outbox-tuned.properties"}},
}

// reference is the arm that ratios are to.
const drainReference = "kafka-go Client.Produce"

// sample is one arm's run in one round: events a second, CPU µs an event, bytes.
type sample struct {
	Rate, Client, Postgres, Kafka float64
	Peak                          int64
	Verdict                       verdict
}

func (s sample) figures() map[string]float64 {
	return map[string]float64{"rate": s.Rate, "client": s.Client, "server": s.Postgres, "broker": s.Kafka, "peak": float64(s.Peak) / (1 << 20)}
}

type drainer struct {
	*stack
	w   workload
	say func(string, ...any)
	// name is what databases and topics are named after.
	name       string
	partitions int
	n          int // counts runs
	workers    map[string]*warmWorker
}

// warmWorker is a Kafka Connect that stays for all rounds, so that its JVM is
// warm; between its turns the connector is stopped.
type warmWorker struct {
	*kafkaconnect.Worker
	dsn string
}

func (d *drainer) close(ctx context.Context) error {
	var errs []error
	for _, w := range d.workers {
		errs = append(errs, w.Stop(ctx))
	}
	return errors.Join(errs...)
}

// run measures one arm once.
func (d *drainer) run(ctx context.Context, a *arm) (sample, error) {
	d.n++
	w := a.of(d.w)
	topic := fmt.Sprintf("%s-%d", d.name, d.n)
	if err := d.topic(ctx, topic, d.partitions); err != nil {
		return sample{}, err
	}
	defer d.dropTopic(ctx, topic)
	if a.java != nil {
		return d.runConnect(ctx, a, topic)
	}
	database := fmt.Sprintf("%s_%d", d.name, d.n)
	dsn, err := d.load(ctx, a, w, database, topic)
	if err != nil {
		return sample{}, fmt.Errorf("load: %w", err)
	}
	defer d.dropDatabase(ctx, database)
	c, err := d.startChild(a.name, job{dsn: dsn, kafka: d.kafka.Addr(), topic: topic, events: w.Events})
	if err != nil {
		return sample{}, err
	}
	defer c.kill()
	sm, err := d.measure(ctx, topic, w.Events, c.pid(), c.begin)
	if err != nil {
		return sm, fmt.Errorf("%w: %s", err, c.stderr.String())
	}
	sm.Verdict, err = d.check(ctx, topic, w.counts())
	return sm, err
}

func (d *drainer) load(ctx context.Context, a *arm, w workload, database, topic string) (string, error) {
	dsn, err := d.database(ctx, database)
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return dsn, a.fill(ctx, conn, w, topic)
}

// measure lets an arm go, and times it from the first hundredth of the events
// to the last: what it needs to connect and to warm up is not the point.
func (d *drainer) measure(ctx context.Context, topic string, events, pid int, begin func() error) (sample, error) {
	first := int64(events/100 + 1)
	total := int64(events)
	client, server, broker := cpuOf(pid), cpuOf(d.postgres.PID()), cpuOf(d.kafka.PID())
	if err := begin(); err != nil {
		return sample{}, err
	}
	var from, to time.Time
	var n, base, peak int64
	patience := time.Now().Add(2 * time.Minute)
	for {
		now := time.Now()
		peak = max(peak, peakOf(pid)) // it may end before it is asked again
		got, err := d.arrived(ctx, topic)
		if err != nil {
			return sample{}, err
		}
		if got > n {
			n, patience = got, now.Add(time.Minute)
		}
		if from.IsZero() && n >= first {
			from, base = now, n
		}
		if n >= total {
			to = now
			break
		}
		if now.After(patience) {
			break // what is missing is the check's to say
		}
		time.Sleep(5 * time.Millisecond)
	}
	per := func(before time.Duration, pid int) float64 {
		return float64((cpuOf(pid) - before).Microseconds()) / float64(events)
	}
	sm := sample{Client: per(client, pid), Postgres: per(server, d.postgres.PID()), Kafka: per(broker, d.kafka.PID()), Peak: max(peak, peakOf(pid))}
	if d := to.Sub(from); !to.IsZero() && d > 0 {
		sm.Rate = float64(n-base) / d.Seconds()
	}
	return sm, nil
}

func (d *drainer) runConnect(ctx context.Context, a *arm, topic string) (sample, error) {
	w := d.workers[a.name]
	if w == nil {
		var err error
		if w, err = d.warm(ctx, a); err != nil {
			return sample{}, err
		}
		d.workers[a.name] = w
	}
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return sample{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "truncate outbox"); err != nil {
		return sample{}, err
	}
	if err := a.fill(ctx, conn, d.w, topic); err != nil {
		return sample{}, err
	}
	sm, err := d.measure(ctx, topic, d.w.Events, w.PID(), func() error { return w.Resume(ctx) })
	if err != nil {
		return sm, err
	}
	if err := w.Pause(ctx); err != nil {
		return sm, err
	}
	sm.Verdict, err = d.check(ctx, topic, d.w.counts())
	return sm, err
}

// warm starts a worker, sends events through it until its JVM has compiled
// what it runs, and stops the connector.
func (d *drainer) warm(ctx context.Context, a *arm) (*warmWorker, error) {
	name := fmt.Sprintf("connect_%d", d.n)
	dsn, err := d.database(ctx, name)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := createDebezium(ctx, conn); err != nil {
		return nil, err
	}
	topic := "warm-" + name
	if err := d.topic(ctx, topic, partitions); err != nil {
		return nil, err
	}
	d.say("%s: starting Kafka Connect and warming it up", a.name)
	c, err := a.java.start(ctx, d.stack, dsn, d.say)
	if err != nil {
		return nil, err
	}
	w := &warmWorker{c, dsn}
	warm := d.w
	warm.Events = max(100_000, d.w.Events)
	err = a.fill(ctx, conn, warm, topic)
	if err == nil {
		if err = d.until(ctx, topic, int64(warm.Events)); err != nil {
			err = fmt.Errorf("warm up: %w\n%s", err, w.Log())
		}
	}
	if err == nil {
		err = w.Pause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, w.Stop(ctx))
	}
	return w, nil
}

func (b *bench) drain(ctx context.Context) (_ *figures, err error) {
	w := b.size.Drain
	f := &figures{ID: "drain", Title: "Draining a backlog", Bars: "ratio",
		Text: fmt.Sprintf("%d events of %d keys, payloads of %d bytes, %d partitions. Timed from the first hundredth that arrives to the last event. fenceline is the program that its users run, and starts when its turn begins: its processor time has the start and the connecting, which the others are done with.", w.Events, w.Keys, w.Payload, partitions),
		Columns: []column{{Key: "ratio", Title: "of " + drainReference, Digits: 2, RatioOf: "rate"}, {Key: "rate", Title: "events/s", Brief: true}, {Key: "client", Title: "client CPU µs an event", Digits: 1, Brief: true},
			{Key: "server", Title: "PostgreSQL", Digits: 1, Brief: true}, {Key: "broker", Title: "Kafka", Digits: 1, Brief: true}, {Key: "peak", Title: "peak MiB", Brief: true}}}
	d := &drainer{stack: b.stack, say: b.say, name: "drain", w: w, partitions: partitions, workers: map[string]*warmWorker{}}
	defer func() { err = errors.Join(err, d.close(ctx)) }()
	var trials []trial
	for i := range drainArms {
		a := &drainArms[i]
		if b.picked(a.name, drainReference) {
			trials = append(trials, trial{a.name, a.note, drainReference, func(ctx context.Context) (result, error) {
				sm, err := d.run(ctx, a)
				return result{verdict: &sm.Verdict, figures: sm.figures()}, err
			}})
		}
	}
	return f, f.measure(ctx, trials, b.size.Rounds, b.say)
}
