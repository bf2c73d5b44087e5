package kafkatest_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

func TestApacheKafkaKeepsAcknowledgedRecordsOverAKill(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	broker := kafkatest.Apache(t, apachekafka.Config{})
	topic := kafkatest.Topic(t, broker.Addr(), 1)
	if err := produce(t, broker.Addr(), topic, 0, 3); err != nil {
		t.Fatal(err)
	}
	if err := broker.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", broker.Addr()); err == nil {
		_ = conn.Close()
		t.Fatal("it still listens")
	}
	if err := broker.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := produce(t, broker.Addr(), topic, 0, 1); err != nil {
		t.Fatal(err)
	}
	if records := kafkatest.Records(t, broker.Addr(), topic); len(records) != 4 || records[3].Offset != 3 {
		t.Fatalf("%d records after the kill, not 4", len(records))
	}
}

func TestApacheKafkaThatCannotStartSaysWhy(t *testing.T) {
	if !kafkatest.Real(t) {
		t.Skip("needs Apache Kafka")
	}
	// The first is refused while the data directory is formatted, the second by the starting server.
	for name, value := range map[string]string{"num.partitions": "none", "authorizer.class.name": "no.such.Class"} {
		broker, err := apachekafka.Start(context.Background(), apachekafka.Config{Properties: map[string]string{name: value}})
		if err == nil {
			_ = broker.Stop(context.Background())
			t.Errorf("it started with %s=%s", name, value)
			continue
		}
		if !strings.Contains(err.Error(), name) && !strings.Contains(err.Error(), value) {
			t.Errorf("%s=%s: the error doesn't say so: %v", name, value, err)
		}
	}
}
