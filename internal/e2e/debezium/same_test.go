//go:build debezium

package debezium

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/outbox"
)

var capture = flag.Bool("capture", false, "write the records as they came to consumer/testdata/debezium.json")

// everything is an event for each thing that an event can have.
func everything(topic string) []outbox.Event {
	return []outbox.Event{
		{Topic: topic, Type: "plain", Payload: []byte(`{"n":1}`)},
		{Topic: topic, Type: "with all", Subject: "ci40161279", Source: "urn:somebody", ContentType: "application/cbor", AggregateType: "quake", Payload: []byte{0, 255, 1, 222, 173, 0},
			Headers: []outbox.Header{{Name: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, {Name: "id", Value: "not the event's"}, {Name: "seq", Value: "77"}, {Name: "seq", Value: "ž \"quoted\" \\ 日本"}, {Name: "empty", Value: ""}}},
		{Topic: topic, Type: "tombstone"},
		{Topic: topic, Type: "empty", Payload: []byte{}},
		{Topic: topic, Type: `"in quotes"`, Subject: "null", Source: "null", ContentType: `"null"`, Payload: []byte("null")},
		{Topic: topic, Type: "true", Subject: "17", Source: `{"a": 1}`, ContentType: "1e9", Payload: []byte("null")},
		{Topic: topic, Type: " Zürich ", Subject: "日本 \u00a0", Source: "a\tb", Payload: []byte("x")},
	}
}

var oddKeys = []string{"k", `"k"`, "null", "17", " spaced ", "katalog/süd", `{"a":1}`, `["k"]`, "'", `\`}

// Of each event there is a copy of the relay's and one of Debezium's, some from
// its snapshot and some from the stream: a consumer reads the same of both.
func TestAnEventIsTheSameThroughDebeziumAsThroughTheRelay(t *testing.T) {
	s := newStand(t, 1)
	topic := s.topics[0]
	seed := func(when string) {
		for _, key := range oddKeys {
			lease := s.acquire(key, time.Minute)
			s.commit(lease, when, everything(topic)...)
			if when == "before" {
				_, err := lease.Close(t.Context())
				s.ok(err)
				_, err = s.fences.Open(t.Context(), key)
				s.ok(err)
			}
		}
	}
	seed("before")
	s.connect()
	seed("after")
	s.relay()
	type copies struct{ relay, debezium []*kgo.Record }
	rows := len(oddKeys) * (2*len(everything("")) + 1)
	s.eventually(func() bool { return s.published() >= int64(2*rows) }, func() string { return s.state() })
	all := kafkatest.Records(t, s.addr, topic)
	if len(all) != 2*rows {
		t.Errorf("%d records of %d events", len(all), rows)
	}
	byID := map[string]*copies{}
	for _, r := range all {
		id, ours := kafkatest.Header(r, "ce_id")
		if !ours {
			id, _ = kafkatest.Header(r, "id")
		}
		if byID[id] == nil {
			byID[id] = &copies{}
		}
		if ours {
			byID[id].relay = append(byID[id].relay, r)
		} else {
			byID[id].debezium = append(byID[id].debezium, r)
		}
	}
	read := consumer.Mapping(consumer.Debezium(consumer.DebeziumConfig{}))
	for id, c := range byID {
		if len(c.relay) != 1 || len(c.debezium) != 1 {
			t.Errorf("%s: %d copies by the relay, %d by Debezium", id, len(c.relay), len(c.debezium))
			continue
		}
		want := consumer.Mapping(consumer.Wire).Delivery(at(c.relay[0]))
		got := read.Delivery(at(c.debezium[0]))
		if want.Malformed != nil || got.Malformed != nil || !reflect.DeepEqual(got.Record, want.Record) {
			t.Errorf("got  %+v, %v\nwant %+v, %v\nof   %s", got.Record, got.Malformed, want.Record, want.Malformed, show(c.debezium[0]))
		}
		if c.relay[0].Partition != c.debezium[0].Partition {
			t.Errorf("key %q: partition %d by Debezium, %d by the relay", c.relay[0].Key, c.debezium[0].Partition, c.relay[0].Partition)
		}
	}
	if *capture {
		write(t, all)
	}
}

// at is a record as the consumer's mappings get it.
func at(r *kgo.Record) (consumer.Partition, consumer.KafkaRecord) {
	k := consumer.KafkaRecord{Offset: r.Offset, Key: r.Key, Value: r.Value, Time: r.Timestamp}
	for _, h := range r.Headers {
		k.Headers = append(k.Headers, outbox.WireHeader{Key: h.Key, Value: h.Value})
	}
	return consumer.Partition{Topic: r.Topic, ID: int(r.Partition)}, k
}

func show(r *kgo.Record) string {
	text, _ := json.Marshal(captured(r))
	return string(text)
}

// capturedRecord is what consumer/testdata/debezium.json has a list of: texts
// where they are texts, null where there is nothing.
type capturedRecord struct {
	By      string       `json:"by"`
	Key     string       `json:"key"`
	Time    time.Time    `json:"time"`
	Headers [][2]*string `json:"headers"`
	Value   []byte       `json:"value"`
}

func captured(r *kgo.Record) capturedRecord {
	c := capturedRecord{By: "debezium", Key: string(r.Key), Time: r.Timestamp.UTC(), Value: r.Value}
	if _, ours := kafkatest.Header(r, "ce_id"); ours {
		c.By = "relay"
	}
	for _, h := range r.Headers {
		name, value := h.Key, string(h.Value)
		if c.Headers = append(c.Headers, [2]*string{&name, &value}); h.Value == nil {
			c.Headers[len(c.Headers)-1][1] = nil
		}
	}
	return c
}

// write keeps one key's records, of both its lives, and one of each other key.
func write(t *testing.T, all []*kgo.Record) {
	var keep []capturedRecord
	slices.SortStableFunc(all, func(a, b *kgo.Record) int {
		return slices.Index(oddKeys, string(a.Key)) - slices.Index(oddKeys, string(b.Key))
	})
	seen := map[string]bool{}
	for _, r := range all {
		c := captured(r)
		if string(r.Key) == oddKeys[0] || !seen[c.By+string(r.Key)] {
			keep = append(keep, c)
		}
		seen[c.By+string(r.Key)] = true
	}
	text, err := json.MarshalIndent(keep, "", " ")
	if err == nil {
		err = os.WriteFile(filepath.Join("..", "..", "..", "consumer", "testdata", "debezium.json"), append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
