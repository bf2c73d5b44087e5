package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// forwarderTopic is where the SQL side keeps what the forwarder carries on.
const forwarderTopic = "events"

func watermillSchema(batch int) wsql.DefaultPostgreSQLSchema {
	return wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch}
}

// fillWatermill publishes through watermill's own outbox publisher, a
// transaction for each piece.
func fillWatermill(ctx context.Context, conn *pgx.Conn, w workload, topic string) error {
	if err := initWatermill(ctx, conn); err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, mustPool(conn.Config()))
	if err != nil {
		return err
	}
	defer pool.Close()
	for from := 0; from < w.Events; from += w.Transaction {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		sqlPublisher, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: watermillSchema(100)}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		publisher := forwarder.NewPublisher(sqlPublisher, forwarder.PublisherConfig{ForwarderTopic: forwarderTopic})
		var all []*message.Message
		for i := from; i < min(from+w.Transaction, w.Events); i++ {
			m := message.NewMessage(watermill.NewUUID(), w.payload(i))
			m.Metadata.Set("key", w.key(i))
			all = append(all, m)
		}
		if err := publisher.Publish(topic, all...); err != nil {
			return err
		}
		if err := tx.Commit(ctx); err != nil {
			return err
		}
	}
	return settle(ctx, conn)
}

// initWatermill makes watermill's tables.
func initWatermill(ctx context.Context, conn *pgx.Conn) error {
	pool, err := pgxpool.NewWithConfig(ctx, mustPool(conn.Config()))
	if err != nil {
		return err
	}
	defer pool.Close()
	init, err := wsql.NewSubscriber(wsql.BeginnerFromPgx(pool), wsql.SubscriberConfig{SchemaAdapter: watermillSchema(100), OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return errors.Join(init.SubscribeInitialize(forwarderTopic), init.Close())
}

func mustPool(c *pgx.ConnConfig) *pgxpool.Config {
	cfg, err := pgxpool.ParseConfig(c.ConnString())
	if err != nil {
		panic(err) // it has connected once
	}
	return cfg
}

// watermillForwarder is watermill's outbox: a SQL subscriber, the forwarder,
// and a Kafka publisher. batch is the subscriber's only setting for speed.
func watermillForwarder(batch int) func(context.Context, job, func()) error {
	return func(ctx context.Context, j job, ready func()) error {
		pool, err := pgxpool.New(ctx, j.dsn)
		if err != nil {
			return err
		}
		defer pool.Close()
		sub, err := wsql.NewSubscriber(wsql.BeginnerFromPgx(pool), wsql.SubscriberConfig{
			SchemaAdapter: watermillSchema(batch), OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, PollInterval: 10 * time.Millisecond,
		}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		cfg := wkafka.DefaultSaramaSyncPublisherConfig()
		cfg.Producer.RequiredAcks = sarama.WaitForAll
		pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{
			Brokers:               []string{j.kafka},
			OverwriteSaramaConfig: cfg,
			Marshaler: wkafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) {
				key := m.Metadata.Get("key")
				if key == "" {
					return "", fmt.Errorf("message %s has no key", m.UUID)
				}
				return key, nil
			}),
		}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		defer func() { _ = pub.Close() }()
		fwd, err := forwarder.NewForwarder(sub, pub, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: forwarderTopic})
		if err != nil {
			return err
		}
		ready()
		return fwd.Run(ctx)
	}
}
