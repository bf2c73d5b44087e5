package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/migrations"
	"github.com/fenceline/fenceline/outbox"
)

// applyReference is the arm that has no guard.
const applyReference = "no guard"

// applySchema is what every arm has: what its handler writes, the offsets of
// those who keep them by hand, and the inbox of those who have one.
const applySchema = `
create table effect (id bigint generated always as identity primary key, key text not null, seq bigint not null, payload bytea);
create table hand_offset (partition int primary key, next_offset bigint not null);
create table inbox (id uuid primary key, at timestamptz not null default now())`

// applier measures what a guard costs a consumer: the same topic of Apache
// Kafka, read anew by each arm in turn.
type applier struct {
	*stack
	w     workload
	topic string
	n     int
}

// newApplier fills the topic.
func newApplier(ctx context.Context, s *stack, w workload) (*applier, error) {
	a := &applier{stack: s, w: w, topic: "apply"}
	if err := s.topic(ctx, a.topic, partitions); err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Addr()), kgo.DefaultProduceTopic(a.topic), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	epoch := time.Now().UnixMicro()
	failed := make(chan error, 1)
	for i := range w.Events {
		r := outbox.Record{ID: uuid.Must(uuid.NewV7()), Type: "bench.event", Source: "bench", ContentType: "application/json", Payload: w.payload(i), Topic: a.topic, Stream: a.topic,
			Kind: outbox.KindData, Key: w.key(i), Epoch: epoch, Token: 1, Seq: int64(i/w.Keys + 1), CreatedAt: time.Now()}
		if r.Seq == 1 {
			r.History = epoch
		}
		k := &kgo.Record{Key: []byte(r.Key), Value: r.Payload, Timestamp: r.CreatedAt, Partition: int32(outbox.Partition([]byte(r.Key), partitions))}
		for _, h := range outbox.AppendWireHeaders(nil, &r) {
			k.Headers = append(k.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		client.Produce(ctx, k, func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return nil, err
	}
	select {
	case err := <-failed:
		return nil, fmt.Errorf("fill the topic: %w", err)
	default:
		return a, nil
	}
}

// run lets one arm consume the topic once.
func (a *applier) run(ctx context.Context, arm *applyArm) (_ result, err error) {
	a.n++
	database := fmt.Sprintf("apply_%d", a.n)
	dsn, err := a.database(ctx, database)
	if err != nil {
		return result{}, err
	}
	defer a.dropDatabase(ctx, database)
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return result{}, err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, applySchema); err != nil {
		return result{}, err
	}
	m, err := migrations.New(pool, migrations.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return result{}, err
	}
	if _, err := m.Up(ctx, migrations.UpOptions{Parts: []migrations.Part{migrations.Consumer}}); err != nil {
		return result{}, err
	}
	if _, err := pool.Exec(ctx, "checkpoint"); err != nil {
		return result{}, err
	}
	c, err := a.startChild(applyPrefix+arm.name, job{dsn: dsn, kafka: a.kafka.Addr(), topic: a.topic, events: a.w.Events})
	if err != nil {
		return result{}, err
	}
	defer c.kill()
	if err := c.begin(); err != nil {
		return result{}, err
	}
	res, err := a.time(ctx, pool, c)
	if err != nil {
		return result{}, fmt.Errorf("%w: %s", err, c.stderr.String())
	}
	res.verdict, err = a.check(ctx, pool)
	return res, err
}

// progressSQL is how many events have been decided: the sum of the offsets, of
// those who keep their own and of ours.
const progressSQL = "select coalesce((select sum(next_offset) from hand_offset), 0)::bigint + coalesce((select sum(next_offset) from fenceline.consumer_offset), 0)::bigint"

func (a *applier) time(ctx context.Context, pool *pgxpool.Pool, c *childProcess) (result, error) {
	per := func(before time.Duration, pid int, events int64) float64 {
		return float64((cpuOf(pid) - before).Microseconds()) / float64(max(1, events))
	}
	var from time.Time
	var base, n int64
	var client, server, broker time.Duration
	patience := time.Now().Add(time.Minute)
	for {
		var got int64
		if err := pool.QueryRow(ctx, progressSQL).Scan(&got); err != nil {
			return result{}, err
		}
		now := time.Now()
		if got > n {
			n, patience = got, now.Add(time.Minute)
		}
		if from.IsZero() && n >= int64(max(a.w.Keys, a.w.Events/10)) {
			// Before this the consumer joined its group and each key got its first
			// row. Statistics are then what they are after a while: without them all
			// of a table that was empty a moment ago is read again and again.
			if _, err := pool.Exec(ctx, "vacuum analyze"); err != nil {
				return result{}, err
			}
			if err := pool.QueryRow(ctx, progressSQL).Scan(&n); err != nil {
				return result{}, err
			}
			from, base = time.Now(), n
			client, server, broker = cpuOf(c.pid()), cpuOf(a.postgres.PID()), cpuOf(a.kafka.PID())
		}
		if n >= int64(a.w.Events) {
			return result{figures: map[string]float64{
				"rate": float64(n-base) / now.Sub(from).Seconds(), "client": per(client, c.pid(), n-base), "server": per(server, a.postgres.PID(), n-base),
				"broker": per(broker, a.kafka.PID(), n-base), "peak": float64(peakOf(c.pid())) / (1 << 20),
			}}, nil
		}
		if now.After(patience) {
			return result{}, fmt.Errorf("%d of %d events were decided, and none for a minute", n, a.w.Events)
		}
		pause(ctx, 5*time.Millisecond)
		if ctx.Err() != nil {
			return result{}, ctx.Err()
		}
	}
}

// check compares what was applied with the workload: each event once, and those
// of a key in order.
func (a *applier) check(ctx context.Context, pool *pgxpool.Pool) (*verdict, error) {
	var v verdict
	err := pool.QueryRow(ctx, `
		select $1 - count(distinct (key, seq)), count(*) - count(distinct (key, seq)), count(*) filter (where seq <= before)
		  from (select key, seq, max(seq) over (partition by key order by id rows between unbounded preceding and 1 preceding) before from effect) e`, a.w.Events).Scan(&v.Lost, &v.Copies, &v.Inverted)
	if v.Copies > 0 { // nothing was delivered twice, so nothing may be applied twice
		err = errors.Join(err, fmt.Errorf("%d events were applied twice", v.Copies))
	}
	return &v, err
}

func (b *bench) apply(ctx context.Context) (*figures, error) {
	w := b.size.Apply
	f := &figures{ID: "apply", Title: "Applying events", Bars: "ratio",
		Text: fmt.Sprintf("%d events of %d keys, payloads of %d bytes, read by every arm from the same topic of Apache Kafka with %d partitions, in batches of 500: one transaction each, which also stores the offset. The handler inserts a row for each event. Timed by what is committed, from when each key has its first event to the last one.", w.Events, w.Keys, w.Payload, partitions),
		Columns: []column{{Key: "ratio", Title: "of no guard", Digits: 2, RatioOf: "rate"}, {Key: "rate", Title: "events/s", Brief: true},
			{Key: "client", Title: "client CPU µs an event", Digits: 1, Brief: true}, {Key: "server", Title: "PostgreSQL", Digits: 1, Brief: true}, {Key: "broker", Title: "Kafka", Digits: 1, Brief: true}, {Key: "peak", Title: "peak MiB", Brief: true}}}
	a, err := newApplier(ctx, b.stack, w)
	if err != nil {
		return f, err
	}
	defer b.dropTopic(ctx, a.topic)
	var trials []trial
	for i := range applyArms {
		arm := &applyArms[i]
		if b.picked(arm.name, applyReference) {
			trials = append(trials, trial{arm.name, arm.note, applyReference, func(ctx context.Context) (result, error) { return a.run(ctx, arm) }})
		}
	}
	return f, f.measure(ctx, trials, b.size.ApplyRounds, b.say)
}

// handle is what every arm does with an event.
func handle(ctx context.Context, tx pgx.Tx, key string, seq int64, payload []byte) error {
	_, err := tx.Exec(ctx, "insert into effect (key, seq, payload) values ($1, $2, $3)", key, seq, payload)
	return err
}
