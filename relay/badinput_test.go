package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fenceline/fenceline/fencing"
	"github.com/fenceline/fenceline/outbox"
)

// everyByte are keys that have, between them, every byte that UTF-8 allows but
// NUL, which PostgreSQL's text can't have.
func everyByte() (keys []string) {
	seen := map[byte]bool{}
	var key strings.Builder
	for r := rune(1); r <= utf8.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		isNew := false
		for _, b := range []byte(string(r)) {
			isNew = isNew || !seen[b]
			seen[b] = true
		}
		if !isNew {
			continue
		}
		if key.Len()+utf8.UTFMax > 512 {
			keys = append(keys, key.String())
			key.Reset()
		}
		key.WriteRune(r)
	}
	return append(keys, key.String())
}

func TestWhatAnEventCanBeIsPublishedAsItIsAndTheRestIsRefusedAtTheAppend(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	fences, err := fencing.New(bg, pool, fencing.Config{AllowUnsafeDatabase: true})
	if err != nil {
		t.Fatal(err)
	}
	headers := make([]outbox.Header, 200)
	for i := range headers {
		headers[i] = outbox.Header{Name: fmt.Sprintf("h%d", i), Value: strings.Repeat("ü", i)}
	}
	type attempt struct {
		name, key string
		event     outbox.Event
		refused   string // the field at fault; empty if it is published
	}
	const mib = 1 << 20
	attempts := []attempt{
		{"a tombstone", "k", outbox.Event{}, ""},
		{"nothing", "k", outbox.Event{Payload: []byte{}}, ""},
		{"NUL", "k", outbox.Event{Payload: []byte{0, 1, 0xff, 0}}, ""},
		{"the largest", "k", outbox.Event{Payload: bytes.Repeat([]byte{7}, outbox.MaxRecordBytes-2048)}, ""},
		{"1 MiB - 1", "k", outbox.Event{Payload: make([]byte, mib-1)}, "payload"},
		{"1 MiB", "k", outbox.Event{Payload: make([]byte, mib)}, "payload"},
		{"1 MiB + 1", "k", outbox.Event{Payload: make([]byte, mib+1)}, "payload"},
		{"200 headers", "k", outbox.Event{Headers: headers}, ""},
		{"a header twice", "k", outbox.Event{Headers: []outbox.Header{{Name: "a", Value: "1"}, {Name: "a", Value: ""}}}, ""},
		{"CR in a header's name", "k", outbox.Event{Headers: []outbox.Header{{Name: "a\rb"}}}, "header 0"},
		{"LF in a header's name", "k", outbox.Event{Headers: []outbox.Header{{Name: "a\nb"}}}, "header 0"},
		{"LF in a header's value", "k", outbox.Event{Headers: []outbox.Header{{Name: "a", Value: "b\nc"}}}, "header 0"},
		{"a reserved header", "k", outbox.Event{Headers: []outbox.Header{{Name: "Ce_FenceSeq", Value: "1"}}}, "header 0"},
		{"a header without name", "k", outbox.Event{Headers: []outbox.Header{{Value: "1"}}}, "header 0"},
		{"not UTF-8 in the subject", "k", outbox.Event{Subject: "\xff"}, "subject"},
	}
	for _, name := range []string{"", ".", "..", "a b", "a/b", "ü", "a\n", strings.Repeat("a", 250)} {
		want := "topic"
		attempts = append(attempts, attempt{fmt.Sprintf("topic %.20q", name), "k", outbox.Event{Topic: name, AggregateType: "\n"}, want})
	}
	for i, key := range everyByte() {
		attempts = append(attempts, attempt{fmt.Sprintf("key %d", i), key, outbox.Event{Payload: []byte(key)}, ""})
	}
	r := startRelay(t, pool, kafka, quick())
	var want []outbox.Event
	var wantKeys []string
	for i, a := range attempts {
		e := a.event
		if a.refused != "topic" {
			e.Topic = "t"
		}
		e.Type = "x"
		lease, err := fences.Acquire(bg, a.key, fencing.LeaseConfig{TTL: time.Minute})
		if err != nil {
			t.Fatalf("%s: %v", a.name, err)
		}
		_, err = lease.Commit(bg, fencing.Content{Step: fmt.Sprint(i)}, func(ctx context.Context, tx fencing.Tx) error { return outbox.Append(ctx, tx, e) })
		var invalid *outbox.InvalidEventError
		switch {
		case a.refused == "" && err != nil:
			t.Errorf("%s is refused: %v", a.name, err)
		case a.refused != "" && (!errors.As(err, &invalid) || invalid.Field != a.refused):
			t.Errorf("%s: %v, want a refusal of the %s", a.name, err, a.refused)
		case a.refused == "":
			want, wantKeys = append(want, e), append(wantKeys, a.key)
		}
		if err := lease.Release(bg); err != nil {
			t.Fatal(err)
		}
	}
	published := func() []outbox.Record {
		kafka.mu.Lock()
		defer kafka.mu.Unlock()
		return append([]outbox.Record{}, kafka.logs["t"]...)
	}
	eventually(t, "all are published", func() bool { return len(published()) >= len(want) })
	r.end()
	byKey := map[string][]outbox.Record{}
	for _, rec := range published() {
		byKey[rec.Key] = append(byKey[rec.Key], rec)
	}
	for i, e := range want {
		key := wantKeys[i]
		if len(byKey[key]) == 0 {
			t.Fatalf("an event of key %.30q is missing", key)
		}
		got := byKey[key][0]
		byKey[key] = byKey[key][1:]
		if (got.Payload == nil) != (e.Payload == nil) || !bytes.Equal(got.Payload, e.Payload) || len(got.Headers) != len(e.Headers) {
			t.Errorf("event %d of key %.30q came as %d bytes (nil: %v) and %d headers", i, key, len(got.Payload), got.Payload == nil, len(got.Headers))
		}
		for j, h := range e.Headers {
			if got.Headers[j] != h {
				t.Errorf("header %d is %+v, want %+v", j, got.Headers[j], h)
			}
		}
	}
}

func TestASchemaThatIsMigratedUnderARunningRelayIsNoTrouble(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	p := newProducer(t, pool, "k")
	r := startRelay(t, pool, kafka, quick())
	p.publish("t", "before")
	eventually(t, "it publishes", func() bool { return kafka.has("t", "before") })
	// What a later migration may do.
	for _, sql := range []string{
		"alter table fenceline.outbox add column note text",
		"create index on fenceline.outbox (created_at)",
		"alter table fenceline.relay_checkpoint add column note text default 'x'",
	} {
		if _, err := pool.Exec(bg, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	for i := range 20 {
		p.publish("t", fmt.Sprint(i))
	}
	eventually(t, "it goes on", func() bool { return kafka.has("t", "19") })
	r.end()
	firsts(t, kafka.logs["t"])
}

// The database's clock may jump: what an event carries of it decides nothing.
func TestAClockThatJumpsChangesNothingAboutTheOrder(t *testing.T) {
	t.Parallel()
	pool, kafka := fresh(t, "t")
	p := newProducer(t, pool, "k")
	p.publish("t", "0", "1", "2", "3")
	for seq, at := range map[int]string{1: "2200-01-01", 2: "1970-01-02", 3: "2026-06-01", 4: "1999-01-01"} {
		if _, err := pool.Exec(bg, "update fenceline.outbox set created_at = $2::text::timestamptz where seq = $1", seq, at); err != nil {
			t.Fatal(err)
		}
	}
	st, err := ReadStatus(bg, pool, "")
	if err != nil || st.Oldest < 0 || st.Backlog != 4 {
		t.Errorf("%+v, %v", st, err)
	}
	r := startRelay(t, pool, kafka, quick())
	eventually(t, "all are published", func() bool { return kafka.has("t", "3") })
	r.end()
	if got := strings.Join(kafka.payloads("t"), ""); got != "0123" {
		t.Errorf("published in the order %s", got)
	}
}
