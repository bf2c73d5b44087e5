package kafkasource

import (
	"encoding/binary"
	"errors"
)

var errShort = errors.New("it ends too early")

// cursor reads Kafka's primitive types from bytes that nobody vouches for. The
// first error sticks, and every read after it gives zero.
type cursor struct {
	b   []byte
	err error
}

func (c *cursor) take(n int) []byte {
	if c.err != nil || n < 0 || n > len(c.b) {
		c.fail()
		return nil
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) fail() {
	if c.err == nil {
		c.err = errShort
	}
	c.b = nil
}

func (c *cursor) int8() int8 {
	if b := c.take(1); b != nil {
		return int8(b[0])
	}
	return 0
}

func (c *cursor) int16() int16 {
	if b := c.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (c *cursor) int32() int32 {
	if b := c.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (c *cursor) int64() int64 {
	if b := c.take(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// array gives the length of an array. A null array has none; one that claims
// more elements than there are bytes is an error before it is a loop.
func (c *cursor) array() int {
	n := int(c.int32())
	if n > len(c.b) {
		c.fail()
		return 0
	}
	return max(n, 0)
}

func (c *cursor) string() string {
	n := c.int16()
	if n < 0 {
		return ""
	}
	return string(c.take(int(n)))
}

func (c *cursor) bytes() []byte {
	n := c.int32()
	if n < 0 {
		return nil
	}
	return c.take(int(n))
}

func (c *cursor) varint() int64 {
	if c.err != nil {
		return 0
	}
	v, n := binary.Varint(c.b)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return v
}

// varbytes gives nil for null, and a non-nil slice for empty.
func (c *cursor) varbytes() []byte {
	n := c.varint()
	if n < 0 || c.err != nil {
		return nil
	}
	if n > int64(len(c.b)) {
		c.fail()
		return nil
	}
	if n == 0 {
		return []byte{}
	}
	return c.take(int(n))
}
