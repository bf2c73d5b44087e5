package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/relay"
)

const heldUsage = `Usage:
  relay held list|show|retry|skip [flags]

"relay held list -help" prints the flags of list, and so on.
`

func heldHelp(_ context.Context, args []string, stdout, stderr io.Writer) error {
	return group("relay held", "list, show, retry and skip", heldUsage, args, stdout, stderr)
}

// decision is what the held and topic commands share.
type decision struct {
	operation
	why        string
	topic, key string
}

// stream adds the flags that name a held stream.
func (d *decision) stream(s *config.Set, opts ...config.Option) {
	s.String(&d.topic, "topic", "", "", "topic of the stream", opts...)
	s.String(&d.key, "key", "", "", "key of the stream", opts...)
}

// deciding adds who and why.
func (d *decision) deciding(s *config.Set) {
	d.changing(s)
	s.String(&d.why, "why", "", "", "why, to be noted with it")
	s.Bool(&d.asJSON, "json", "", "print one JSON object")
}

func (d *decision) by() relay.By { return relay.By{Who: d.who, Why: d.why} }

// with runs f as an operator of the relay's; kind is the role that f needs.
func (d *decision) with(ctx context.Context, name, kind string, f func(*relay.Operator) error) error {
	pool, err := d.postgres.Open(ctx, name)
	if err != nil {
		return err
	}
	defer pool.Close()
	op, err := relay.NewOperator(ctx, pool, d.postgres.Schema)
	if err == nil {
		err = f(op)
	}
	return config.NeedsRole(err, d.postgres.Schema, kind)
}

func heldList(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		d     decision
		limit int
	)
	s := config.New("relay held list", "Lists the streams that are held because the broker refuses a record of theirs, and what was decided about them. A login with the role <schema>_monitor is enough.")
	d.postgres.Register(s)
	d.stream(s)
	s.Int(&limit, "limit", "", 100, 1, 100_000, "list so many at most")
	s.Bool(&d.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return d.with(ctx, s.Name, schema.KindMonitor, func(op *relay.Operator) error {
		held, err := op.Held(ctx, relay.HeldFilter{Topic: d.topic, Key: d.key, Limit: limit + 1})
		if err != nil {
			return err
		}
		r := heldReport{More: len(held) > limit, Held: []heldLine{}}
		for _, h := range held[:min(len(held), limit)] {
			r.Held = append(r.Held, newHeldLine(h))
		}
		return d.print(stdout, r)
	})
}

// heldReport is what "relay held list" prints. The JSON names of these reports
// are relied on by scripts: add some, change none.
type heldReport struct {
	Held []heldLine `json:"held"`
	More bool       `json:"more"`
}

type heldLine struct {
	Topic   string     `json:"topic"`
	Key     string     `json:"key"`
	Epoch   int64      `json:"epoch"`
	Seq     int64      `json:"seq"`
	Pos     int64      `json:"pos"`
	Since   time.Time  `json:"since"`
	Reason  string     `json:"reason"`
	Detail  string     `json:"detail"`
	State   string     `json:"state"`
	AskedBy string     `json:"asked_by"`
	AskedAt *time.Time `json:"asked_at"`
	Why     string     `json:"why"`
	SkipTo  int64      `json:"skip_to"`
}

func newHeldLine(h relay.HeldInfo) heldLine {
	return heldLine{h.Topic, h.Key, h.Epoch, h.Seq, h.Pos, h.Since.UTC(), h.Reason, h.Detail, string(h.State), h.AskedBy, maybe(h.AskedAt), h.Why, h.SkipTo}
}

func (h heldLine) text() string {
	s := fmt.Sprintf("topic %q, key %q: %s, from epoch %d, seq %d (pos %d) on, since %s\n  reason: %s\n", h.Topic, h.Key, h.State, h.Epoch, h.Seq, h.Pos, clock(h.Since), h.Reason)
	if h.AskedAt != nil {
		s += fmt.Sprintf("  asked:  by %q at %s", h.AskedBy, clock(*h.AskedAt))
		if h.Why != "" {
			s += fmt.Sprintf(", because %q", h.Why)
		}
		s += "\n"
	}
	return s
}

func (r heldReport) text() string {
	var b strings.Builder
	for _, h := range r.Held {
		b.WriteString(h.text())
	}
	switch {
	case len(r.Held) == 0:
		b.WriteString("no streams are held\n")
	case r.More:
		b.WriteString("there are more: raise -limit, or choose with -topic\n")
	}
	return b.String()
}

func heldShow(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var d decision
	s := config.New("relay held show", "Shows a held stream: the record that the broker refuses, without its payload, how much waits behind it, and what was decided. A login with the role <schema>_monitor is enough.")
	d.postgres.Register(s)
	d.stream(s, config.Required())
	s.Bool(&d.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return d.with(ctx, s.Name, schema.KindMonitor, func(op *relay.Operator) error {
		held, err := op.Held(ctx, relay.HeldFilter{Topic: d.topic, Key: d.key})
		if err != nil {
			return err
		}
		r := heldDetail{Audit: []auditLine{}}
		if len(held) > 0 {
			l := newHeldLine(held[0])
			r.Held = &l
			e, err := op.HeldEvent(ctx, held[0].HeldStream)
			if err != nil {
				return err
			}
			r.Waiting, r.AtLeast = e.Waiting, e.More
			if e.Known {
				r.Event = &heldEvent{e.ID, e.Type, e.Subject, e.Source, e.ContentType, e.Kind, e.CreatedAt.UTC(), e.Verdict, maybe(e.VerdictAt)}
			}
		}
		audit, err := op.Audit(ctx, d.topic, d.key, 20)
		if err != nil {
			return err
		}
		for _, a := range audit {
			r.Audit = append(r.Audit, newAuditLine(a))
		}
		if r.Held == nil && len(r.Audit) == 0 {
			return fmt.Errorf("no stream of topic %q with key %q is held, and nothing is on record: \"relay held list\" shows which are", d.topic, d.key)
		}
		return d.print(stdout, r)
	})
}

// heldDetail is what "relay held show" prints.
type heldDetail struct {
	Held    *heldLine   `json:"held"`  // null: it is not held (any more)
	Event   *heldEvent  `json:"event"` // null: it is not in the outbox
	Waiting int64       `json:"waiting"`
	AtLeast bool        `json:"at_least"`
	Audit   []auditLine `json:"audit"`
}

type heldEvent struct {
	ID          string     `json:"id"`
	Type        string     `json:"type"`
	Subject     string     `json:"subject"`
	Source      string     `json:"source"`
	ContentType string     `json:"content_type"`
	Kind        string     `json:"kind"`
	CreatedAt   time.Time  `json:"created_at"`
	Verdict     string     `json:"verdict"`
	VerdictAt   *time.Time `json:"verdict_at"`
}

type auditLine struct {
	At     time.Time       `json:"at"`
	Who    string          `json:"who"`
	Login  string          `json:"login"`
	Action string          `json:"action"`
	Topic  string          `json:"topic"`
	Key    string          `json:"key"`
	Detail json.RawMessage `json:"detail"`
}

func newAuditLine(a relay.AuditEntry) auditLine {
	return auditLine{a.At.UTC(), a.Who, a.Login, a.Action, a.Topic, a.Key, a.Detail}
}

func (r heldDetail) text() string {
	var b strings.Builder
	if r.Held == nil {
		b.WriteString("not held (any more)\n")
	} else {
		b.WriteString(r.Held.text())
		if e := r.Event; e != nil {
			fmt.Fprintf(&b, "  record: %s %q of %s, id %s, subject %q\n", e.Kind, e.Type, clock(e.CreatedAt), e.ID, e.Subject)
			if e.Verdict != "" {
				fmt.Fprintf(&b, "  given up: %s at %s; its marker is sent instead\n", e.Verdict, clock(*e.VerdictAt))
			}
		} else {
			b.WriteString("  record: not in the outbox\n")
		}
		fmt.Fprintf(&b, "  waiting: %s of the stream\n", events(r.Waiting, r.AtLeast))
	}
	for _, a := range r.Audit {
		fmt.Fprintf(&b, "  %s  %s by %q (login %s) %s\n", clock(a.At), a.Action, a.Who, a.Login, a.Detail)
	}
	return b.String()
}

func heldRetry(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		d     decision
		all   bool
		limit int
	)
	s := config.New("relay held retry", "Has the relay publish a held stream again, from the refused record on. Safe at any time: if the broker refuses it once more, it is held once more. Needs a login with the role <schema>_operator.")
	d.postgres.Register(s)
	d.stream(s)
	s.Bool(&all, "all", "", "retry all held streams, or with -topic all of that topic, instead of one")
	s.Int(&limit, "limit", "", 100_000, 1, 100_000, "with -all, retry so many at most, those first that have been held longest")
	d.deciding(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	if one := d.topic != "" && d.key != ""; one == all || all && d.key != "" {
		return &config.UsageError{Err: fmt.Errorf("%s: want -topic and -key, or -all", s.Name)}
	}
	return d.with(ctx, s.Name, schema.KindOperator, func(op *relay.Operator) error {
		r := retried{Asked: []streamName{}, Refused: []refusedName{}}
		streams := []streamName{{d.topic, d.key}}
		if all {
			held, err := op.Held(ctx, relay.HeldFilter{Topic: d.topic, Limit: limit + 1})
			if err != nil {
				return err
			}
			r.More = len(held) > limit
			streams = nil
			for _, h := range held[:min(len(held), limit)] {
				streams = append(streams, streamName{h.Topic, h.Key})
			}
		}
		for _, x := range streams {
			_, err := op.Retry(ctx, x.Topic, x.Key, d.by())
			switch {
			case err == nil:
				r.Asked = append(r.Asked, x)
			case all && errors.Is(err, relay.ErrNotPossible):
				r.Refused = append(r.Refused, refusedName{x, err.Error()})
			default:
				return err
			}
		}
		return d.print(stdout, r)
	})
}

// retried is what "relay held retry" prints.
type retried struct {
	Asked   []streamName  `json:"asked"`
	Refused []refusedName `json:"refused"`
	More    bool          `json:"more"` // there are others, which were not asked for
}

type streamName struct {
	Topic string `json:"topic"`
	Key   string `json:"key"`
}

type refusedName struct {
	streamName
	Reason string `json:"reason"`
}

func (r retried) text() string {
	var b strings.Builder
	for _, x := range r.Asked {
		fmt.Fprintf(&b, "topic %q, key %q: the relay publishes it again, from the refused record on\n", x.Topic, x.Key)
	}
	for _, x := range r.Refused {
		fmt.Fprintf(&b, "topic %q, key %q: %s\n", x.Topic, x.Key, x.Reason)
	}
	switch {
	case len(r.Asked)+len(r.Refused) == 0:
		b.WriteString("no streams are held\n")
	case r.More:
		b.WriteString("there are more, which have not been held for as long: run this again when the relay has taken these, or choose with -topic\n")
	}
	return b.String()
}

func heldSkip(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		d       decision
		through string
	)
	s := config.New("relay held skip", "Gives up the record at which a stream is held, for good. The relay publishes a skip marker in its place, by which strict consumers know that it will not come, and then what follows. "+
		"The record stays in the outbox, but is never published any more. The end record of a life can't be skipped; a range stops before it. Needs a login with the role <schema>_operator.")
	d.postgres.Register(s)
	d.stream(s, config.Required())
	s.String(&through, "through", "", "0", "give up all records up to this seq of the same epoch; 0 is the refused one alone", config.Check(number))
	d.deciding(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	to, err := strconv.ParseInt(through, 10, 64)
	if err != nil {
		return &config.UsageError{Err: fmt.Errorf("%s: -through: %w", s.Name, err)}
	}
	return d.with(ctx, s.Name, schema.KindOperator, func(op *relay.Operator) error {
		x, err := op.Skip(ctx, d.topic, d.key, to, d.by())
		if err != nil {
			return err
		}
		return d.print(stdout, skipped{d.topic, d.key, x.From, x.To, x.BeforeEnd})
	})
}

// number is the rule for a number from 0 on.
func number(v string) error {
	if n, err := strconv.ParseInt(v, 10, 64); err != nil || n < 0 {
		return errors.New("want a number from 0 on")
	}
	return nil
}

// skipped is what "relay held skip" prints.
type skipped struct {
	Topic     string `json:"topic"`
	Key       string `json:"key"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
	BeforeEnd bool   `json:"stopped_before_end"`
}

func (r skipped) text() string {
	s := fmt.Sprintf("topic %q, key %q: gave up seq %d to %d; the relay publishes a marker instead, and then what follows\n", r.Topic, r.Key, r.From, r.To)
	if r.BeforeEnd {
		s += "the range stops before the end record of the life, which can't be skipped\n"
	}
	return s
}
