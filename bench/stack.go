package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
)

// partitions of every topic.
const partitions = 4

// stack is the servers that everything is measured on.
type stack struct {
	postgres *devstack.Postgres
	kafka    *apachekafka.Broker
	pool     *pgxpool.Pool
	client   *kgo.Client
	admin    *kadm.Client
}

func startStack(ctx context.Context, say func(string, ...any)) (_ *stack, err error) {
	s := &stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	progress := func(text string) { say("%s", text) }
	// Durable, as in production. Logical decoding is for Debezium, and is on for
	// everyone: it makes each row's WAL a little larger.
	s.postgres, err = devstack.StartPostgres(ctx, devstack.PostgresConfig{Durable: true, Progress: progress, Settings: map[string]string{
		"wal_level": "logical", "shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min", "autovacuum_naptime": "10s",
	}})
	if err != nil {
		return s, err
	}
	if s.kafka, err = apachekafka.Start(ctx, apachekafka.Config{Progress: progress, MaxHeapMB: 1024}); err != nil {
		return s, err
	}
	if s.pool, err = pgxpool.New(ctx, s.postgres.DSN("postgres")); err != nil {
		return s, err
	}
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(s.kafka.Addr())); err != nil {
		return s, err
	}
	s.admin = kadm.NewClient(s.client)
	return s, nil
}

func (s *stack) stop() error {
	if s.client != nil {
		s.client.Close()
	}
	if s.pool != nil {
		s.pool.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var errs []error
	if s.kafka != nil {
		errs = append(errs, s.kafka.Stop(ctx))
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Stop(ctx))
	}
	return errors.Join(errs...)
}

// topic makes an empty topic.
func (s *stack) topic(ctx context.Context, name string) error {
	appendTime := "LogAppendTime"
	_, err := s.admin.CreateTopic(ctx, partitions, 1, map[string]*string{"message.timestamp.type": &appendTime}, name)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	return nil
}

// arrived is the number of records in a topic.
func (s *stack) arrived(ctx context.Context, topic string) (int64, error) {
	ends, err := s.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	var n int64
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n, err
}

// database makes an empty database for one arm's run and gives its connection
// string.
func (s *stack) database(ctx context.Context, name string) (string, error) {
	for _, sql := range []string{"drop database if exists " + name + " with (force)", "create database " + name} {
		if _, err := s.pool.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	return s.postgres.DSN(name), nil
}
