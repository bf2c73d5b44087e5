package main

import (
	"context"
	"embed"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/devstack/kafkaconnect"
)

// The configuration of Debezium, as its documentation advises for each purpose.
//
//go:embed debezium
var debeziumFiles embed.FS

// connectArm is Debezium's connector in a Kafka Connect worker of its own.
type connectArm struct {
	worker, connector string // files in debezium/
}

func createDebezium(ctx context.Context, conn *pgx.Conn) error {
	schema, err := debeziumFiles.ReadFile("debezium/schema.sql")
	if err == nil {
		_, err = conn.Exec(ctx, string(schema))
	}
	return err
}

func fillDebezium(ctx context.Context, conn *pgx.Conn, w workload, topic string) error {
	// Routed by aggregatetype, which becomes the topic's name as it is.
	return w.fill(ctx, conn, strings.ReplaceAll(fmt.Sprintf(`
		insert into outbox (id, aggregatetype, aggregateid, type, payload)
		select gen_random_uuid(), '%s', 'key-' || i %% KEYS, 'bench.event', %s from generate_series($1::bigint, $2::bigint) i order by i`, topic, w.payloadSQL()), "KEYS", fmt.Sprint(w.Keys)))
}

// start starts a worker on an empty outbox of dsn, and returns when the connector
// streams. Stop it.
func (c *connectArm) start(ctx context.Context, s *stack, dsn string, say func(string, ...any)) (*kafkaconnect.Worker, error) {
	db, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	worker, err := debeziumFiles.ReadFile("debezium/" + c.worker)
	if err != nil {
		return nil, err
	}
	connector, err := debeziumFiles.ReadFile("debezium/" + c.connector)
	if err != nil {
		return nil, err
	}
	fill := strings.NewReplacer("@KAFKA@", s.kafka.Addr(), "@HOST@", db.Host, "@PORT@", fmt.Sprint(db.Port), "@USER@", db.User, "@PASSWORD@", db.Password, "@DATABASE@", db.Database, "@SLOT@", db.Database)
	return kafkaconnect.Start(ctx, kafkaconnect.Config{
		Worker: fill.Replace(string(worker)), Connector: fill.Replace(string(connector)),
		Progress: func(text string) { say("%s", text) },
	})
}
