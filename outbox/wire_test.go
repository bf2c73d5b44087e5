package outbox

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// anyText is text as Append accepts it.
func anyText(limit int) *rapid.Generator[string] {
	return rapid.StringN(1, limit, limit).Filter(cleanText)
}

// anyRecord is any record that an outbox can hold.
var anyRecord = rapid.Custom(func(t *rapid.T) *Record {
	r := &Record{
		Type: anyText(50).Draw(t, "type"), Source: anyText(50).Draw(t, "source"),
		Stream: rapid.StringMatching(`[a-zA-Z0-9._-]{1,40}`).Filter(IsTopic).Draw(t, "stream"),
		Key:    rapid.StringN(1, 100, 200).Draw(t, "key"),
		Epoch:  rapid.Int64Range(2, 1<<62).Draw(t, "epoch"),
		Token:  rapid.Int64Range(1, 1<<62).Draw(t, "token"),
		Seq:    rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 1<<62)).Draw(t, "seq"),
		Kind:   rapid.SampledFrom([]Kind{KindData, KindData, KindSkip, KindEnd}).Draw(t, "kind"),
	}
	copy(r.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
	r.Topic = rapid.SampledFrom([]string{r.Stream, "mirror." + r.Stream}).Draw(t, "topic")
	if rapid.Bool().Draw(t, "with subject") {
		r.Subject = anyText(50).Draw(t, "subject")
	}
	if rapid.Bool().Draw(t, "with content type") {
		r.ContentType = anyText(50).Draw(t, "content type")
	}
	switch r.Kind {
	case KindSkip:
		r.From = rapid.Int64Range(max(1, r.Seq-MaxSkip+1), r.Seq).Draw(t, "from")
		r.Payload = []byte{}
	case KindEnd:
		r.Payload = []byte{}
	default:
		r.Payload = rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOf(rapid.Byte())).Draw(t, "payload")
	}
	if r.First() == 1 {
		r.History = rapid.Int64Range(1, r.Epoch).Draw(t, "history")
		if rapid.Bool().Draw(t, "with prev") {
			r.Prev = &Prev{rapid.Int64Range(1, r.Epoch-1).Draw(t, "prev epoch"), rapid.Int64Range(1, 1<<62).Draw(t, "prev seq")}
		}
	}
	r.Headers = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Header {
		return Header{rapid.StringMatching(`[!-9;-~]{1,20}`).Filter(func(s string) bool { return !reservedHeader(s) }).Draw(t, "name"), rapid.String().Filter(cleanText).Draw(t, "value")}
	}), 0, 4).Draw(t, "headers")
	if len(r.Headers) == 0 {
		r.Headers = nil
	}
	r.CreatedAt = time.UnixMicro(rapid.Int64Range(0, 253402300799_999999).Draw(t, "created")).UTC() // to the year 9999
	return r
})

func TestARecordComesBackFromTheWireAsItWas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord.Draw(t, "record")
		got, err := ParseWire(r.Topic, []byte(r.Key), WireValue(r), r.CreatedAt.Truncate(time.Millisecond), AppendWireHeaders(nil, r))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(&got, r) {
			t.Fatalf("got  %+v\nwant %+v", got, *r)
		}
	})
}

func TestTheSameRecordGivesTheSameBytesAndTheyStayAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord.Draw(t, "record")
		first := AppendWireHeaders(nil, r)
		kept := slices.Clone(first)
		for i := range kept {
			kept[i].Value = slices.Clone(kept[i].Value)
		}
		copied := *r
		second := AppendWireHeaders(make([]WireHeader, 0, 100), &copied)
		for i := range second {
			_ = append(second[i].Value, 'x') // must not reach into the next one's
		}
		if !reflect.DeepEqual(first, kept) || !reflect.DeepEqual(first, second) {
			t.Fatalf("%v\n%v", first, second)
		}
	})
}

func TestPositionsSortAsText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Int64Min(1).Draw(t, "a"), rapid.Int64Min(1).Draw(t, "b")
		if (a < b) != (string(appendPadded(nil, a)) < string(appendPadded(nil, b))) {
			t.Fatal(a, b)
		}
	})
}

func TestEncodedSizeIsAnUpperBoundOfWhatKafkaStores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord.Draw(t, "record")
		if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
			r.Payload = make([]byte, rapid.IntRange(0, 1<<21).Draw(t, "size"))
		}
		k := kmsg.Record{Key: []byte(r.Key), Value: WireValue(r), TimestampDelta64: 1<<63 - 1, OffsetDelta: 1<<31 - 1}
		for _, h := range AppendWireHeaders(nil, r) {
			k.Headers = append(k.Headers, kmsg.Header{Key: h.Key, Value: h.Value})
		}
		// Length stands in front and does not count itself; it is given its
		// largest size here.
		k.Length = 1<<31 - 1
		if got, bound := len(k.AppendTo(nil)), EncodedSize(r); got > bound || bound > got+200+10*len(k.Headers) {
			t.Fatalf("encoded %d bytes, bound %d", got, bound)
		}
	})
}

func TestWhatIsCheckedAtAppendIsWhatIsSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord.Filter(func(r *Record) bool { return r.Kind == KindData }).Draw(t, "record")
		e := Event{ID: r.ID, Topic: r.Stream, Type: r.Type, Source: r.Source, Subject: r.Subject, ContentType: r.ContentType, Headers: r.Headers, Payload: r.Payload}
		if sent, checked := EncodedSize(r), e.encodedSize(r.Key); sent > checked {
			t.Fatalf("sent %d bytes, checked %d", sent, checked)
		}
	})
}

// valid is a complete record on the wire, as header name → value.
func valid() map[string]string {
	return map[string]string{
		"ce_specversion": "1.0", "ce_id": "0192f0c1-2b3c-7def-8123-456789abcdef", "ce_source": "fenceline", "ce_type": "t", "ce_time": "2026-01-02T03:04:05.000006Z",
		"ce_subject": "s", "content-type": "application/json",
		"ce_fencekey": "k", "ce_fenceepoch": "00001700000000000000", "ce_fencetoken": "00000000000000000003", "ce_fenceseq": "00000000000000000001",
		"ce_fencestream": "results", "ce_fencehistory": "00001600000000000000", "ce_fenceprev": "00001650000000000000/00000000000000000009",
	}
}

func wire(m map[string]string) (hs []WireHeader) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		hs = append(hs, WireHeader{name, []byte(m[name])})
	}
	return hs
}

// malformed are changes of the valid record, each with the header that must be
// named. "-" removes a header.
var malformed = []struct {
	name   string
	change mutation
	header string
}{
	{"no version", mutation{"ce_specversion": "-"}, "ce_specversion"},
	{"another version", mutation{"ce_specversion": "2.0"}, "ce_specversion"},
	{"no id", mutation{"ce_id": "-"}, "ce_id"},
	{"id empty", mutation{"ce_id": ""}, "ce_id"},
	{"id not a UUID", mutation{"ce_id": "17"}, "ce_id"},
	{"id in braces", mutation{"ce_id": "{0192f0c1-2b3c-7def-8123-456789abcdef}"}, "ce_id"},
	{"id as URN", mutation{"ce_id": "urn:uuid:0192f0c1-2b3c-7def-8123-456789abcdef"}, "ce_id"},
	{"no source", mutation{"ce_source": "-"}, "ce_source"},
	{"source empty", mutation{"ce_source": ""}, "ce_source"},
	{"no type", mutation{"ce_type": "-"}, "ce_type"},
	{"type not UTF-8", mutation{"ce_type": "\xff"}, "ce_type"},
	{"subject not UTF-8", mutation{"ce_subject": "\xff"}, "ce_subject"},
	{"content type not UTF-8", mutation{"content-type": "\xff"}, "content-type"},
	{"time not a time", mutation{"ce_time": "yesterday"}, "ce_time"},
	{"no key", mutation{"ce_fencekey": "-"}, "ce_fencekey"},
	{"key empty", mutation{"ce_fencekey": ""}, "ce_fencekey"},
	{"key not UTF-8", mutation{"ce_fencekey": "\xff"}, "ce_fencekey"},
	{"key differs from the Kafka key", mutation{"ce_fencekey": "other"}, "key"},
	{"no stream", mutation{"ce_fencestream": "-"}, "ce_fencestream"},
	{"stream empty", mutation{"ce_fencestream": ""}, "ce_fencestream"},
	{"stream with a slash", mutation{"ce_fencestream": "other/../topic"}, "ce_fencestream"},
	{"stream like a partition", mutation{"ce_fencestream": "results/0"}, "ce_fencestream"},
	{"stream with a space", mutation{"ce_fencestream": "the results"}, "ce_fencestream"},
	{"stream with a line's end", mutation{"ce_fencestream": "results\n"}, "ce_fencestream"},
	{"stream not ASCII", mutation{"ce_fencestream": "résultats"}, "ce_fencestream"},
	{"stream a dot", mutation{"ce_fencestream": "."}, "ce_fencestream"},
	{"stream two dots", mutation{"ce_fencestream": ".."}, "ce_fencestream"},
	{"stream of 250 bytes", mutation{"ce_fencestream": strings.Repeat("s", 250)}, "ce_fencestream"},
	{"no epoch", mutation{"ce_fenceepoch": "-"}, "ce_fenceepoch"},
	{"no token", mutation{"ce_fencetoken": "-"}, "ce_fencetoken"},
	{"no seq", mutation{"ce_fenceseq": "-"}, "ce_fenceseq"},
	{"epoch empty", mutation{"ce_fenceepoch": ""}, "ce_fenceepoch"},
	{"epoch zero", mutation{"ce_fenceepoch": "00000000000000000000"}, "ce_fenceepoch"},
	{"token negative", mutation{"ce_fencetoken": "-1"}, "ce_fencetoken"},
	{"token with a sign", mutation{"ce_fencetoken": "+1"}, "ce_fencetoken"},
	{"token hexadecimal", mutation{"ce_fencetoken": "0x1"}, "ce_fencetoken"},
	{"token with a space", mutation{"ce_fencetoken": " 1"}, "ce_fencetoken"},
	{"token with an underscore", mutation{"ce_fencetoken": "1_0"}, "ce_fencetoken"},
	{"token in other digits", mutation{"ce_fencetoken": "١"}, "ce_fencetoken"},
	{"epoch above 2^62", mutation{"ce_fenceepoch": "04611686018427387905"}, "ce_fenceepoch"},
	{"token above 2^62", mutation{"ce_fencetoken": "04611686018427387905"}, "ce_fencetoken"},
	{"seq above 2^62", mutation{"ce_fenceseq": "04611686018427387905"}, "ce_fenceseq"},
	{"token 2^63", mutation{"ce_fencetoken": "09223372036854775808"}, "ce_fencetoken"},
	{"token 2^64 + 1", mutation{"ce_fencetoken": "18446744073709551617"}, "ce_fencetoken"},
	{"seq too long", mutation{"ce_fenceseq": "000000000000000000001"}, "ce_fenceseq"},
	{"kind unknown", mutation{"ce_fencekind": "other"}, "ce_fencekind"},
	{"kind data", mutation{"ce_fencekind": "data"}, "ce_fencekind"},
	{"kind empty", mutation{"ce_fencekind": ""}, "ce_fencekind"},
	{"skip without from", mutation{"ce_fencekind": "skip"}, "ce_fencefrom"},
	{"skip from beyond seq", mutation{"ce_fencekind": "skip", "ce_fencefrom": "2"}, "ce_fencefrom"},
	{"skip of 2^30 events and one", mutation{"ce_fencekind": "skip", "ce_fencefrom": "2", "ce_fenceseq": "1073741826", "ce_fencehistory": "-", "ce_fenceprev": "-"}, "ce_fencefrom"},
	{"skip to the largest number", mutation{"ce_fencekind": "skip", "ce_fencefrom": "1", "ce_fenceseq": "4611686018427387904"}, "ce_fencefrom"},
	{"skip from zero", mutation{"ce_fencekind": "skip", "ce_fencefrom": "0"}, "ce_fencefrom"},
	{"from without skip", mutation{"ce_fencefrom": "1"}, "ce_fencefrom"},
	{"from on an end", mutation{"ce_fencekind": "end", "ce_fencefrom": "1"}, "ce_fencefrom"},
	{"first without history", mutation{"ce_fencehistory": "-"}, "ce_fencehistory"},
	{"skip from 1 without history", mutation{"ce_fencekind": "skip", "ce_fencefrom": "1", "ce_fenceseq": "5", "ce_fencehistory": "-"}, "ce_fencehistory"},
	{"history not on the first", mutation{"ce_fenceseq": "2", "ce_fenceprev": "-"}, "ce_fencehistory"},
	{"history above the epoch", mutation{"ce_fencehistory": "00001700000000000001"}, "ce_fencehistory"},
	{"history not a number", mutation{"ce_fencehistory": "x"}, "ce_fencehistory"},
	{"prev not on the first", mutation{"ce_fenceseq": "2", "ce_fencehistory": "-"}, "ce_fenceprev"},
	{"prev without seq", mutation{"ce_fenceprev": "1"}, "ce_fenceprev"},
	{"prev with three parts", mutation{"ce_fenceprev": "1/2/3"}, "ce_fenceprev"},
	{"prev of the same epoch", mutation{"ce_fenceprev": "1700000000000000/3"}, "ce_fenceprev"},
	{"prev seq zero", mutation{"ce_fenceprev": "1/0"}, "ce_fenceprev"},
}

type mutation map[string]string

func (c mutation) apply() map[string]string {
	m := valid()
	for name, value := range c {
		if value == "-" {
			delete(m, name)
		} else {
			m[name] = value
		}
	}
	return m
}

func TestEachMalformedRecordNamesTheHeaderAtFault(t *testing.T) {
	if _, err := ParseWire("results", []byte("k"), nil, time.Time{}, wire(valid())); err != nil {
		t.Fatal("the valid one: ", err)
	}
	for _, c := range malformed {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseWire("results", []byte("k"), nil, time.Time{}, wire(c.change.apply()))
			var m *MalformedError
			if !errors.As(err, &m) || m.Header != c.header || m.Reason == "" || !strings.HasPrefix(err.Error(), "outbox: ") {
				t.Errorf("got %v, want a word about %s", err, c.header)
			}
		})
	}
	t.Run("each reserved header twice, in whatever case", func(t *testing.T) {
		for name, value := range valid() {
			_, err := ParseWire("results", []byte("k"), nil, time.Time{}, append(wire(valid()), WireHeader{strings.ToUpper(name), []byte(value)}))
			var m *MalformedError
			if !errors.As(err, &m) || m.Header != name {
				t.Errorf("%s twice: %v", name, err)
			}
		}
	})
	t.Run("no Kafka key", func(t *testing.T) {
		for _, key := range [][]byte{nil, {}, []byte("K")} {
			if _, err := ParseWire("results", key, nil, time.Time{}, wire(valid())); err == nil {
				t.Errorf("key %q passed", key)
			}
		}
	})
}

func TestWhateverComesFromKafkaIsParsedOrRefusedAndNeverPanics(t *testing.T) {
	names := []string{"ce_specversion", "ce_id", "ce_fencekey", "ce_fenceepoch", "ce_fencetoken", "ce_fenceseq", "ce_fencestream", "ce_fencekind", "ce_fencefrom", "ce_fencehistory", "ce_fenceprev", "ce_", "CE_ID", "x", ""}
	rapid.Check(t, func(t *rapid.T) {
		hs := wire(valid())
		for range rapid.IntRange(1, 5).Draw(t, "n") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			value := rapid.SliceOfN(rapid.Byte(), 0, 30).Draw(t, "value")
			if i := slices.IndexFunc(hs, func(h WireHeader) bool { return h.Key == name }); i >= 0 && rapid.Bool().Draw(t, "replace") {
				hs[i].Value = value
			} else {
				hs = append(hs, WireHeader{name, value})
			}
		}
		r, err := ParseWire("results", []byte("k"), nil, time.Time{}, hs)
		if err == nil && (r.Epoch < 1 || r.Token < 1 || r.Seq < 1 || r.Key == "" || r.Stream == "" || r.First() < 1) {
			t.Fatalf("accepted %+v", r)
		}
	})
}

func TestAMarkerStandsForAtMostTwoToTheThirtyEvents(t *testing.T) {
	for from, ok := range map[string]bool{"3": true, "2": false} {
		m := mutation{"ce_fencekind": "skip", "ce_fencefrom": from, "ce_fenceseq": "1073741826", "ce_fencehistory": "-", "ce_fenceprev": "-"}.apply()
		if r, err := ParseWire("results", []byte("k"), nil, time.Time{}, wire(m)); (err == nil) != ok {
			t.Errorf("%d to %d: %v", r.From, r.Seq, err)
		}
	}
}

func TestATombstoneHasNoValueAndAMarkerAnEmptyOne(t *testing.T) {
	for _, c := range []struct {
		record Record
		want   []byte
	}{
		{Record{Kind: KindData}, nil},
		{Record{Kind: KindData, Payload: []byte{}}, []byte{}},
		{Record{Kind: KindSkip}, []byte{}},
		{Record{Kind: KindEnd}, []byte{}},
		{Record{Kind: KindSkip, Payload: []byte("the event that was given up")}, []byte{}},
	} {
		got := WireValue(&c.record)
		if (got == nil) != (c.want == nil) || len(got) != len(c.want) {
			t.Errorf("%s with payload %q: %#v", c.record.Kind, c.record.Payload, got)
		}
	}
}

func TestNumbersWithoutPaddingAreReadToo(t *testing.T) {
	m := valid()
	m["ce_fencetoken"] = "3"
	r, err := ParseWire("results", []byte("k"), nil, time.Time{}, wire(m))
	if err != nil || r.Token != 3 {
		t.Error(r.Token, err)
	}
}
