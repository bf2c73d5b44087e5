package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

// fenceline is our relay as "relay run" starts it, inside this process: for the
// sections that look at the database alone, of which one times the relay's
// statements by the job's tracer. Where the process is measured, it is the program.
func fenceline(ctx context.Context, j job, ready func()) error {
	pool, err := j.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	publisher, err := kafkapub.New(kafkapub.Config{Brokers: []string{j.kafka}, Logger: quiet})
	if err != nil {
		return err
	}
	defer publisher.Close()
	ready()
	return relay.Run(ctx, pool, publisher, relay.Config{Logger: quiet})
}

// naive is the relay of most tutorials: poll in the order of id, hand what was
// found to a Writer, delete it.
func naive(ctx context.Context, j job, ready func()) error {
	w := &kafka.Writer{Addr: kafka.TCP(j.kafka), Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll, BatchTimeout: 10 * time.Millisecond}
	defer w.Close()
	return poll(ctx, j, ready, w, "select id, event_id::text, topic, key, type, payload from outbox order by id limit 1000", deletePublished)
}

// skipLocked is what lets several such relays share a table: rows are locked,
// what others have locked is passed over.
func skipLocked(ctx context.Context, j job, ready func()) error {
	w := &kafka.Writer{Addr: kafka.TCP(j.kafka), Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll, BatchSize: 500, BatchTimeout: 5 * time.Millisecond}
	defer w.Close()
	return poll(ctx, j, ready, w, "select id, event_id::text, topic, key, type, payload from outbox order by id limit 1000 for update skip locked", deletePublished)
}

// skipLockedMark is the same, but what is published stays, and is marked.
func skipLockedMark(ctx context.Context, j job, ready func()) error {
	w := &kafka.Writer{Addr: kafka.TCP(j.kafka), Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll, BatchSize: 500, BatchTimeout: 5 * time.Millisecond}
	defer w.Close()
	return poll(ctx, j, ready, w, "select id, event_id::text, topic, key, type, payload from outbox where published_at is null order by id limit 1000 for update skip locked",
		"update outbox set published_at = now() where id = any ($1)")
}

const deletePublished = "delete from outbox where id = any ($1)"

// poll reads, hands what it found to the Writer, and notes that it is published,
// in one transaction.
func poll(ctx context.Context, j job, ready func(), w *kafka.Writer, read, note string) error {
	conn, err := j.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	ready()
	for {
		tx, err := conn.Begin(ctx)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, read)
		if err != nil {
			return err
		}
		var ids []int64
		var batch []kafka.Message
		var id int64
		var event, topic, key, kind string
		var payload []byte
		_, err = pgx.ForEachRow(rows, []any{&id, &event, &topic, &key, &kind, &payload}, func() error {
			ids = append(ids, id)
			batch = append(batch, kafka.Message{Topic: topic, Key: []byte(key), Value: append([]byte{}, payload...),
				Headers: []kafka.Header{{Key: "id", Value: []byte(event)}, {Key: "type", Value: []byte(kind)}}})
			return nil
		})
		if err != nil {
			return err
		}
		if len(batch) > 0 {
			if err := w.WriteMessages(ctx, batch...); err != nil {
				// The broker is away: everything again, a little later.
				_ = tx.Rollback(ctx)
				pause(ctx, 100*time.Millisecond)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				continue
			}
			if _, err := tx.Exec(ctx, note, ids); err != nil {
				return err
			}
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
		if len(batch) == 0 {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}
