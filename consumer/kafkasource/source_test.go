package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/kafkatest"
)

func TestMain(m *testing.M) { os.Exit(kafkatest.Main(m)) }

// config is fast enough for tests.
func config(t *testing.T, addr string, topics ...string) Config {
	return Config{
		Brokers: []string{addr}, Group: kafkatest.Name(t), Topics: topics, ClientID: "test",
		SessionTimeout: 6 * time.Second, HeartbeatInterval: 100 * time.Millisecond, RebalanceTimeout: 10 * time.Second,
		WatchInterval: 100 * time.Millisecond, MaxWait: 100 * time.Millisecond, RequestTimeout: 5 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func open(t *testing.T, cfg Config) *Source {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func next(t *testing.T, s *Source) consumer.Generation {
	t.Helper()
	g, err := s.Next(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func produce(t *testing.T, addr string, opts []kgo.Opt, recs ...*kgo.Record) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10 * time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if len(recs) > 0 {
		if err := c.ProduceSync(within(t), recs...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func records(topic string, partition int32, values ...string) (recs []*kgo.Record) {
	for _, v := range values {
		recs = append(recs, &kgo.Record{Topic: topic, Partition: partition, Key: []byte("k"), Value: []byte(v)})
	}
	return recs
}

// read fetches until the end of the log.
func read(t *testing.T, g consumer.Generation, p consumer.Partition, from int64) (values []string) {
	t.Helper()
	ctx := within(t)
	_, end, err := g.Bounds(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	for from < end {
		f, err := g.Fetch(ctx, p, from, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range f.Records {
			if r.Offset < from || r.Offset >= f.Next {
				t.Errorf("record at %d in a fetch from %d to %d", r.Offset, from, f.Next)
			}
			values = append(values, string(r.Value))
		}
		from = f.Next
	}
	return values
}

func TestRecordsArriveInOrderAndWhole(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 2)
	at := time.UnixMilli(1_764_000_000_123)
	full := &kgo.Record{Topic: topic, Partition: 1, Key: []byte("k"), Value: []byte("v"), Timestamp: at,
		Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte{}}}}
	tombstone := &kgo.Record{Topic: topic, Partition: 1, Key: []byte("k"), Timestamp: at}
	produce(t, addr, nil, append(records(topic, 1, "0", "1"), full, tombstone)...)
	for _, codec := range []kgo.CompressionCodec{kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		produce(t, addr, []kgo.Opt{kgo.ProducerBatchCompression(codec)}, records(topic, 1, strings.Repeat("x", 1000))...)
	}
	g := next(t, open(t, config(t, addr, topic)))
	if a := g.Assigned(); len(a) != 2 || a[1].Partition != (consumer.Partition{Topic: topic, ID: 1}) || a[1].Committed != consumer.NoOffset {
		t.Fatalf("assigned %v", a)
	}
	f, err := g.Fetch(within(t), g.Assigned()[1].Partition, 2, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	r := f.Records[0]
	if r.Offset != 2 || string(r.Key) != "k" || string(r.Value) != "v" || !r.Time.Equal(at) || len(r.Headers) != 2 || r.Headers[1].Key != "a" {
		t.Errorf("%+v", r)
	}
	if f.Records[1].Value != nil {
		t.Error("the tombstone has a value")
	}
	if got := read(t, g, g.Assigned()[1].Partition, 0); len(got) != 8 || got[1] != "1" || len(got[7]) != 1000 {
		t.Errorf("read %d records", len(got))
	}
	if got := read(t, g, g.Assigned()[0].Partition, 0); len(got) != 0 {
		t.Errorf("read %v from the empty partition", got)
	}
}

func TestControlRecordsAndAbortedTransactionsNeverReachTheHandler(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	txn := produce(t, addr, []kgo.Opt{kgo.TransactionalID(kafkatest.Name(t))})
	write := func(commit kgo.TransactionEndTry, value string) {
		if err := txn.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := txn.ProduceSync(within(t), records(topic, 0, value)...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := txn.EndTransaction(within(t), commit); err != nil {
			t.Fatal(err)
		}
	}
	write(kgo.TryAbort, "aborted")
	write(kgo.TryCommit, "committed")
	produce(t, addr, nil, records(topic, 0, "plain")...)
	write(kgo.TryAbort, "aborted at the end")
	g := next(t, open(t, config(t, addr, topic)))
	if got := fmt.Sprint(read(t, g, g.Assigned()[0].Partition, 0)); got != "[committed plain]" {
		t.Errorf("read %s", got)
	}
}

func TestAnOffsetThatTheLogDoesNotHaveIsAnErrorWithItsBounds(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	produce(t, addr, nil, records(topic, 0, "0", "1", "2", "3")...)
	var cut kadm.Offsets
	cut.Add(kadm.Offset{Topic: topic, Partition: 0, At: 3})
	if _, err := kafkatest.Admin(t, addr).DeleteRecords(within(t), cut); err != nil {
		t.Fatal(err)
	}
	g := next(t, open(t, config(t, addr, topic)))
	p := g.Assigned()[0].Partition
	for _, offset := range []int64{1, 9} {
		_, err := g.Fetch(within(t), p, offset, 1<<20)
		var gone *consumer.OffsetError
		if !errors.As(err, &gone) || gone.Offset != offset || gone.Start != 3 || gone.End != 4 {
			t.Errorf("offset %d: %v", offset, err)
		}
	}
	if f, err := g.Fetch(within(t), p, 3, 1<<20); err != nil || f.LogStart != 3 || f.HighWatermark != 4 || f.Next != 4 {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestTopicsThatCannotBeReadRightAreRefusedWithTheRemedy(t *testing.T) {
	addr := kafkatest.Broker(t)
	good := kafkatest.Topic(t, addr, 1)
	for name, c := range map[string]struct {
		topic  string
		want   error
		remedy string
	}{
		"missing":   {kafkatest.Name(t), ErrTopicMissing, "create it"},
		"compacted": {kafkatest.Topic(t, addr, 1, "cleanup.policy=compact"), ErrTopicCompacted, "set cleanup.policy=delete"},
		"both":      {kafkatest.Topic(t, addr, 1, "cleanup.policy=compact,delete"), ErrTopicCompacted, "set cleanup.policy=delete"},
	} {
		_, err := open(t, config(t, addr, good, c.topic)).Next(within(t))
		var te *TopicError
		if !errors.Is(err, c.want) || !errors.As(err, &te) || te.Topic != c.topic || !strings.Contains(err.Error(), c.remedy) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBrokersThatDoNotAnswerAreReportedWithTheirAddresses(t *testing.T) {
	cfg := config(t, "127.0.0.1:1", "t")
	cfg.RequestTimeout = 300 * time.Millisecond
	_, err := open(t, cfg).Next(within(t))
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || !strings.Contains(err.Error(), "check the addresses") {
		t.Fatalf("%v", err)
	}
}

func TestAConfigurationThatCannotWorkIsRefusedAllAtOnce(t *testing.T) {
	_, err := New(Config{})
	for _, want := range []string{"no brokers", "no consumer group", "no topics"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing from: %v", want, err)
		}
	}
	_, err = New(Config{Brokers: []string{"nowhere"}, Group: "g", Topics: []string{"t", "t", ""}, MaxWait: -1,
		SessionTimeout: time.Second, HeartbeatInterval: time.Second, MaxBatchBytes: 1})
	for _, want := range []string{`"nowhere" is not host:port`, "is twice", "empty topic", "MaxWait", "HeartbeatInterval", "MaxBatchBytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing from: %v", want, err)
		}
	}
	for _, group := range []string{"a\x00b", "\xff", strings.Repeat("x", 32768)} {
		if _, err := New(Config{Brokers: []string{"a:1"}, Group: group, Topics: []string{"t"}}); err == nil || !strings.Contains(err.Error(), "Config.Group") {
			t.Errorf("group %.5q: %v", group, err)
		}
	}
	if cfg := (Config{Brokers: []string{"[::1]:9092"}, Group: "g", Topics: []string{"t"}}); cfg.check() != nil || cfg.HeartbeatInterval != 3*time.Second {
		t.Errorf("%v, %+v", cfg.check(), cfg)
	}
}

func TestCommittedOffsetsComeBackAlsoFromAGenerationThatIsEnding(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	cfg := config(t, addr, topic)
	first := open(t, cfg)
	g := next(t, first)
	p := g.Assigned()[0].Partition
	// A second member ends the generation; what the first one still works on it
	// must be able to commit.
	second := open(t, cfg)
	joined := make(chan consumer.Generation, 1)
	go func() {
		g, err := second.Next(within(t))
		if err != nil {
			t.Error(err)
		}
		joined <- g
	}()
	select {
	case <-g.Context().Done():
	case <-within(t).Done():
		t.Fatal("the generation did not end when a member joined")
	}
	if err := g.Commit(within(t), map[consumer.Partition]int64{p: 7}); err != nil {
		t.Fatalf("commit while the generation ends: %v", err)
	}
	g.Release()
	g1 := next(t, first)
	g2 := <-joined
	if g2 == nil {
		return
	}
	both := append(g1.Assigned(), g2.Assigned()...)
	if len(both) != 1 || both[0].Committed != 7 {
		t.Fatalf("assigned %v, %v", g1.Assigned(), g2.Assigned())
	}
	if err := g.Commit(within(t), map[consumer.Partition]int64{p: 8}); err == nil {
		t.Error("a commit in a generation that is over succeeded")
	}
}

func TestACloseHandsThePartitionsOverAtOnce(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 2)
	cfg := config(t, addr, topic)
	cfg.SessionTimeout = 30 * time.Second // it is not by timing out
	first := open(t, cfg)
	next(t, first)
	second := open(t, cfg)
	began := time.Now()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(next(t, second).Assigned()); n != 2 || time.Since(began) > 20*time.Second {
		t.Errorf("%d partitions after %v", n, time.Since(began))
	}
	if _, err := first.Next(within(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("Next after Close: %v", err)
	}
}

func TestANumberOfPartitionsThatChangesEndsTheGenerationAndIsRefused(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	s := open(t, config(t, addr, topic))
	g := next(t, s)
	if _, err := kafkatest.Admin(t, addr).CreatePartitions(within(t), 1, topic); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.Context().Done():
	case <-within(t).Done():
		t.Fatal("the generation goes on")
	}
	g.Release()
	if _, err := s.Next(within(t)); !errors.Is(err, ErrPartitionsChanged) || !strings.Contains(err.Error(), "its number of partitions is 2 now and was 1") {
		t.Fatalf("%v", err)
	}
}

func TestPartitionsThatTheGroupsLeaderDidNotSeeGetAReader(t *testing.T) {
	cluster := kafkatest.Kfake(t)
	addr := cluster.ListenAddrs()[0]
	topic := kafkatest.Topic(t, addr, 3)
	// The leader asks in a way that would create the topic; nobody else does.
	hidden := make(chan struct{})
	cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		m := req.(*kmsg.MetadataRequest)
		if !m.AllowAutoTopicCreation || len(m.Topics) == 0 {
			return nil, nil, false
		}
		select {
		case <-hidden:
			return nil, nil, false
		default:
			close(hidden)
		}
		res := m.ResponseKind().(*kmsg.MetadataResponse)
		none := kmsg.NewMetadataResponseTopic()
		none.Topic, none.ErrorCode = &topic, int16(kafka.UnknownTopicOrPartition)
		res.Topics = append(res.Topics, none)
		return res, nil, true
	})
	s := open(t, config(t, addr, topic))
	g := next(t, s)
	if len(g.Assigned()) != 0 {
		t.Fatalf("the topic was not hidden: %v", g.Assigned())
	}
	select {
	case <-g.Context().Done():
	case <-within(t).Done():
		t.Fatal("the empty assignment is kept for ever")
	}
	g.Release()
	if n := len(next(t, s).Assigned()); n != 3 {
		t.Errorf("%d partitions assigned, want 3", n)
	}
}

func TestNothingIsLeftBehindByClose(t *testing.T) {
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	before := goleak.IgnoreCurrent()
	s, err := New(config(t, addr, topic))
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.Next(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Fetch(within(t), g.Assigned()[0].Partition, 0, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := goleak.Find(before,
		// The broker in this process has goroutines of its own, for the test's
		// other client.
		goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*clientConn).read"),
		goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*clientConn).read.func1"),
		goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*clientConn).write")); err != nil {
		t.Error(err)
	}
}
