package kafkasource

import (
	"bytes"
	"encoding/binary"
)

// xerialMagic begins the framing that Java producers put around snappy blocks: 16
// bytes, and then blocks, each behind its length.
var xerialMagic = []byte{130, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const xerialHeader = 16

// claims looks at what the batch says of its own size. Snappy's decoder takes the
// memory that a block claims before it looks at the block, and so does the framing's:
// four gigabytes for a batch of thirty bytes.
func (d *decoder) claims(bt batch) error {
	var total uint64
	block := func(b []byte) error {
		n, used := binary.Uvarint(b)
		if used <= 0 {
			return d.fail(bt.base, "snappy: a block has no length")
		}
		if total += min(n, 1<<40); total > uint64(d.maxBatch) {
			return d.fail(bt.base, "decompressed it has more than the %d bytes that Config.MaxBatchBytes allows", d.maxBatch)
		}
		return nil
	}
	if !bytes.HasPrefix(bt.data, xerialMagic) {
		return block(bt.data)
	}
	for b := bt.data[min(xerialHeader, len(bt.data)):]; len(b) > 0; {
		if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) {
			return d.fail(bt.base, "snappy: %v", errShort)
		}
		n := 4 + int(binary.BigEndian.Uint32(b))
		if err := block(b[4:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
