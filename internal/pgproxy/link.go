package pgproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// link is one client's connection and its counterpart to the server.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	once           sync.Once

	mu     sync.Mutex
	marked map[*drop]bool // orders whose marker the present transaction has shown
}

// maxFrame bounds what is kept of one message. PostgreSQL's own limit is 1 GB.
const maxFrame = 1 << 30

// Codes in place of a protocol version, by which a client asks for encryption.
const (
	sslRequest    = 80877103
	gssEncRequest = 80877104
)

var errFrame = errors.New("pgproxy: not a frame of the protocol")

func (l *link) cut() {
	l.once.Do(func() {
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

func (l *link) run() {
	var both sync.WaitGroup
	both.Go(func() { defer l.cut(); l.requests() })
	both.Go(func() { defer l.cut(); l.answers() })
	both.Wait()
}

// requests forwards what the client sends.
func (l *link) requests() {
	in := bufio.NewReader(l.client)
	if err := l.startup(in); err != nil {
		return
	}
	for {
		frame, err := readFrame(in, 1)
		if err != nil {
			return
		}
		l.mark(frame)
		if !l.forward(l.server, frame) {
			return
		}
	}
}

// startup forwards the first message, which has no type, and refuses
// encryption before it.
func (l *link) startup(in *bufio.Reader) error {
	for {
		frame, err := readFrame(in, 0)
		if err != nil || len(frame) < 8 {
			return errors.Join(err, errFrame)
		}
		switch binary.BigEndian.Uint32(frame[4:8]) {
		case sslRequest, gssEncRequest:
			if !l.forward(l.client, []byte{'N'}) {
				return net.ErrClosed
			}
			continue
		}
		if !l.forward(l.server, frame) {
			return net.ErrClosed
		}
		return nil
	}
}

// answers forwards what the server sends, but for the one to be lost.
func (l *link) answers() {
	in := bufio.NewReader(l.server)
	for {
		frame, err := readFrame(in, 1)
		if err != nil {
			return
		}
		if frame[0] == 'C' && bytes.Equal(frame[5:], []byte("COMMIT\x00")) {
			if d := l.lose(); d != nil {
				if d.instead == nil {
					return
				}
				frame = d.instead
			}
		}
		if frame[0] == 'Z' && frame[5] == 'I' { // ready for the next transaction
			l.mu.Lock()
			clear(l.marked)
			l.mu.Unlock()
		}
		if !l.forward(l.client, frame) {
			return
		}
	}
}

// mark notes that the client's message contains the marker of the order.
func (l *link) mark(frame []byte) {
	l.proxy.mu.Lock()
	d := l.proxy.drop
	l.proxy.mu.Unlock()
	if d == nil || !bytes.Contains(frame, []byte(d.marker)) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marked[d] = true
}

// lose says by which order the answer to COMMIT that has come is to be lost; nil if
// it isn't.
func (l *link) lose() *drop {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	d := l.proxy.drop
	if d == nil {
		return nil
	}
	l.mu.Lock()
	mine := d.marker == "" || l.marked[d]
	l.mu.Unlock()
	if !mine {
		return nil
	}
	l.proxy.drop = nil
	if d.instead == nil {
		l.cut() // before anybody is told
	}
	close(d.done)
	return d
}

func (l *link) forward(to net.Conn, frame []byte) bool {
	if !l.proxy.pass() {
		return false
	}
	_, err := to.Write(frame)
	return err == nil
}

// readFrame reads a message: prefix bytes of type, four bytes of length, which
// count themselves, and the body.
func readFrame(in *bufio.Reader, prefix int) ([]byte, error) {
	head, err := in.Peek(prefix + 4)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[prefix:]))
	if n < 4 || n > maxFrame {
		return nil, errFrame
	}
	frame := make([]byte, prefix+n)
	_, err = io.ReadFull(in, frame)
	return frame, err
}
