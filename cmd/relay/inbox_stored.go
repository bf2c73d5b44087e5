package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/consumer"
	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
)

func deadList(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return storedList(ctx, args, stdout, "dead list", "Lists the events of state streams that their handler refused for good.", "there are no dead letters", (*consumer.Operator).Dead)
}

func quarantineList(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return storedList(ctx, args, stdout, "quarantine list", "Lists the records that could not be placed in a stream, or were not believed.", "the quarantine is empty", (*consumer.Operator).Quarantine)
}

func storedList(ctx context.Context, args []string, stdout io.Writer, name, usage, none string, list func(*consumer.Operator, context.Context, consumer.Filter) ([]consumer.Stored, error)) error {
	i, s := newInbox(name, usage+" A login with the role <schema>_monitor is enough.")
	i.listing(s)
	s.Bool(&i.filter.All, "all", "", "list also what was dealt with")
	var after, seq int64
	if strings.HasPrefix(name, "dead") {
		s.String(&i.filter.After.Stream, "after-stream", "", "", "list letters behind this stream's, to go on with a long list")
		s.String(&i.filter.After.Key, "after-key", "", "", "and behind this key's")
		s.Int64(&after, "after-epoch", "", 0, 0, maxPosition, "and behind this epoch's")
		s.Int64(&seq, "after-seq", "", 0, 0, maxPosition, "and behind this seq")
	} else {
		s.Int64(&after, "after", "", 0, 0, maxPosition, "list records behind this number, to go on with a long list")
	}
	return i.run(ctx, s, args, stdout, schema.KindMonitor, func(op *consumer.Operator) error {
		ask := i.filter
		ask.AfterID, ask.After.Epoch, ask.After.Seq = after, after, seq
		ask.Limit++
		l, err := list(op, ctx, ask)
		if err != nil {
			return err
		}
		return i.print(stdout, storedReport{storedLines(l[:min(len(l), i.filter.Limit)]), len(l) > i.filter.Limit, none})
	})
}

// storedReport is what "relay inbox dead list" and "quarantine list" print.
type storedReport struct {
	Records []storedLine `json:"records"`
	More    bool         `json:"more"`
	none    string
}

type storedLine struct {
	ID        int64     `json:"id"`
	Stream    string    `json:"stream"`
	Key       string    `json:"key"`
	Epoch     int64     `json:"epoch"`
	Seq       int64     `json:"seq"`
	Kind      string    `json:"kind"`
	FromSeq   int64     `json:"from_seq"`
	Topic     string    `json:"topic"`
	Partition int       `json:"partition"`
	Offset    int64     `json:"offset"`
	EventID   string    `json:"event_id"`
	Reason    string    `json:"reason"`
	Attempts  int       `json:"attempts"`
	Size      int64     `json:"size"`
	At        time.Time `json:"at"`
	ChangedAt time.Time `json:"changed_at"`
	Wanted    string    `json:"wanted"`
	Outcome   string    `json:"outcome"`
	Erased    bool      `json:"erased"`
}

func newStoredLine(r consumer.Stored) storedLine {
	return storedLine{r.ID, r.Stream, r.Key, r.Epoch, r.Seq, string(r.Kind), r.From, r.Topic, r.Partition, r.Offset, r.EventID, string(r.Reason), r.Attempts, r.Size,
		r.At.UTC(), r.ChangedAt.UTC(), r.Wanted, r.Outcome, r.Erased}
}

func storedLines(list []consumer.Stored) []storedLine {
	lines := make([]storedLine, 0, len(list))
	for _, r := range list {
		lines = append(lines, newStoredLine(r))
	}
	return lines
}

func (l storedLine) text() string {
	var b strings.Builder
	if l.ID != 0 {
		fmt.Fprintf(&b, "%d ", l.ID)
	}
	if l.Stream != "" {
		fmt.Fprintf(&b, "stream %q, key %q, epoch %d, seq %d %s, ", l.Stream, l.Key, l.Epoch, l.Seq, l.Kind)
	}
	fmt.Fprintf(&b, "at %s/%d offset %d, since %s", l.Topic, l.Partition, l.Offset, clock(l.At))
	if l.Reason != "" {
		fmt.Fprintf(&b, ": %s", l.Reason)
	}
	fmt.Fprintf(&b, ", %d bytes", l.Size)
	if l.Attempts > 0 {
		fmt.Fprintf(&b, ", tried %s", count(l.Attempts, "time"))
	}
	for _, more := range []struct {
		is   bool
		text string
	}{{l.Wanted != "", ", waits to be tried (" + l.Wanted + ")"}, {l.Outcome != "", ", " + l.Outcome}, {l.Erased, ", erased"}} {
		if more.is {
			b.WriteString(more.text)
		}
	}
	return b.String() + "\n"
}

func (r storedReport) text() string {
	var b strings.Builder
	for _, l := range r.Records {
		b.WriteString(l.text())
	}
	switch {
	case len(r.Records) == 0:
		b.WriteString(r.none + "\n")
	case r.More:
		last := r.Records[len(r.Records)-1]
		if last.ID != 0 {
			fmt.Fprintf(&b, "there are more: go on with -after %d\n", last.ID)
		} else {
			fmt.Fprintf(&b, "there are more: go on with -after-stream %s -after-key %s -after-epoch %d -after-seq %d\n", config.Typed(last.Stream), config.Typed(last.Key), last.Epoch, last.Seq)
		}
	}
	return b.String()
}

func deadShow(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return show(ctx, args, stdout, "dead show", "Shows a dead letter with what it says.", (*inbox).at, thePosition,
		func(i *inbox, op *consumer.Operator) (consumer.StoredRecord, error) {
			return op.DeadRecord(ctx, i.position())
		})
}

func quarantineShow(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return show(ctx, args, stdout, "quarantine show", "Shows a quarantined record with what it says.", (*inbox).number, theNumber,
		func(i *inbox, op *consumer.Operator) (consumer.StoredRecord, error) {
			return op.QuarantinedRecord(ctx, i.id)
		})
}

func show(ctx context.Context, args []string, stdout io.Writer, name, usage string, flags func(*inbox, *config.Set), what func(*inbox) string, read func(*inbox, *consumer.Operator) (consumer.StoredRecord, error)) error {
	i, s := newInbox(name, usage+" Needs a login with the role <schema>_operator.")
	flags(i, s)
	return i.run(ctx, s, args, stdout, schema.KindOperator, func(op *consumer.Operator) error {
		return i.printRecord(stdout, func() (consumer.StoredRecord, error) { return read(i, op) }, what(i))
	})
}

func (i *inbox) printRecord(stdout io.Writer, read func() (consumer.StoredRecord, error), what string) error {
	r, err := read()
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("consumer %q has nothing stored at %s", i.consumer, what)
	}
	if err != nil {
		return config.NeedsRole(err, i.postgres.Schema, schema.KindOperator)
	}
	return i.print(stdout, newRecordReport(r))
}

// recordReport is what the show commands print of one record.
type recordReport struct {
	storedLine
	Error     string       `json:"error"`
	Timestamp string       `json:"timestamp"` // the record's own, which need not be a date of this era
	KafkaKey  shown        `json:"kafka_key"`
	Headers   []headerLine `json:"headers"`
	Value     shown        `json:"value"`
}

// shown is bytes as text where they are text, else in base64; both are null
// where there are no bytes.
type shown struct {
	Text   *string `json:"text"`
	Base64 *string `json:"base64"`
}

type headerLine struct {
	Name  string `json:"name"`
	Value shown  `json:"value"`
}

func newShown(b []byte) (s shown) {
	if b == nil {
		return s
	}
	text := string(b)
	if utf8.Valid(b) {
		return shown{Text: &text}
	}
	text = base64.StdEncoding.EncodeToString(b)
	return shown{Base64: &text}
}

func (s shown) String() string {
	switch {
	case s.Text != nil:
		return fmt.Sprintf("%q", *s.Text)
	case s.Base64 != nil:
		return "base64 " + *s.Base64
	}
	return "null"
}

func newRecordReport(f consumer.StoredRecord) recordReport {
	r := recordReport{newStoredLine(f.Stored), f.Error, f.Record.Time.UTC().Format(time.RFC3339Nano), newShown(f.Record.Key), []headerLine{}, newShown(f.Record.Value)}
	for _, h := range f.Record.Headers {
		r.Headers = append(r.Headers, headerLine{strings.ToValidUTF8(h.Key, "\uFFFD"), newShown(h.Value)})
	}
	return r
}

func (r recordReport) text() string {
	var b strings.Builder
	b.WriteString(r.storedLine.text())
	if r.Error != "" {
		fmt.Fprintf(&b, "error   %q\n", r.Error)
	}
	fmt.Fprintf(&b, "time    %s\nkey     %s\n", r.Timestamp, r.KafkaKey)
	for _, h := range r.Headers {
		fmt.Fprintf(&b, "header  %q = %s\n", h.Name, h.Value)
	}
	fmt.Fprintf(&b, "value   %s\n", r.Value)
	return b.String()
}

func deadRetry(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return change(ctx, args, stdout, "dead retry", "Lets a dead letter be decided again: it is applied unless something newer was.", "to be retried", soon,
		(*inbox).at, thePosition, func(i *inbox, op *consumer.Operator) error {
			return op.RetryDead(ctx, i.stream, i.epoch, i.seq, i.note())
		})
}

func deadDiscard(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return change(ctx, args, stdout, "dead discard", "Gives a dead letter up: no copy of the event is ever applied.", "discarded", nothing,
		(*inbox).at, thePosition, func(i *inbox, op *consumer.Operator) error {
			return op.DiscardDead(ctx, i.stream, i.epoch, i.seq, i.note())
		})
}

func deadErase(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return change(ctx, args, stdout, "dead erase", "Erases what a dead letter says; the row stays.", "erased", isGone,
		(*inbox).at, thePosition, func(i *inbox, op *consumer.Operator) error {
			return op.EraseDead(ctx, i.stream, i.epoch, i.seq, i.note())
		})
}

func quarantineRetry(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return change(ctx, args, stdout, "quarantine retry", "Lets a quarantined record be decided again, by a newer version or on a guard that has moved.", "to be retried", soon,
		(*inbox).number, theNumber, func(i *inbox, op *consumer.Operator) error {
			return op.RetryQuarantined(ctx, i.id, i.note())
		})
}

func quarantineAdmit(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return change(ctx, args, stdout, "quarantine admit", "Takes a record of a life whose guards were forgotten as the first one of its key. You vouch for it that it was not applied before: nobody else can know.", "admitted", soon,
		(*inbox).number, theNumber, func(i *inbox, op *consumer.Operator) error { return op.Admit(ctx, i.id, i.note()) })
}

func quarantineDiscard(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return change(ctx, args, stdout, "quarantine discard", "Closes the case of a quarantined record; a key that a contradiction has blocked is let go on with \"relay inbox parked retry\".", "discarded", nothing,
		(*inbox).number, theNumber, func(i *inbox, op *consumer.Operator) error {
			return op.DiscardQuarantined(ctx, i.id, i.note())
		})
}

func quarantineErase(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return change(ctx, args, stdout, "quarantine erase", "Erases what a quarantined record says; where it lay and why it was refused stays.", "erased", nothing,
		(*inbox).number, theNumber, func(i *inbox, op *consumer.Operator) error {
			return op.EraseQuarantined(ctx, i.id, i.note())
		})
}
