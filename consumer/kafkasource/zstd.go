package kafkasource

import "encoding/binary"

const (
	zstdMagic         = 0xfd2fb528
	zstdSkippable     = 0x184d2a50 // the last four bits are free
	zstdSingleSegment = 0x20
	zstdChecksum      = 0x04
)

// narrowed is the body of a zstd batch whose frames claim no more memory than a
// batch may take. The decoder reserves a frame's window before it decodes, up to
// half a gigabyte for ten bytes. But nothing refers back further than there is
// content, and of that there is no more than the batch may have: so a window that
// is larger, as the highest levels of compression write it, is read as one of that
// size. A frame that claims more content is refused.
func (d *decoder) narrowed(bt batch) ([]byte, error) {
	data, fits := bt.data, byte(0)
	for 1<<(10+fits) < d.maxBatch {
		fits++
	}
	short := func() ([]byte, error) { return nil, d.fail(bt.base, "zstd: %v", errShort) }
	patched := false
	for at := 0; at+4 <= len(data); {
		magic := binary.LittleEndian.Uint32(data[at:])
		at += 4
		if magic&^0xf == zstdSkippable {
			if at+4 > len(data) {
				return short()
			}
			at += 4 + int(binary.LittleEndian.Uint32(data[at:]))
			continue
		}
		if magic != zstdMagic {
			break // the decoder says so
		}
		if at >= len(data) {
			return short()
		}
		flags := data[at]
		at++
		single := flags&zstdSingleSegment != 0
		if !single {
			if at >= len(data) {
				return short()
			}
			if window := uint64(8+data[at]&7) << (7 + data[at]>>3); window > 1<<(10+fits) {
				if !patched {
					data, patched = append([]byte(nil), data...), true
				}
				data[at] = fits << 3
			}
			at++
		}
		at += [4]int{0, 1, 2, 4}[flags&3] // the dictionary's id
		size := [4]int{0, 2, 4, 8}[flags>>6]
		if size == 0 && single {
			size = 1
		}
		if at+size > len(data) {
			return short()
		}
		var content [8]byte
		copy(content[:], data[at:at+size])
		if n := binary.LittleEndian.Uint64(content[:]); n > uint64(d.maxBatch) {
			return nil, d.fail(bt.base, "decompressed it has more than the %d bytes that Config.MaxBatchBytes allows", d.maxBatch)
		}
		at += size
		for last := false; !last; {
			if at+3 > len(data) {
				return short()
			}
			block := int(data[at]) | int(data[at+1])<<8 | int(data[at+2])<<16
			at += 3
			last = block&1 != 0
			if n := block >> 3; block>>1&3 == 1 {
				at++ // one byte, so many times
			} else {
				at += n
			}
		}
		if flags&zstdChecksum != 0 {
			at += 4
		}
	}
	return data, nil
}
