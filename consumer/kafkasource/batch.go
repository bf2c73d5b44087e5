package kafkasource

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"sort"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// The layout of a record batch, format 2 (Kafka 0.11): the first twelve bytes
// are base offset and length, and the length counts what follows it.
const (
	batchPrefix  = 12
	batchHeader  = 61
	batchMagic   = 16
	batchCRC     = 17
	batchCRCFrom = 21

	attrCompression   = 0x07
	attrAppendTime    = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch is the header of a record batch and its undecoded records.
type batch struct {
	base, last int64
	attributes int16
	firstTime  int64
	maxTime    int64
	producerID int64
	count      int32
	data       []byte
}

// decoder turns the bytes of a fetch into records.
type decoder struct {
	partition consumer.Partition
	offset    int64 // records below it were not asked for
	maxBytes  int   // stop after the batch that reaches it, decompressed
	maxBatch  int   // no batch may be larger, decompressed
}

// decode gives the records and the offset to go on from. An error behind
// records that are good is left for the next fetch, which begins with it.
func (d *decoder) decode(res *fetchResponse) (recs []consumer.KafkaRecord, next int64, err error) {
	next = d.offset
	txns := newAbortedSet(res.aborted)
	size := 0
	for b := res.records; len(b) > 0 && size < d.maxBytes; {
		bt, n, err := d.header(b, next)
		if err == nil && n == 0 {
			if next > d.offset {
				break // the broker cuts the last batch off where the bytes end
			}
			err = d.fail(next, "the broker sent only %d bytes of it", len(b))
		}
		var body []consumer.KafkaRecord
		var got int
		behind := bt.last + 1
		if err == nil && !txns.skip(bt) && bt.last >= d.offset {
			body, behind, got, err = d.body(bt)
		}
		if err != nil {
			if next > d.offset {
				return recs, next, nil
			}
			return nil, d.offset, err
		}
		recs, size, b = append(recs, body...), size+got, b[n:]
		// The batch's own last offset, not that of its last record: control
		// batches and aborted ones have none for us, and must be passed.
		next = max(next, behind)
		if behind <= bt.last {
			break // the rest of it is for the next fetch
		}
	}
	return recs, next, nil
}

func (d *decoder) fail(offset int64, format string, args ...any) error {
	return &consumer.BatchError{Partition: d.partition, Offset: offset, Reason: fmt.Sprintf(format, args...)}
}

// header reads the batch that b begins with. n is its length, or 0 when b ends
// before it does.
func (d *decoder) header(b []byte, at int64) (bt batch, n int, err error) {
	if len(b) < batchMagic+1 {
		return bt, 0, nil
	}
	bt.base = int64(binary.BigEndian.Uint64(b))
	length := int64(binary.BigEndian.Uint32(b[8:]))
	if magic := b[batchMagic]; magic != 2 {
		return bt, 0, d.fail(bt.base, "message format %d is not supported, only 2 (Kafka 0.11 and later); it was written by a very old producer or is damaged", magic)
	}
	if length < batchHeader-batchPrefix {
		return bt, 0, d.fail(at, "its length of %d is impossible", length)
	}
	if n := batchPrefix + length; int64(len(b)) < n {
		return bt, 0, nil
	}
	n = batchPrefix + int(length)
	b = b[:n]
	if want, have := binary.BigEndian.Uint32(b[batchCRC:]), crc32.Checksum(b[batchCRCFrom:], castagnoli); want != have {
		return bt, 0, d.fail(bt.base, "its checksum is %08x, its bytes give %08x: the batch is damaged", want, have)
	}
	c := cursor{b: b[batchCRCFrom:]}
	bt.attributes = c.int16()
	bt.last = bt.base + int64(c.int32())
	bt.firstTime, bt.maxTime = c.int64(), c.int64()
	bt.producerID = c.int64()
	c.int16() // producer epoch
	c.int32() // base sequence
	bt.count = c.int32()
	bt.data = c.b
	if bt.last < bt.base || bt.count < 0 {
		return bt, 0, d.fail(bt.base, "its header contradicts itself (last offset %d, %d records)", bt.last, bt.count)
	}
	return bt, n, nil
}

// recordSize and headerSize are about what a record, and each of its headers, take
// in memory beside the bytes of the batch: many times of what the smallest of them
// are on the wire.
const (
	recordSize = 128
	headerSize = 40
)

// body decodes the records of a batch at or beyond the offset asked for, and gives
// the offset behind them. Where they would take more memory than a batch may, they
// end before the batch does.
func (d *decoder) body(bt batch) (recs []consumer.KafkaRecord, behind int64, size int, err error) {
	data := bt.data
	if codec := bt.attributes & attrCompression; codec != 0 {
		if data, err = d.decompress(bt, compress.Compression(codec)); err != nil {
			return nil, 0, 0, err
		}
	} else if len(data) > d.maxBatch {
		return nil, 0, 0, d.fail(bt.base, "it has %d bytes, more than the %d that Config.MaxBatchBytes allows", len(data), d.maxBatch)
	}
	// Every record takes seven bytes at the least, so a count that can't be
	// true is refused before memory is reserved for it.
	if int(bt.count) > len(data)/7+1 {
		return nil, 0, 0, d.fail(bt.base, "it claims %d records in %d bytes", bt.count, len(data))
	}
	recs = make([]consumer.KafkaRecord, 0, min(int(bt.count), d.maxBatch/recordSize+1))
	c := cursor{b: data}
	took := 0
	for i := range bt.count {
		r, err := bt.record(&c)
		if err != nil {
			return nil, 0, 0, d.fail(bt.base, "record %d of %d: %v", i+1, bt.count, err)
		}
		if r.Offset > bt.last || r.Offset < bt.base {
			return nil, 0, 0, d.fail(bt.base, "record %d of %d has offset %d, outside of the batch", i+1, bt.count, r.Offset)
		}
		if r.Offset < d.offset {
			continue
		}
		if took += recordSize + headerSize*len(r.Headers); took > d.maxBatch && len(recs) > 0 && r.Offset > recs[len(recs)-1].Offset {
			return recs, r.Offset, len(data), nil
		}
		recs = append(recs, r)
	}
	return recs, bt.last + 1, len(data), nil
}

func (bt *batch) record(c *cursor) (r consumer.KafkaRecord, err error) {
	n := c.varint()
	if n < 0 || n > int64(len(c.b)) {
		c.fail()
		return r, c.err
	}
	rest := c.b[n:]
	c.b = c.b[:n:n] // a record can't read beyond its own length
	c.int8()        // attributes, unused
	ts := bt.firstTime + c.varint()
	if bt.attributes&attrAppendTime != 0 {
		ts = bt.maxTime
	}
	r.Time = time.UnixMilli(ts)
	r.Offset = bt.base + c.varint()
	r.Key = c.varbytes()
	r.Value = c.varbytes()
	headers := c.varint()
	if headers < 0 || headers > int64(len(c.b)) {
		c.fail()
		return r, c.err
	}
	if headers > 0 {
		r.Headers = make([]outbox.WireHeader, headers)
	}
	for i := range r.Headers {
		r.Headers[i] = outbox.WireHeader{Key: string(c.varbytes()), Value: c.varbytes()}
	}
	if c.err == nil {
		c.b = rest
	}
	return r, c.err
}

// decompress is bounded: a batch of a few kilobytes can otherwise take all
// memory there is.
func (d *decoder) decompress(bt batch, codec compress.Compression) ([]byte, error) {
	known := codec.Codec()
	if known == nil {
		return nil, d.fail(bt.base, "compression codec %d is unknown", int8(codec))
	}
	var err error
	data := bt.data
	switch codec {
	case compress.Snappy:
		err = d.claims(bt)
	case compress.Zstd:
		data, err = d.narrowed(bt)
	}
	if err != nil {
		return nil, err
	}
	r := known.NewReader(bytes.NewReader(data))
	defer func() { _ = r.Close() }()
	var out bytes.Buffer
	n, err := io.Copy(&out, io.LimitReader(r, int64(d.maxBatch)+1))
	if err != nil {
		return nil, d.fail(bt.base, "%s: %v", known.Name(), err)
	}
	if n > int64(d.maxBatch) {
		return nil, d.fail(bt.base, "decompressed it has more than the %d bytes that Config.MaxBatchBytes allows", d.maxBatch)
	}
	return out.Bytes(), nil
}

// abortedSet knows which transactional batches of one fetch were aborted. The
// broker lists (producer, first offset of the aborted transaction); the
// transaction ends at that producer's next control batch.
type abortedSet struct {
	todo   []abortedTxn
	active map[int64]bool
}

func newAbortedSet(txns []abortedTxn) *abortedSet {
	todo := append([]abortedTxn(nil), txns...)
	sort.Slice(todo, func(i, j int) bool { return todo[i].firstOffset < todo[j].firstOffset })
	return &abortedSet{todo: todo, active: map[int64]bool{}}
}

// skip says whether nothing of the batch is for a consumer. Batches must be
// given in order, each once.
func (s *abortedSet) skip(bt batch) bool {
	for len(s.todo) > 0 && s.todo[0].firstOffset <= bt.last {
		s.active[s.todo[0].producerID] = true
		s.todo = s.todo[1:]
	}
	if bt.attributes&attrControl != 0 {
		delete(s.active, bt.producerID)
		return true
	}
	return bt.attributes&attrTransactional != 0 && s.active[bt.producerID]
}
