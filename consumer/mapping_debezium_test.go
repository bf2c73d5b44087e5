package consumer_test

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

// capturedRecord is one of testdata/debezium.json: what a Debezium with the
// configuration of docs/debezium, and the relay beside it, have published of the
// same rows, as it was read from Kafka. Of odd keys, of all that an event can
// have, of ends and new lives.
type capturedRecord struct {
	By      string       `json:"by"`
	Key     string       `json:"key"`
	Time    time.Time    `json:"time"`
	Headers [][2]*string `json:"headers"`
	Value   []byte       `json:"value"`
}

func (c capturedRecord) record() consumer.KafkaRecord {
	r := consumer.KafkaRecord{Key: []byte(c.Key), Value: c.Value, Time: c.Time}
	for _, h := range c.Headers {
		var value []byte
		if h[1] != nil {
			value = []byte(*h[1])
		}
		r.Headers = append(r.Headers, outbox.WireHeader{Key: *h[0], Value: value})
	}
	return r
}

// captured gives the records of Debezium, and the relay's by id.
func captured(t *testing.T) (debezium []consumer.KafkaRecord, relay map[string]outbox.Record) {
	t.Helper()
	text, err := os.ReadFile("testdata/debezium.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []capturedRecord
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	relay = map[string]outbox.Record{}
	for _, c := range all {
		if c.By == "debezium" {
			debezium = append(debezium, c.record())
			continue
		}
		d := consumer.Mapping(consumer.Wire).Delivery(consumer.Partition{Topic: "t"}, c.record())
		if d.Malformed != nil {
			t.Fatal(d.Malformed)
		}
		relay[d.ID.String()] = d.Record
	}
	if len(debezium) < 20 || len(debezium) != len(relay) {
		t.Fatalf("%d records of Debezium, %d of the relay", len(debezium), len(relay))
	}
	return debezium, relay
}

func readDebezium(r consumer.KafkaRecord) consumer.Delivery {
	return consumer.Mapping(consumer.Debezium(consumer.DebeziumConfig{})).Delivery(consumer.Partition{Topic: "t"}, r)
}

func TestWhatDebeziumReallySendsIsReadAsTheRelaysRecord(t *testing.T) {
	records, relay := captured(t)
	var null, empty, ends, lives int
	for _, r := range records {
		d := readDebezium(r)
		if want := relay[d.ID.String()]; d.Malformed != nil || !reflect.DeepEqual(d.Record, want) {
			t.Errorf("got  %+v, %v\nwant %+v", d.Record, d.Malformed, want)
		}
		switch {
		case d.Kind == outbox.KindEnd:
			ends++
		case d.Payload == nil:
			null++
		case len(d.Payload) == 0:
			empty++
		}
		if d.Prev != nil {
			lives++
		}
	}
	if null == 0 || empty == 0 || ends == 0 || lives == 0 {
		t.Errorf("%d tombstones, %d empty values, %d ends, %d new lives: want some of each", null, empty, ends, lives)
	}
}

// A JSON converter puts quotes around texts, and makes a word of null. Without
// one, quotes and that word are the event's own.
func TestHeadersOfAJSONConverterAreReadAsThoseOfThePlainOne(t *testing.T) {
	records, relay := captured(t)
	for _, r := range records {
		for i, h := range r.Headers {
			switch {
			case h.Value == nil:
				r.Headers[i].Value = []byte("null")
			case !slices.Contains([]string{"epoch", "token", "seq", "history", "prev_epoch", "prev_seq"}, h.Key):
				r.Headers[i].Value = quoted(t, string(h.Value))
			}
		}
		r.Key = quoted(t, string(r.Key))
		d := readDebezium(r)
		if want := relay[d.ID.String()]; d.Malformed != nil || !reflect.DeepEqual(d.Record, want) {
			t.Errorf("got  %+v, %v\nwant %+v", d.Record, d.Malformed, want)
		}
	}
}

func quoted(t *testing.T, v string) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Two keys that differ in quotes only are two streams: taken for one, the events
// of the second would be passed over as copies of the first's.
func TestKeysThatDifferInQuotesAreTwoStreamsThroughDebeziumToo(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	for _, key := range []string{"k", `"k"`, "null", `"null"`} {
		log.raw(debezium(event("t", key, 1)))
		log.raw(debezium(event("t", key, 2)))
	}
	cfg := b.config()
	cfg.Start, cfg.Mapping = consumer.FromOrigin, consumer.Debezium(consumer.DebeziumConfig{})
	b.upTo(log, cfg, 8)
	for _, key := range []string{"k", `"k"`, "null", `"null"`} {
		b.want(key, effects(key, 1, 2)...)
	}
}

// A record that was sent by another key than its stream's is in a partition
// that has nothing to do with it.
func TestADebeziumRecordThatWasSentByAnotherKeyIsQuarantined(t *testing.T) {
	good := debezium(event("t", "a", 2))
	if d := readDebezium(good); d.Malformed != nil {
		t.Fatal(d.Malformed)
	}
	for name, spoil := range map[string]func(consumer.KafkaRecord) consumer.KafkaRecord{
		"another key": func(r consumer.KafkaRecord) consumer.KafkaRecord { r.Key = []byte("b"); return r },
		"no key":      func(r consumer.KafkaRecord) consumer.KafkaRecord { r.Key = nil; return r },
		"a JSON key with its schema": func(r consumer.KafkaRecord) consumer.KafkaRecord {
			r.Key = []byte(`{"schema":{"type":"string"},"payload":"a"}`)
			return r
		},
		"no header":            without("key"),
		"a time that is none":  set("created_at", "yesterday"),
		"quotes around the id": set("id", `"`+event("t", "a", 2).ID.String()+`"`),
	} {
		if d := readDebezium(spoil(good)); (d.Malformed == nil) != (name == "quotes around the id") {
			t.Errorf("%s: %v", name, d.Malformed)
		}
	}
}

func TestWhatDebeziumSaysOfItselfIsNoHeaderOfTheEvent(t *testing.T) {
	r := with("__debezium.context.taskId", "0")(with("extra", "x")(debezium(event("t", "a", 2))))
	got := readDebezium(r).Headers
	if !slices.ContainsFunc(got, func(h outbox.Header) bool { return h.Name == "extra" }) || slices.ContainsFunc(got, func(h outbox.Header) bool { return strings.HasPrefix(h.Name, "__") }) {
		t.Errorf("headers %v", got)
	}
}

// The files that users take are those of the documentation, and what they send
// is what the mapping reads.
func TestTheConnectorsFileSendsTheColumnsThatTheMappingReads(t *testing.T) {
	text, err := os.ReadFile("../docs/debezium/connector.properties")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(strings.Split(string(text), "\n"), "transforms.outbox.table.fields.additional.placement="+consumer.DebeziumColumns) {
		t.Errorf("docs/debezium/connector.properties doesn't give additional.placement as %s", consumer.DebeziumColumns)
	}
}
