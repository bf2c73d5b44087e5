package consumer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fenceline/fenceline/outbox"
)

// DebeziumConfig is how [Debezium] reads.
type DebeziumConfig struct {
	// ByOffset says that the outbox's position columns are not sent as headers,
	// or that the outbox is another one without such columns: records without
	// them then have a position by their offset, and the policy of their streams
	// must be [State]; see [Mapping]. Unset, such records are quarantined.
	// Defaults to false.
	ByOffset bool
	// Life is that of [CloudEventsConfig], for positions by offset. Defaults to 0.
	Life int64
	// Names says under which header a column is sent, where that is not the
	// column's own name: as in {"token": "fencing-token"}. Defaults to none.
	Names map[string]string
}

// Debezium reads what Debezium's outbox event router publishes: the event's id
// in the header "id", aggregateid as the key, the payload as the value. From an
// outbox of this project let the router send the columns that [DebeziumColumns]
// lists as headers: then the guard has all it needs, every policy can be used,
// and records of the relay and of Debezium can be mixed in one topic. docs/debezium.md
// has the connector's settings.
//
// A record in our wire format is read as by [Wire]. A configuration that can't
// work ends [Run] with an error that matches [ErrMapping].
func Debezium(cfg DebeziumConfig) Mapping {
	if wrong := cfg.check(); len(wrong) > 0 {
		return wrongMapping("%s", strings.Join(wrong, "; "))
	}
	header := func(column string) string {
		return strings.ToLower(cmp.Or(cfg.Names[column], column))
	}
	return func(p Partition, r KafkaRecord) (outbox.Record, error) {
		for _, h := range r.Headers {
			if strings.EqualFold(h.Key, "ce_fencekey") {
				return Wire(p, r)
			}
		}
		f := newForeign(p, r)
		d := debezium{foreign: f, cols: f.headers(""), header: header}
		d.json = strings.HasPrefix(d.cols[header("id")], `"`)
		rec := &f.rec
		id := d.text("id")
		if id == "" {
			f.fail("id", "is missing: it isn't a record of Debezium's outbox event router")
		}
		rec.Type, rec.Source, rec.Subject = cmp.Or(d.text("type"), "unknown"), cmp.Or(d.text("source"), "debezium"), d.text("subject")
		rec.ContentType = cmp.Or(d.text("contenttype"), rec.ContentType)
		rec.ID = foreignID(rec.Source, id)
		if d.text("epoch") == "" && cfg.ByOffset {
			rec.Key = cmp.Or(d.text("key"), unquote(rec.Key))
			d.rest(rec)
			f.place(cfg.Life)
			return f.rec, f.err
		}
		d.keyed(rec)
		d.position(rec)
		d.time(d.text("created_at"))
		d.own(rec)
		d.rest(rec)
		return f.rec, f.err
	}
}

// check says everything that is wrong.
func (cfg *DebeziumConfig) check() (wrong []string) {
	if cfg.Life < 0 || cfg.Life >= maxLife {
		wrong = append(wrong, fmt.Sprintf("DebeziumConfig.Life is %d, want 0 to %d", cfg.Life, maxLife-1))
	}
	columns := debeziumColumns()
	for _, c := range slices.Sorted(maps.Keys(cfg.Names)) {
		switch {
		case !slices.Contains(columns, c):
			wrong = append(wrong, fmt.Sprintf("DebeziumConfig.Names has the column %.100q, which is none: there are %s", c, strings.Join(columns, ", ")))
		case cfg.Names[c] == "":
			wrong = append(wrong, fmt.Sprintf("DebeziumConfig.Names has no header for the column %q: leave it out where the header is named like the column", c))
		}
	}
	by := map[string]string{}
	for _, c := range columns {
		h := strings.ToLower(cmp.Or(cfg.Names[c], c))
		if other, twice := by[h]; twice {
			wrong = append(wrong, fmt.Sprintf("DebeziumConfig.Names reads the columns %q and %q from one header, %.100q", other, c, h))
		}
		by[h] = c
	}
	return wrong
}

// debeziumColumns lists what is read from a header: the columns, and the id.
func debeziumColumns() []string {
	columns := []string{"id"}
	for _, c := range strings.Split(DebeziumColumns, ",") {
		columns = append(columns, strings.TrimSuffix(c, ":header"))
	}
	return columns
}

// DebeziumColumns are the outbox's columns that [Debezium] reads from headers,
// as table.fields.additional.placement of the outbox event router wants them.
const DebeziumColumns = "type:header,key:header,epoch:header,token:header,seq:header,topic:header,kind:header,subject:header,source:header,contenttype:header,headers:header,history:header,prev_epoch:header,prev_seq:header,created_at:header"

// debezium reads columns out of headers.
type debezium struct {
	*foreign
	cols   map[string]string
	header func(column string) string
	// json says that a JSON converter has written the headers: each text is in
	// quotes then, and a null is the word. It shows in the id, which is there
	// always and has no quotes of its own. Looked at one by one, a text that
	// begins with quotes, or is the word null, would be taken for another: two
	// keys for one, and the events of the second for copies of the first's.
	json bool
}

// text is a column's value. A null one is no header, or an empty one.
func (d *debezium) text(column string) string {
	v := d.cols[d.header(column)]
	switch {
	case !d.json:
		return v
	case v == "null":
		return ""
	}
	return unquote(v)
}

// keyed reads the key, which the record must have been sent by: its stream is
// in another partition else, or in several, which the guard's proofs don't
// expect. A JSON converter of keys puts quotes around it.
func (d *debezium) keyed(rec *outbox.Record) {
	key := d.text("key")
	switch sent := rec.Key; {
	case key == "":
		d.fail(d.header("key"), "is missing")
	case sent != key && unquote(sent) != key:
		d.fail(d.header("key"), fmt.Sprintf("is %.100q, and the key of the record %.100q: let the router take the key from the column \"key\" (table.field.event.key), and the key be text", key, sent))
	}
	rec.Key = key
}

func (d *debezium) number(column string, required bool) int64 {
	v := d.text(column)
	if v == "" && !required {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 1 || n > outbox.MaxNumber || v[0] == '+' {
		d.fail(d.header(column), fmt.Sprintf("is %.40q, want a number from 1 to 2^62", v))
		return 0
	}
	return n
}

func (d *debezium) position(rec *outbox.Record) {
	switch rec.Stream = d.text("topic"); {
	case rec.Stream == "":
		d.fail(d.header("topic"), "is missing")
	case !outbox.IsTopic(rec.Stream):
		d.fail(d.header("topic"), fmt.Sprintf("is %.60q, want a topic: 1 to 249 of a-z A-Z 0-9 . _ -", rec.Stream))
	}
	rec.Epoch, rec.Token, rec.Seq = d.number("epoch", true), d.number("token", true), d.number("seq", true)
	rec.History = d.number("history", false)
	if pe, ps := d.number("prev_epoch", false), d.number("prev_seq", false); pe != 0 || ps != 0 {
		rec.Prev = &outbox.Prev{Epoch: pe, Seq: ps}
	}
	switch kind := cmp.Or(d.text("kind"), string(outbox.KindData)); kind {
	case string(outbox.KindData):
	case string(outbox.KindEnd):
		rec.Kind, rec.Payload = outbox.KindEnd, []byte{}
	default:
		// The relay's skip markers are not rows of their own, so Debezium has none.
		d.fail(d.header("kind"), fmt.Sprintf("is %.20q, want %q or %q", kind, outbox.KindData, outbox.KindEnd))
	}
}

// own reads the producer's own headers: ["name", "value", …].
func (d *debezium) own(rec *outbox.Record) {
	v := d.text("headers")
	if v == "" {
		return
	}
	var flat []string
	if err := json.Unmarshal([]byte(v), &flat); err != nil || len(flat)%2 != 0 {
		d.fail(d.header("headers"), "is not an array of names and values")
		return
	}
	for i := 0; i < len(flat); i += 2 {
		rec.Headers = append(rec.Headers, outbox.Header{Name: flat[i], Value: flat[i+1]})
	}
}

// rest keeps the headers that are no columns, but for what Debezium says of
// itself.
func (d *debezium) rest(rec *outbox.Record) {
	columns := map[string]bool{}
	for _, c := range debeziumColumns() {
		columns[d.header(c)] = true
	}
	var rest []outbox.Header
	for name, v := range d.cols {
		if !columns[name] && !strings.HasPrefix(name, "__debezium.") {
			rest = append(rest, outbox.Header{Name: name, Value: v})
		}
	}
	sortHeaders(rest)
	rec.Headers = append(rec.Headers, rest...)
}

// unquote takes the quotes off that a JSON converter puts around text.
func unquote(v string) string {
	if len(v) >= 2 && v[0] == '"' {
		var s string
		if json.Unmarshal([]byte(v), &s) == nil {
			return s
		}
	}
	return v
}

func sortHeaders(hs []outbox.Header) {
	slices.SortStableFunc(hs, func(a, b outbox.Header) int { return cmp.Compare(a.Name, b.Name) })
}
