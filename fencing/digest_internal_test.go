package fencing

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/big"
	"os"
	"strings"
	"testing"
)

// vectors is testdata/digest.json, which other languages read as well.
type vectors struct {
	Digests []struct {
		Name      string `json:"name"`
		Algorithm string `json:"algorithm"`
		Type      string `json:"type"`
		Bytes     string `json:"bytes"`     // base64
		Canonical string `json:"canonical"` // base64, with sha256/jcs-strict/1
		Digest    string `json:"digest"`    // hex
	} `json:"digests"`
	Refused []struct {
		Name    string `json:"name"`
		Bytes   string `json:"bytes"` // base64
		Problem string `json:"problem"`
		Path    string `json:"path"`
	} `json:"refused"`
}

func readVectors(t testing.TB) (v vectors) {
	t.Helper()
	text, err := os.ReadFile("testdata/digest.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Digests) < 20 || len(v.Refused) < 20 {
		t.Fatalf("%d and %d vectors", len(v.Digests), len(v.Refused))
	}
	return v
}

func decode64(t testing.TB, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDigestsAreThoseOfTheVectorsForOtherLanguages(t *testing.T) {
	t.Parallel()
	for _, v := range readVectors(t).Digests {
		c := Content{Step: "not in it", Type: v.Type, Bytes: decode64(t, v.Bytes), Algorithm: Algorithm(v.Algorithm)}
		digest, err := c.Digest()
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
		} else if got := hex.EncodeToString(digest[:]); got != v.Digest {
			t.Errorf("%s: digest %s, want %s", v.Name, got, v.Digest)
		}
		if c.Algorithm != StrictJSON {
			continue
		}
		if canonical, err := canonicalJSON(c.Bytes); err != nil || !bytes.Equal(canonical, decode64(t, v.Canonical)) {
			t.Errorf("%s: canonical form %s (%v), want %s", v.Name, canonical, err, decode64(t, v.Canonical))
		}
	}
}

func TestStrictJSONRefusesWhatItsCanonicalFormWouldMergeAndNamesThePlace(t *testing.T) {
	t.Parallel()
	problems := map[string]bool{}
	for _, v := range readVectors(t).Refused {
		c := Content{Type: "application/json", Bytes: decode64(t, v.Bytes), Algorithm: StrictJSON}
		_, err := c.Digest()
		var e *JSONError
		if !errors.As(err, &e) || !errors.Is(err, ErrInvalid) || e.Problem != v.Problem || e.Path != v.Path {
			t.Errorf("%s: %v, want %s at %q", v.Name, err, v.Problem, v.Path)
			continue
		}
		if e.Detail == "" || e.Remedy == "" || !strings.Contains(err.Error(), e.Remedy) || e.Offset > len(c.Bytes) {
			t.Errorf("%s: the error does not say what helps: %v", v.Name, err)
		}
		if err := c.validate(); err == nil {
			t.Errorf("%s: a commit would accept it", v.Name)
		}
		if _, err := (Content{Bytes: c.Bytes}).Digest(); err != nil {
			t.Errorf("%s: raw bytes are refused, too: %v", v.Name, err)
		}
		problems[v.Problem] = true
	}
	for _, p := range []string{"syntax", "encoding", "surrogate", "duplicate name", "integer", "precision", "overflow", "depth"} {
		if !problems[p] {
			t.Errorf("no vector is refused for its %s", p)
		}
	}
}

func TestAnErrorAboutStrictJSONRepeatsNoValue(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"a":9007199254740993}`, `{"a":"9007199254740993`, `[9007199254740993e400]`, `{"a":0.90071992547409931}`, `["9007199254740993\ud800"]`, `9007199254740993 9007199254740993`} {
		if _, err := canonicalJSON([]byte(text)); err == nil || strings.Contains(strings.ReplaceAll(err.Error(), "±9007199254740991", ""), "90071992547409") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestAnUnknownAlgorithmIsRefused(t *testing.T) {
	t.Parallel()
	if err := (Content{Algorithm: "md5"}).validate(); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

// value is what a document means, by another parser and with exact numbers.
func value(t testing.TB, data []byte) any {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("the standard library does not read what was accepted: %q: %v", data, err)
	}
	return v
}

func same(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name, v := range a {
			if w, ok := b[name]; !ok || !same(v, w) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !same(a[i], b[i]) {
				return false
			}
		}
		return true
	case json.Number:
		b, ok := b.(json.Number)
		if !ok {
			return false
		}
		// A zero first: with a huge exponent it is more than Rat reads in time.
		if zero(a) || zero(b) {
			return zero(a) && zero(b)
		}
		x, ok1 := new(big.Rat).SetString(a.String())
		y, ok2 := new(big.Rat).SetString(b.String())
		return ok1 && ok2 && x.Cmp(y) == 0
	}
	return a == b
}

func zero(n json.Number) bool {
	mantissa, _, _ := strings.Cut(strings.ToLower(n.String()), "e")
	return strings.Trim(mantissa, "-.0") == ""
}

// spell writes a value in another way: names in the order of a map, everything
// escaped, spaces between, numbers with an exponent.
func spell(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case map[string]any:
		b.WriteString("{ ")
		first := true
		for name, member := range v {
			if !first {
				b.WriteString("\t,\n")
			}
			first = false
			spell(b, name)
			b.WriteString(" :\r")
			spell(b, member)
		}
		b.WriteString(" }")
	case []any:
		b.WriteString("[ ")
		for i, member := range v {
			if i > 0 {
				b.WriteString(" ,")
			}
			spell(b, member)
		}
		b.WriteString("\n]")
	case string:
		b.WriteByte('"')
		for _, r := range v {
			if r > 0xffff {
				b.WriteRune(r)
				continue
			}
			const digits = "0123456789ABCDEF"
			b.WriteString(`\u`)
			for shift := 12; shift >= 0; shift -= 4 {
				b.WriteByte(digits[r>>shift&15])
			}
		}
		b.WriteByte('"')
	case json.Number:
		b.WriteString(v.String())
		if !strings.ContainsAny(v.String(), "eE") {
			if !strings.Contains(v.String(), ".") {
				b.WriteByte('.')
			}
			b.WriteString("000E+00")
		}
	default:
		text, _ := json.Marshal(v)
		b.Write(text)
	}
}

// FuzzStrictJSON holds for every document that is accepted: its canonical form
// is of the same value, exactly; so documents of one canonical form are of one
// value. And a document that spells the same value otherwise has the same one.
func FuzzStrictJSON(f *testing.F) {
	v := readVectors(f)
	for _, x := range v.Digests {
		if x.Algorithm == string(StrictJSON) {
			f.Add(decode64(f, x.Bytes))
		}
	}
	for _, x := range v.Refused {
		if b := decode64(f, x.Bytes); len(b) < 200 {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		canonical, err := canonicalJSON(data)
		if err != nil {
			return
		}
		meant := value(t, data)
		if !same(meant, value(t, canonical)) {
			t.Fatalf("%q has the canonical form %q, which is of another value", data, canonical)
		}
		if again, err := canonicalJSON(canonical); err != nil || !bytes.Equal(again, canonical) {
			t.Fatalf("the canonical form %q is not its own: %q, %v", canonical, again, err)
		}
		var other bytes.Buffer
		spell(&other, meant)
		if respelt, err := canonicalJSON(other.Bytes()); err != nil || !bytes.Equal(respelt, canonical) {
			t.Fatalf("%q and %q are one value with two canonical forms: %q and %q, %v", data, other.Bytes(), canonical, respelt, err)
		}
	})
}
