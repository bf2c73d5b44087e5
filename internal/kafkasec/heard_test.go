package kafkasec

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// says is a connection to something that says this and then nothing.
func says(t *testing.T, text string, parts int) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	_ = near.SetDeadline(time.Now().Add(30 * time.Second))
	go func() {
		for i := range parts {
			_, _ = io.WriteString(far, text[len(text)*i/parts:len(text)*(i+1)/parts])
		}
		_ = far.Close()
	}()
	return near
}

func TestAnAnswerThatIsNotABrokersIsToldAndNotDecoded(t *testing.T) {
	for name, text := range map[string]string{
		"PostgreSQL":   "E\x00\x00\x00\x8eSFATAL\x00VFATAL\x00C0A000\x00Munsupported frontend protocol\x00",
		"a web server": "HTTP/1.1 400 Bad Request\r\n\r\n",
		"TLS":          "\x15\x03\x03\x00\x02\x02\x46",
		"SSH":          "SSH-2.0-OpenSSH_9.2\r\n",
		"too short":    "\x00\x00\x00\x02\x00\x00",
	} {
		for _, parts := range []int{1, len(text)} {
			c := Heard(says(t, text, parts))
			for range 2 { // whoever asks again hears it again
				if n, err := c.Read(make([]byte, 100)); n != 0 || !errors.Is(err, ErrNotKafka) {
					t.Errorf("%s: %d bytes, %v", name, n, err)
				}
			}
		}
	}
}

func TestAnAnswerOfABrokerIsReadAsItIs(t *testing.T) {
	text := "\x00\x00\x00\x06\x00\x00\x00\x01okHTTP and what follows, of any length"
	for _, parts := range []int{1, 3, len(text)} {
		for _, size := range []int{1, 3, 4, 5, 1000} {
			c := Heard(says(t, text, parts))
			var got []byte
			b := make([]byte, size)
			for {
				n, err := c.Read(b)
				got = append(got, b[:n]...)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if string(got) != text {
				t.Errorf("in %d parts, %d bytes at a time: %q", parts, size, got)
			}
		}
	}
	if _, err := Heard(says(t, "", 1)).Read(make([]byte, 9)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection that ends: %v", err)
	}
	if _, err := Heard(says(t, "-E", 1)).Read(make([]byte, 9)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a connection that ends in the size: %v", err)
	}
}
