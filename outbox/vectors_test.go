package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"reflect"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

var update = flag.Bool("update", false, "write testdata/wire.json anew")

// vectors is testdata/wire.json, the examples of docs/wire.md for other
// languages.
type vectors struct {
	Records   []recordVector    `json:"records"`
	Malformed []malformedVector `json:"malformed"`
	Partition []partitionVector `json:"partition"`
	SkipIDs   []skipIDVector    `json:"skip_ids"`
}

// recordVector is a record and what it means.
type recordVector struct {
	Name    string        `json:"name"`
	Kafka   kafkaRecord   `json:"kafka"`
	Meaning recordMeaning `json:"meaning"`
}

// malformedVector is a record that must be refused, and the header at fault.
type malformedVector struct {
	Name   string      `json:"name"`
	Header string      `json:"header"`
	Kafka  kafkaRecord `json:"kafka"`
}

// kafkaRecord is what a Kafka client sees. Key, value and header values are
// bytes, written here as the text whose UTF-8 they are; value is null for a
// tombstone. A header whose value is not UTF-8 has null and the bytes in base64.
type kafkaRecord struct {
	Topic     string         `json:"topic"`
	Key       string         `json:"key"`
	Value     *string        `json:"value"`
	Timestamp int64          `json:"timestamp_ms"`
	Headers   []headerVector `json:"headers"`
}

// headerVector is a header as [name, value] or [name, null, base64].
type headerVector WireHeader

func (h headerVector) MarshalJSON() ([]byte, error) {
	if !utf8.Valid(h.Value) {
		return json.Marshal([]any{h.Key, nil, h.Value})
	}
	return json.Marshal([]any{h.Key, string(h.Value)})
}

func (h *headerVector) UnmarshalJSON(b []byte) error {
	var text *string
	if err := json.Unmarshal(b, &[]any{&h.Key, &text, &h.Value}); err != nil {
		return err
	}
	if text != nil {
		h.Value = []byte(*text)
	}
	return nil
}

type recordMeaning struct {
	ID          string      `json:"id"`
	Stream      string      `json:"stream"`
	Key         string      `json:"key"`
	Epoch       int64       `json:"epoch,string"`
	Token       int64       `json:"token,string"`
	Seq         int64       `json:"seq,string"`
	Kind        Kind        `json:"kind"`
	From        int64       `json:"from,string,omitempty"`
	History     int64       `json:"history,string,omitempty"`
	PrevEpoch   int64       `json:"prev_epoch,string,omitempty"`
	PrevSeq     int64       `json:"prev_seq,string,omitempty"`
	Type        string      `json:"type"`
	Source      string      `json:"source"`
	Subject     string      `json:"subject,omitempty"`
	ContentType string      `json:"content_type,omitempty"`
	CreatedAt   time.Time   `json:"created_at"`
	Headers     [][2]string `json:"headers,omitempty"`
}

// skipIDVector: the ce_id of the marker for the events from … of the one with
// the id event.
type skipIDVector struct {
	Event  string `json:"event"`
	From   int64  `json:"from,string"`
	Marker string `json:"marker"`
}

type partitionVector struct {
	Key     string `json:"key"`
	Murmur2 int32  `json:"murmur2"` // as Java prints it
	Of12    int    `json:"partition_of_12"`
	Shard   int    `json:"shard"` // partition of 64
}

func exampleRecords() []struct {
	name string
	r    Record
} {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	base := Record{
		ID: uuid.MustParse("0192f0c1-2b3c-7def-8123-456789abcdef"), Topic: "quakes", Stream: "quakes", Key: "catalogue/ci", Type: "quake.reported", Source: "fenceline",
		Subject: "ci40161279", ContentType: "application/json", Epoch: 1767322800123456, Token: 3, Seq: 42, Kind: KindData, CreatedAt: at, Payload: []byte(`{"mag":4.5}`),
	}
	edit := func(f func(*Record)) Record { r := base; f(&r); return r }
	return []struct {
		name string
		r    Record
	}{
		{"an event", base},
		{"the first event of a stream", edit(func(r *Record) { r.Seq, r.History = 1, 1767300000000000 })},
		{"the first event of a new life, whose predecessor is remembered", edit(func(r *Record) { r.Seq, r.History, r.Prev = 1, 1767300000000000, &Prev{1767312345678901, 17} })},
		{"a tombstone", edit(func(r *Record) { r.Payload = nil })},
		{"an empty payload", edit(func(r *Record) { r.Payload = []byte{} })},
		{"with headers of the producer's, one of them twice", edit(func(r *Record) {
			r.Headers = []Header{{"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, {"tenant", "ä"}, {"tenant", ""}}
		})},
		{"a key and a subject that are not ASCII", edit(func(r *Record) { r.Key, r.Subject = "katalog/süd", "日本" })},
		{"without subject and content type", edit(func(r *Record) { r.Subject, r.ContentType = "", "" })},
		{"a skip marker", Skip(&base, 40, at.Add(time.Hour))},
		{"a skip marker for the first event of a life", func() Record {
			first := edit(func(r *Record) { r.Seq, r.History, r.Prev = 1, 1767300000000000, &Prev{1767312345678901, 17} })
			return Skip(&first, 1, at.Add(time.Hour))
		}()},
		{"a skip marker for the first event of a life and more, which a reader takes too", edit(func(r *Record) {
			*r = Skip(r, 1, at.Add(time.Hour))
			r.History = 1767300000000000
		})},
		{"an end record", edit(func(r *Record) { r.Kind, r.Payload = KindEnd, []byte{} })},
		{"a copy in another topic", edit(func(r *Record) { r.Topic = "quakes.replay" })},
		{"the largest numbers", edit(func(r *Record) { r.Epoch, r.Token, r.Seq = MaxNumber, MaxNumber, MaxNumber })},
	}
}

func kafka(r *Record) kafkaRecord {
	k := kafkaRecord{Topic: r.Topic, Key: r.Key, Timestamp: r.CreatedAt.UnixMilli()}
	if v := WireValue(r); v != nil {
		text := string(v)
		k.Value = &text
	}
	for _, h := range AppendWireHeaders(nil, r) {
		k.Headers = append(k.Headers, headerVector(h))
	}
	return k
}

func meaning(r *Record) recordMeaning {
	m := recordMeaning{
		ID: r.ID.String(), Stream: r.Stream, Key: r.Key, Epoch: r.Epoch, Token: r.Token, Seq: r.Seq, Kind: r.Kind, From: r.From, History: r.History,
		Type: r.Type, Source: r.Source, Subject: r.Subject, ContentType: r.ContentType, CreatedAt: r.CreatedAt,
	}
	if r.Prev != nil {
		m.PrevEpoch, m.PrevSeq = r.Prev.Epoch, r.Prev.Seq
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, [2]string{h.Name, h.Value})
	}
	return m
}

// present is what the vectors should be by this code.
func present() (v vectors) {
	for _, e := range exampleRecords() {
		v.Records = append(v.Records, recordVector{e.name, kafka(&e.r), meaning(&e.r)})
	}
	for _, c := range malformed {
		k := kafkaRecord{Topic: "results", Key: "k", Value: new(string), Timestamp: 1767323045678}
		for _, h := range wire(c.change.apply()) {
			k.Headers = append(k.Headers, headerVector(h))
		}
		v.Malformed = append(v.Malformed, malformedVector{c.name, c.header, k})
	}
	for _, id := range []string{"0192f0c1-2b3c-7def-8123-456789abcdef", "00000000-0000-0000-0000-000000000000"} {
		for _, from := range []int64{1, 2, 40, MaxNumber} {
			m := Skip(&Record{ID: uuid.MustParse(id), Seq: from}, from, time.Time{})
			v.SkipIDs = append(v.SkipIDs, skipIDVector{id, from, m.ID.String()})
		}
	}
	for _, key := range []string{"a", "ab", "abc", "abcd", "abcde", "21", "foobar", "catalogue/ci", "catalogue/nc", "katalog/süd", "日本", "a-little-bit-longer-string"} {
		v.Partition = append(v.Partition, partitionVector{key, int32(Murmur2([]byte(key))), Partition([]byte(key), 12), Shard(key)})
	}
	return v
}

// text has one vector on each line.
func (v vectors) text(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	lines := func(name, end string, n int, line func(int) any) {
		b.WriteString(" \"" + name + "\": [\n")
		for i := range n {
			enc := json.NewEncoder(&b)
			enc.SetEscapeHTML(false)
			b.WriteString("  ")
			if err := enc.Encode(line(i)); err != nil {
				t.Fatal(err)
			}
			if i < n-1 {
				b.Truncate(b.Len() - 1)
				b.WriteString(",\n")
			}
		}
		b.WriteString(" ]" + end + "\n")
	}
	b.WriteString("{\n")
	lines("records", ",", len(v.Records), func(i int) any { return v.Records[i] })
	lines("malformed", ",", len(v.Malformed), func(i int) any { return v.Malformed[i] })
	lines("skip_ids", ",", len(v.SkipIDs), func(i int) any { return v.SkipIDs[i] })
	lines("partition", "", len(v.Partition), func(i int) any { return v.Partition[i] })
	b.WriteString("}\n")
	return b.Bytes()
}

// The file is the contract: what it says is what other languages have been
// written against. A change of it is a change of the wire.
func TestTheWireIsAsTheVectorsSay(t *testing.T) {
	want := present().text(t)
	const file = "testdata/wire.json"
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, want) {
		t.Error("testdata/wire.json differs from what the code writes: if that is meant, run go test ./outbox -run Vectors -update, and say so in the changelog")
	}
	// And read back, as another implementation would.
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	for _, c := range v.Records {
		r, err := parseVector(c.Kafka)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		if got := meaning(&r); !reflect.DeepEqual(got, c.Meaning) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.Name, got, c.Meaning)
		}
		if (r.Payload == nil) != (c.Kafka.Value == nil) {
			t.Errorf("%s: tombstone and empty value are confused", c.Name)
		}
	}
	for _, c := range v.Malformed {
		_, err := parseVector(c.Kafka)
		var m *MalformedError
		if !errors.As(err, &m) || m.Header != c.Header {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}

func parseVector(k kafkaRecord) (Record, error) {
	var hs []WireHeader
	for _, h := range k.Headers {
		hs = append(hs, WireHeader(h))
	}
	var value []byte
	if k.Value != nil {
		value = []byte(*k.Value)
	}
	return ParseWire(k.Topic, []byte(k.Key), value, time.UnixMilli(k.Timestamp), hs)
}
