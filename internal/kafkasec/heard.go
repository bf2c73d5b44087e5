package kafkasec

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
)

// ErrNotKafka: what answers at an address speaks another protocol.
var ErrNotKafka = errors.New("what answers on this port is not Kafka")

// maxFirst bounds the first answer of a broker, which is about itself and the other
// brokers. A letter of anybody's greeting in its place is more than that.
const maxFirst = 16 << 20

// Heard gives a connection whose first answer must be as long as a broker's can
// be. Without it a client takes the first letters of whatever else listens there (a
// database, a web server) for a length, or for how many elements a list has, and
// ends its whole process for want of memory. On a connection with TLS it belongs
// inside of that.
func Heard(c net.Conn) net.Conn { return &heard{Conn: c} }

type heard struct {
	net.Conn
	size [4]byte
	have int // of the size that was read from the connection
	told int // of the size that was given to the reader

	refused bool
}

// Read implements net.Conn. As every connection's, it is for one goroutine.
func (h *heard) Read(b []byte) (int, error) {
	if h.told == len(h.size) || len(b) == 0 {
		return h.Conn.Read(b)
	}
	if h.have < len(h.size) {
		n, err := io.ReadFull(h.Conn, h.size[h.have:])
		if h.have += n; err != nil {
			return 0, err
		}
		if n := binary.BigEndian.Uint32(h.size[:]); n < 4 || n > maxFirst {
			h.refused = true
		}
	}
	if h.refused {
		return 0, ErrNotKafka
	}
	n := copy(b, h.size[h.told:])
	h.told += n
	return n, nil
}
