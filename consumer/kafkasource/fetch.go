package kafkasource

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	fetchapi "github.com/segmentio/kafka-go/protocol/fetch"

	"github.com/fenceline/fenceline/consumer"
)

// fetchRequest is one fetch of one partition. It goes through kafka-go's
// Transport (which finds the leader, pools connections and does TLS and SASL)
// but reads the answer itself, for what kafka-go's own decoding takes away:
//
//   - it drops the error of a batch behind a good one, and a batch that stops
//     decoding in the middle loses its rest without a word;
//   - it decompresses without a bound;
//   - Client.Fetch hides the aborted transactions, so their records can't be
//     told from the others, and hides how far a control batch reaches, so a
//     fetch that finds only one never gets past it.
type fetchRequest struct {
	fetchapi.Request
	version  int16
	clientID string
	maxBytes int
}

// fetchResponse is the one partition's part of the answer, undecoded.
type fetchResponse struct {
	errorCode     int16
	highWatermark int64
	logStart      int64
	aborted       []abortedTxn
	records       []byte
}

type abortedTxn struct{ producerID, firstOffset int64 }

// ApiKey makes fetchResponse a protocol.Message.
func (*fetchResponse) ApiKey() protocol.ApiKey { return protocol.Fetch }

func newFetchRequest(clientID string, p consumer.Partition, offset int64, maxBytes, maxWaitMS int) *fetchRequest {
	return &fetchRequest{
		clientID: clientID,
		maxBytes: maxBytes,
		Request: fetchapi.Request{
			ReplicaID:   -1,
			MaxWaitTime: int32(maxWaitMS),
			MinBytes:    1,
			MaxBytes:    int32(maxBytes),
			// Read committed: a record of an open transaction might still be
			// aborted. The broker then answers with the aborted ones, too, but
			// says which they are.
			IsolationLevel: int8(kafka.ReadCommitted),
			SessionID:      -1,
			SessionEpoch:   -1,
			Topics: []fetchapi.RequestTopic{{
				Topic: p.Topic,
				Partitions: []fetchapi.RequestPartition{{
					Partition:          int32(p.ID),
					CurrentLeaderEpoch: -1,
					FetchOffset:        offset,
					LogStartOffset:     -1,
					PartitionMaxBytes:  int32(maxBytes),
				}},
			}},
		},
	}
}

// Required implements protocol.RawExchanger.
func (r *fetchRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[protocol.Fetch]
	return true
}

// oldestFetch is the first version that reports the log's start, and batches
// of the current format only. Kafka 1.0 has it.
const oldestFetch = 5

// RawExchange implements protocol.RawExchanger. An error closes the
// connection, so none is returned for what the broker merely refuses.
func (r *fetchRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if r.version < oldestFetch {
		return nil, fmt.Errorf("kafkasource: the broker offers version %d of the Fetch request, want at least %d (Kafka 1.0)", r.version, oldestFetch)
	}
	const correlation = 1 // one request at a time on a connection
	if err := protocol.WriteRequest(rw, r.version, correlation, r.clientID, &r.Request); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, noEOF(err)
	}
	// The broker may exceed maxBytes by one batch, which has at most
	// max.message.bytes; beyond this it isn't an answer to what we asked.
	n := int64(binary.BigEndian.Uint32(size[:]))
	if limit := int64(r.maxBytes) + maxResponse; n > limit {
		return nil, fmt.Errorf("kafkasource: the broker's answer of %d bytes is larger than the %d that are possible", n, limit)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(rw, b); err != nil {
		return nil, noEOF(err)
	}
	return decodeFetch(b, r.version)
}

// maxResponse is the room for one batch larger than what was asked for.
const maxResponse = 128 << 20

func decodeFetch(b []byte, version int16) (*fetchResponse, error) {
	c := cursor{b: b}
	c.int32() // correlation
	c.int32() // throttled for
	res := &fetchResponse{logStart: -1}
	if version >= 7 {
		res.errorCode = c.int16()
		c.int32() // session
	}
	for range c.array() {
		c.string()
		for range c.array() {
			c.int32() // partition: we asked for one
			if code := c.int16(); code != 0 {
				res.errorCode = code
			}
			res.highWatermark = c.int64()
			c.int64() // last stable offset: the broker stops there by itself
			res.logStart = c.int64()
			for range c.array() {
				res.aborted = append(res.aborted, abortedTxn{c.int64(), c.int64()})
			}
			if version >= 11 {
				c.int32() // preferred replica: we always ask the leader
			}
			res.records = c.bytes()
		}
	}
	if c.err != nil {
		return nil, fmt.Errorf("kafkasource: the broker's answer to a fetch can't be read: %w", c.err)
	}
	return res, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

var (
	_ protocol.RawExchanger  = (*fetchRequest)(nil)
	_ protocol.BrokerMessage = (*fetchRequest)(nil)
)
