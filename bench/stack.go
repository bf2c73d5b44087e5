package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
)

// partitions of every topic, unless their number is what is measured.
const partitions = 4

// postgresSettings are those of the server, which is durable, as in production.
// Logical decoding is for Debezium, and is on for everyone: it makes each row's
// WAL a little larger.
var postgresSettings = map[string]string{
	"wal_level": "logical", "shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min", "autovacuum_naptime": "10s",
}

// kafkaProperties let the broker keep its session while arms have the processors
// for themselves.
var kafkaProperties = map[string]string{"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1000"}

// stack is the servers that everything is measured on, and our relay.
type stack struct {
	relay    string // the program
	scratch  string // a folder
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
	if s.scratch, err = os.MkdirTemp("", "fenceline-bench-"); err != nil {
		return s, err
	}
	say("building the relay")
	if s.relay, err = buildRelay(ctx, s.scratch); err != nil {
		return s, err
	}
	s.postgres, err = devstack.StartPostgres(ctx, devstack.PostgresConfig{Durable: true, Progress: progress, Settings: postgresSettings})
	if err != nil {
		return s, err
	}
	if s.kafka, err = apachekafka.Start(ctx, apachekafka.Config{Progress: progress, MaxHeapMB: 1024, Properties: kafkaProperties}); err != nil {
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
	errs = append(errs, os.RemoveAll(s.scratch)) // "" is nothing
	return errors.Join(errs...)
}

// topic makes an empty topic of n partitions.
func (s *stack) topic(ctx context.Context, name string, n int) error {
	appendTime := "LogAppendTime"
	_, err := s.admin.CreateTopic(ctx, int32(n), 1, map[string]*string{"message.timestamp.type": &appendTime}, name)
	if err != nil {
		return fmt.Errorf("create topic %s: %w", name, err)
	}
	// The broker learns of it a moment later than the controller, and until then
	// tells clients that there is no such topic.
	for patience := time.Now().Add(30 * time.Second); ; {
		ends, err := s.admin.ListEndOffsets(ctx, name)
		if err == nil {
			err = ends.Error()
		}
		if err == nil && len(ends[name]) == n {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(patience) {
			return fmt.Errorf("topic %s has %d of its %d partitions: %w", name, len(ends[name]), n, errors.Join(err, ctx.Err()))
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// arrived is the number of records in a topic. A broker on a machine that is busy
// with what is measured may be without a leader for a moment; that is no reason to
// throw a round away.
func (s *stack) arrived(ctx context.Context, topic string) (int64, error) {
	for patience := time.Now().Add(20 * time.Second); ; {
		ends, err := s.admin.ListEndOffsets(ctx, topic)
		if err == nil {
			err = ends.Error()
		}
		if err == nil {
			var n int64
			ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
			return n, nil
		}
		if ctx.Err() != nil || time.Now().After(patience) {
			return 0, fmt.Errorf("ask how much of %s has arrived: %w", topic, err)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// until waits for n records to be in a topic, two minutes.
func (s *stack) until(ctx context.Context, topic string, n int64) error {
	for patience := time.Now().Add(2 * time.Minute); ; {
		got, err := s.arrived(ctx, topic)
		if err != nil || got >= n {
			return err
		}
		if time.Now().After(patience) {
			return fmt.Errorf("%d records have arrived after two minutes, of %d", got, n)
		}
		pause(ctx, 2*time.Millisecond)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
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

// dropDatabase and dropTopic clean up after an arm. What stays is in nobody's
// way, and goes with the servers.
func (s *stack) dropDatabase(ctx context.Context, name string) {
	_, _ = s.pool.Exec(context.WithoutCancel(ctx), "drop database if exists "+name+" with (force)")
}

func (s *stack) dropTopic(ctx context.Context, name string) {
	_, _ = s.admin.DeleteTopics(context.WithoutCancel(ctx), name)
}
