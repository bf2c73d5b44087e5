package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

// fenceline is our relay as "relay run" starts it.
func fenceline(ctx context.Context, j job, ready func()) error {
	pool, err := pgxpool.New(ctx, j.dsn)
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
	return pollAndDelete(ctx, j, ready, w, 1000, "")
}

// skipLocked is what lets several such relays share a table: rows are locked,
// what others have locked is passed over.
func skipLocked(ctx context.Context, j job, ready func()) error {
	w := &kafka.Writer{Addr: kafka.TCP(j.kafka), Balancer: kafka.Murmur2Balancer{}, RequiredAcks: kafka.RequireAll, BatchSize: 500, BatchTimeout: 5 * time.Millisecond}
	defer w.Close()
	return pollAndDelete(ctx, j, ready, w, 1000, "for update skip locked")
}

func pollAndDelete(ctx context.Context, j job, ready func(), w *kafka.Writer, size int, lock string) error {
	conn, err := pgx.Connect(ctx, j.dsn)
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
		rows, err := tx.Query(ctx, "select id, event_id::text, topic, key, type, payload from outbox order by id limit $1 "+lock, size)
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
				return err
			}
			if _, err := tx.Exec(ctx, "delete from outbox where id = any ($1)", ids); err != nil {
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
