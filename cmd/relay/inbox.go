package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

const inboxUsage = `Usage:
  relay inbox parked list|show|retry|discard|adopt|erase [flags]
  relay inbox dead list|show|retry|discard|erase [flags]
  relay inbox quarantine list|show|retry|admit|discard|erase [flags]
  relay inbox partition list|accept [flags]
  relay inbox topic accept [flags]
  relay inbox audit [flags]

They look at what a consumer could not apply, in the consumer's own database,
and decide about it. What can be applied then is applied by the consumer itself,
within seconds. "relay inbox parked list -help" prints the flags of that command,
and so on.
`

func inboxHelp(_ context.Context, args []string, stdout, stderr io.Writer) error {
	return group("relay inbox", "parked, dead, quarantine, partition, topic and audit", inboxUsage, args, stdout, stderr)
}

// inboxGroup is "relay inbox parked" and the like: what there is below it.
func inboxGroup(name, summary string, below ...string) config.Command {
	last := len(below) - 1
	list := below[last]
	if last > 0 {
		list = strings.Join(below[:last], ", ") + " and " + list
	}
	usage := fmt.Sprintf("Usage:\n  relay inbox %s %s [flags]\n\n\"relay inbox %s %s -help\" prints the flags of %s, and so on.\n", name, strings.Join(below, "|"), name, below[0], below[0])
	return config.Command{Name: "inbox " + name, Summary: summary, Run: func(_ context.Context, args []string, stdout, stderr io.Writer) error {
		return group("relay inbox "+name, list, usage, args, stdout, stderr)
	}}
}

func inboxCommands() []config.Command {
	return []config.Command{
		{Name: "inbox parked list", Summary: "list the streams of a consumer that stand", Run: parkedList},
		{Name: "inbox parked show", Summary: "show a stream's guard and what is parked of it", Run: parkedShow},
		{Name: "inbox parked retry", Summary: "let a stream that fails or is contradicted go on", Run: parkedRetry},
		{Name: "inbox parked discard", Summary: "give events of a stream up", Run: parkedDiscard},
		{Name: "inbox parked adopt", Summary: "go on at a position, and give up what is before it", Run: parkedAdopt},
		{Name: "inbox parked erase", Summary: "erase what a parked record says", Run: parkedErase},
		{Name: "inbox dead list", Summary: "list dead letters", Run: deadList},
		{Name: "inbox dead show", Summary: "show a dead letter with what it says", Run: deadShow},
		{Name: "inbox dead retry", Summary: "let a dead letter be tried again", Run: deadRetry},
		{Name: "inbox dead discard", Summary: "give a dead letter up", Run: deadDiscard},
		{Name: "inbox dead erase", Summary: "erase what a dead letter says", Run: deadErase},
		{Name: "inbox quarantine list", Summary: "list quarantined records", Run: quarantineList},
		{Name: "inbox quarantine show", Summary: "show a quarantined record with what it says", Run: quarantineShow},
		{Name: "inbox quarantine retry", Summary: "let a quarantined record be decided again", Run: quarantineRetry},
		{Name: "inbox quarantine admit", Summary: "vouch for a record of a forgotten life", Run: quarantineAdmit},
		{Name: "inbox quarantine discard", Summary: "close the case of a quarantined record", Run: quarantineDiscard},
		{Name: "inbox quarantine erase", Summary: "erase what a quarantined record says", Run: quarantineErase},
		{Name: "inbox partition list", Summary: "list how far a consumer has read, and what it has missed", Run: partitionList},
		{Name: "inbox partition accept", Summary: "give up what went unread of a partition", Run: partitionAccept},
		{Name: "inbox topic accept", Summary: "read on with another number of partitions", Run: inboxTopicAccept},
		{Name: "inbox audit", Summary: "list what operators did to a consumer", Run: inboxAudit},
		inboxGroup("parked", "list the inbox parked commands", "list", "show", "retry", "discard", "adopt", "erase"),
		inboxGroup("dead", "list the inbox dead commands", "list", "show", "retry", "discard", "erase"),
		inboxGroup("quarantine", "list the inbox quarantine commands", "list", "show", "retry", "admit", "discard", "erase"),
		inboxGroup("partition", "list the inbox partition commands", "list", "accept"),
		inboxGroup("topic", "list the inbox topic commands", "accept"),
		{Name: "inbox", Summary: "list the inbox commands", Run: inboxHelp},
	}
}

// inbox is what the inbox commands share.
type inbox struct {
	operation
	consumer string
	why      string
	stream   consumer.StreamKey
	epoch    int64
	seq      int64
	id       int64
	filter   consumer.Filter
}

// newInbox has the flags of every inbox command.
func newInbox(name, usage string) (*inbox, *config.Set) {
	i := &inbox{}
	s := config.New("relay inbox "+name, usage)
	i.postgres.Register(s)
	s.String(&i.consumer, "consumer", "CONSUMER", "", "the consumer's name, as in its configuration", config.Required())
	s.Bool(&i.asJSON, "json", "", "print one JSON object")
	return i, s
}

func (i *inbox) ofStream(s *config.Set) {
	s.String(&i.stream.Stream, "stream", "", "", "the stream: the topic that its events were appended to", config.Required())
	s.String(&i.stream.Key, "key", "", "", "the key", config.Required())
}

// maxPosition bounds epochs and seqs.
const maxPosition = outbox.MaxNumber

func (i *inbox) at(s *config.Set) {
	i.ofStream(s)
	s.Int64(&i.epoch, "epoch", "", 0, 1, maxPosition, "the event's epoch", config.Required())
	s.Int64(&i.seq, "seq", "", 0, 1, maxPosition, "the event's seq", config.Required())
}

func (i *inbox) number(s *config.Set) {
	s.Int64(&i.id, "id", "", 0, 1, maxPosition, "the record's number in the quarantine", config.Required())
}

func (i *inbox) deciding(s *config.Set) {
	i.changing(s)
	s.String(&i.why, "why", "", "", "why it is done, to be noted with it", config.Required())
}

func (i *inbox) listing(s *config.Set) {
	s.String(&i.filter.Stream, "stream", "", "", "only of this stream")
	s.String(&i.filter.Key, "key", "", "", "only of this key")
	s.Int(&i.filter.Limit, "limit", "", 100, 1, 100_000, "list so many at most")
}

func (i *inbox) note() consumer.Note { return consumer.Note{Who: i.who, Why: i.why} }

func (i *inbox) position() consumer.Position {
	return consumer.Position{StreamKey: i.stream, Epoch: i.epoch, Seq: i.seq}
}

// run parses, and calls f as an operator; kind is the role that f needs.
func (i *inbox) run(ctx context.Context, s *config.Set, args []string, stdout io.Writer, kind string, f func(*consumer.Operator) error) error {
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	pool, err := i.postgres.Open(ctx, s.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	op, err := consumer.NewOperator(ctx, pool, consumer.OperatorConfig{Consumer: i.consumer, Schema: i.postgres.Schema})
	if err == nil {
		err = op.Known(ctx) // else a name that is mistyped would find everything in order
	}
	if err == nil {
		err = f(op)
	}
	return config.NeedsRole(err, i.postgres.Schema, kind)
}

// done is what a command prints that changes something.
type done struct {
	Action string `json:"action"`
	What   string `json:"what"`
	Then   string `json:"then"`
}

func (d done) text() string {
	if d.Then == "" {
		return fmt.Sprintf("%s: %s\n", d.Action, d.What)
	}
	return fmt.Sprintf("%s: %s; %s\n", d.Action, d.What, d.Then)
}

const (
	soon    = "what can be applied now is applied by the consumer within seconds, if it runs"
	isGone  = "it can't be applied any more, only discarded"
	nothing = ""
)

// change is a command that changes something and needs no more than its flags.
func change(ctx context.Context, args []string, stdout io.Writer, name, usage, action, then string, flags func(*inbox, *config.Set), what func(*inbox) string, do func(*inbox, *consumer.Operator) error) error {
	i, s := newInbox(name, usage+" Needs a login with the role <schema>_operator. It is audited.")
	flags(i, s)
	i.deciding(s)
	return i.run(ctx, s, args, stdout, schema.KindOperator, func(op *consumer.Operator) error {
		if err := do(i, op); err != nil {
			return err
		}
		return i.print(stdout, done{action, what(i), then})
	})
}

func theStream(i *inbox) string {
	return fmt.Sprintf("stream %q, key %q", i.stream.Stream, i.stream.Key)
}
func thePosition(i *inbox) string {
	return fmt.Sprintf("%s, epoch %d, seq %d", theStream(i), i.epoch, i.seq)
}
func theNumber(i *inbox) string { return fmt.Sprintf("record %d in quarantine", i.id) }

func inboxAudit(ctx context.Context, args []string, stdout, _ io.Writer) error {
	i, s := newInbox("audit", "Lists what operators did to a consumer, newest first. A login with the role <schema>_monitor is enough.")
	i.listing(s)
	return i.run(ctx, s, args, stdout, schema.KindMonitor, func(op *consumer.Operator) error {
		list, err := op.Audit(ctx, consumer.StreamKey{Stream: i.filter.Stream, Key: i.filter.Key}, i.filter.Limit)
		if err != nil {
			return err
		}
		r := auditReport{Entries: []inboxAuditLine{}}
		for _, a := range list {
			r.Entries = append(r.Entries, inboxAuditLine{a.ID, clock(a.At), a.Action, a.Who, a.Login, a.Why, a.Stream, a.Key, a.Epoch, a.FromSeq, a.ToSeq,
				a.Topic, a.Partition, a.FromOffset, a.ToOffset, json.RawMessage(a.Detail)})
		}
		return i.print(stdout, r)
	})
}

// auditReport is what "relay inbox audit" prints. The JSON names of the inbox
// files are relied on by scripts: add some, change none.
type auditReport struct {
	Entries []inboxAuditLine `json:"entries"`
}

type inboxAuditLine struct {
	ID         int64           `json:"id"`
	At         string          `json:"at"`
	Action     string          `json:"action"`
	Who        string          `json:"who"`
	Login      string          `json:"login"`
	Why        string          `json:"why"`
	Stream     string          `json:"stream"`
	Key        string          `json:"key"`
	Epoch      int64           `json:"epoch"`
	FromSeq    int64           `json:"from_seq"`
	ToSeq      int64           `json:"to_seq"`
	Topic      string          `json:"topic"`
	Partition  int             `json:"partition"`
	FromOffset int64           `json:"from_offset"`
	ToOffset   int64           `json:"to_offset"`
	Detail     json.RawMessage `json:"detail"`
}

// span names what a decision was about. One that ends before it begins has no
// end: a retry begins somewhere, and ends where it can't go on.
func span(what string, from, to int64) string {
	if to < from {
		return fmt.Sprintf("from %s %d on", what, from)
	}
	return fmt.Sprintf("%s %d to %d", what, from, to)
}

func (r auditReport) text() string {
	var b strings.Builder
	for _, a := range r.Entries {
		fmt.Fprintf(&b, "%s %s by %q (login %q)%s", a.At, a.Action, a.Who, a.Login, because(a.Why))
		if a.Stream != "" {
			fmt.Fprintf(&b, "; stream %q, key %q, epoch %d, %s", a.Stream, a.Key, a.Epoch, span("seq", a.FromSeq, a.ToSeq))
		}
		if a.Topic != "" {
			fmt.Fprintf(&b, "; topic %q", a.Topic)
			if a.FromOffset >= 0 { // else it was about all of the topic
				fmt.Fprintf(&b, ", partition %d, %s", a.Partition, span("offsets", a.FromOffset, a.ToOffset))
			}
		}
		if string(a.Detail) != "{}" {
			fmt.Fprintf(&b, "; %s", a.Detail)
		}
		b.WriteByte('\n')
	}
	if len(r.Entries) == 0 {
		b.WriteString("nothing was done\n")
	}
	return b.String()
}
