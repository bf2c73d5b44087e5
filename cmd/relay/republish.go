package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

func republish(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var (
		o                        operation
		kafka                    brokers
		log                      config.Log
		cfg                      relay.RepublishConfig
		timeout                  time.Duration
		fromPos, toPos, from, to string
	)
	s := config.New("relay republish", "Publishes events once more, byte for byte as the first time: of a key, of a range of positions in the outbox, or of a time span. "+
		"Consumers drop what they have. What was skipped is a marker again. What the relay is still to publish for the first time is left alone, and counted. Needs a login with the role <schema>_relay; a relay may run meanwhile.")
	o.postgres.Register(s)
	kafka.Register(s)
	s.String(&cfg.Key, "key", "", "", "the events of this key")
	s.String(&cfg.Topic, "topic", "", "", "of what the other flags choose, that alone which was appended to this topic")
	s.String(&fromPos, "from-pos", "", "0", "from this position in the outbox on", config.Check(number))
	s.String(&toPos, "to-pos", "", "0", "up to this position in the outbox; 0 is the last", config.Check(number))
	s.String(&from, "from", "", "", "appended at this time or later, such as 2026-01-02T03:04:05Z", config.Check(moment))
	s.String(&to, "to", "", "", "appended before this time", config.Check(moment))
	s.String(&cfg.ToTopic, "to-topic", "", "", "where the copies go; the topic that they were appended to if empty")
	s.Int(&cfg.Rate, "rate", "", 1000, 1, 1_000_000, "records a second at most")
	s.Bool(&cfg.DryRun, "dry-run", "", "publish nothing, and print what would be")
	s.Duration(&timeout, "kafka-timeout", "KAFKA_TIMEOUT", 30*time.Second, time.Second, 10*time.Minute, "time that one request to Kafka may take")
	o.changing(s)
	s.Bool(&o.asJSON, "json", "", "print one JSON object")
	log.Register(s)
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	cfg.Schema, cfg.Who, cfg.Logger = o.postgres.Schema, o.who, log.Logger(stderr)
	cfg.FromPos, cfg.ToPos = whole(fromPos), whole(toPos)
	cfg.From, cfg.To = at(from), at(to)
	if err := cfg.Validate(); err != nil {
		return &config.UsageError{Err: err}
	}
	told := time.Now()
	cfg.Progress = func(r relay.RepublishReport) {
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			cfg.Logger.Info("republishing", "records", r.Events+r.Markers+r.Ends, "last_pos", r.LastPos)
		}
	}
	publisher, err := kafka.publisher(kafkapub.Config{Timeout: timeout, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	defer publisher.Close() //nolint:errcheck // at the end of the process
	pool, err := o.postgres.Open(ctx, s.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := kafka.Reach(ctx); err != nil {
		return err
	}
	report, err := relay.Republish(ctx, pool, publisher, cfg)
	r := newRepublishReport(cfg.DryRun, report)
	if err != nil && r.Events+r.Markers+r.Ends == 0 {
		return config.NeedsRole(err, cfg.Schema, schema.KindRelay)
	}
	return errors.Join(o.print(stdout, r), err) // what was cut off has done what is printed
}

// moment is the rule for a time.
func moment(v string) error {
	if _, err := time.Parse(time.RFC3339, v); err != nil {
		return errors.New("want a time such as 2026-01-02T03:04:05Z")
	}
	return nil
}

// at reads a time that moment has accepted.
func at(v string) time.Time {
	t, _ := time.Parse(time.RFC3339, v)
	return t
}

// whole reads a number that number has accepted.
func whole(v string) int64 {
	n, _ := strconv.ParseInt(v, 10, 64)
	return n
}

// republishReport is what "relay republish" prints. Its JSON names are relied on
// by scripts: add some, change none.
type republishReport struct {
	DryRun  bool         `json:"dry_run"`
	Events  int64        `json:"events"`
	Markers int64        `json:"markers"`
	Ends    int64        `json:"ends"`
	LastPos int64        `json:"last_pos"`
	Left    []leftReport `json:"left"`
}

type leftReport struct {
	Reason   string `json:"reason"`
	Count    int64  `json:"count"`
	FirstPos int64  `json:"first_pos"`
	ToDo     string `json:"to_do"`
}

// leftToDo says what to do about what is left alone.
var leftToDo = map[string]string{
	relay.LeftUnpublished: "the relay is still to publish it: \"relay status\" says whether one is active",
	relay.LeftRefused:     "\"relay status\" says what is wrong with the topic; \"relay topic retire\" gives it up",
	relay.LeftHeld:        "\"relay held list\" says why; \"relay held retry\" or \"relay held skip\" ends it",
}

func newRepublishReport(dry bool, r relay.RepublishReport) republishReport {
	out := republishReport{dry, r.Events, r.Markers, r.Ends, r.LastPos, []leftReport{}}
	for _, l := range r.Left {
		out.Left = append(out.Left, leftReport{l.Reason, l.Count, l.First, leftToDo[l.Reason]})
	}
	return out
}

func (r republishReport) text() string {
	var b strings.Builder
	verb := "published again"
	if r.DryRun {
		verb = "would be published again"
	}
	fmt.Fprintf(&b, "%s, %s and %s %s", some(r.Events, "event"), some(r.Markers, "skip marker"), some(r.Ends, "end record"), verb)
	if r.LastPos > 0 {
		fmt.Fprintf(&b, ", up to pos %d", r.LastPos)
	}
	b.WriteByte('\n')
	for _, l := range r.Left {
		fmt.Fprintf(&b, "left alone: %s, %s (the first at pos %d): %s\n", some(l.Count, "event"), l.Reason, l.FirstPos, l.ToDo)
	}
	return b.String()
}
