package kafkapub

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
)

// compressions are the names and the codes that brokers and clients see.
var compressions = map[string]uint8{CompressionNone: 0, CompressionGzip: 1, CompressionSnappy: 2, CompressionLZ4: 3, CompressionZstd: 4}

// Runs against kfake and against Apache Kafka, which decompresses each batch
// before it takes it. What was stored is read by another client.
func TestEachCompressionIsUnderstoodByTheBrokerAndByAnotherClient(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	for name, code := range compressions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := kafkatest.Topic(t, addr, 1)
			p := open(t, []string{addr}, func(c *Config) { c.Compression = name })
			batch := func(first int64) *relay.Batch {
				b := &relay.Batch{Topic: topic}
				for i := range int64(300) {
					r := record(fmt.Sprint("key-", i), first+i, []byte(strings.Repeat("state ", 100)))
					r.CreatedAt = time.Now().Truncate(time.Microsecond)
					b.Records = append(b.Records, r)
				}
				b.Records[7].Payload, b.Records[8].Payload = nil, []byte{}
				return b
			}
			first, second := batch(1), batch(301)
			want := slices.Concat(first.Records, second.Records)
			insist(t, p, first)
			insist(t, p, second)
			got := consume(t, []string{addr}, topic, 0)
			if len(got) != len(want) {
				t.Fatalf("%d records, want %d", len(got), len(want))
			}
			for i, r := range got {
				if r.Attrs.CompressionType() != code {
					t.Fatalf("record %d is compressed by %d, want %d", i, r.Attrs.CompressionType(), code)
				}
				var hs []outbox.WireHeader
				for _, h := range r.Headers {
					hs = append(hs, outbox.WireHeader{Key: h.Key, Value: h.Value})
				}
				same(t, &want[i], r.Key, r.Value, r.Timestamp.UnixMilli(), hs)
			}
		})
	}
}

func TestACompressedBatchIsSmallerAndOneThatGainsNothingGoesOutAsItIs(t *testing.T) {
	t.Parallel()
	var gains, random []outbox.Record
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range int64(50) {
		gains = append(gains, record("k", i+1, bytes.Repeat([]byte("abc"), 300)))
	}
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	random = append(random, record("k", 1, noise))
	plain := freeze(gains, nil)
	for name, code := range compressions {
		if name == CompressionNone {
			continue
		}
		small := freeze(gains, codecs[name])
		if len(small.buf) > len(plain.buf)/2 || small.buf[atAttributes+1] != code || small.buf[atAttributes] != 0 {
			t.Errorf("%s: %d of %d bytes, attributes %x", name, len(small.buf), len(plain.buf), small.buf[atAttributes:atLastDelta])
		}
		if again := freeze(gains, codecs[name]); !bytes.Equal(again.buf, small.buf) {
			t.Errorf("%s: the same records gave other bytes", name)
		}
		if as := freeze(random, codecs[name]); len(as.buf) > len(freeze(random, nil).buf) {
			t.Errorf("%s: noise grew to %d bytes", name, len(as.buf))
		}
	}
}

func TestABrokerThatRefusesTheCompressionGetsPlainBatches(t *testing.T) {
	t.Parallel()
	c := fake(t)
	var log bytes.Buffer
	p := open(t, c.ListenAddrs(), func(c *Config) {
		c.Compression, c.Logger = CompressionZstd, slog.New(slog.NewTextHandler(&log, nil))
	})
	big := func(seqs ...int64) *relay.Batch {
		b := events(seqs...)
		for i := range b.Records {
			b.Records[i].Payload = bytes.Repeat([]byte("x"), 5000)
		}
		return b
	}
	answer(c, 2, kafkaCode(kafka.UnsupportedCompressionType))
	b := big(1, 2)
	unknown(t, p.Produce(within(t), b))
	unknown(t, p.Produce(within(t), b)) // it isn't compressed any more: an outage, not a loop of warnings
	insist(t, p, b)
	insist(t, p, big(3))
	if got := stored(t, c.ListenAddrs(), "orders"); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("log %v", got)
	}
	for _, r := range consume(t, c.ListenAddrs(), "orders", 0) {
		if r.Attrs.CompressionType() != 0 {
			t.Errorf("offset %d is compressed", r.Offset)
		}
	}
	if n := strings.Count(log.String(), "refuses the compression"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, log.String())
	}
}

func TestAnUnknownCompressionIsRefused(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Brokers: []string{"127.0.0.1:9092"}, Compression: "brotli"})
	if err == nil || !strings.Contains(err.Error(), `"brotli"`) || !strings.Contains(err.Error(), "zstd") {
		t.Errorf("got %v", err)
	}
}
