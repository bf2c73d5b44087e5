package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/cmdtest"
	"github.com/fenceline/fenceline/internal/pgmigrated"
	"github.com/fenceline/fenceline/outbox"
)

const inboxEpoch = int64(1_764_000_000_000_000)

// inboxWorld is a consumer's database with something of everything in it.
type inboxWorld struct {
	t                       *testing.T
	dsn                     string
	guard                   *consumer.Guard
	conn                    *pgx.Conn
	operator, reader, other cmdtest.Env
	applied                 []string
	prefix                  string // of the headers' names in what it reads
}

// ownFormat is the consumer's mapping, of which the commands know nothing: they
// can read what has no prefix.
func ownFormat(p consumer.Partition, r consumer.KafkaRecord) (outbox.Record, error) {
	r.Headers = slices.Clone(r.Headers)
	for i := range r.Headers {
		r.Headers[i].Key = strings.TrimPrefix(r.Headers[i].Key, "own_")
	}
	return consumer.Wire(p, r)
}

func newInboxWorld(t *testing.T) *inboxWorld {
	t.Helper()
	dsn := cmdtest.Migrated(t)
	env := func(role string) cmdtest.Env {
		return cmdtest.Env{"FENCELINE_POSTGRES_DSN=" + pgmigrated.Login(t, dsn, role), "FENCELINE_CONSUMER=c"}
	}
	w := &inboxWorld{t: t, dsn: dsn, operator: env("operator"), reader: env("monitor"), other: env("consumer")}
	var err error
	w.guard, err = consumer.NewGuard(consumer.GuardConfig{Consumer: "c", Mapping: ownFormat, Streams: map[string]consumer.StreamConfig{"snap": {Policy: consumer.State}}})
	if err != nil {
		t.Fatal(err)
	}
	if w.conn, err = pgx.Connect(context.Background(), strings.TrimPrefix(w.other[0], "FENCELINE_POSTGRES_DSN=")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.conn.Close(context.Background()) })
	return w
}

func (w *inboxWorld) handler() consumer.Handler {
	return consumer.HandlerFunc(func(_ context.Context, _ pgx.Tx, d consumer.Delivery) error {
		w.applied = append(w.applied, fmt.Sprintf("%s/%d", d.Stream, d.Seq))
		return nil
	})
}

func (w *inboxWorld) tx(f func(context.Context, pgx.Tx) error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := pgx.BeginTxFunc(ctx, w.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return f(ctx, tx) })
	if err != nil {
		w.t.Fatal(err)
	}
}

// reads hands events to the guard; those of which failed is not nil fail.
func (w *inboxWorld) reads(stream string, failed error, seqs ...int64) {
	w.t.Helper()
	var ds []consumer.Delivery
	for _, seq := range seqs {
		r := outbox.Record{ID: uuid.New(), Type: "t", Source: "test", Topic: stream, Stream: stream, Key: "a key", Kind: outbox.KindData,
			Epoch: inboxEpoch, Token: 1, Seq: seq, Payload: fmt.Appendf(nil, "secret %d", seq), CreatedAt: time.UnixMilli(1_764_000_000_123)}
		if seq == 1 {
			r.History = inboxEpoch
		}
		headers := outbox.AppendWireHeaders(nil, &r)
		for i := range headers {
			headers[i].Key = w.prefix + headers[i].Key
		}
		d := consumer.Mapping(ownFormat).Delivery(consumer.Partition{Topic: stream}, consumer.KafkaRecord{
			Offset: seq, Time: r.CreatedAt, Key: []byte(r.Key), Value: outbox.WireValue(&r), Headers: headers})
		d.Failed = failed
		ds = append(ds, d)
	}
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := w.guard.Apply(ctx, tx, ds, w.handler())
		return err
	})
}

// goesOn does what the running consumer does.
func (w *inboxWorld) goesOn(want ...string) {
	w.t.Helper()
	w.applied = nil
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		keys, err := w.guard.Pending(ctx, tx, 100)
		if err != nil || len(keys) == 0 {
			return err
		}
		_, err = w.guard.Resume(ctx, tx, keys, w.handler())
		return err
	})
	if strings.Join(w.applied, " ") != strings.Join(want, " ") {
		w.t.Errorf("applied %v, want %v", w.applied, want)
	}
}

func (w *inboxWorld) do(env cmdtest.Env, code int, args string, texts ...string) {
	w.t.Helper()
	list := strings.Fields(args)
	for i := range list {
		list[i] = strings.ReplaceAll(list[i], "_", " ")
	}
	want(w.t, cmdtest.Run(w.t, env, "relay", append([]string{"inbox"}, list...)...), code, texts...)
}

func TestParkedStreamsAreListedShownAndDecidedAbout(t *testing.T) {
	w := newInboxWorld(t)
	w.reads("s", nil, 1)
	w.do(w.reader, 0, "parked list", "no stream stands")
	w.reads("s", errors.New("no such account"), 2)
	w.reads("s", nil, 3, 7, 9)
	at := fmt.Sprintf(" -stream s -key a_key -epoch %d ", inboxEpoch)
	decided := " -who alice -why ticket_7"

	w.do(w.reader, 0, "parked list", `stream "s", key "a key" stands since`, "(failing): 4 parked")
	r := relayJSON[parkedReport](t, w.reader, "inbox", "parked", "list", "-json", "-limit", "1")
	if len(r.Streams) != 1 || r.More || r.Streams[0].Seq != 1 || r.Streams[0].Reason != "failing" || r.Streams[0].Parked != 4 {
		t.Errorf("%+v", r)
	}
	w.do(w.reader, 0, "parked show -stream s -key a_key", "strict from first-seen", "seq 2 data", "failing", "seq 3 data")
	s := relayJSON[streamReport](t, w.reader, "inbox", "parked", "show", "-json", "-stream", "s", "-key", "a key")
	if s.Guard.Seq != 1 || s.Guard.Blocked != "failing" || len(s.Records) != 4 || s.Records[0].Attempts != 1 {
		t.Errorf("%+v", s)
	}
	w.do(w.reader, 0, "parked show -stream s -key a_key -limit 3", "seq 7 data", "there are more (4 in all)")
	if s := relayJSON[streamReport](t, w.reader, "inbox", "parked", "show", "-json", "-stream", "s", "-key", "a key", "-limit", "3"); len(s.Records) != 3 || !s.More {
		t.Errorf("%+v", s)
	}
	w.do(w.reader, 1, "parked show"+at+"-seq 2", "fenceline_operator") // what it says is not the monitor's to read
	w.do(w.operator, 0, "parked show"+at+"-seq 2", "no such account", `"secret 2"`, "ce_fenceseq")

	w.do(w.operator, 0, "parked retry -stream s -key a_key"+decided, `retried: stream "s", key "a key"`)
	w.goesOn("s/2", "s/3")
	w.do(w.operator, 0, "parked discard"+at+"-seq 4 -to 5"+decided, "discarded")
	w.goesOn()
	for _, to := range []string{"10", "1000000"} {
		w.do(w.operator, 1, "parked discard"+at+"-seq 6 -to "+to+decided, "nothing was changed", "seq 9 and up to seq "+to, "relay republish", "-give-up")
	}
	w.do(w.operator, 1, "parked discard -give-up"+at+"-seq 6 -to 4611686018427387904"+decided, "nothing speaks for")
	w.do(w.operator, 1, "parked adopt"+at+"-seq 7"+decided, "nothing was changed", "relay republish", "-give-up")
	w.do(w.operator, 0, "parked adopt -give-up"+at+"-seq 7"+decided, "adopted")
	w.goesOn("s/7")
	w.do(w.operator, 0, "parked erase"+at+"-seq 9"+decided, "erased", "only discarded")
	w.do(w.operator, 0, "parked show"+at+"-seq 9", "erased", "value   null")
	w.do(w.operator, 0, "parked discard -give-up"+at+"-seq 8 -to 11"+decided, "seq 8 to 11")

	w.do(w.reader, 0, "audit", `erase by "alice" (login`, "ticket 7", `adopt by "alice"`, "seq 6 to 6", "seq 4 to 5", "seq 8 to 11")
	if text := (auditReport{Entries: []inboxAuditLine{{Action: "retry", Stream: "s", Epoch: 1, FromSeq: 1, Detail: []byte("{}")}}}).text(); !strings.Contains(text, "epoch 1, from seq 1 on\n") || strings.Contains(text, "): ;") {
		t.Errorf("an entry without an end and a reason is %q", text)
	}
	a := relayJSON[auditReport](t, w.reader, "inbox", "audit", "-json", "-stream", "s")
	if len(a.Entries) != 5 || a.Entries[4].Action != "retry" || a.Entries[0].Who != "alice" || a.Entries[0].Login == "" {
		t.Errorf("%+v", a)
	}
	for _, e := range a.Entries {
		if len(e.Detail) == 0 || e.Detail[0] != '{' { // JSON within JSON, and no text that has to be read once more
			t.Errorf("the detail of %s is %s", e.Action, e.Detail)
		}
	}
}

// What is in a topic may say of itself that it is of a year that no date is of.
func TestAHostileRecordOfAnyTimeIsShown(t *testing.T) {
	w := newInboxWorld(t)
	for i, c := range []struct {
		ms   int64
		year string
	}{{1e17, "3170843-"}, {-1e17, "-3166904-"}, {-1, "1969-"}} {
		d := consumer.NewDelivery(consumer.Partition{Topic: "s"}, consumer.KafkaRecord{Offset: int64(i), Time: time.UnixMilli(c.ms), Key: []byte("k")})
		w.tx(func(ctx context.Context, tx pgx.Tx) error {
			_, err := w.guard.Apply(ctx, tx, []consumer.Delivery{d}, w.handler())
			return err
		})
		id := fmt.Sprint(i + 1)
		w.do(w.operator, 0, "quarantine show -id "+id, "time    "+c.year)
		if r := relayJSON[recordReport](t, w.operator, "inbox", "quarantine", "show", "-json", "-id", id); !strings.HasPrefix(r.Timestamp, c.year) {
			t.Errorf("%+v", r)
		}
	}
}

// The commands read by the wire's mapping, whatever the consumer's is.
func TestParkedRecordsThatTheCommandsCantReadAreDecidedAboutAllTheSame(t *testing.T) {
	w := newInboxWorld(t)
	w.prefix = "own_"
	no := errors.New("no such account")
	at := fmt.Sprintf(" -stream s -key a_key -epoch %d ", inboxEpoch)
	decided := " -who alice -why ticket_7"
	w.reads("s", nil, 1)
	w.reads("s", no, 2)
	w.reads("s", nil, 3, 5)
	w.do(w.operator, 0, "parked retry -stream s -key a_key"+decided, "retried")
	w.goesOn("s/2", "s/3")
	w.do(w.operator, 0, "parked discard"+at+"-seq 4"+decided, "discarded")
	w.goesOn("s/5")
	w.reads("s", no, 6)
	w.reads("s", nil, 7, 9)
	w.do(w.operator, 0, "parked discard"+at+"-seq 6"+decided, "discarded")
	w.goesOn("s/7")
	w.do(w.operator, 0, "parked adopt -give-up"+at+"-seq 9"+decided, "adopted")
	w.goesOn("s/9")
	w.reads("s", no, 10)
	w.reads("s", nil, 11)
	w.do(w.operator, 0, "parked erase"+at+"-seq 10"+decided, "erased")
	w.goesOn()
	w.do(w.reader, 0, "parked list", "(failing): 2 parked")
	w.do(w.operator, 0, "parked discard"+at+"-seq 10"+decided, "discarded")
	w.goesOn("s/11")
	w.do(w.reader, 0, "parked list", "no stream stands")
}

func TestDeadLettersAndQuarantineAreListedShownAndDecidedAbout(t *testing.T) {
	w := newInboxWorld(t)
	w.reads("snap", nil, 1)
	w.do(w.reader, 0, "dead list", "there are no dead letters")
	w.do(w.reader, 0, "quarantine list", "the quarantine is empty")
	w.reads("snap", errors.New("no such account"), 2)
	w.reads("snap", errors.New("no such account"), 3)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		d := consumer.NewDelivery(consumer.Partition{Topic: "s", ID: 4}, consumer.KafkaRecord{Offset: 17, Key: []byte{0xff}, Value: []byte("secret")})
		_, err := w.guard.Apply(ctx, tx, []consumer.Delivery{d}, w.handler())
		return err
	})
	at := fmt.Sprintf(" -stream snap -key a_key -epoch %d ", inboxEpoch)
	decided := " -who alice -why ticket_7"

	w.do(w.reader, 0, "dead list -limit 1", "seq 2 data", "tried 1 time\n", "there are more: go on with -after-stream snap")
	w.do(w.reader, 0, "dead list -after-stream snap -after-key a_key"+fmt.Sprintf(" -after-epoch %d -after-seq 2", inboxEpoch), "seq 3 data")
	w.do(w.operator, 0, "dead show"+at+"-seq 2", "no such account", `"secret 2"`)
	w.do(w.reader, 1, "dead show"+at+"-seq 2", "fenceline_operator")
	w.do(w.operator, 0, "dead retry"+at+"-seq 2"+decided, "to be retried")
	w.do(w.reader, 0, "dead list", "waits to be tried (retry)")
	w.goesOn("snap/2")
	w.do(w.operator, 0, "dead discard"+at+"-seq 3"+decided, "discarded")
	w.do(w.reader, 0, "dead list", "there are no dead letters")
	w.do(w.reader, 0, "dead list -all", "discarded")
	w.do(w.operator, 0, "dead erase"+at+"-seq 3"+decided, "erased")
	w.do(w.operator, 1, "dead retry"+at+"-seq 3"+decided, "was discarded")
	w.do(w.operator, 1, "dead show"+at+"-seq 8", "has nothing stored")

	q := relayJSON[storedReport](t, w.reader, "inbox", "quarantine", "list", "-json")
	if len(q.Records) != 1 || q.Records[0].Offset != 17 || q.Records[0].Partition != 4 || q.Records[0].Reason != "malformed" {
		t.Fatalf("%+v", q)
	}
	id := fmt.Sprintf(" -id %d", q.Records[0].ID)
	w.do(w.operator, 0, "quarantine show"+id, "ce_specversion", "base64 /w==", `"secret"`)
	w.do(w.operator, 1, "quarantine retry"+id+decided, "still can't be read")
	w.do(w.operator, 1, "quarantine admit"+id+decided, "only what is from before the memory")
	w.do(w.operator, 0, "quarantine erase"+id+decided, "erased")
	w.do(w.operator, 0, "quarantine discard"+id+decided, "discarded")
	w.do(w.reader, 0, "quarantine list -all", "discarded", "erased")
	w.do(w.operator, 1, "quarantine discard -id 99"+decided, "has none of that number")
}

func TestWhatWentUnreadIsListedAndAccepted(t *testing.T) {
	w := newInboxWorld(t)
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		if err := w.guard.PinTopic(ctx, tx, "s", 1); err != nil {
			return err
		}
		return nil
	})
	w.do(w.reader, 0, "partition list", "the consumer has read nothing")
	w.tx(func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select fenceline.restart_partition('c', 's', 0, 30, true, 10, 20)")
		return err
	})
	decided := " -who alice -why ticket_7"
	w.do(w.reader, 0, "partition list", "s/0 is read up to offset 30", "offsets 10 to 20 went unread", "relay republish")
	grow := "topic accept -topic s -partitions 3 -ends 0=30"
	w.do(w.operator, 1, grow+decided, "went unread") // what can't be is not asked for
	w.do(w.operator, 1, "topic accept -topic typo -partitions 3 -ends 0=30"+decided, "has not read it")
	w.do(w.operator, 1, grow+" -nothing-swept"+decided, "went unread")
	w.do(w.operator, 2, "topic accept -topic s -partitions 3 -ends x"+decided, "0=1200")
	w.do(w.operator, 0, "partition accept -topic s -partition 0"+decided, "accepted: s/0")
	w.do(w.operator, 0, "partition accept -topic s -partition 0"+decided, "not flagged any more")
	w.do(w.operator, 1, grow+decided, "nothing was changed", "-nothing-swept")
	w.do(w.operator, 0, grow+" -nothing-swept"+decided, `topic "s" with 3 partitions`)
	w.do(w.reader, 0, "audit", "accept_topic", "offsets 10 to 20")
}

func TestTheInboxCommandsRefuseWithTheRemedy(t *testing.T) {
	w := newInboxWorld(t)
	w.reads("s", nil, 1, 3)
	decided := " -who alice -why ticket_7"
	at := fmt.Sprintf(" -stream s -key a_key -epoch %d ", inboxEpoch)
	w.do(w.reader, 1, "parked discard"+at+"-seq 2"+decided, "fenceline_operator")
	w.do(w.other, 1, "parked discard"+at+"-seq 2"+decided, "fenceline_operator")
	w.do(w.other, 1, "partition accept -topic s -partition 0"+decided, "not read")
	w.do(w.operator, 2, "parked discard"+at+"-seq 2", "-why is missing")
	w.do(w.operator[:1], 2, "parked list", "-consumer is missing")
	for _, c := range []struct{ args, missing string }{
		{"quarantine show", "-id is missing"},
		{"quarantine retry" + decided, "-id is missing"},
		{"dead show -stream s -key a_key -seq 2", "-epoch is missing"},
		{"parked discard -stream s -key a_key -epoch 1" + decided, "-seq is missing"},
		{"partition accept -topic s" + decided, "-partition is missing"}, // and 0 is one
		{"topic accept -topic s -ends 0=1" + decided, "-partitions is missing"},
		{"topic accept -topic s -ends 0=1 -partitions 0" + decided, `-partitions: "0": want a number from 1`},
		{"quarantine show -id 0", `-id: "0": want a number from 1`},
		{"dead show -stream s -key a_key -epoch 0 -seq 2", `-epoch: "0": want a number from 1`},
	} {
		w.do(w.operator, 2, c.args, c.missing)
	}
	w.do(w.operator, 2, "parked list stray", "unexpected argument")
	w.do(w.operator, 1, "parked show -stream s -key none", "has no guard")
	w.do(w.operator, 2, "parked show -stream s -key none -seq 3", "give -epoch and -seq, or neither")
	w.do(w.operator, 2, "parked show -stream s -key none -epoch 3", "give -epoch and -seq, or neither")
	w.do(w.operator, 1, "parked discard"+at+"-seq 1"+decided, "passed")
	w.do(w.operator, 1, "parked adopt -stream s -key a_key -epoch 4611686018427387904 -seq 1"+decided, "ahead of the database's clock")
	w.do(w.operator, 1, "parked adopt -stream s -key none -epoch 1 -seq 1"+decided, "nothing was read of the stream")
	w.do(nil, 0, "-help", "relay inbox parked list|show|retry|discard|adopt|erase")
}

// Every list of a consumer that isn't there is empty, which must not look as if
// all were well.
func TestNoInboxCommandGivesTheAllClearForAConsumerThatHasNeverReadAnything(t *testing.T) {
	w := newInboxWorld(t)
	w.reads("s", nil, 1)
	for _, c := range []string{"parked list", "dead list", "quarantine list", "partition list", "audit"} {
		w.do(w.reader, 1, c+" -consumer typo", `"typo" has never read anything`, "check its name")
	}
	w.do(w.operator, 1, "parked retry -consumer typo -stream s -key a_key -who alice -why x", `"typo" has never read anything`)
}

func TestEachGroupOfInboxCommandsPrintsWhatIsBelowIt(t *testing.T) {
	for name, below := range map[string]string{
		"parked": "list|show|retry|discard|adopt|erase", "dead": "list|show|retry|discard|erase",
		"quarantine": "list|show|retry|admit|discard|erase", "partition": "list|accept", "topic": "accept",
	} {
		usage := fmt.Sprintf("relay inbox %s %s [flags]", name, below)
		want(t, cmdtest.Run(t, nil, "relay", "inbox", name, "-help"), 0, usage)
		want(t, cmdtest.Run(t, nil, "relay", "inbox", name), 2, usage, "a command is missing")
		there := "are "
		if !strings.Contains(below, "|") {
			there = "is only " + below
		}
		last := below[strings.LastIndex(below, "|")+1:]
		want(t, cmdtest.Run(t, nil, "relay", "inbox", name, "bogus"), 2, fmt.Sprintf("relay inbox %s: unknown command \"bogus\": there %s", name, there), last)
	}
}
