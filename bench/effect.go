package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/consumer"
)

// arrivals gives which events have arrived since it was asked before; it waits
// for one at least.
type arrivals func(ctx context.Context) ([]int, error)

// read has the events arrive at a Kafka client.
func (s *stack) read(topic string) (arrivals, func() error, error) {
	reader, err := kgo.NewClient(kgo.SeedBrokers(s.kafka.Addr()), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, nil, err
	}
	next := func(ctx context.Context) (got []int, err error) {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() == nil {
			err = fetches.Err()
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if i, ok := steadyIndex(r); ok {
				got = append(got, i)
			}
		})
		return got, err
	}
	return next, func() error { reader.Close(); return nil }, nil
}

// apply has them arrive in a table: a consumer of ours inserts a row for each,
// and an event has arrived when that is committed.
func apply(ctx context.Context, j job) (arrivals, func() error, error) {
	pool, err := pgxpool.New(ctx, j.dsn)
	if err != nil {
		return nil, nil, err
	}
	if _, err := pool.Exec(ctx, "create table effect (key text not null, seq bigint not null, payload bytea, primary key (key, seq))"); err != nil {
		pool.Close()
		return nil, nil, err
	}
	source, err := applySource(j)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	running, cancel := context.WithCancel(ctx)
	seen, ended := make(effects, 1024), make(chan error, 1)
	go func() {
		ended <- consumer.Run(running, pool, source, consumer.Config{Name: "bench", Logger: slog.New(slog.DiscardHandler), Observer: seen},
			consumer.HandlerFunc(func(ctx context.Context, tx pgx.Tx, d consumer.Delivery) error {
				_, err := tx.Exec(ctx, "insert into effect (key, seq, payload) values ($1, $2, $3)", d.Key, d.Seq, d.Payload)
				return err
			}))
	}()
	next := func(ctx context.Context) ([]int, error) {
		select {
		case got := <-seen:
			return got, nil
		case err := <-ended:
			ended <- err
			return nil, errors.Join(errors.New("the consumer has ended"), err)
		case <-ctx.Done():
			return nil, nil
		}
	}
	return next, func() error {
		cancel()
		err := <-ended
		pool.Close()
		return err
	}, nil
}

// effects is the observer of a consumer, which tells what it has applied.
type effects chan []int

func (e effects) Committed(c consumer.Committed) {
	var got []int
	for _, r := range c.Results {
		key, err := strconv.Atoi(strings.TrimPrefix(r.Key, "key-"))
		if r.Outcome == consumer.Applied && err == nil {
			got = append(got, int(r.Seq-1)*latencyKeys+key)
		}
	}
	if len(got) > 0 {
		e <- got
	}
}
func (e effects) Failing(f consumer.Failure) { slog.Warn("the consumer fails", "error", f.Err) }
func (e effects) Alarm(a consumer.Alarm)     { slog.Warn("the consumer has an alarm", "text", a.Text) }

// inTable compares the table with what was committed: each event once.
func inTable(ctx context.Context, pool *pgxpool.Pool, events int) error {
	var n, holes int
	if err := pool.QueryRow(ctx, "select count(*), (select count(*) from (select max(seq) - count(*) from effect group by key having max(seq) <> count(*)) h) from effect").Scan(&n, &holes); err != nil {
		return err
	}
	if n != events || holes > 0 {
		return fmt.Errorf("%d events were committed, and there are %d effects, with holes in %d streams", events, n, holes)
	}
	return nil
}
