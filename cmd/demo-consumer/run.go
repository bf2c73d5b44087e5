package main

import (
	"context"
	"io"

	"github.com/fenceline/fenceline/cmd/demo-consumer/readmodel"
	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/kafkasource"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
)

// run joins the consumer group and applies events to the read model.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var (
		d           database
		kafka       config.Kafka
		name, topic string
		listen      string
	)
	s := config.New(program+" run", "Applies events to the read model until told to stop.")
	d.register(s)
	kafka.Register(s)
	s.String(&name, "name", "CONSUMER", "quake-report", "name of this consumer and of its group; another name starts from nothing")
	s.String(&topic, "topic", "TOPIC", "quakes", "topic to read")
	s.String(&listen, "http", "HTTP", "127.0.0.1:8090", "address for /livez, /readyz, /metrics and /reports, or off", config.Check(checkListen))
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	defer func() { err = config.Stopped(ctx, err) }()
	security, err := kafka.Open()
	if err != nil {
		return err
	}
	log := d.log.Logger(stderr)
	pool, model, err := d.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := model.Check(ctx, pool); err != nil {
		return hint(err)
	}
	if err := kafka.Reach(ctx); err != nil {
		return err
	}
	source, err := kafkasource.New(kafkasource.Config{
		Brokers: kafka.Brokers, Group: name, Topics: []string{topic}, ClientID: program, TLS: security.TLS, SASL: security.SASL, Logger: log,
	})
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // leaving a group that is gone is no failure

	m := newMetrics()
	stop, err := serve(listen, pool, model, m, log)
	if err != nil {
		return err
	}
	defer stop()

	// An event of a type that this service doesn't know waits at its place until
	// the service has learned it: leaving it out might be wrong.
	var types consumer.Mux
	types.On(readmodel.EventType, model.Handle)

	// Strict: the read model counts, so each event matters and none may be
	// left out. From the origin: it counts from the first event on.
	err = consumer.Run(ctx, pool, source, consumer.Config{
		Name:     name,
		Schema:   d.postgres.Schema,
		Policy:   consumer.Strict,
		Start:    consumer.FromOrigin,
		Observer: m,
		Logger:   log,
	}, &types)
	return config.NeedsRole(err, d.postgres.Schema, schema.KindConsumer)
}
