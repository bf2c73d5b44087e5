package kafkapub

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
)

// What is in this file runs against kfake and against Apache Kafka.

// to sends a batch to another topic than "orders".
func to(topic string, b *relay.Batch) *relay.Batch {
	b.Topic = topic
	return b
}

func TestTheBrokerKeepsKeysValuesHeadersAndTimes(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	p := open(t, []string{addr})
	skip := record("skip", 9, nil)
	skip.Kind, skip.From = outbox.KindSkip, 5
	many := record("many", 3, []byte("x"))
	for range 200 {
		many.Headers = append(many.Headers, outbox.Header{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
	}
	b := to(topic, &relay.Batch{Records: []outbox.Record{
		record("clé", 2, bytes.Repeat([]byte("payload "), 2000)), many, record("tombstone", 4, nil), record("empty", 5, []byte{}), skip,
	}})
	for i := range b.Records { // a timestamp that is close to the broker's clock, as some brokers want
		b.Records[i].CreatedAt = time.Now().Add(time.Duration(-i) * time.Second).Truncate(time.Microsecond)
	}
	insist(t, p, b)
	got := consume(t, []string{addr}, topic, 0)
	if len(got) != len(b.Records) {
		t.Fatalf("%d records, want %d", len(got), len(b.Records))
	}
	for i, r := range got {
		var hs []outbox.WireHeader
		for _, h := range r.Headers {
			hs = append(hs, outbox.WireHeader{Key: h.Key, Value: h.Value})
		}
		same(t, &b.Records[i], r.Key, r.Value, r.Timestamp.UnixMilli(), hs)
		back, err := outbox.ParseWire(topic, r.Key, r.Value, r.Timestamp, hs)
		if err != nil {
			t.Errorf("%s: %v", r.Key, err)
		}
		if back.Seq != b.Records[i].Seq || !back.CreatedAt.Equal(b.Records[i].CreatedAt) {
			t.Errorf("%s: read back as %+v", r.Key, back)
		}
	}
}

func TestTheSameBytesAppendNothingTwice(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1)
	p := open(t, []string{addr})
	send := func(b *relay.Batch) error { return p.Produce(within(t), to(topic, b)) }
	// A resend after an acknowledgement that was lost on its way, staged by
	// keeping the bytes and rewinding the lane to before the answer.
	resend := func(b *relay.Batch) {
		t.Helper()
		insist(t, p, to(topic, b))
		l := p.lane(topic, 0)
		l.sequence -= int32(len(b.Records))
		f := freeze(b.Records, nil).seal(l.producer, l.sequence)
		l.open, b.Frozen = f, f
		if err := send(b); err != nil {
			t.Errorf("resend: %v", err)
		}
	}
	resend(events(1, 2))
	resend(events(3))
	insist(t, p, to(topic, events(4)))
	if got := stored(t, []string{addr}, topic); !slices.Equal(got, []int64{1, 2, 3, 4}) {
		t.Errorf("log %v", got)
	}
	// A broker that doesn't know where our numbers are: it missed some.
	p.lane(topic, 0).sequence += 7
	b := to(topic, events(5))
	unknown(t, send(b))
	insist(t, p, b)
	insist(t, p, to(topic, events(6)))
	if got := stored(t, []string{addr}, topic); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6}) {
		t.Errorf("log %v", got)
	}
}

func TestATooLargeRecordIsFoundBySplitting(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Topic(t, addr, 1, "max.message.bytes=20000")
	p := open(t, []string{addr})
	d, err := p.Describe(within(t), topic)
	if err != nil || d.MaxMessageBytes != 20000 {
		t.Fatalf("%+v, %v", d, err)
	}
	all := events(1, 2, 3, 4, 5)
	all.Records[3].Payload = make([]byte, 20000)
	var refused []int64
	var send func(records []outbox.Record)
	send = func(records []outbox.Record) {
		err := p.Produce(within(t), &relay.Batch{Topic: topic, Records: records})
		var re *relay.RefusedError
		switch {
		case err == nil:
		case !errors.As(err, &re) || !errors.Is(err, kafka.MessageSizeTooLarge):
			t.Fatal(err)
		case re.Indexes == nil:
			send(records[:len(records)/2])
			send(records[len(records)/2:])
		default:
			refused = append(refused, records[re.Indexes[0]].Seq)
		}
	}
	send(all.Records)
	if got := stored(t, []string{addr}, topic); !slices.Equal(got, []int64{1, 2, 3, 5}) || !slices.Equal(refused, []int64{4}) {
		t.Errorf("log %v, refused %v", got, refused)
	}
	// The size that the limit is compared with is the one we compute.
	r := record("k", 6, nil)
	r.Payload = make([]byte, 20000-RecordSize(&r)-BatchOverhead-4) // 4: the length of the payload takes 3 bytes, not 1; that of the record too
	insist(t, p, &relay.Batch{Topic: topic, Records: []outbox.Record{r}})
	if at := RecordSize(&r) + BatchOverhead; at > 20000 || at < 19990 {
		t.Errorf("computed size %d", at)
	}
	// Nothing of a refused attempt may be counted: the sequence goes on.
	insist(t, p, to(topic, events(7)))
}

func TestRealKafkaNamesTheRecordThatItRefuses(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	if !kafkatest.Real(t) {
		t.Skip("kfake doesn't look at timestamps: the same by an injected answer in TestRefusedRecordsAreNamedWhereTheBrokerNamesThem")
	}
	topic := kafkatest.Topic(t, addr, 1, "message.timestamp.before.max.ms=86400000")
	p := open(t, []string{addr})
	b := to(topic, events(1, 2, 3, 4, 5))
	for i := range b.Records {
		b.Records[i].CreatedAt = time.Now()
	}
	b.Records[1].CreatedAt, b.Records[4].CreatedAt = created, created
	err := p.Produce(within(t), b)
	var re *relay.RefusedError
	if !errors.As(err, &re) || !slices.Equal(re.Indexes, []int{1, 4}) {
		t.Fatalf("got %v", err)
	}
	rest := to(topic, &relay.Batch{Records: []outbox.Record{b.Records[0], b.Records[2], b.Records[3]}})
	insist(t, p, rest)
	if got := stored(t, []string{addr}, topic); !slices.Equal(got, []int64{1, 3, 4}) {
		t.Errorf("log %v", got)
	}
}

func TestTopicsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	p := open(t, []string{addr})
	missing := kafkatest.Name(t)
	_, err := p.Describe(within(t), missing)
	topicError(t, err, "create it")
	b := to(missing, events(1))
	topicError(t, p.Produce(within(t), b), "create it")
	_, err = p.Describe(within(t), missing)
	topicError(t, err, "create it") // and asking didn't create it
	_, err = p.Describe(within(t), "no spaces allowed")
	topicError(t, err, "")
	topicError(t, p.Produce(within(t), to("no spaces allowed", events(1))), "")

	compacted := kafkatest.Topic(t, addr, 2, "cleanup.policy=compact")
	if d, err := p.Describe(within(t), compacted); err != nil || d.CleanupPolicy != "compact" || d.Partitions != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	both := kafkatest.Topic(t, addr, 1, "cleanup.policy=compact,delete")
	if d, err := p.Describe(within(t), both); err != nil || !strings.Contains(d.CleanupPolicy, "compact") {
		t.Errorf("%+v, %v", d, err)
	}

	// Under way, the topic goes; and comes back.
	topic := kafkatest.Topic(t, addr, 1)
	insist(t, p, to(topic, events(1)))
	if _, err := kafkatest.Admin(t, addr).DeleteTopic(within(t), topic); err != nil {
		t.Fatal(err)
	}
	again := to(topic, events(2))
	deadline := time.Now().Add(time.Minute)
	for {
		err := p.Produce(within(t), again)
		var te *relay.TopicError
		if errors.As(err, &te) {
			break
		}
		if err == nil {
			again = to(topic, events(2)) // a deletion that isn't carried out yet
		}
		if time.Now().After(deadline) {
			t.Fatalf("the deleted topic: %v", err)
		}
	}
	kafkatest.CreateTopic(t, addr, topic, 1)
	deadline = time.Now().Add(time.Minute)
	for err = p.Produce(within(t), again); err != nil; err = p.Produce(within(t), again) {
		if time.Now().After(deadline) {
			t.Fatalf("the topic that came back: %v", err)
		}
	}
	if got := stored(t, []string{addr}, topic); !slices.Equal(got, []int64{2}) {
		t.Errorf("log %v", got)
	}
}

func TestRealKafkaKilledAndStartedAgainHasOneCopy(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Apache(t, apachekafka.Config{})
	addr := broker.Addr()
	topic := kafkatest.Topic(t, addr, 1)
	p := open(t, []string{addr})
	insist(t, p, to(topic, events(1, 2)))
	if err := broker.Kill(within(t)); err != nil {
		t.Fatal(err)
	}
	b := to(topic, events(3))
	for range 3 {
		unknown(t, p.Produce(within(t), b))
	}
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Neither the connections nor what was acknowledged are what they were
	// before; the broker still knows our numbers from its log.
	deadline := time.Now().Add(60 * time.Second)
	for err := p.Produce(within(t), b); err != nil; err = p.Produce(within(t), b) {
		if certain(err) && !errors.As(err, new(*relay.TopicError)) || time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // backoff, not order
	}
	insist(t, p, to(topic, events(4)))
	if got := stored(t, []string{addr}, topic); !slices.Equal(got, []int64{1, 2, 3, 4}) {
		t.Errorf("log %v", got)
	}
}

// Many partitions at once, some of them under a producer of their own, in
// requests that they share.
func TestWhateverIsSharedEachPartitionHasItsRecordsOnceAndInOrder(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	const partitions, batches = 60, 12
	topic := kafkatest.Topic(t, addr, partitions)
	p := open(t, []string{addr})
	var done sync.WaitGroup
	for i := range partitions {
		done.Go(func() {
			seq := int64(0)
			for n := range batches {
				b := &relay.Batch{Topic: topic, Partition: i}
				for range n%3 + 1 {
					seq++
					b.Records = append(b.Records, record("k", seq, []byte("x")))
				}
				if i%7 == 3 && n == batches/2 {
					p.lane(topic, i).restart()
				}
				insist(t, p, b)
			}
		})
	}
	done.Wait()
	const want = batches * 2
	for i := range partitions {
		got := consume(t, []string{addr}, topic, int32(i))
		for n, r := range got {
			if seq := string(headerOf(r, "ce_fenceseq")); strings.TrimLeft(seq, "0") != strconv.Itoa(n+1) {
				t.Fatalf("partition %d: record %d has seq %s", i, n, seq)
			}
		}
		if len(got) != want {
			t.Errorf("partition %d has %d records, want %d", i, len(got), want)
		}
	}
}

func headerOf(r *kgo.Record, name string) []byte {
	for _, h := range r.Headers {
		if h.Key == name {
			return h.Value
		}
	}
	return nil
}
