package consumer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/fenceline/fenceline/outbox"
)

// Mapping reads a Kafka record. Its input is untrusted: it must answer
// anything that it can't read with an error, and never panic; the record is
// then quarantined, and the partition goes on. The same bytes at the same place
// must give the same result each time, since what is parked is read again: see
// [UnreadableError] for what becomes of a record that a changed one can't read. A
// changed one must also give the same IDs, by which a topic is known that was
// created anew; those of [Wire] are known beside its own.
//
// [Wire] reads what the relay publishes, [CloudEvents] and [Debezium] what
// others do. A mapping of your own can call these for some topics.
type Mapping func(p Partition, r KafkaRecord) (outbox.Record, error)

// Wire reads this project's wire format, docs/wire.md. It is the mapping of the
// zero value.
func Wire(p Partition, r KafkaRecord) (outbox.Record, error) {
	return outbox.ParseWire(p.Topic, r.Key, r.Value, r.Time, r.Headers)
}

// Delivery reads a Kafka record with the mapping. It never fails: a record that
// can't be read has Malformed set, and Apply then quarantines it.
func (m Mapping) Delivery(p Partition, r KafkaRecord) Delivery {
	rec, err := m.read(p, r)
	rec.Topic = p.Topic
	return Delivery{Record: rec, Partition: p.ID, Offset: r.Offset, Attempt: 1, Malformed: err, Raw: r}
}

// read turns a mapping's panic into an error: the record would otherwise end the
// process again and again.
func (m Mapping) read(p Partition, r KafkaRecord) (rec outbox.Record, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("consumer: the mapping panicked: %v", v)
		}
	}()
	return m(p, r)
}

// ErrMapping is matched by the error of a mapping that can't work as it is
// configured. [Run] ends with it before it reads anything, or, where the mapping
// is called by one of your own, at the first record that comes to it.
var ErrMapping = errors.New("consumer: the mapping's configuration is wrong")

// wrongMapping refuses everything, for a reason that is no record's.
func wrongMapping(format string, args ...any) Mapping {
	err := fmt.Errorf("%w: %s", ErrMapping, fmt.Sprintf(format, args...))
	return func(Partition, KafkaRecord) (outbox.Record, error) { return outbox.Record{}, err }
}

// nowhere is the partition of the empty record with which a mapping is asked how
// it reads: a function shows its configuration no other way, and it must answer
// anything. No record comes from there.
var nowhere = Partition{ID: -1}

// check asks the mapping whether it can work.
func (m Mapping) check() error {
	if _, err := m.read(nowhere, KafkaRecord{}); errors.Is(err, ErrMapping) {
		return err
	}
	return nil
}

// makesOffsets tells whether the mapping makes positions of offsets. One of your
// own shows it only if it does so for a topic that it doesn't know.
func (m Mapping) makesOffsets() bool {
	rec, err := m.read(nowhere, KafkaRecord{})
	return err == nil && isByOffset(nowhere, &rec)
}

// byOffset makes a position of what Kafka itself counts, for records of others,
// which carry none that a guard could go by:
//
//   - the stream is "topic/partition": offsets of two partitions can't be
//     compared. No topic's name has a slash in it, which tells these streams
//     from others, also in Config.Streams.
//   - each record is a life of its own of its key, with a larger epoch than
//     those before it. So what State remembers stays small, though a key's
//     offsets have holes.
//
// What that protects from is another delivery of the same offset: after a
// rewind, a rebalance, a crash. It doesn't know a copy at another offset, as a
// producer leaves that sends again: those have the same ID, which a handler can
// look for. And it knows no holes. Only [State] can follow such a stream.
func byOffset(p Partition, r KafkaRecord, life int64) (stream string, epoch int64, err error) {
	if r.Offset < 0 || r.Offset >= maxByOffset {
		return "", 0, &outbox.MalformedError{Header: "offset", Reason: "has no position: it is not from 0 to 2^40"}
	}
	return byOffsetStream(p), life*maxByOffset + r.Offset + 1, nil
}

const (
	maxByOffset = int64(1) << 40
	// maxLife keeps positions by offset below every clock reading of this
	// century, so that none is taken for one from the future.
	maxLife = 1 << 10
)

// isByOffset tells whether the position of a record from p is made of its
// offset. What a record says of itself can't bring that about: it names a topic,
// and no topic has the name of a partition.
func isByOffset(p Partition, r *outbox.Record) bool {
	n := len(p.Topic) // hardly any stream has the slash, and the name isn't made for those
	return len(r.Stream) > n && r.Stream[n] == '/' && r.Stream == byOffsetStream(p)
}

func byOffsetStream(p Partition) string { return p.Topic + "/" + strconv.Itoa(p.ID) }

// CloudEventsConfig is how [CloudEvents] reads.
type CloudEventsConfig struct {
	// Life tells the records of a topic from those of another one that had the
	// name before, and whose offsets were the same numbers. Raise it by one when
	// the topic is created anew: then what is in it is new, whatever its
	// offset. From 0 to 1023. Defaults to 0.
	Life int64
}

// CloudEvents reads CloudEvents 1.0 that are not from an outbox of this
// project, in Kafka's binary content mode (attributes in ce_ headers). A record
// with our position headers is read as by [Wire]. The others have a position by
// their offset: the policy of their streams must be [State], see [Mapping].
//
// The key is Kafka's, and may be missing. An id that is no UUID is made one,
// the same each time, of source and id. Extension attributes become headers.
//
// A configuration that can't work ends [Run] with an error that matches
// [ErrMapping].
func CloudEvents(cfg CloudEventsConfig) Mapping {
	if cfg.Life < 0 || cfg.Life >= maxLife {
		return wrongMapping("CloudEventsConfig.Life is %d, want 0 to %d", cfg.Life, maxLife-1)
	}
	return func(p Partition, r KafkaRecord) (outbox.Record, error) {
		for _, h := range r.Headers {
			if strings.EqualFold(h.Key, "ce_fencekey") {
				return Wire(p, r)
			}
		}
		f := newForeign(p, r)
		attrs := f.headers("ce_")
		rec := &f.rec
		if v := attrs["specversion"]; !strings.HasPrefix(v, "1.") {
			f.fail("ce_specversion", fmt.Sprintf("is %.20q, want 1.x: another version may mean something else", v))
		}
		rec.Source, rec.Type, rec.Subject = f.need(attrs, "source"), f.need(attrs, "type"), attrs["subject"]
		rec.ID = foreignID(rec.Source, f.need(attrs, "id"))
		f.time(attrs["time"])
		for name, v := range attrs {
			switch name {
			case "specversion", "id", "source", "type", "subject", "time":
			default:
				rec.Headers = append(rec.Headers, outbox.Header{Name: "ce_" + name, Value: v})
			}
		}
		sortHeaders(rec.Headers)
		f.place(cfg.Life)
		return f.rec, f.err
	}
}

// foreign collects a record of somebody else's. The first error stays.
type foreign struct {
	p   Partition
	r   KafkaRecord
	rec outbox.Record
	err error
}

func newForeign(p Partition, r KafkaRecord) *foreign {
	return &foreign{p: p, r: r, rec: outbox.Record{Topic: p.Topic, Kind: outbox.KindData, Payload: r.Value, CreatedAt: r.Time, Key: string(r.Key)}}
}

func (f *foreign) fail(header, reason string) {
	if f.err == nil {
		f.err = &outbox.MalformedError{Header: header, Reason: reason}
	}
}

// headers gives the values of the headers with a prefix, by the rest of their
// names in lower case. The others become the record's own. One that is there
// twice has no value that could be relied on.
func (f *foreign) headers(prefix string) map[string]string {
	attrs := make(map[string]string)
	for _, h := range f.r.Headers {
		name := strings.ToLower(h.Key)
		switch {
		case name == "content-type":
			f.rec.ContentType = string(h.Value)
			continue
		case prefix != "" && !strings.HasPrefix(name, prefix):
			f.rec.Headers = append(f.rec.Headers, outbox.Header{Name: h.Key, Value: string(h.Value)})
			continue
		}
		name = strings.TrimPrefix(name, prefix)
		if _, twice := attrs[name]; twice {
			f.fail(h.Key, "is there twice")
		}
		if !utf8.Valid(h.Value) {
			f.fail(h.Key, "is not UTF-8")
		}
		attrs[name] = string(h.Value)
	}
	return attrs
}

func (f *foreign) need(attrs map[string]string, name string) string {
	if attrs[name] == "" {
		f.fail(name, "is missing or empty")
	}
	return attrs[name]
}

func (f *foreign) time(v string) {
	if v == "" {
		return
	}
	t, err := time.Parse(time.RFC3339Nano, v)
	if err != nil {
		f.fail("time", fmt.Sprintf("is %.40q, want a time as in RFC 3339", v))
	}
	f.rec.CreatedAt = t
}

// place gives the record its position by offset. A record without a key is in
// a stream of its own, with its partition as the key.
func (f *foreign) place(life int64) {
	if f.p == nowhere {
		f.err = nil // it isn't read, but asked how it reads
	}
	stream, epoch, err := byOffset(f.p, f.r, life)
	if err != nil && f.err == nil {
		f.err = err
	}
	if f.rec.Key == "" {
		f.rec.Key = fmt.Sprintf("partition %d", f.p.ID)
	}
	f.rec.Stream, f.rec.Epoch, f.rec.Token, f.rec.Seq, f.rec.History = stream, epoch, 1, 1, 1
}

// foreignNamespace is where ids that are no UUIDs become some (version 5).
var foreignNamespace = uuid.MustParse("2e4ba0f6-57b5-5c0a-9d3c-4e3f0d2f7a11")

// foreignID is the id if it is a UUID, else one that is made of source and id.
func foreignID(source, id string) uuid.UUID {
	if u, err := uuid.Parse(id); err == nil && len(id) == 36 {
		return u
	}
	return uuid.NewSHA1(foreignNamespace, []byte(source+"\x00"+id))
}

// ErrByOffset says that positions that are made of offsets, as [CloudEvents] and
// [Debezium] make them, meet the policy [Strict], which would wait for positions
// that don't exist. [Run] ends with it before it reads anything, where the
// configuration shows it: a mapping that makes such positions, and no stream of
// them in Config.Streams that is [State], nor Config.Policy. Where only the record
// does (another partition than those in Config.Streams, or a mapping of your own
// that calls one of these for some topics), the record is quarantined: what is
// in a topic ends no consumer.
var ErrByOffset = errors.New("consumer: positions by offset can't be followed strictly")

// checkOffsets refuses a configuration under which every position by offset
// would be strict.
func (c *Config) checkOffsets() error {
	if c.Policy == State || !c.Mapping.makesOffsets() {
		return nil
	}
	for name := range c.Streams {
		if strings.Contains(name, "/") && c.stream(name).Policy == State {
			return nil
		}
	}
	return fmt.Errorf("%w: Config.Mapping makes positions of offsets: set Config.Policy to %q, or that of their streams (\"topic/partition\") in Config.Streams", ErrByOffset, State)
}

// check finds what no guard could store, and a position by offset in a strict
// stream.
func (g *Guard) check(d *Delivery) error {
	if err := checkRecord(&d.Record); err != nil {
		return err
	}
	if isByOffset(Partition{d.Topic, d.Partition}, &d.Record) && g.stream(d.Stream).Policy == Strict {
		return fmt.Errorf("%w: set the policy of the stream %q, or Config.Policy, to %q", ErrByOffset, d.Stream, State)
	}
	return nil
}
