package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

const topicUsage = `Usage:
  relay topic list|retire|accept [flags]

"relay topic list -help" prints the flags of list, and so on.
`

func topicHelp(_ context.Context, args []string, stdout, stderr io.Writer) error {
	return group("relay topic", "list, retire and accept", topicUsage, args, stdout, stderr)
}

func topicList(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var d decision
	s := config.New("relay topic list", "Lists the topics that the relay writes to, with the partition count that it began with, and those that are refused or retired. A login with the role <schema>_monitor is enough.")
	d.postgres.Register(s)
	s.Bool(&d.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	return d.with(ctx, s.Name, schema.KindMonitor, func(op *relay.Operator) error {
		topics, err := op.Topics(ctx)
		if err != nil {
			return err
		}
		r := topicReport{Topics: []topicLine{}}
		for _, t := range topics {
			r.Topics = append(r.Topics, topicLine{t.Topic, t.Partitions, maybe(t.PinnedAt), maybe(t.RetiredAt), t.RetiredBy, t.Why, t.Refused, maybe(t.Since), t.Held})
		}
		return d.print(stdout, r)
	})
}

// topicReport is what "relay topic list" prints. Its JSON names are relied on by
// scripts: add some, change none.
type topicReport struct {
	Topics []topicLine `json:"topics"`
}

type topicLine struct {
	Topic        string     `json:"topic"`
	Partitions   int        `json:"partitions"` // 0: nothing was written to it yet
	PinnedAt     *time.Time `json:"pinned_at"`
	RetiredAt    *time.Time `json:"retired_at"` // null: it isn't
	RetiredBy    string     `json:"retired_by"`
	Why          string     `json:"why"`
	Refused      string     `json:"refused"` // empty: it isn't
	RefusedSince *time.Time `json:"refused_since"`
	Held         int64      `json:"held_streams"`
}

func (r topicReport) text() string {
	var b strings.Builder
	for _, t := range r.Topics {
		fmt.Fprintf(&b, "%q", t.Topic)
		if t.PinnedAt != nil {
			fmt.Fprintf(&b, " %s since %s", count(t.Partitions, "partition"), clock(*t.PinnedAt))
		} else {
			b.WriteString(" not written to yet")
		}
		if t.Held > 0 {
			fmt.Fprintf(&b, ", %s held", count(int(t.Held), "stream"))
		}
		b.WriteByte('\n')
		if t.RetiredAt != nil {
			fmt.Fprintf(&b, "  retired: by %q at %s%s\n", t.RetiredBy, clock(*t.RetiredAt), because(t.Why))
		}
		if t.Refused != "" {
			fmt.Fprintf(&b, "  refused: since %s: %s\n", clock(*t.RefusedSince), t.Refused)
		}
	}
	if len(r.Topics) == 0 {
		b.WriteString("no topics: nothing was published yet\n")
	}
	return b.String()
}

func topicRetire(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var d decision
	s := config.New("relay topic retire", "Gives up a topic that is gone for good: everything that waits for it, end records and held streams included, is marked as given up and never published to it, and the relay goes on without it. "+
		"Only a topic that the broker refuses can be retired. Needs a login with the role <schema>_operator.")
	s.Args = " TOPIC"
	d.postgres.Register(s)
	d.deciding(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	topic, err := onlyArgument(s, "topic")
	if err != nil {
		return err
	}
	return d.with(ctx, s.Name, schema.KindOperator, func(op *relay.Operator) error {
		isNew, err := op.RetireTopic(ctx, topic, d.by())
		if err != nil {
			return err
		}
		return d.print(stdout, retired{topic, isNew})
	})
}

// retired is what "relay topic retire" prints.
type retired struct {
	Topic string `json:"topic"`
	New   bool   `json:"new"`
}

func (r retired) text() string {
	if !r.New {
		return fmt.Sprintf("topic %q was retired before\n", r.Topic)
	}
	return fmt.Sprintf("retired topic %q: what waits for it is given up\n", r.Topic)
}

func topicAccept(ctx context.Context, args []string, stdout, _ io.Writer) error {
	var (
		d          decision
		kafka      brokers
		partitions int
		drained    bool
	)
	s := config.New("relay topic accept", "Accepts a topic as it is now: with another partition count than the relay began to write with, or again after it was retired. "+
		"The events of a key then go on in another partition, so every consumer group must have read all that is in the topic: say -drained once the lag of each is 0. With -kafka it asks a broker first, and accepts only what the topic is. Needs a login with the role <schema>_operator.")
	s.Args = " TOPIC"
	d.postgres.Register(s)
	kafka.RegisterOptional(s)
	s.Int(&partitions, "partitions", "", 0, 0, 1_000_000, "the count that the topic has now")
	s.Bool(&drained, "drained", "", "every consumer group has read everything that is in the topic")
	d.deciding(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	topic, err := onlyArgument(s, "topic")
	if err != nil {
		return err
	}
	switch {
	case partitions == 0 && s.Given("partitions"):
		return &config.UsageError{Err: fmt.Errorf("%s: -partitions is 0: a topic has at least one partition", s.Name)}
	case partitions == 0:
		return &config.UsageError{Err: fmt.Errorf("%s: -partitions is missing (the count that the topic has now)", s.Name)}
	}
	checked := len(kafka.Brokers) > 0
	if checked {
		if err := hasPartitions(ctx, &kafka, topic, partitions); err != nil {
			return err
		}
	}
	return d.with(ctx, s.Name, schema.KindOperator, func(op *relay.Operator) error {
		err := op.AcceptTopic(ctx, topic, partitions, drained, d.by())
		var refused *relay.NotPossibleError
		if errors.As(err, &refused) && !drained && strings.Contains(refused.Reason, "could be overtaken") {
			return fmt.Errorf("%w Say -drained once it is so", err)
		}
		if err != nil {
			return err
		}
		return d.print(stdout, accepted{topic, partitions, checked})
	})
}

// hasPartitions asks a broker whether a topic is what the relay is about to be
// told that it is, and whether it would write to it.
func hasPartitions(ctx context.Context, kafka *brokers, topic string, partitions int) error {
	publisher, err := kafka.publisher(kafkapub.Config{Timeout: askTimeout, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer publisher.Close() //nolint:errcheck // at the end of the process
	if err := kafka.Reach(ctx); err != nil {
		return notAccepted(err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	is, err := publisher.Describe(ctx, topic)
	var refused *relay.TopicError
	var silent *relay.NoAnswerError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("nothing was accepted, the relay would not write to topic %q: %s", topic, refused.Reason)
	case errors.As(err, &silent):
		return notAccepted(kafka.explain(silent.Err))
	case err != nil:
		return notAccepted(err)
	case is.Partitions != partitions:
		return fmt.Errorf("nothing was accepted: topic %q has %s, not %d: say -partitions %d if that is what it is to have", topic, count(is.Partitions, "partition"), partitions, is.Partitions)
	}
	if err := relay.CheckTopic(is, outbox.MaxRecordBytes); errors.As(err, &refused) {
		return fmt.Errorf("nothing was accepted, the relay would not write to topic %q: %s", topic, refused.Reason)
	} else if err != nil {
		return notAccepted(err)
	}
	return nil
}

func notAccepted(err error) error {
	return fmt.Errorf("nothing was accepted, since the topic can't be looked at (without -kafka it is accepted unseen): %w", err)
}

// accepted is what "relay topic accept" prints.
type accepted struct {
	Topic      string `json:"topic"`
	Partitions int    `json:"partitions"`
	Checked    bool   `json:"checked"` // a broker has said that the topic has so many
}

func (r accepted) text() string {
	s := fmt.Sprintf("accepted topic %q with %s", r.Topic, count(r.Partitions, "partition"))
	if r.Checked {
		return s + ", which is what it has: the relay goes on within seconds\n"
	}
	return s + ". No broker was asked whether it has so many (-kafka does that): if it hasn't, the relay goes on refusing it, and \"relay topic list\" says so\n"
}
