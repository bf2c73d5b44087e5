package verify

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/fenceline/fenceline/outbox"
)

// source says where something was seen.
type source byte

const (
	inOutbox source = iota + 1
	inTopic
	inHead
	inGuard
	aside // parked, dead or in quarantine
)

const (
	flagBehind  = 1 << iota // the relay's cursor has passed the row
	flagBlocked             // the guard waits
	flagFirst               // the row says that a life begins
)

// seen is one thing that was seen of a stream, without its payload.
type seen struct {
	source      source
	flags       byte
	kind        outbox.Kind
	stream, key string
	epoch       int64
	token       int64
	seq, from   int64 // from is seq, but on a skip marker
	prevEpoch   int64 // of a guard: where it began
	prevSeq     int64
	created     int64 // µs since 1970
	// topic, partition and offset say where the record lies; a row's offset is
	// its pos; a guard's partition is the consumer's number.
	topic     string
	partition int32
	offset    int64
	digest    [16]byte
	missed    string // a guard's
}

// spool spreads what was seen over files by the hash of the key.
type spool struct {
	files   []*os.File
	writers []*bufio.Writer
	buf     []byte
}

// maxBuckets keeps the open files below what every system allows.
const maxBuckets = 512

func newSpool(dir string, buckets int64) (*spool, error) {
	s := &spool{}
	for i := range max(1, min(buckets, maxBuckets)) {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("bucket-%03d", i)), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("verify: a file for what is read: %w", err)
		}
		s.files = append(s.files, f)
		s.writers = append(s.writers, bufio.NewWriterSize(f, 16<<10))
	}
	return s, nil
}

func (s *spool) close() {
	for _, f := range s.files {
		_ = f.Close()
	}
}

func (s *spool) add(v *seen) error {
	b := s.buf[:0]
	b = append(b, byte(v.source), v.flags)
	for _, t := range []string{string(v.kind), v.stream, v.key, v.topic, v.missed} {
		b = binary.AppendUvarint(b, uint64(len(t)))
		b = append(b, t...)
	}
	for _, n := range []int64{v.epoch, v.token, v.seq, v.from, v.prevEpoch, v.prevSeq, v.created, int64(v.partition), v.offset} {
		b = binary.AppendVarint(b, n)
	}
	b = append(b, v.digest[:]...)
	s.buf = b
	w := s.writers[int(outbox.Murmur2([]byte(v.key))%uint32(len(s.writers)))]
	var size [4]byte
	binary.LittleEndian.PutUint32(size[:], uint32(len(b)))
	if _, err := w.Write(size[:]); err != nil {
		return fmt.Errorf("verify: keep what was read: %w", err)
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("verify: keep what was read: %w", err)
	}
	return nil
}

// bucket gives what was added to bucket i, in the order in which it was.
func (s *spool) bucket(i int, f func(*seen)) error {
	if err := s.writers[i].Flush(); err != nil {
		return fmt.Errorf("verify: keep what was read: %w", err)
	}
	if _, err := s.files[i].Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("verify: read what was kept: %w", err)
	}
	in := bufio.NewReaderSize(s.files[i], 256<<10)
	var buf []byte
	shared := map[string]string{} // names of topics and kinds, each once
	for {
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("verify: read what was kept: %w", err)
		}
		n := int(binary.LittleEndian.Uint32(size[:]))
		if cap(buf) < n {
			buf = make([]byte, n)
		}
		buf = buf[:n]
		if _, err := io.ReadFull(in, buf); err != nil {
			return fmt.Errorf("verify: read what was kept: %w", err)
		}
		f(decodeSeen(buf, shared))
	}
}

func decodeSeen(b []byte, shared map[string]string) *seen {
	v := &seen{source: source(b[0]), flags: b[1]}
	b = b[2:]
	text := func() string {
		n, k := binary.Uvarint(b)
		t := b[k : k+int(n)]
		b = b[k+int(n):]
		if s, ok := shared[string(t)]; ok {
			return s
		}
		s := string(t)
		if len(shared) < 10_000 {
			shared[s] = s
		}
		return s
	}
	number := func() int64 {
		n, k := binary.Varint(b)
		b = b[k:]
		return n
	}
	v.kind = outbox.Kind(text())
	v.stream, v.key, v.topic, v.missed = text(), text(), text(), text()
	v.epoch, v.token, v.seq, v.from = number(), number(), number(), number()
	v.prevEpoch, v.prevSeq, v.created = number(), number(), number()
	v.partition, v.offset = int32(number()), number()
	copy(v.digest[:], b)
	return v
}
