package outbox

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// The names of the headers of a record: CloudEvents 1.0, Kafka protocol
// binding, binary content mode (section 3.2), and our extension attributes.
// docs/wire.md is the contract for other languages.
const (
	headerSpecVersion = "ce_specversion"
	headerID          = "ce_id"
	headerSource      = "ce_source"
	headerType        = "ce_type"
	headerTime        = "ce_time"
	headerSubject     = "ce_subject"
	headerContentType = "content-type"
	headerKey         = "ce_fencekey"
	headerEpoch       = "ce_fenceepoch"
	headerToken       = "ce_fencetoken"
	headerSeq         = "ce_fenceseq"
	headerStream      = "ce_fencestream"
	headerKind        = "ce_fencekind"
	headerFrom        = "ce_fencefrom"
	headerHistory     = "ce_fencehistory"
	headerPrev        = "ce_fenceprev"

	specVersion = "1.0"
	wireTime    = "2006-01-02T15:04:05.000000Z"
	// Positions are decimal text of this width, so that they sort as text.
	digits = 20
)

// MaxNumber is the largest epoch, token and seq that a record may have: 2^62.
// No producer gets near it, by counting or by its clock, and a consumer can
// always name the next position, and a range that ends with this one.
const MaxNumber = int64(1) << 62

// MaxSkip is how many events a skip marker may stand for: 2^30. All of them
// waited in one outbox, for one key, when they were given up, which no outbox
// gets near. A consumer that believed a larger range would take everything that
// the key ever publishes for given up.
const MaxSkip = int64(1) << 30

// WireHeader is a header of a Kafka record.
type WireHeader struct {
	Key   string
	Value []byte
}

// MalformedError is returned by [ParseWire] for a record that does not carry
// what docs/wire.md asks for. Such a record can't be placed in a stream: a
// consumer quarantines it.
type MalformedError struct {
	// Header is the header at fault, or "key" for the Kafka key.
	Header string
	// Reason says what is wrong with it.
	Reason string
}

// Error implements error.
func (e *MalformedError) Error() string {
	return fmt.Sprintf("outbox: malformed record: %s %s", e.Header, e.Reason)
}

// AppendWireHeaders appends the headers of r as they travel. The same record
// gives the same bytes each time: a republished copy is byte-identical.
func AppendWireHeaders(dst []WireHeader, r *Record) []WireHeader {
	dst, _ = appendWireHeaders(dst, nil, r)
	return dst
}

// WireEncoder makes the headers of one record after the other in memory that
// it keeps. The zero value is ready; it is for one goroutine.
type WireEncoder struct {
	headers []WireHeader
	values  []byte
}

// Headers gives what [AppendWireHeaders] does, until the next call.
func (e *WireEncoder) Headers(r *Record) []WireHeader {
	e.headers, e.values = appendWireHeaders(e.headers[:0], e.values[:0], r)
	return e.headers
}

// appendWireHeaders puts the values into buf, or a larger one.
func appendWireHeaders(dst []WireHeader, buf []byte, r *Record) ([]WireHeader, []byte) {
	// One buffer for all values. It is sized so that it never moves while
	// values point into it; nor can a value grow into its neighbour.
	size := len(specVersion) + 36 + len(r.Source) + len(r.Type) + len(wireTime) + len(r.Subject) + len(r.ContentType) + len(r.Key) + 7*digits + 1 + len(r.Stream) + len(r.Kind)
	for _, h := range r.Headers {
		size += len(h.Value)
	}
	if cap(buf) < size {
		buf = make([]byte, 0, size)
	}
	add := func(name string, from int) {
		dst = append(dst, WireHeader{name, buf[from:len(buf):len(buf)]})
	}
	text := func(name, v string) {
		from := len(buf)
		buf = append(buf, v...)
		add(name, from)
	}
	number := func(name string, v int64) {
		from := len(buf)
		buf = appendPadded(buf, v)
		add(name, from)
	}
	text(headerSpecVersion, specVersion)
	from := len(buf)
	buf = appendUUID(buf, r.ID)
	add(headerID, from)
	text(headerSource, r.Source)
	text(headerType, r.Type)
	from = len(buf)
	buf = r.CreatedAt.UTC().AppendFormat(buf, wireTime)
	add(headerTime, from)
	if r.Subject != "" {
		text(headerSubject, r.Subject)
	}
	if r.ContentType != "" {
		text(headerContentType, r.ContentType)
	}
	text(headerKey, r.Key)
	number(headerEpoch, r.Epoch)
	number(headerToken, r.Token)
	number(headerSeq, r.Seq)
	text(headerStream, r.Stream)
	if r.Kind != KindData && r.Kind != "" {
		text(headerKind, string(r.Kind))
	}
	if r.Kind == KindSkip {
		number(headerFrom, r.From)
	}
	if r.History != 0 {
		number(headerHistory, r.History)
	}
	if r.Prev != nil {
		from = len(buf)
		buf = appendPadded(buf, r.Prev.Epoch)
		buf = append(buf, '/')
		buf = appendPadded(buf, r.Prev.Seq)
		add(headerPrev, from)
	}
	for _, h := range r.Headers {
		text(h.Name, h.Value)
	}
	return dst, buf
}

// WireValue is the value of the record's Kafka record: nil for a tombstone,
// and never nil for a marker, which must not delete anything downstream.
func WireValue(r *Record) []byte {
	if r.Kind == KindSkip || r.Kind == KindEnd {
		return []byte{}
	}
	return r.Payload
}

// ParseWire reads a Kafka record. ts is its Kafka timestamp. Every reserved
// header is untrusted input: missing, doubled, out of range or contradictory
// ones give a [*MalformedError]. The result keeps references to value.
func ParseWire(topic string, key, value []byte, ts time.Time, headers []WireHeader) (Record, error) {
	r := Record{Topic: topic, Kind: KindData, Payload: value, CreatedAt: ts}
	p := parser{seen: make(map[string][]byte, len(headers))}
	for _, h := range headers {
		if !reservedHeader(h.Key) {
			r.Headers = append(r.Headers, Header{h.Key, string(h.Value)})
			continue
		}
		name := strings.ToLower(h.Key)
		if _, twice := p.seen[name]; twice {
			return r, &MalformedError{name, "is there twice"}
		}
		p.seen[name] = h.Value
	}
	if v := p.text(headerSpecVersion, true); p.err == nil && v != specVersion {
		p.fail(headerSpecVersion, fmt.Sprintf("is %.20q, want %q", v, specVersion))
	}
	if v := p.text(headerID, true); p.err == nil {
		id, err := uuid.Parse(v)
		if err != nil || len(v) != 36 {
			p.fail(headerID, fmt.Sprintf("is %.40q, want a UUID", v))
		}
		r.ID = id
	}
	r.Source = p.text(headerSource, true)
	r.Type = p.text(headerType, true)
	r.Subject = p.text(headerSubject, false)
	r.ContentType = p.text(headerContentType, false)
	if v := p.text(headerTime, false); v != "" && p.err == nil {
		t, err := time.Parse(time.RFC3339Nano, v)
		if err != nil {
			p.fail(headerTime, fmt.Sprintf("is %.40q, want a time as in RFC 3339", v))
		}
		r.CreatedAt = t
	}
	r.Key = p.text(headerKey, true)
	if p.err == nil && !bytes.Equal(key, []byte(r.Key)) {
		p.fail("key", "of the Kafka record differs from "+headerKey)
	}
	r.Stream = p.text(headerStream, true)
	if p.err == nil && !IsTopic(r.Stream) {
		p.fail(headerStream, fmt.Sprintf("is %.60q, want a topic: 1 to 249 of a-z A-Z 0-9 . _ -", r.Stream))
	}
	r.Epoch = p.number(headerEpoch, true)
	r.Token = p.number(headerToken, true)
	r.Seq = p.number(headerSeq, true)
	p.kind(&r)
	p.start(&r)
	return r, p.err
}

// parser keeps the first error, so that ParseWire reads top to bottom.
type parser struct {
	seen map[string][]byte
	err  error
}

func (p *parser) fail(header, reason string) {
	if p.err == nil {
		p.err = &MalformedError{header, reason}
	}
}

func (p *parser) text(name string, required bool) string {
	v, ok := p.seen[name]
	switch {
	case !ok && !required:
	case !ok:
		p.fail(name, "is missing")
	case len(v) == 0 && required:
		p.fail(name, "is empty")
	case !utf8.Valid(v):
		p.fail(name, "is not UTF-8")
	}
	return string(v)
}

// number reads decimal text: ASCII digits only, no sign, at most 20 of them,
// from 1 to MaxNumber.
func (p *parser) number(name string, required bool) int64 {
	v, ok := p.seen[name]
	if !ok && !required {
		return 0
	}
	if !ok {
		p.fail(name, "is missing")
		return 0
	}
	n, reason := parseNumber(v)
	if reason != "" {
		p.fail(name, reason)
	}
	return n
}

func parseNumber(v []byte) (int64, string) {
	if len(v) == 0 || len(v) > digits || bytes.ContainsFunc(v, func(c rune) bool { return c < '0' || c > '9' }) {
		return 0, fmt.Sprintf("is %.40q, want 1 to %d decimal digits", v, digits)
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < 1 || n > MaxNumber {
		return 0, fmt.Sprintf("is %.40q, want a number from 1 to 2^62", v)
	}
	return n, ""
}

func (p *parser) kind(r *Record) {
	v, ok := p.seen[headerKind]
	from := p.number(headerFrom, false)
	switch {
	case !ok:
	case string(v) == string(KindSkip):
		r.Kind = KindSkip
		switch {
		case from == 0:
			p.fail(headerFrom, "is missing on a skip marker")
		case from > r.Seq:
			p.fail(headerFrom, fmt.Sprintf("is %d, beyond %s %d", from, headerSeq, r.Seq))
		case r.Seq-from >= MaxSkip:
			p.fail(headerFrom, fmt.Sprintf("is %d, more than 2^30 events before %s %d", from, headerSeq, r.Seq))
		}
		r.From = from
	case string(v) == string(KindEnd):
		r.Kind = KindEnd
	default:
		p.fail(headerKind, fmt.Sprintf("is %.20q, want %q, %q or nothing", v, KindSkip, KindEnd))
	}
	if from != 0 && r.Kind != KindSkip {
		p.fail(headerFrom, "is only for skip markers")
	}
	if r.Kind != KindData {
		r.Payload = []byte{}
	}
}

// start reads what only the first record of a life carries.
func (p *parser) start(r *Record) {
	r.History = p.number(headerHistory, false)
	first := r.First() == 1
	if r.History != 0 && !first {
		p.fail(headerHistory, "is only for the first record of a life")
	}
	if first && r.History == 0 {
		p.fail(headerHistory, "is missing on the first record of a life")
	}
	if r.History > r.Epoch {
		p.fail(headerHistory, fmt.Sprintf("is %d, above %s %d", r.History, headerEpoch, r.Epoch))
	}
	v, ok := p.seen[headerPrev]
	if !ok {
		return
	}
	if !first {
		p.fail(headerPrev, "is only for the first record of a life")
	}
	a, b, _ := bytes.Cut(v, []byte{'/'})
	epoch, bad1 := parseNumber(a)
	seq, bad2 := parseNumber(b)
	if bad1 != "" || bad2 != "" {
		p.fail(headerPrev, fmt.Sprintf("is %.50q, want epoch/seq", v))
		return
	}
	if epoch >= r.Epoch {
		p.fail(headerPrev, fmt.Sprintf("names epoch %d, which is not before %s %d", epoch, headerEpoch, r.Epoch))
	}
	r.Prev = &Prev{epoch, seq}
}

// IsReserved tells whether a header's name is one that a producer's own header
// can't have: those of the record itself, which come from the event's fields, in
// whatever case.
func IsReserved(name string) bool { return reservedHeader(name) }

// reservedHeader: the CloudEvents attributes and content-type are ours to
// write; a producer's header of such a name is refused at append. Header names
// are compared without case, since bridges to HTTP fold it.
func reservedHeader(name string) bool {
	return len(name) >= 3 && strings.EqualFold(name[:3], "ce_") || strings.EqualFold(name, headerContentType)
}

func appendUUID(dst []byte, id uuid.UUID) []byte {
	const hex = "0123456789abcdef"
	for i, c := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hex[c>>4], hex[c&15])
	}
	return dst
}

// appendPadded writes a number with all its digits. Each record has several, so
// it stops dividing where nothing is left.
func appendPadded(dst []byte, v int64) []byte {
	n := len(dst)
	dst = append(dst, "00000000000000000000"...)
	for i := n + digits - 1; v > 0; i-- {
		dst[i] = byte('0' + v%10)
		v /= 10
	}
	return dst
}
