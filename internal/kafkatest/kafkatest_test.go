package kafkatest_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/internal/kafkatest"
)

func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }

func produce(t *testing.T, addr, topic string, partition, n int) error {
	t.Helper()
	client := &kafka.Client{Addr: kafka.TCP(addr), Transport: &kafka.Transport{}}
	var records []kafka.Record
	for i := range n {
		records = append(records, kafka.Record{
			Key: kafka.NewBytes(fmt.Appendf(nil, "key-%d", i)), Value: kafka.NewBytes(fmt.Appendf(nil, "value-%d", i)),
			Headers: []kafka.Header{{Key: "number", Value: fmt.Append(nil, i)}},
		})
	}
	r, err := client.Produce(context.Background(), &kafka.ProduceRequest{
		Topic: topic, Partition: partition, RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(records...),
	})
	if err != nil {
		return err
	}
	return r.Error
}

func TestATopicTakesRecordsAtOnceAndRecordsReadsThemAll(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 3, "cleanup.policy=delete")
	for partition, n := range []int{3, 0, 2} {
		if n == 0 {
			continue
		}
		if err := produce(t, addr, topic, partition, n); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, r := range kafkatest.Records(t, addr, topic) {
		number, _ := kafkatest.Header(r, "number")
		got = append(got, fmt.Sprintf("%d/%d %s %s %s", r.Partition, r.Offset, r.Key, r.Value, number))
	}
	want := []string{
		"0/0 key-0 value-0 0", "0/1 key-1 value-1 1", "0/2 key-2 value-2 2",
		"2/0 key-0 value-0 0", "2/1 key-1 value-1 1",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestRecordsReadsToTheEndThoughAControlRecordIsLast(t *testing.T) {
	ctx := context.Background()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID(kafkatest.Name(t)), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(ctx, kgo.StringRecord("one")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	records := kafkatest.Records(t, addr, topic)
	if len(records) != 1 || string(records[0].Value) != "one" {
		t.Fatalf("got %v", records)
	}
}

func TestRecordsOfAnEmptyTopicAreNone(t *testing.T) {
	addr := kafkatest.Broker(t)
	if records := kafkatest.Records(t, addr, kafkatest.Topic(t, addr, 2)); len(records) != 0 {
		t.Fatalf("got %v", records)
	}
}
