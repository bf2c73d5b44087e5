package fencing

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// JSONError says why StrictJSON refuses a content: it is not JSON, or its
// canonical form would be that of another value, too. It matches ErrInvalid.
// It names members, and repeats no value.
type JSONError struct {
	// Problem is one of "syntax", "encoding", "surrogate", "duplicate name",
	// "integer", "precision", "overflow", "depth".
	Problem string
	// Path is the JSON pointer (RFC 6901) of the value. Empty for the whole.
	Path string
	// Offset is the byte at which it was found, from 0.
	Offset int
	// Detail says what is wrong there, and Remedy what helps.
	Detail, Remedy string
}

// Error names the place, what is wrong there and what helps.
func (e *JSONError) Error() string {
	path := e.Path
	if path == "" {
		path = "the top"
	}
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	return fmt.Sprintf("fencing: content is not strict JSON: at %s (byte %d): %s: %s", strconv.QuoteToGraphic(path), e.Offset, e.Detail, e.Remedy)
}

// Unwrap gives ErrInvalid.
func (e *JSONError) Unwrap() error { return ErrInvalid }

// The remedies that more than one place names.
const (
	useRaw       = "commit under RawBytes"
	asText       = "write the number as a string, or " + useRaw
	mendProducer = "mend what wrote it, or " + useRaw
)

// maxJSONDepth is the number of arrays and objects that may stand inside one
// another.
const maxJSONDepth = 256

// maxSafeInteger is the largest integer n of which neither n nor n + 1 shares
// its double with another integer.
const maxSafeInteger = 1<<53 - 1

// canonicalJSON gives the RFC 8785 form of data. Canonical JSON knows numbers
// as doubles only, and readers differ in what they do about a name that comes
// twice; so what it would merge is refused before: two contents have the same
// canonical form only if they are the same value, numbers being compared as
// decimal numbers.
func canonicalJSON(data []byte) ([]byte, error) {
	s := &jsonScanner{data: data}
	if err := s.document(); err != nil {
		return nil, err
	}
	canonical, err := jcs.Transform(data)
	if err != nil { // its text may repeat a value
		return nil, &JSONError{Problem: "syntax", Detail: "the canonicaliser refuses what the checks before it accept", Remedy: useRaw}
	}
	return canonical, nil
}

// jsonScanner checks a document against RFC 8259's grammar and the rules above.
type jsonScanner struct {
	data  []byte
	i     int
	depth int
	path  []string // names, unescaped, and indexes of the values that are being read
}

func (s *jsonScanner) document() error {
	// A whole look first: inside of strings any byte sequence could hide.
	if !utf8.Valid(s.data) {
		for s.i < len(s.data) {
			r, n := utf8.DecodeRune(s.data[s.i:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			s.i += n
		}
		return s.fail("encoding", "the text is not UTF-8", "encode it as UTF-8, or "+useRaw)
	}
	if err := s.value(); err != nil {
		return err
	}
	if s.space(); s.i < len(s.data) {
		return s.syntax("something follows the end of the value")
	}
	return nil
}

func (s *jsonScanner) value() error {
	s.space()
	switch c := s.peek(); {
	case c == '{':
		return s.object()
	case c == '[':
		return s.array()
	case c == '"':
		_, err := s.text()
		return err
	case c == '-', '0' <= c && c <= '9':
		return s.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(s.data[s.i:], []byte(word)) {
			s.i += len(word)
			return nil
		}
	}
	return s.syntax("a value is missing")
}

func (s *jsonScanner) enter() error {
	if s.depth == maxJSONDepth {
		return s.fail("depth", fmt.Sprintf("more than %d arrays and objects stand inside one another", maxJSONDepth), "flatten it, or "+useRaw)
	}
	s.depth++
	s.i++ // the bracket
	s.space()
	return nil
}

func (s *jsonScanner) leave() {
	s.depth--
	s.i++
}

// member reads the value at a name or index of the present object or array.
func (s *jsonScanner) member(name string) error {
	s.path = append(s.path, name)
	if err := s.value(); err != nil {
		return err
	}
	s.path = s.path[:len(s.path)-1]
	s.space()
	return nil
}

func (s *jsonScanner) object() error {
	if err := s.enter(); err != nil {
		return err
	}
	seen := map[string]bool{}
	for s.peek() != '}' {
		if len(seen) > 0 {
			if s.peek() != ',' {
				return s.syntax("a comma or the end of the object is missing")
			}
			s.i++
			s.space()
		}
		if s.peek() != '"' {
			return s.syntax("a name is missing")
		}
		at := s.i
		name, err := s.text()
		if err != nil {
			return err
		}
		if seen[name] { // unescaped, so "a" and "\u0061" are the same
			s.i, s.path = at, append(s.path, name)
			return s.fail("duplicate name", "the name comes twice in one object, and readers differ in which of the two they take", mendProducer)
		}
		seen[name] = true
		if s.space(); s.peek() != ':' {
			return s.syntax("a colon is missing behind the name")
		}
		s.i++
		if err := s.member(name); err != nil {
			return err
		}
	}
	s.leave()
	return nil
}

func (s *jsonScanner) array() error {
	if err := s.enter(); err != nil {
		return err
	}
	for n := 0; s.peek() != ']'; n++ {
		if n > 0 {
			if s.peek() != ',' {
				return s.syntax("a comma or the end of the array is missing")
			}
			s.i++
		}
		if err := s.member(strconv.Itoa(n)); err != nil {
			return err
		}
	}
	s.leave()
	return nil
}

// text reads a string and gives what it stands for.
func (s *jsonScanner) text() (string, error) {
	var b strings.Builder
	for s.i++; ; {
		switch c := s.peek(); {
		case s.i == len(s.data):
			return "", s.syntax("the end of a string is missing")
		case c < ' ':
			return "", s.syntax("a control character stands in a string without being escaped")
		case c == '"':
			s.i++
			return b.String(), nil
		case c != '\\':
			b.WriteByte(c)
			s.i++
		default:
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
		}
	}
}

func (s *jsonScanner) escape() (rune, error) {
	at := s.i
	s.i++
	c := s.peek()
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		s.i++
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		s.i = at
		return 0, s.syntax("an unknown escape stands in a string")
	}
	r, ok := s.hex()
	if !ok {
		s.i = at
		return 0, s.syntax(`\u is not followed by four hexadecimal digits`)
	}
	if r < 0xD800 || r > 0xDFFF {
		return r, nil
	}
	if r < 0xDC00 && s.peek() == '\\' && s.i+1 < len(s.data) && s.data[s.i+1] == 'u' {
		s.i++
		if low, ok := s.hex(); ok && 0xDC00 <= low && low <= 0xDFFF {
			return (r-0xD800)<<10 + (low - 0xDC00) + 0x10000, nil
		}
	}
	s.i = at
	return 0, s.fail("surrogate", "half of a surrogate pair is no character", mendProducer)
}

// hex reads the letter u and four digits.
func (s *jsonScanner) hex() (rune, bool) {
	if s.i+5 > len(s.data) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s.data[s.i+1:s.i+5]), 16, 16)
	s.i += 5
	return rune(n), err == nil
}

// number accepts what a double holds exactly, in the sense that its shortest
// decimal form is the very number that was written.
func (s *jsonScanner) number() error {
	at := s.i
	if s.peek() == '-' {
		s.i++
	}
	first := s.peek()
	if n := s.digits(); n == 0 || first == '0' && n > 1 {
		s.i = at
		return s.syntax("a number does not begin with 0 before other digits, and has some")
	}
	if s.peek() == '.' {
		if s.i++; s.digits() == 0 {
			return s.syntax("a digit is missing behind the point")
		}
	}
	if s.peek()|0x20 == 'e' {
		if s.i++; s.peek() == '+' || s.peek() == '-' {
			s.i++
		}
		if s.digits() == 0 {
			return s.syntax("a digit is missing in the exponent")
		}
	}
	literal := string(s.data[at:s.i])
	end := s.i
	s.i = at
	double, err := strconv.ParseFloat(literal, 64)
	if err != nil { // the grammar is right, so it is the range
		return s.fail("overflow", "the number is beyond what a double holds", asText)
	}
	if double >= maxSafeInteger+1 || double <= -maxSafeInteger-1 { // from there on all doubles are integers
		return s.fail("integer", fmt.Sprintf("the number is an integer beyond ±%d, from where on several share one double", int64(maxSafeInteger)), asText)
	}
	if decimalOf(literal) != decimalOf(strconv.FormatFloat(double, 'e', -1, 64)) {
		return s.fail("precision", "the number has more digits than a double holds", asText)
	}
	s.i = end
	return nil
}

// decimal is digits · 10^exponent, with neither leading nor trailing zeros; the
// zero value for zero, whatever its sign.
type decimal struct {
	negative bool
	digits   string
	exponent int
}

// decimalOf reads a number of JSON's grammar that does not overflow a double. So
// an exponent that is too long for an int is a zero's, where it does not count,
// or that of a number too small, whose digits already tell it from the zero
// that the double became.
func decimalOf(literal string) decimal {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(literal), "e")
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	e, _ := strconv.Atoi(exponent)
	e -= len(fraction)
	n := len(digits)
	digits = strings.TrimRight(digits, "0")
	if digits == "" {
		return decimal{}
	}
	return decimal{negative, digits, e + n - len(digits)}
}

func (s *jsonScanner) digits() (n int) {
	for '0' <= s.peek() && s.peek() <= '9' {
		s.i++
		n++
	}
	return n
}

func (s *jsonScanner) space() {
	for s.i < len(s.data) && (s.data[s.i] == ' ' || s.data[s.i] == '\t' || s.data[s.i] == '\n' || s.data[s.i] == '\r') {
		s.i++
	}
}

// peek gives the next byte, 0 at the end: no byte of the grammar is 0.
func (s *jsonScanner) peek() byte {
	if s.i < len(s.data) {
		return s.data[s.i]
	}
	return 0
}

func (s *jsonScanner) syntax(detail string) error { return s.fail("syntax", detail, mendProducer) }

func (s *jsonScanner) fail(problem, detail, remedy string) error {
	var path strings.Builder
	for _, name := range s.path {
		path.WriteByte('/')
		path.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
	}
	return &JSONError{Problem: problem, Path: path.String(), Offset: s.i, Detail: detail, Remedy: remedy}
}
