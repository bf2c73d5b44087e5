package kafkatest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/internal/kafkatest"
)

func TestALostAnswerLeavesTheRecordInTheTopicAndTheClientInDoubt(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	proxy := kafkatest.NewProxy(t, addr)
	fault := proxy.Inject(&kafkatest.Fault{When: kafkatest.ToTopic(topic)})
	if err := produce(t, proxy.Addr(), topic, 0, 1); err == nil {
		t.Fatal("the client got an answer")
	}
	fault.WaitAnswered(t, 1)
	if got := len(kafkatest.Records(t, addr, topic)); got != 1 {
		t.Fatalf("%d records in the topic, not 1", got)
	}
	if err := produce(t, proxy.Addr(), topic, 0, 1); err != nil {
		t.Fatalf("the fault was to happen once: %v", err)
	}
	if fault.Hits() != 1 {
		t.Fatalf("%d hits", fault.Hits())
	}
}

func TestALostRequestLeavesNothing(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	proxy := kafkatest.NewProxy(t, addr)
	proxy.Inject(&kafkatest.Fault{Do: kafkatest.LoseRequest})
	if err := produce(t, proxy.Addr(), topic, 0, 1); err == nil {
		t.Fatal("the client got an answer")
	}
	if got := kafkatest.Records(t, addr, topic); len(got) != 0 {
		t.Fatalf("%d records in the topic", len(got))
	}
}

func TestAHeldRequestArrivesLate(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	proxy := kafkatest.NewProxy(t, addr)
	fault := proxy.Inject(&kafkatest.Fault{Do: kafkatest.HoldRequest})
	late := make(chan error, 1)
	go func() { late <- produce(t, proxy.Addr(), topic, 0, 1) }()
	fault.Wait(t, 1)
	if err := produce(t, addr, topic, 0, 2); err != nil {
		t.Fatal(err)
	}
	fault.Release()
	if err := <-late; err != nil {
		t.Fatal(err)
	}
	records := kafkatest.Records(t, addr, topic)
	if len(records) != 3 || string(records[2].Value) != "value-0" {
		t.Fatalf("got %d records", len(records))
	}
}

func TestAHeldAnswerRunsTheClientIntoItsTimeout(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	proxy := kafkatest.NewProxy(t, addr)
	fault := proxy.Inject(&kafkatest.Fault{Do: kafkatest.HoldAnswer})
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		client := &kafka.Client{Addr: kafka.TCP(proxy.Addr()), Transport: &kafka.Transport{}}
		_, err := client.Produce(ctx, &kafka.ProduceRequest{Topic: topic, RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("x"))})})
		result <- err
	}()
	fault.WaitAnswered(t, 1)
	select {
	case err := <-result:
		t.Fatalf("the answer came through: %v", err)
	default:
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if got := len(kafkatest.Records(t, addr, topic)); got != 1 {
		t.Fatalf("%d records in the topic, not 1", got)
	}
}

func TestABrokerBehindAProxyThatIsDownIsGoneUntilItIsUp(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	proxy := kafkatest.NewProxy(t, addr)
	if err := produce(t, proxy.Addr(), topic, 0, 1); err != nil {
		t.Fatal(err)
	}
	proxy.Down()
	if err := produce(t, proxy.Addr(), topic, 0, 1); err == nil {
		t.Fatal("a record came through")
	}
	proxy.Up()
	if err := produce(t, proxy.Addr(), topic, 0, 1); err != nil {
		t.Fatal(err)
	}
	if got := len(kafkatest.Records(t, addr, topic)); got != 2 {
		t.Fatalf("%d records in the topic, not 2", got)
	}
}

func TestClientsStayBehindTheProxyForGroupsAndTransactionsToo(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 2)
	proxy := kafkatest.NewProxy(t, addr)
	client, err := kgo.NewClient(kgo.SeedBrokers(proxy.Addr()), kgo.TransactionalID(kafkatest.Name(t)),
		kgo.ConsumerGroup(kafkatest.Name(t)), kgo.ConsumeTopics(topic), kgo.DefaultProduceTopic(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())
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
	fetches := client.PollFetches(ctx)
	if err := fetches.Err(); err != nil || fetches.NumRecords() != 1 {
		t.Fatalf("%d records, %v", fetches.NumRecords(), err)
	}
	// With the proxy down, nothing gets through: no connection went around it.
	proxy.Down()
	once, cancelOnce := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancelOnce()
	if err := client.CommitRecords(once, fetches.Records()...); err == nil {
		t.Fatal("an offset was committed around the proxy")
	}
	proxy.Up()
	if err := client.CommitRecords(ctx, fetches.Records()...); err != nil {
		t.Fatal(err)
	}
}
