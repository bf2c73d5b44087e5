package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/internal/version"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var (
		postgres config.Postgres
		kafka    brokers
		log      config.Log
		topics   []string
		timeout  time.Duration

		compression string
		cfg         relay.Config
		keep        relay.RetentionConfig
		rotateMB    int
		web         = ops{metrics: newMetrics()}
	)
	s := config.New("relay run", "Carries committed events from the outbox to Kafka until told to stop. All instances of a schema share the work; what one that stops or dies had goes to the others.")
	postgres.Register(s)
	kafka.Register(s)
	s.List(&topics, "topics", "TOPICS", "", "topics to check before the start, separated by commas; others are checked when their first event comes")
	s.String(&cfg.Name, "instance", "INSTANCE", "", "name of this instance in logs and in its lease; host name and process id if empty")
	s.Duration(&cfg.LeaseTTL, "lease-ttl", "LEASE_TTL", 10*time.Second, time.Second, 24*time.Hour, "time after which a standby takes over from an instance that has died")
	s.Duration(&cfg.Grace, "grace", "GRACE", 10*time.Second, 0, time.Hour, "time that a stop waits for Kafka's answers; what is open then is published a second time")
	s.Duration(&cfg.PollMax, "poll-max", "POLL_MAX", 200*time.Millisecond, 2*time.Millisecond, time.Minute, "longest time between two looks for new events when there are none and producers wake the relay; without that, it looks more often")
	s.Duration(&timeout, "kafka-timeout", "KAFKA_TIMEOUT", 30*time.Second, time.Second, 10*time.Minute, "time that one request to Kafka may take")
	s.String(&compression, "kafka-compression", "KAFKA_COMPRESSION", kafkapub.CompressionNone, "how to compress batches: none, gzip, snappy, lz4 or zstd",
		config.Check(config.OneOf(kafkapub.CompressionNone, kafkapub.CompressionGzip, kafkapub.CompressionSnappy, kafkapub.CompressionLZ4, kafkapub.CompressionZstd)))
	keeping(s, &keep, &rotateMB, 0, "; 0 keeps everything")
	web.register(s)
	log.Register(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	defer func() { err = config.Stopped(ctx, err) }()
	limitMemory()
	cfg.Schema, cfg.Logger = postgres.Schema, log.Logger(stderr)
	if keep.Keep > 0 {
		keep.RotateBytes = int64(rotateMB) << 20
		cfg.Retention = &keep
	}
	cfg.Hooks, cfg.Health = web.hooks(), &web.health
	web.seen(topics)
	if err := cfg.Validate(); err != nil {
		return &config.UsageError{Err: err}
	}
	publisher, err := kafka.publisher(kafkapub.Config{Timeout: timeout, Compression: compression, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	defer publisher.Close() //nolint:errcheck // at the end of the process
	pool, err := postgres.Open(ctx, "relay")
	if err != nil {
		return err
	}
	defer pool.Close()
	err = kafka.Reach(ctx)
	if err == nil {
		err = checkTopics(ctx, &kafka, publisher, topics, timeout)
	}
	if causes := outage(err); causes != nil && ctx.Err() == nil {
		// A relay waits an outage out whenever it meets one: beside an application, in
		// its Pod, it must not keep that from starting. The topics are looked at when
		// their first events come.
		cfg.Logger.Error("no Kafka broker can be reached; starting all the same, and events wait until one can", "brokers", kafka.Brokers, "causes", causes,
			"remedy", "if this is no outage, check -kafka, and whether its port wants -kafka-tls")
	} else if err != nil {
		return err
	}
	defer web.serve(ctx, pool, cfg.Schema, cfg.Logger)()
	cfg.Logger.Info("relay starting", "version", version.String(), "schema", cfg.Schema, "brokers", kafka.Brokers)
	return config.NeedsRole(relay.Run(ctx, pool, publisher, cfg), cfg.Schema, schema.KindRelay)
}

// outage gives the causes if err may be that of an outage: no broker can be
// reached, or those that take a connection answer nothing. One that doesn't fit
// (TLS, login) says so, or ends the connection.
func outage(err error) []string {
	var none *config.NoBrokerError
	var kafka *kafkaError
	switch {
	case errors.As(err, &none):
		return none.Causes
	case errors.As(err, &kafka) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)):
		return []string{kafka.text}
	}
	return nil
}

// checkTopics refuses topics that the relay would refuse, before it starts:
// all of them, each with what to do. No answer is not said of a topic.
func checkTopics(ctx context.Context, kafka *brokers, publisher relay.Publisher, topics []string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var errs []error
	for _, name := range topics {
		topic, err := publisher.Describe(ctx, name)
		if err == nil {
			err = relay.CheckTopic(topic, outbox.MaxRecordBytes)
		}
		var silent *relay.NoAnswerError
		switch {
		case errors.As(err, &silent):
			return kafka.explain(silent.Err) // as it is for all of them
		case err != nil:
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("topics of -topics can't be used:\n%w", err)
	}
	return nil
}
