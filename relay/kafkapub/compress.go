package kafkapub

import (
	"github.com/segmentio/kafka-go/compress"
)

// The values of [Config].Compression.
const (
	CompressionNone   = "none"
	CompressionGzip   = "gzip"
	CompressionSnappy = "snappy"
	CompressionLZ4    = "lz4"
	CompressionZstd   = "zstd"
)

// codecs are kafka-go's, which wrap github.com/klauspost/compress and
// github.com/pierrec/lz4 in the framings that brokers expect.
var codecs = map[string]compress.Codec{
	CompressionNone:   nil,
	CompressionGzip:   &compress.GzipCodec,
	CompressionSnappy: &compress.SnappyCodec,
	CompressionLZ4:    &compress.Lz4Codec,
	CompressionZstd:   &compress.ZstdCodec,
}

// codec is the compression in use; nil for none.
func (p *Publisher) codec() compress.Codec {
	if p.uncompressed.Load() {
		return nil
	}
	return codecs[p.config.Compression]
}

// dropCompression gives it up until a new publisher is made, and says so once.
func (p *Publisher) dropCompression(err error) {
	if p.uncompressed.CompareAndSwap(false, true) {
		p.config.Logger.Warn("broker refuses the compression; batches go out uncompressed from now on",
			"compression", p.config.Compression, "error", err)
	}
}

// compressed gives the batch with its records compressed, or buf itself if
// there is no codec or nothing is gained. The records are one stream behind the
// batch's own fields, which are never compressed; the lowest bits of the
// attributes say how to read it.
func compressed(buf []byte, codec compress.Codec) []byte {
	if codec == nil {
		return buf
	}
	out := appender{emptyBatch(len(buf))}
	w := codec.NewWriter(&out)
	_, err := w.Write(buf[atRecords:])
	if e := w.Close(); err == nil {
		err = e
	}
	// Nothing that writes to memory fails; should it all the same, the batch
	// as it was is as good.
	if err != nil || len(out.buf) >= len(buf) {
		reuse(out.buf)
		return buf
	}
	reuse(buf)
	out.buf[atAttributes+1] = byte(codec.Code())
	return out.buf
}

// appender is an io.Writer to the end of a slice.
type appender struct{ buf []byte }

// Write implements io.Writer.
func (a *appender) Write(p []byte) (int, error) {
	a.buf = append(a.buf, p...)
	return len(p), nil
}
