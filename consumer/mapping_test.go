package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/outbox"
)

func header(pairs ...string) (hs []outbox.WireHeader) {
	for i := 0; i < len(pairs); i += 2 {
		hs = append(hs, outbox.WireHeader{Key: pairs[i], Value: []byte(pairs[i+1])})
	}
	return hs
}

func wireRecord(r outbox.Record) consumer.KafkaRecord {
	return consumer.KafkaRecord{Time: r.CreatedAt, Key: []byte(r.Key), Value: outbox.WireValue(&r), Headers: outbox.AppendWireHeaders(nil, &r)}
}

// hostile is a good record with one thing wrong with it.
var hostile = map[string]func(consumer.KafkaRecord) consumer.KafkaRecord{
	"no headers":             func(r consumer.KafkaRecord) consumer.KafkaRecord { r.Headers = nil; return r },
	"no key":                 func(r consumer.KafkaRecord) consumer.KafkaRecord { r.Key = nil; return r },
	"another key":            func(r consumer.KafkaRecord) consumer.KafkaRecord { r.Key = []byte("b"); return r },
	"epoch missing":          without("ce_fenceepoch"),
	"seq missing":            without("ce_fenceseq"),
	"stream missing":         without("ce_fencestream"),
	"id missing":             without("ce_id"),
	"version missing":        without("ce_specversion"),
	"epoch twice":            twice("ce_fenceepoch"),
	"seq twice, other case":  with("CE_FenceSeq", "5"),
	"version unknown":        set("ce_specversion", "2.0"),
	"id no UUID":             set("ce_id", "17"),
	"time no time":           set("ce_time", "yesterday"),
	"epoch negative":         set("ce_fenceepoch", "-1"),
	"epoch zero":             set("ce_fenceepoch", "0"),
	"epoch signed":           set("ce_fenceepoch", "+5"),
	"epoch spaced":           set("ce_fenceepoch", " 5"),
	"epoch hexadecimal":      set("ce_fenceepoch", "0x5"),
	"epoch empty":            set("ce_fenceepoch", ""),
	"epoch largest int64":    set("ce_fenceepoch", "9223372036854775807"),
	"epoch overflowing":      set("ce_fenceepoch", "9223372036854775808"),
	"epoch of 21 digits":     set("ce_fenceepoch", "000000000000000000005"),
	"epoch in other digits":  set("ce_fenceepoch", "٥"),
	"epoch in 2200":          set("ce_fenceepoch", "7258118400000000"),
	"token overflowing":      set("ce_fencetoken", "18446744073709551617"),
	"token largest int64":    set("ce_fencetoken", "9223372036854775807"),
	"seq zero":               set("ce_fenceseq", "0"),
	"seq largest int64":      set("ce_fenceseq", "9223372036854775807"),
	"stream too long":        set("ce_fencestream", strings.Repeat("s", 250)),
	"stream with a NUL":      set("ce_fencestream", "a\x00b"),
	"stream not UTF-8":       set("ce_fencestream", "\xff"),
	"stream with a slash":    set("ce_fencestream", "other/../topic"),
	"stream of offsets":      set("ce_fencestream", "t/0"),
	"stream no topic":        set("ce_fencestream", ".."),
	"skip of everything":     skipFrom(1),
	"skip of all that comes": skipFrom(2),
	"kind unknown":           with("ce_fencekind", "data2"),
	"from on an event":       with("ce_fencefrom", "1"),
	"skip without from":      with("ce_fencekind", "skip"),
	"history on a later seq": with("ce_fencehistory", "5"),
	"prev on a later seq":    with("ce_fenceprev", "1/1"),
	"key with a NUL":         key("a\x00"),
	"key not UTF-8":          key("\xff\xfe"),
	"key of two kilobytes":   key(strings.Repeat("k", 2000)),
	"type not UTF-8":         set("ce_type", "\xff"),
	"structured mode": func(r consumer.KafkaRecord) consumer.KafkaRecord {
		r.Headers = header("content-type", "application/cloudevents+json")
		r.Value = []byte(`{"specversion":"1.0"}`)
		return r
	},
	"ten thousand headers": func(r consumer.KafkaRecord) consumer.KafkaRecord {
		for range 10_000 {
			r.Headers = append(r.Headers, header("ce_id", "x")...)
		}
		return r
	},
	"no value and no headers": func(consumer.KafkaRecord) consumer.KafkaRecord { return consumer.KafkaRecord{} },
	"time before the epoch": func(r consumer.KafkaRecord) consumer.KafkaRecord {
		r.Headers = nil
		r.Time = time.UnixMilli(-1 << 62)
		return r
	},
}

func without(name string) func(consumer.KafkaRecord) consumer.KafkaRecord {
	return func(r consumer.KafkaRecord) consumer.KafkaRecord {
		var kept []outbox.WireHeader
		for _, h := range r.Headers {
			if h.Key != name {
				kept = append(kept, h)
			}
		}
		r.Headers = kept
		return r
	}
}

func with(name, value string) func(consumer.KafkaRecord) consumer.KafkaRecord {
	return func(r consumer.KafkaRecord) consumer.KafkaRecord {
		r.Headers = append(r.Headers, header(name, value)...)
		return r
	}
}

func set(name, value string) func(consumer.KafkaRecord) consumer.KafkaRecord {
	return func(r consumer.KafkaRecord) consumer.KafkaRecord { return with(name, value)(without(name)(r)) }
}

func twice(name string) func(consumer.KafkaRecord) consumer.KafkaRecord {
	return func(r consumer.KafkaRecord) consumer.KafkaRecord {
		for _, h := range r.Headers {
			if h.Key == name {
				return with(name, string(h.Value))(r)
			}
		}
		panic("no header " + name)
	}
}

// skipFrom makes a marker of the record that gives up all of its life from there.
func skipFrom(from int64) func(consumer.KafkaRecord) consumer.KafkaRecord {
	return func(r consumer.KafkaRecord) consumer.KafkaRecord {
		r = with("ce_fencefrom", fmt.Sprint(from))(with("ce_fencekind", "skip")(set("ce_fenceseq", fmt.Sprint(outbox.MaxNumber))(r)))
		if from == 1 {
			r = with("ce_fencehistory", "1")(r)
		}
		return r
	}
}

func key(k string) func(consumer.KafkaRecord) consumer.KafkaRecord {
	return func(r consumer.KafkaRecord) consumer.KafkaRecord { r.Key = []byte(k); return set("ce_fencekey", k)(r) }
}

// All of them in one log, between good events of the same key: each is put
// aside, none holds up the key or the partition, and no guard believes it.
func TestHostileRecordsAreQuarantinedAndNeitherKeyNorPartitionSuffers(t *testing.T) {
	for _, policy := range []consumer.Policy{consumer.Strict, consumer.State} {
		t.Run(string(policy), func(t *testing.T) {
			b := newBench(t)
			log := newMemory("t")
			log.publish(event("t", "a", 1))
			seq := int64(1)
			for range hostile {
				seq++
			}
			last := seq
			seq = 1
			for _, spoil := range hostile {
				seq++
				log.raw(spoil(wireRecord(event("t", "a", seq))))
				log.publish(event("t", "a", seq))
			}
			cfg := b.config()
			cfg.Policy = policy
			b.upTo(log, cfg, 1+2*int64(len(hostile)))
			b.want("", effects("a", 1, last)...)
			if got := b.one("select count(*)::text from fenceline.quarantine"); got != fmt.Sprint(len(hostile)) {
				t.Errorf("%s in quarantine, want %d; not there: %s", got, len(hostile),
					b.one(`select coalesce(string_agg(n::text, ' '), '') from generate_series(1, $1::int, 2) n where n not in (select kafka_offset from fenceline.quarantine)`, 2*len(hostile)))
			}
			if got := b.one("select count(*) || ' ' || max(seq) from fenceline.guard where epoch > 0"); got != fmt.Sprintf("1 %d", last) {
				t.Errorf("guards and seq: %s", got)
			}
		})
	}
}

// A key of a topic whose stream is somebody else's can't be used to wedge a
// key that is well: what is far ahead is not believed.
func TestAMappingThatFailsOrPanicsHoldsNothingUp(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.raw(consumer.KafkaRecord{Key: []byte("bad")})
	log.publish(event("t", "a", 1))
	cfg := b.config()
	cfg.Mapping = func(p consumer.Partition, r consumer.KafkaRecord) (outbox.Record, error) {
		if string(r.Key) == "bad" {
			panic("a mapping's mistake")
		}
		return consumer.Wire(p, r)
	}
	b.upTo(log, cfg, 2)
	b.want("", "a/1")
	if got := b.one("select min(error) from fenceline.quarantine"); !strings.Contains(got, "a mapping's mistake") {
		t.Errorf("in quarantine: %q", got)
	}
}

func TestAPlainCloudEventIsAppliedOnceHoweverOftenItsOffsetIsRead(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	plain := func(key, id string) consumer.KafkaRecord {
		return consumer.KafkaRecord{Key: []byte(key), Value: []byte("{}"), Time: time.UnixMilli(1_764_000_000_000),
			Headers: header("ce_specversion", "1.0", "ce_id", id, "ce_source", "elsewhere", "ce_type", "thing.happened", "ce_partitionkey", "p", "traceparent", "00-x")}
	}
	for i := range 5 {
		log.raw(plain("a", fmt.Sprint(i)))
		log.raw(plain("b", fmt.Sprint(i)))
	}
	log.publish(event("t", "ours", 1)) // records of ours may be in between
	log.raw(consumer.KafkaRecord{Key: []byte("a"), Value: []byte("no CloudEvent")})
	cfg := b.config()
	cfg.Policy, cfg.Mapping = consumer.State, consumer.CloudEvents(consumer.CloudEventsConfig{})
	b.upTo(log, cfg, 12)
	log.rewind(0)
	b.run(log.source(), cfg, b.apply("again"))
	b.eventually("everything is read again", func() bool {
		return b.seen.count(consumer.Stale)+b.seen.count(consumer.Duplicate) == 11
	})
	for _, k := range []string{"a", "b"} {
		if n := len(b.applied(k)); n != 5 {
			t.Errorf("%d effects of %s, want 5", n, k)
		}
	}
	b.want("ours", "ours/1")
	if got := b.one("select count(*)::text from fenceline.quarantine"); got != "1" {
		t.Errorf("%s in quarantine", got)
	}
	if got := b.one("select count(*) || ' ' || max(length(missed::text)) from fenceline.guard where stream = 't/0'"); got != "2 2" {
		t.Errorf("guards and the length of what they remember: %s; want one for each key, and nothing", got)
	}
}

// plainEvent is a CloudEvent that isn't ours.
func plainEvent(key, id string) consumer.KafkaRecord {
	return consumer.KafkaRecord{Key: []byte(key), Value: []byte("{}"), Headers: header("ce_specversion", "1.0", "ce_id", id, "ce_source", "s", "ce_type", "t")}
}

func TestAMappingThatMakesPositionsOfOffsetsIsRefusedUnderStrictBeforeAnythingIsRead(t *testing.T) {
	// No server is there: it is refused before one is asked.
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	clouds := consumer.CloudEvents(consumer.CloudEventsConfig{})
	offsets := consumer.Debezium(consumer.DebeziumConfig{ByOffset: true, Names: map[string]string{"id": "event-id"}})
	state := consumer.StreamConfig{Policy: consumer.State}
	for _, c := range []struct {
		name    string
		cfg     consumer.Config
		refused bool
	}{
		{"CloudEvents", consumer.Config{Mapping: clouds}, true},
		{"Debezium by offset", consumer.Config{Mapping: offsets}, true},
		{"a mapping of one's own around it", consumer.Config{Mapping: func(p consumer.Partition, r consumer.KafkaRecord) (outbox.Record, error) { return clouds(p, r) }}, true},
		{"state for a stream of a topic", consumer.Config{Mapping: clouds, Streams: map[string]consumer.StreamConfig{"t": state}}, true},
		{"state", consumer.Config{Mapping: clouds, Policy: consumer.State}, false},
		{"state for some partition", consumer.Config{Mapping: offsets, Streams: map[string]consumer.StreamConfig{"t/0": state}}, false},
		{"Debezium with our columns", consumer.Config{Mapping: consumer.Debezium(consumer.DebeziumConfig{})}, false},
		{"the wire", consumer.Config{}, false},
		{"positions of one's own", consumer.Config{Mapping: func(p consumer.Partition, r consumer.KafkaRecord) (outbox.Record, error) {
			rec, err := clouds(p, r)
			rec.Stream = p.Topic
			return rec, err
		}}, false},
	} {
		c.cfg.Name = "c"
		ctx, stop := context.WithCancel(t.Context())
		stop() // what isn't refused ends at once
		if err := consumer.Run(ctx, pool, newMemory("t").source(), c.cfg, consumer.HandlerFunc(nil)); errors.Is(err, consumer.ErrByOffset) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// What a configuration can't show is seen at a record, and ends nothing: neither
// for the records of another partition nor for what follows in this one.
func TestARecordWhosePositionByOffsetWouldBeStrictIsQuarantinedAndTheRestFlows(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	for i := int64(1); i <= 3; i++ {
		log.raw(plainEvent("a", fmt.Sprint(i)))
		log.publish(event("t", "ours", i))
	}
	cfg := b.config()
	cfg.Mapping = consumer.CloudEvents(consumer.CloudEventsConfig{})
	cfg.Streams = map[string]consumer.StreamConfig{"t/1": {Policy: consumer.State}} // and partition 0 was forgotten
	b.upTo(log, cfg, 6)
	b.want("", effects("ours", 1, 3)...)
	if got := b.one("select count(*) || ' ' || min(error) from fenceline.quarantine where reason = 'malformed'"); !strings.HasPrefix(got, "3 ") || !strings.Contains(got, `the stream "t/0"`) {
		t.Errorf("in quarantine: %s", got)
	}
	if got := b.one("select count(*)::text from fenceline.guard where stream like '%/%'"); got != "0" {
		t.Errorf("%s guards for positions by offset", got)
	}
	if n := strings.Count(b.log.String(), "a record can't be read and was quarantined"); n != 3 {
		t.Errorf("the log has %d of 3", n)
	}
}

func TestATopicThatWasCreatedAnewIsNewToPositionsByOffsetWhenItsLifeIsRaised(t *testing.T) {
	rec := consumer.KafkaRecord{Offset: 7, Key: []byte("a"), Headers: header("ce_specversion", "1.0", "ce_id", "1", "ce_source", "s", "ce_type", "t")}
	p := consumer.Partition{Topic: "t", ID: 3}
	old := consumer.Mapping(consumer.CloudEvents(consumer.CloudEventsConfig{})).Delivery(p, rec)
	rec.Offset = 0
	now := consumer.Mapping(consumer.CloudEvents(consumer.CloudEventsConfig{Life: 1})).Delivery(p, rec)
	if old.Malformed != nil || now.Malformed != nil || now.Epoch <= old.Epoch || now.Stream != "t/3" {
		t.Errorf("%s, %v; then %s, %v", old.Position(), old.Malformed, now.Position(), now.Malformed)
	}
	for life, ok := range map[int64]bool{-1: false, 1023: true, 1024: false} {
		if d := consumer.Mapping(consumer.CloudEvents(consumer.CloudEventsConfig{Life: life})).Delivery(p, rec); (d.Malformed == nil) != ok {
			t.Errorf("life %d: %v", life, d.Malformed)
		}
	}
}

// debezium is what its outbox event router makes of one of our rows: the five
// columns, and ours as headers.
func debezium(r outbox.Record) consumer.KafkaRecord {
	k := consumer.KafkaRecord{Key: []byte(r.Key), Value: r.Payload, Time: r.CreatedAt, Headers: header("id", r.ID.String(), "type", r.Type, "key", r.Key,
		"epoch", fmt.Sprint(r.Epoch), "token", fmt.Sprint(r.Token), "seq", fmt.Sprint(r.Seq), "topic", r.Stream, "kind", string(r.Kind),
		"source", r.Source, "contenttype", r.ContentType, "headers", `["traceparent", "00-x"]`)}
	if r.History != 0 {
		k.Headers = append(k.Headers, header("history", fmt.Sprint(r.History))...)
	}
	return k
}

func TestDebeziumsRecordsWithOurColumnsAreTheSameEventsAsTheRelays(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	end := event("t", "a", 7)
	end.Kind = outbox.KindEnd
	for _, r := range events("t", "a", 1, 6) {
		log.raw(debezium(r))
		log.publish(r) // the relay's copy of it
	}
	log.raw(debezium(end))
	cfg := b.config()
	cfg.Start, cfg.Mapping = consumer.FromOrigin, consumer.Debezium(consumer.DebeziumConfig{})
	b.upTo(log, cfg, 13)
	b.want("", effects("a", 1, 6)...)
	if d, a := b.seen.count(consumer.Duplicate), b.seen.count(consumer.Absorbed); d != 6 || a != 1 {
		t.Errorf("%d duplicates, %d absorbed; want 6 and 1", d, a)
	}
	got := consumer.Mapping(consumer.Debezium(consumer.DebeziumConfig{})).Delivery(log.partition(), debezium(event("t", "a", 1)))
	want := event("t", "a", 1)
	if got.ID != want.ID || got.Type != want.Type || got.Source != want.Source || got.History != want.History || len(got.Headers) != 1 {
		t.Errorf("%+v", got.Record)
	}
	if parent, _ := got.TraceContext(); parent != "00-x" {
		t.Errorf("traceparent %q", parent)
	}
}

func TestDebeziumsRecordsWithoutOurColumnsAreQuarantinedUnlessOffsetsAreToDo(t *testing.T) {
	rec := consumer.KafkaRecord{Offset: 4, Key: []byte(`"order-1"`), Value: []byte("{}"), Headers: header("id", uuid.NewString(), "eventType", "OrderPlaced")}
	p := consumer.Partition{Topic: "orders"}
	read := func(cfg consumer.DebeziumConfig, r consumer.KafkaRecord) consumer.Delivery {
		return consumer.Mapping(consumer.Debezium(cfg)).Delivery(p, r)
	}
	if d := read(consumer.DebeziumConfig{}, rec); d.Malformed == nil {
		t.Errorf("without ByOffset: %s", d.Position())
	}
	d := read(consumer.DebeziumConfig{ByOffset: true, Names: map[string]string{"type": "eventType"}}, rec)
	if d.Malformed != nil || d.Stream != "orders/0" || d.Key != "order-1" || d.Type != "OrderPlaced" {
		t.Errorf("%s of type %s, %v", d.Position(), d.Type, d.Malformed)
	}
	good := debezium(event("t", "a", 2))
	for name, spoil := range map[string]func(consumer.KafkaRecord) consumer.KafkaRecord{
		"id missing": without("id"), "id twice": twice("id"), "epoch twice": twice("epoch"), "seq missing": without("seq"), "token missing": without("token"),
		"topic missing": without("topic"), "topic with a slash": set("topic", "other/../topic"), "topic like a partition": set("topic", "t/0"),
		"topic two dots": set("topic", ".."), "seq negative": set("seq", "-4"), "seq signed": set("seq", "+4"), "kind skip": set("kind", "skip"),
		"headers no array": set("headers", `{"a":1}`), "headers odd": set("headers", `["a"]`), "epoch not UTF-8": set("epoch", "\xff"),
	} {
		if d := read(consumer.DebeziumConfig{ByOffset: true}, spoil(good)); d.Malformed == nil {
			t.Errorf("%s: taken as %s", name, d.Position())
		}
	}
}

func TestAMappingThatCannotWorkIsRefusedBeforeAnythingIsRead(t *testing.T) {
	// No server is there: it is refused before one is asked.
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for want, m := range map[string]consumer.Mapping{
		"CloudEventsConfig.Life is -1":             consumer.CloudEvents(consumer.CloudEventsConfig{Life: -1}),
		"CloudEventsConfig.Life is 1024":           consumer.CloudEvents(consumer.CloudEventsConfig{Life: 1024}),
		"DebeziumConfig.Life is 1024":              consumer.Debezium(consumer.DebeziumConfig{Life: 1024}),
		`the column "tokn", which is none`:         consumer.Debezium(consumer.DebeziumConfig{Names: map[string]string{"tokn": "fencing-token"}}),
		`no header for the column "token"`:         consumer.Debezium(consumer.DebeziumConfig{Names: map[string]string{"token": ""}}),
		`the columns "epoch" and "token" from`:     consumer.Debezium(consumer.DebeziumConfig{Names: map[string]string{"token": "Epoch"}}),
		`"epoch" and "token" from one header, "x"`: consumer.Debezium(consumer.DebeziumConfig{Names: map[string]string{"token": "x", "epoch": "X"}}),
	} {
		err := consumer.Run(t.Context(), pool, newMemory("t").source(), consumer.Config{Name: "c", Mapping: m}, consumer.HandlerFunc(nil))
		if !errors.Is(err, consumer.ErrMapping) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s: %v", want, err)
		}
	}
	for _, m := range []consumer.Mapping{
		consumer.CloudEvents(consumer.CloudEventsConfig{Life: 1023}),
		consumer.Debezium(consumer.DebeziumConfig{Life: 1023, Names: map[string]string{"token": "fencing-token", "id": "event-id"}}),
	} {
		if d := m.Delivery(consumer.Partition{Topic: "t"}, consumer.KafkaRecord{}); errors.Is(d.Malformed, consumer.ErrMapping) {
			t.Error(d.Malformed)
		}
	}
}

// A mapping of one's own doesn't show at the start what it calls for some topics.
func TestAMappingThatCannotWorkEndsRunAndQuarantinesNothingWhereAnotherCallsIt(t *testing.T) {
	b := newBench(t)
	log := newMemory("t")
	log.publish(events("t", "a", 1, 3)...)
	cfg := b.config()
	wrong := consumer.CloudEvents(consumer.CloudEventsConfig{Life: -1})
	cfg.Mapping = func(p consumer.Partition, r consumer.KafkaRecord) (outbox.Record, error) {
		if p.Topic == "t" {
			return wrong(p, r)
		}
		return consumer.Wire(p, r)
	}
	b.failsWith(log, cfg, consumer.ErrMapping)
	if got := b.one("select count(*)::text from fenceline.quarantine"); got != "0" {
		t.Errorf("%s in quarantine", got)
	}
}
