package outbox

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func TestDefaultsOfAnEvent(t *testing.T) {
	e := Event{AggregateType: "order", Type: "t"}.withDefaults()
	if e.ID.Version() != 7 || e.Topic != "outbox.event.order" || e.Source != "fenceline" || e.ContentType != "application/json" {
		t.Errorf("%+v", e)
	}
	id := uuid.New()
	if e := (Event{ID: id, Topic: "results"}).withDefaults(); e.ID != id || e.AggregateType != "results" {
		t.Errorf("%+v", e)
	}
}

func TestAnEventThatCouldNotBePublishedIsRefused(t *testing.T) {
	good := Event{Topic: "results", Type: "t", Headers: []Header{{"traceparent", "00-1-2-03"}, {"x", ""}, {"x", "twice"}}}
	if err := good.withDefaults().validate("k"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit  func(*Event)
		field string
	}{
		"no topic":               {func(e *Event) { e.Topic = "" }, "topic"},
		"topic too long":         {func(e *Event) { e.Topic = strings.Repeat("t", 250) }, "topic"},
		"topic with a space":     {func(e *Event) { e.Topic = "a b" }, "topic"},
		"topic with a newline":   {func(e *Event) { e.Topic = "a\n" }, "topic"},
		"topic of dots":          {func(e *Event) { e.Topic = ".." }, "topic"},
		"topic not ASCII":        {func(e *Event) { e.Topic = "ä" }, "topic"},
		"no type":                {func(e *Event) { e.Type = "" }, "type"},
		"type too long":          {func(e *Event) { e.Type = strings.Repeat("t", 256) }, "type"},
		"type not UTF-8":         {func(e *Event) { e.Type = "\xff" }, "type"},
		"type with NUL":          {func(e *Event) { e.Type = "a\x00" }, "type"},
		"source with a newline":  {func(e *Event) { e.Source = "a\nb" }, "source"},
		"subject too long":       {func(e *Event) { e.Subject = strings.Repeat("s", 1025) }, "subject"},
		"subject with CR":        {func(e *Event) { e.Subject = "\r" }, "subject"},
		"content type too long":  {func(e *Event) { e.ContentType = strings.Repeat("s", 256) }, "content type"},
		"aggregate type long":    {func(e *Event) { e.AggregateType = strings.Repeat("s", 256) }, "aggregate type"},
		"header without a name":  {func(e *Event) { e.Headers = []Header{{"", "x"}} }, "header 0"},
		"header name of ours":    {func(e *Event) { e.Headers = []Header{{"a", ""}, {"ce_id", "x"}} }, "header 1"},
		"header name OF OURS":    {func(e *Event) { e.Headers = []Header{{"CE_Anything", "x"}} }, "header 0"},
		"header content-type":    {func(e *Event) { e.Headers = []Header{{"Content-Type", "x"}} }, "header 0"},
		"header name with space": {func(e *Event) { e.Headers = []Header{{"a b", "x"}} }, "header 0"},
		"header name too long":   {func(e *Event) { e.Headers = []Header{{strings.Repeat("h", 256), "x"}} }, "header 0"},
		"header value not UTF-8": {func(e *Event) { e.Headers = []Header{{"h", "\xff"}} }, "header 0"},
		"header value with LF":   {func(e *Event) { e.Headers = []Header{{"h", "a\nb"}} }, "header 0"},
		"payload too large":      {func(e *Event) { e.Payload = make([]byte, MaxRecordBytes) }, "payload"},
		"headers too large":      {func(e *Event) { e.Headers = []Header{{"h", strings.Repeat("x", MaxRecordBytes)}} }, "payload"},
		"headers large escaped":  {func(e *Event) { e.Headers = []Header{{"h", strings.Repeat(`"`, MaxRecordBytes/2)}} }, "payload"},
	} {
		t.Run(name, func(t *testing.T) {
			e := good
			c.edit(&e)
			err := e.withDefaults().validate("k")
			var invalid *InvalidEventError
			if !errors.As(err, &invalid) || invalid.Field != c.field || !strings.HasPrefix(err.Error(), "outbox: event "+c.field+" ") {
				t.Errorf("got %v, want a word about %s", err, c.field)
			}
		})
	}
	// The largest one passes, one byte more doesn't.
	e := good.withDefaults()
	e.Payload = make([]byte, MaxRecordBytes-e.encodedSize("k"))
	if err := e.validate("k"); err != nil {
		t.Error(err)
	}
	e.Payload = append(e.Payload, 0)
	if err := e.validate("k"); err == nil {
		t.Errorf("%d bytes pass", e.encodedSize("k"))
	}
}

func TestHeadersComeBackFromTheirColumnInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hs := anyRecord.Draw(t, "record").Headers
		column, err := encodeHeaders(hs)
		if err != nil {
			t.Fatal(err)
		}
		var b []byte
		if column != nil {
			b = []byte(*column)
		}
		got, err := DecodeHeaders(b)
		if err != nil || !reflect.DeepEqual(got, hs) {
			t.Fatal(got, hs, err)
		}
	})
	for _, bad := range []string{"", "{}", `["a"]`, `["a", 1]`, "null x"} {
		if got, err := DecodeHeaders([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, fmt.Sprint(got))
		}
	}
}
