package kafkapub

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fenceline/fenceline/outbox"
)

var created = time.Date(2024, 5, 6, 7, 8, 9, 123456000, time.UTC)

// record is the seq'th event of a key.
func record(key string, seq int64, payload []byte) outbox.Record {
	return outbox.Record{
		ID:            uuid.UUID{14: byte(seq >> 8), 15: byte(seq)},
		AggregateType: "order", Type: "order.updated", Source: "/orders", Subject: "order-17", ContentType: "application/json",
		Topic: "orders", Stream: "orders", Key: key,
		Epoch: 1714979289000000, Token: 7, Seq: seq, Kind: outbox.KindData,
		Payload: payload, CreatedAt: created.Add(time.Duration(seq) * time.Millisecond),
	}
}

func TestABatchHasExactlyTheseBytes(t *testing.T) {
	t.Parallel()
	r := outbox.Record{
		ID: uuid.UUID{15: 1}, Type: "t", Source: "s", Stream: "o", Key: "k", Epoch: 2, Token: 3, Seq: 1, History: 1,
		Payload: []byte("v"), CreatedAt: created,
	}
	got := freeze([]outbox.Record{r}, nil).seal(&producer{id: 258, epoch: 5}, 9).buf

	want := "0000016a" + // length of the batch
		"0000000000000000" + // base offset
		"0000015e" + // length of what follows
		"ffffffff" + "02" + // leader epoch, magic
		"b9579adb" + // CRC-32C of all that follows
		"0000" + "00000000" + // attributes, last offset delta
		"0000018f4cbb3823" + "0000018f4cbb3823" + // first and largest timestamp: 1714979289123 ms
		"0000000000000102" + "0005" + "00000009" + // producer id, epoch, first sequence
		"00000001" + // records
		"d604" + "00" + "00" + "00" + // length 299, attributes, timestamp delta, offset delta
		"02" + "6b" + "02" + "76" + // key k, value v
		"16" + // 11 headers
		header("ce_specversion", "1.0") +
		header("ce_id", "00000000-0000-0000-0000-000000000001") +
		header("ce_source", "s") +
		header("ce_type", "t") +
		header("ce_time", "2024-05-06T07:08:09.123456Z") +
		header("ce_fencekey", "k") +
		header("ce_fenceepoch", "00000000000000000002") +
		header("ce_fencetoken", "00000000000000000003") +
		header("ce_fenceseq", "00000000000000000001") +
		header("ce_fencestream", "o") +
		header("ce_fencehistory", "00000000000000000001")
	if h := hex.EncodeToString(got); h != want {
		t.Errorf("got  %s\nwant %s", h, want)
	}
}

// header is a header whose lengths fit into one byte.
func header(k, v string) string {
	return fmt.Sprintf("%02x%x%02x%x", 2*len(k), k, 2*len(v), v)
}

func TestABatchReadsBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	many := record("many", 3, []byte("x"))
	for i := range 200 {
		many.Headers = append(many.Headers, outbox.Header{Name: fmt.Sprintf("h%03d", i), Value: fmt.Sprintf("value %d", i)})
	}
	many.Headers = append(many.Headers, outbox.Header{Name: "empty"})
	early := record("early", 4, []byte("y")) // a negative timestamp delta, and not the largest
	early.CreatedAt = created.Add(-36 * time.Hour)
	skip := record("skip", 9, nil)
	skip.Kind, skip.From = outbox.KindSkip, 5
	end := record("end", 10, nil)
	end.Kind = outbox.KindEnd
	records := []outbox.Record{
		record("clé", 2, bytes.Repeat([]byte("payload "), 2000)),
		many,
		record("tombstone", 5, nil),
		record("empty", 6, []byte{}),
		skip, end, early,
	}
	f := freeze(records, nil).seal(&producer{id: 42, epoch: 1}, 77)

	t.Run("by franz-go", func(t *testing.T) {
		var b kmsg.RecordBatch
		if err := b.ReadFrom(f.buf[prefixBytes:]); err != nil {
			t.Fatal(err)
		}
		if b.ProducerID != 42 || b.ProducerEpoch != 1 || b.FirstSequence != 77 || b.NumRecords != int32(len(records)) || b.LastOffsetDelta != b.NumRecords-1 {
			t.Errorf("batch %+v", b)
		}
		if want := records[5].CreatedAt.UnixMilli(); b.MaxTimestamp != want {
			t.Errorf("largest timestamp %d, want %d", b.MaxTimestamp, want)
		}
		got, err := kfake.BatchRecords(b)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range got {
			var hs []outbox.WireHeader
			for _, h := range r.Headers {
				hs = append(hs, outbox.WireHeader{Key: h.Key, Value: h.Value})
			}
			same(t, &records[i], r.Key, r.Value, b.FirstTimestamp+r.TimestampDelta64, hs)
		}
	})
	t.Run("by kafka-go", func(t *testing.T) {
		var set protocol.RecordSet
		if _, err := set.ReadFrom(bytes.NewReader(f.buf)); err != nil {
			t.Fatal(err)
		}
		for i := range records {
			r, err := set.Records.ReadRecord()
			if err != nil {
				t.Fatal(err)
			}
			key, _ := protocol.ReadAll(r.Key)
			value, _ := protocol.ReadAll(r.Value)
			if r.Value != nil && value == nil {
				value = []byte{}
			}
			var hs []outbox.WireHeader
			for _, h := range r.Headers {
				hs = append(hs, outbox.WireHeader{Key: h.Key, Value: h.Value})
			}
			same(t, &records[i], key, value, r.Time.UnixMilli(), hs)
		}
	})
}

// same compares a record with what was read back.
func same(t *testing.T, want *outbox.Record, key, value []byte, at int64, headers []outbox.WireHeader) {
	t.Helper()
	if string(key) != want.Key {
		t.Errorf("key %q, want %q", key, want.Key)
	}
	if v := outbox.WireValue(want); !bytes.Equal(value, v) || (value == nil) != (v == nil) {
		t.Errorf("%s: value %.20q (nil %t), want %.20q (nil %t)", want.Key, value, value == nil, v, v == nil)
	}
	if at != want.CreatedAt.UnixMilli() {
		t.Errorf("%s: timestamp %d, want %d", want.Key, at, want.CreatedAt.UnixMilli())
	}
	equal := func(a, b outbox.WireHeader) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }
	if hs := outbox.AppendWireHeaders(nil, want); !slices.EqualFunc(headers, hs, equal) {
		t.Errorf("%s: headers %q, want %q", want.Key, headers, hs)
	}
}

func TestTheSizeOfARecordIsNeverUnderstated(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var records []outbox.Record
		bound := BatchOverhead
		for i := range 1 + rng.IntN(200) {
			r := record(fmt.Sprint("key-", i), 1+rng.Int64N(1<<40), make([]byte, rng.IntN(300)))
			if rng.IntN(4) == 0 {
				r.Payload = nil
			}
			r.CreatedAt = r.CreatedAt.Add(time.Duration(rng.Int64N(int64(24 * 365 * time.Hour))))
			for range rng.IntN(4) {
				r.Headers = append(r.Headers, outbox.Header{Name: "n", Value: string(make([]byte, rng.IntN(200)))})
			}
			records = append(records, r)
			bound += RecordSize(&r)
			if n := outbox.EncodedSize(&r); n < RecordSize(&r) {
				t.Fatalf("the limit at append counts %d bytes for a record of up to %d: what passes it could be refused here", n, RecordSize(&r))
			}
		}
		size := len(freeze(records, nil).buf) - prefixBytes
		if size > bound || size < bound-12*len(records) {
			t.Fatalf("%d records take %d bytes, said to be at most %d and at least %d", len(records), size, bound, bound-12*len(records))
		}
	}
}

func TestTheSameRecordsGiveTheSameBytes(t *testing.T) {
	t.Parallel()
	records := []outbox.Record{record("a", 1, []byte("1")), record("b", 2, nil)}
	one := freeze(records, nil).seal(&producer{1, 0}, 5)
	// Dirty the pool: a buffer's earlier use must not show.
	freeze([]outbox.Record{record("zzz", 99, bytes.Repeat([]byte{0xff}, 5000))}, nil).seal(&producer{-1, -1}, -1).release()
	two := freeze(records, nil).seal(&producer{1, 0}, 5)
	if !bytes.Equal(one.buf, two.buf) {
		t.Errorf("got %x, then %x", one.buf, two.buf)
	}
}

func TestBytesThatMayStillBeOnTheirWayAreNotTouched(t *testing.T) {
	t.Parallel()
	f := freeze([]outbox.Record{record("a", 1, []byte("1"))}, nil).seal(&producer{1, 0}, 5)
	f.unanswered = true
	before := bytes.Clone(f.buf)
	g := f.seal(&producer{2, 0}, 0)
	f.release()
	for range 10 {
		freeze([]outbox.Record{record("b", 2, []byte("2"))}, nil).seal(&producer{3, 0}, 0).release()
	}
	if !bytes.Equal(before, f.buf) {
		t.Error("the bytes of an unanswered attempt were changed by a new seal or a new batch")
	}
	if bytes.Equal(before, g.buf) {
		t.Error("the new seal isn't in the copy")
	}
}

func BenchmarkFreeze(b *testing.B) {
	const n = 500
	records := make([]outbox.Record, n)
	for i := range records {
		records[i] = record(fmt.Sprintf("order-%08d", i), int64(i+1), bytes.Repeat([]byte("x"), 1024))
	}
	p := &producer{1, 0}
	freeze(records, nil).seal(p, 0).release()
	b.ReportAllocs()
	for b.Loop() {
		freeze(records, nil).seal(p, 0).release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/record")
	b.SetBytes(int64(len(freeze(records, nil).buf)))
}

// Hundreds of lanes have a buffer each.
func TestABuffersSizeIsAboutThatOfItsBatch(t *testing.T) {
	t.Parallel()
	small, large := record("k", 1, make([]byte, 100)), record("k", 1, make([]byte, 100_000))
	for range 100 { // whatever the pools have got back
		for _, c := range []struct {
			records []outbox.Record
			most    int
		}{{[]outbox.Record{small}, 16<<10 - 1}, {[]outbox.Record{small, small, small, small, small, small, small, small, small, small, small, small}, 64<<10 - 1}, {[]outbox.Record{large}, 1 << 20}} {
			f := freeze(c.records, nil)
			if n := cap(f.buf); n > c.most || n < len(f.buf) {
				t.Fatalf("%d records of together %d bytes have a buffer of %d", len(c.records), len(f.buf), n)
			}
			f.release()
		}
	}
}
