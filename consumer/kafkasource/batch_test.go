package kafkasource

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/compress"
	"github.com/segmentio/kafka-go/compress/snappy"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/fenceline/fenceline/consumer"
)

// wire is one encoded batch that a test may spoil.
type wire []byte

func encode(t *testing.T, base int64, attributes protocol.Attributes, values ...string) wire {
	t.Helper()
	var recs []protocol.Record
	for _, v := range values {
		r := protocol.Record{
			Time: time.UnixMilli(1_700_000_000_000), Key: protocol.NewBytes([]byte("key")),
			Headers: []protocol.Header{{Key: "a", Value: []byte("1")}, {Key: "null"}},
		}
		if v != "" {
			r.Value = protocol.NewBytes([]byte(v))
		}
		recs = append(recs, r)
	}
	set := protocol.RecordSet{Version: 2, Attributes: attributes, Records: protocol.NewRecordReader(recs...)}
	var b bytes.Buffer
	if _, err := set.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	w := wire(b.Bytes()[4:])
	binary.BigEndian.PutUint64(w, uint64(base))
	return w
}

// with changes the batch and makes its checksum right again.
func (w wire) with(change func(wire)) wire {
	w = bytes.Clone(w)
	change(w)
	binary.BigEndian.PutUint32(w[batchCRC:], crc32.Checksum(w[batchCRCFrom:], castagnoli))
	return w
}

func (w wire) attributes(a int16) wire {
	return w.with(func(w wire) { binary.BigEndian.PutUint16(w[21:], uint16(a)) })
}

func (w wire) producer(id int64) wire {
	return w.with(func(w wire) { binary.BigEndian.PutUint64(w[43:], uint64(id)) })
}

func join(ws ...wire) (all []byte) {
	for _, w := range ws {
		all = append(all, w...)
	}
	return all
}

func decode(offset int64, aborted []abortedTxn, ws ...wire) ([]consumer.KafkaRecord, int64, error) {
	d := decoder{partition: consumer.Partition{Topic: "t", ID: 1}, offset: offset, maxBytes: 1 << 20, maxBatch: 1 << 20}
	return d.decode(&fetchResponse{records: join(ws...), aborted: aborted})
}

func offsets(recs []consumer.KafkaRecord) (o []int64) {
	for _, r := range recs {
		o = append(o, r.Offset)
	}
	return o
}

func TestEveryCodecIsRead(t *testing.T) {
	for _, a := range []protocol.Attributes{0, protocol.Gzip, protocol.Snappy, protocol.Lz4, protocol.Zstd} {
		recs, next, err := decode(10, nil, encode(t, 10, a, "one", "two"))
		if err != nil || next != 12 || len(recs) != 2 {
			t.Fatalf("%v: %d records, next %d, %v", a, len(recs), next, err)
		}
		r := recs[1]
		if r.Offset != 11 || string(r.Key) != "key" || string(r.Value) != "two" || r.Time.UnixMilli() != 1_700_000_000_000 ||
			len(r.Headers) != 2 || r.Headers[0].Key != "a" || string(r.Headers[0].Value) != "1" || r.Headers[1].Value != nil {
			t.Errorf("%v: %+v", a, r)
		}
	}
}

func TestATombstoneStaysDistinctFromAnEmptyValue(t *testing.T) {
	recs, _, err := decode(0, nil, encode(t, 0, 0, "", "x"))
	if err != nil || recs[0].Value != nil || recs[1].Value == nil {
		t.Fatalf("%v, %v", recs, err)
	}
	// A record: length, attributes, two deltas, null key, empty value, no headers.
	w := encode(t, 0, 0, "x")[:batchHeader]
	w = append(w, 12, 0, 0, 0, 1, 0, 0)
	binary.BigEndian.PutUint32(w[8:], uint32(len(w)-batchPrefix))
	recs, _, err = decode(0, nil, w.with(func(wire) {}))
	if err != nil || recs[0].Value == nil || len(recs[0].Value) != 0 || recs[0].Key != nil {
		t.Fatalf("%v, %v", recs, err)
	}
}

func TestRecordsBelowTheOffsetAskedForAreLeftOut(t *testing.T) {
	recs, next, err := decode(12, nil, encode(t, 10, 0, "a", "b", "c", "d"))
	if err != nil || next != 14 || len(recs) != 2 || recs[0].Offset != 12 {
		t.Fatalf("%v, next %d, %v", offsets(recs), next, err)
	}
}

func TestControlBatchesAreSkippedAndPassed(t *testing.T) {
	control := encode(t, 11, 0, "marker").attributes(attrControl | attrTransactional)
	recs, next, err := decode(11, nil, control)
	if err != nil || len(recs) != 0 || next != 12 {
		t.Fatalf("%d records, next %d, %v: a fetch that finds only a control batch must go on behind it", len(recs), next, err)
	}
	recs, next, err = decode(10, nil, encode(t, 10, 0, "a"), control, encode(t, 12, 0, "b"))
	if err != nil || next != 13 || len(recs) != 2 || recs[1].Offset != 12 {
		t.Fatalf("%v, next %d, %v", offsets(recs), next, err)
	}
}

func TestRecordsOfAbortedTransactionsAreSkippedAndThoseOfOthersAreNot(t *testing.T) {
	txn := func(base, producer int64) wire {
		return encode(t, base, 0, "x").attributes(attrTransactional).producer(producer)
	}
	end := func(base, producer int64) wire {
		return encode(t, base, 0, "m").attributes(attrTransactional | attrControl).producer(producer)
	}
	// Producer 7: aborts 0, commits 4. Producer 8: commits 1. Plain: 2.
	recs, next, err := decode(0, []abortedTxn{{7, 0}},
		txn(0, 7), txn(1, 8), encode(t, 2, 0, "plain").producer(7), end(3, 7), txn(4, 7), end(5, 8), end(6, 7))
	if got := offsets(recs); err != nil || next != 7 || len(got) != 3 || got[0] != 1 || got[1] != 2 || got[2] != 4 {
		t.Fatalf("offsets %v, next %d, %v; want 1, 2 and 4", got, next, err)
	}
}

func TestABatchThatCannotBeReadIsAnErrorAndNeverAGap(t *testing.T) {
	good := encode(t, 10, 0, "a", "b")
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1
	for name, c := range map[string]struct {
		batch wire
		want  string
	}{
		"checksum":            {flipped, "checksum"},
		"codec":               {good.attributes(7), "codec 7 is unknown"},
		"not compressed":      {good.attributes(4), "zstd"},
		"old format":          {good.with(func(w wire) { w[batchMagic] = 1 }), "format 1"},
		"record count":        {good.with(func(w wire) { binary.BigEndian.PutUint32(w[57:], 1<<30) }), "claims"},
		"one record too many": {good.with(func(w wire) { binary.BigEndian.PutUint32(w[57:], 3) }), "record 3 of 3"},
		"record length":       {good.with(func(w wire) { w[batchHeader] = 0x7e }), "record 1 of 2: it ends too early"},
		"last offset":         {good.with(func(w wire) { binary.BigEndian.PutUint32(w[23:], 0) }), "outside of the batch"},
		"negative last":       {good.with(func(w wire) { binary.BigEndian.PutUint32(w[23:], 1<<31) }), "contradicts"},
		"impossible length":   {good.with(func(w wire) { binary.BigEndian.PutUint32(w[8:], 3) }), "impossible"},
		"cut off":             {good[:len(good)-3], "only"},
	} {
		t.Run(name, func(t *testing.T) {
			recs, next, err := decode(10, nil, c.batch)
			var be *consumer.BatchError
			if !errors.As(err, &be) || !strings.Contains(be.Reason, c.want) || len(recs) != 0 || next != 10 {
				t.Fatalf("%d records, next %d, %v; want a BatchError with %q", len(recs), next, err, c.want)
			}
			// Behind a good batch: that one is delivered, and the next fetch
			// begins with the bad one.
			if name == "cut off" {
				return // normal there: the broker cuts where its bytes end
			}
			recs, next, err = decode(8, nil, encode(t, 8, 0, "x", "y"), c.batch)
			if err != nil || len(recs) != 2 || next != 10 {
				t.Fatalf("behind a good batch: %d records, next %d, %v", len(recs), next, err)
			}
		})
	}
}

func TestDecompressionIsBounded(t *testing.T) {
	bomb := encode(t, 0, protocol.Gzip, strings.Repeat("0", 4<<20))
	if len(bomb) > 64<<10 {
		t.Fatalf("the bomb is %d bytes", len(bomb))
	}
	_, _, err := decode(0, nil, bomb)
	var be *consumer.BatchError
	if !errors.As(err, &be) || !strings.Contains(err.Error(), "MaxBatchBytes") {
		t.Fatalf("%v", err)
	}
}

func TestTheLimitOfABatchHoldsHoweverItIsCompressed(t *testing.T) {
	large := strings.Repeat("0", 1<<20) // which is the limit, and there is a header to it
	for _, codec := range []protocol.Attributes{0, protocol.Gzip, protocol.Snappy, protocol.Lz4, protocol.Zstd} {
		_, _, err := decode(0, nil, encode(t, 0, codec, large))
		var be *consumer.BatchError
		if !errors.As(err, &be) || !strings.Contains(err.Error(), "MaxBatchBytes") {
			t.Errorf("codec %d: %v", codec, err)
		}
	}
}

func TestAFetchStopsBehindTheBatchThatFillsIt(t *testing.T) {
	d := decoder{maxBytes: 100, maxBatch: 1 << 20}
	big := strings.Repeat("x", 90)
	recs, next, err := d.decode(&fetchResponse{records: join(encode(t, 0, 0, big), encode(t, 1, 0, big), encode(t, 2, 0, big))})
	if err != nil || next != 1 && next != 2 || int64(len(recs)) != next {
		t.Fatalf("%d records, next %d, %v", len(recs), next, err)
	}
}

func TestAnyBytesGiveRecordsOrAnErrorAndNoPanic(t *testing.T) {
	good := encode(t, 0, protocol.Snappy, "a", "b", "c")
	for i := range good {
		for _, x := range []byte{0x01, 0x80, 0xff} {
			w := good.with(func(w wire) { w[i] ^= x })
			_, _, _ = decode(0, nil, w)
			_, _, _ = decode(0, nil, w[:i])
			_, _ = decodeFetch(w, 11)
			_, _ = decodeFetch(w[i:], 5)
		}
	}
}

// body is the batch with another body.
func (w wire) body(data ...[]byte) wire {
	w = bytes.Join([][]byte{w[:batchHeader], bytes.Join(data, nil)}, nil)
	binary.BigEndian.PutUint32(w[8:], uint32(len(w)-batchPrefix))
	return w.with(func(wire) {})
}

// What a batch claims is no reason to take the memory for it.
func TestABatchOfAFewBytesThatClaimsToBeLargeTakesNoMemory(t *testing.T) {
	claim := append(binary.AppendUvarint(nil, 1<<32-1), 0, 0)
	framed := append(bytes.Clone(xerialMagic), 0, 0, 0, 1, 0, 0, 0, 1)
	length := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	codecs := map[string]protocol.Attributes{"a zstd window": protocol.Zstd, "a zstd window behind a frame": protocol.Zstd, "zstd content": protocol.Zstd}
	zstd := func(header ...byte) []byte { // a frame of one byte
		return append(append([]byte{0x28, 0xb5, 0x2f, 0xfd}, header...), 9, 0, 0, 'x')
	}
	for name, body := range map[string][][]byte{
		"a zstd window":                {zstd(0, 19<<3)}, // 512 MB
		"a zstd window behind a frame": {zstd(0x20, 1), {0x51, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 0}, zstd(0, 19<<3)},
		"zstd content":                 {zstd(0xa0, 0, 0, 0, 0x1f)},
		"a block":                      {claim},
		"a block in a frame":           {framed, length(uint32(len(claim))), claim},
		"a frame":                      {framed, length(1<<32 - 16), claim},
		"a frame without size":         {framed, {1}},
		"half a header":                {framed[:10]},
		"nothing":                      {},
	} {
		t.Run(name, func(t *testing.T) {
			codec := protocol.Snappy
			if c, is := codecs[name]; is {
				codec = c
			}
			w := encode(t, 0, 0, "a").body(body...).attributes(int16(codec))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := decode(0, nil, w)
			runtime.ReadMemStats(&after)
			var be *consumer.BatchError
			if !errors.As(err, &be) {
				t.Errorf("%v, want a BatchError", err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
				t.Errorf("it took %d MB", took>>20)
			}
		})
	}
}

// Both ways in which snappy is written are read.
func TestSnappyIsReadWithAndWithoutItsFraming(t *testing.T) {
	plain := encode(t, 0, 0, strings.Repeat("x", 100_000)) // of several frames
	for name, framing := range map[string]snappy.Framing{"bare": snappy.Unframed, "framed": snappy.Framed} {
		var b bytes.Buffer
		z := (&snappy.Codec{Framing: framing}).NewWriter(&b)
		_, err := z.Write(plain[batchHeader:])
		if err = errors.Join(err, z.Close()); err != nil {
			t.Fatal(err)
		}
		if is := bytes.HasPrefix(b.Bytes(), xerialMagic); is != (framing == snappy.Framed) {
			t.Fatalf("%s: framed %v", name, is)
		}
		recs, _, err := decode(0, nil, plain.body(b.Bytes()).attributes(2))
		if err != nil || len(recs) != 1 || len(recs[0].Value) != 100_000 {
			t.Errorf("%s: %d records, %v", name, len(recs), err)
		}
	}
}

// The highest levels write a window that is larger than any batch may be.
func TestAZstdBatchOfALargeWindowIsRead(t *testing.T) {
	plain := encode(t, 0, 0, strings.Repeat("abcdefg", 40_000))
	var b bytes.Buffer
	z := compress.Zstd.Codec().NewWriter(&b)
	for _, part := range [][]byte{plain[batchHeader : batchHeader+200_000], plain[batchHeader+200_000:]} {
		if _, err := z.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	frame := b.Bytes()
	if frame[4]&zstdSingleSegment != 0 {
		t.Fatal("the frame has no window")
	}
	for _, window := range []byte{frame[5], 17 << 3, 18<<3 | 7} {
		frame[5] = window
		recs, _, err := decode(0, nil, plain.body(frame).attributes(int16(protocol.Zstd)))
		if err != nil || len(recs) != 1 || len(recs[0].Value) != 280_000 {
			t.Errorf("window %#x: %d records, %v", window, len(recs), err)
		}
	}
}

// A record of ten bytes takes more than a hundred in memory, and a batch of zeros
// hardly any on the wire.
func TestABatchOfVeryManyRecordsIsReadInParts(t *testing.T) {
	const n = 40_000
	w := encode(t, 100, protocol.Gzip, make([]string, n)...)
	var got []int64
	for next, parts := int64(100), 0; next < 100+n; parts++ {
		recs, to, err := decode(next, nil, w, encode(t, 100+n, 0, "behind it"))
		if err != nil || len(recs) == 0 || to <= next || parts > 1000 {
			t.Fatalf("part %d from %d: %d records, next %d, %v", parts, next, len(recs), to, err)
		}
		if took := len(recs) * recordSize; took > 1<<20 {
			t.Fatalf("%d records at once, which take %d bytes", len(recs), took)
		}
		got, next = append(got, offsets(recs)...), to
	}
	for i, o := range got[:n] {
		if o != 100+int64(i) {
			t.Fatalf("record %d has offset %d", i, o)
		}
	}
}
