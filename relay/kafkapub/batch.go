package kafkapub

import (
	"encoding/binary"
	"hash/crc32"
	"sync"

	"github.com/segmentio/kafka-go/compress"

	"github.com/fenceline/fenceline/outbox"
)

// Offsets of the fields of a record batch, magic 2, in frozen.buf: the batch
// with the 4-byte length before it that a produce request wants. What lies
// before the attributes is not covered by the checksum.
const (
	prefixBytes  = 4
	atLength     = prefixBytes + 8
	atLeader     = prefixBytes + 12
	atMagic      = prefixBytes + 16
	atChecksum   = prefixBytes + 17
	atAttributes = prefixBytes + 21
	atLastDelta  = prefixBytes + 23
	atFirstTime  = prefixBytes + 27
	atMaxTime    = prefixBytes + 35
	atProducerID = prefixBytes + 43
	atEpoch      = prefixBytes + 51
	atSequence   = prefixBytes + 53
	atCount      = prefixBytes + 57
	atRecords    = prefixBytes + BatchOverhead
)

// BatchOverhead is the size in bytes of an empty record batch: what a batch
// takes beyond its records.
const BatchOverhead = 61

const (
	maxOffsetDelta = 1<<31 - 1
	// A timestamp delta of this size takes as many bytes as any that
	// PostgreSQL's timestamps can give.
	maxTimeDelta = 1 << 54
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// RecordSize is the number of bytes that r takes in a batch as encoded, headers
// included, wherever it stands in it: never less, at most 12 more. The largest
// request that holds only r is RecordSize + [BatchOverhead] bytes, which is
// what the topic's max.message.bytes is compared with.
func RecordSize(r *outbox.Record) int {
	body := bodySize(r, outbox.WireValue(r), outbox.AppendWireHeaders(nil, r), maxTimeDelta, maxOffsetDelta)
	return varintSize(int64(body)) + body
}

// bodySize is the one place where the size of a record is computed: the number
// that a record begins with is this, without its own bytes.
func bodySize(r *outbox.Record, value []byte, headers []outbox.WireHeader, timeDelta, offsetDelta int64) int {
	n := 1 + varintSize(timeDelta) + varintSize(offsetDelta) + // 1: attributes
		varintSize(int64(len(r.Key))) + len(r.Key) +
		nullableSize(value) +
		varintSize(int64(len(headers)))
	for i := range headers {
		n += varintSize(int64(len(headers[i].Key))) + len(headers[i].Key) + nullableSize(headers[i].Value)
	}
	return n
}

func nullableSize(v []byte) int {
	if v == nil {
		return 1 // the varint of -1
	}
	return varintSize(int64(len(v))) + len(v)
}

func varintSize(v int64) int {
	n := 1
	for u := uint64(v)<<1 ^ uint64(v>>63); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

// frozen is a batch as it goes out.
type frozen struct {
	buf     []byte
	records int
	// unanswered: an attempt ended without the broker's answer. kafka-go may
	// then still be reading buf in the background, so it must neither be
	// written to nor used for another batch any more.
	unanswered bool
}

// Buffers are pooled by what they hold at least. A topic of hundreds of partitions
// has a buffer on its way for each, of a few records: were these of the size of a
// full batch, they would be most of the relay's memory.
var (
	bufferSizes = [...]int{4 << 10, 16 << 10, 64 << 10}
	buffers     [len(bufferSizes)]sync.Pool

	encoders = sync.Pool{New: func() any { return new(outbox.WireEncoder) }}
)

// Buffers that grew beyond this are left to the garbage collector, so that one
// large batch doesn't pin its size for ever.
const maxPooled = 4 << 20

// emptyBatch is a pooled buffer for about so many bytes that begins with zeros
// where the batch's own fields go.
func emptyBatch(size int) []byte {
	class := 0
	for class < len(bufferSizes)-1 && bufferSizes[class] < size {
		class++
	}
	var buf []byte
	if b, ok := buffers[class].Get().(*[]byte); ok {
		buf = *b
	} else {
		buf = make([]byte, bufferSizes[class])
	}
	buf = buf[:atRecords]
	clear(buf)
	return buf
}

// headersSize is about what the headers of a record take that every record has.
const headersSize = 300

// sizeOf is about what records take as encoded.
func sizeOf(records []outbox.Record) int {
	n := atRecords
	for i := range records {
		n += len(records[i].Payload) + len(records[i].Key) + headersSize
	}
	return n
}

// freeze encodes records into a pooled buffer. Everything but the producer's
// identity is final: the same records give the same bytes.
func freeze(records []outbox.Record, codec compress.Codec) *frozen {
	e := encoders.Get().(*outbox.WireEncoder)
	buf := emptyBatch(sizeOf(records))
	first := records[0].CreatedAt.UnixMilli()
	last := first
	for i := range records {
		r := &records[i]
		at := r.CreatedAt.UnixMilli()
		last = max(last, at)
		buf = appendRecord(buf, r, e.Headers(r), at-first, int64(i))
	}
	encoders.Put(e)
	buf = compressed(buf, codec)

	be := binary.BigEndian
	be.PutUint32(buf, uint32(len(buf)-prefixBytes))
	be.PutUint32(buf[atLength:], uint32(len(buf)-prefixBytes-12))
	be.PutUint32(buf[atLeader:], 0xffffffff) // partition leader epoch: the broker's to fill in
	buf[atMagic] = 2
	be.PutUint32(buf[atLastDelta:], uint32(len(records)-1))
	be.PutUint64(buf[atFirstTime:], uint64(first))
	be.PutUint64(buf[atMaxTime:], uint64(last))
	be.PutUint32(buf[atCount:], uint32(len(records)))
	return &frozen{buf: buf, records: len(records)}
}

func appendRecord(buf []byte, r *outbox.Record, headers []outbox.WireHeader, timeDelta, offsetDelta int64) []byte {
	value := outbox.WireValue(r)
	buf = binary.AppendVarint(buf, int64(bodySize(r, value, headers, timeDelta, offsetDelta)))
	buf = append(buf, 0) // attributes
	buf = binary.AppendVarint(buf, timeDelta)
	buf = binary.AppendVarint(buf, offsetDelta)
	buf = binary.AppendVarint(buf, int64(len(r.Key)))
	buf = append(buf, r.Key...)
	buf = appendNullable(buf, value)
	buf = binary.AppendVarint(buf, int64(len(headers)))
	for i := range headers {
		buf = binary.AppendVarint(buf, int64(len(headers[i].Key)))
		buf = append(buf, headers[i].Key...)
		buf = appendNullable(buf, headers[i].Value)
	}
	return buf
}

// appendNullable keeps nil and empty apart: as a value, nil is a tombstone.
func appendNullable(buf, v []byte) []byte {
	if v == nil {
		return binary.AppendVarint(buf, -1)
	}
	buf = binary.AppendVarint(buf, int64(len(v)))
	return append(buf, v...)
}

// seal writes the producer's identity into the batch and closes it with the
// checksum. It is called once per identity, never between attempts that must
// be byte-identical. It returns the batch to use from now on: f itself, or a
// copy where f's bytes may still be on their way out.
func (f *frozen) seal(p *producer, sequence int32) *frozen {
	if f.unanswered {
		f = &frozen{buf: append([]byte(nil), f.buf...), records: f.records}
	}
	be := binary.BigEndian
	be.PutUint64(f.buf[atProducerID:], uint64(p.id))
	be.PutUint16(f.buf[atEpoch:], uint16(p.epoch))
	be.PutUint32(f.buf[atSequence:], uint32(sequence))
	be.PutUint32(f.buf[atChecksum:], crc32.Checksum(f.buf[atAttributes:], castagnoli))
	return f
}

// release gives the buffer back. f must not be used again.
func (f *frozen) release() {
	if !f.unanswered {
		reuse(f.buf)
	}
}

func reuse(buf []byte) {
	if cap(buf) > maxPooled {
		return
	}
	for class := len(bufferSizes) - 1; class >= 0; class-- {
		if cap(buf) >= bufferSizes[class] {
			buffers[class].Put(&buf)
			return
		}
	}
}
