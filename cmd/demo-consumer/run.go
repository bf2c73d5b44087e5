package main

import (
	"context"
	"io"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/consumer/kafkasource"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
)

// run joins the consumer group and applies events to the read model.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var (
		d           database
		kafka       config.Kafka
		name, topic string
	)
	s := config.New(program+" run", "Applies events to the read model until told to stop.")
	d.register(s)
	kafka.Register(s)
	s.String(&name, "name", "CONSUMER", "quake-report", "name of this consumer and of its group; another name starts from nothing")
	s.String(&topic, "topic", "TOPIC", "quakes", "topic to read")
	if err := config.Parse(s, args, stdout); err != nil {
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
	source, err := kafkasource.New(kafkasource.Config{Brokers: kafka.Brokers, Group: name, Topics: []string{topic}, ClientID: program, Logger: log})
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // leaving a group that is gone is no failure

	// Strict: the read model counts, so each event matters and none may be
	// left out. From the origin: it counts from the first event on.
	err = consumer.Run(ctx, pool, source, consumer.Config{
		Name:   name,
		Schema: d.postgres.Schema,
		Policy: consumer.Strict,
		Start:  consumer.FromOrigin,
		Logger: log,
	}, consumer.HandlerFunc(model.Handle))
	return config.NeedsRole(err, d.postgres.Schema, schema.KindConsumer)
}
