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
	"github.com/fenceline/fenceline/relay"
	"github.com/fenceline/fenceline/relay/kafkapub"
)

func doctor(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var (
		o       operation
		kafka   brokers
		topics  []string
		cfg     relay.Config
		keep    time.Duration
		timeout time.Duration
	)
	s := config.New("relay doctor", "Examines what a relay rests on: database, schema, roles, settings, history, the outbox and its open transactions, and with -kafka the brokers and topics. "+
		"It prints each finding with its remedy, changes nothing, and exits with 1 if something is wrong, with 0 if there are warnings at most. A login with the role <schema>_monitor sees everything of the database.")
	o.postgres.Register(s)
	kafka.RegisterOptional(s)
	s.List(&topics, "topics", "TOPICS", "", "topics to look at besides those that events were appended to, separated by commas")
	s.Duration(&keep, "retention", "RETENTION", 7*24*time.Hour, 0, 10*365*24*time.Hour, "how long the relay is told to keep published events")
	s.Duration(&timeout, "timeout", "", time.Minute, time.Second, time.Hour, "time that all of it may take")
	s.Bool(&o.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	cfg.Schema, cfg.Logger = o.postgres.Schema, slog.New(slog.DiscardHandler)
	var p *kafkapub.Publisher
	if len(kafka.Brokers) > 0 {
		var err error
		if p, err = kafka.publisher(kafkapub.Config{Timeout: askTimeout, Logger: cfg.Logger}); err != nil {
			return err
		}
		defer p.Close() //nolint:errcheck // at the end of the process
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pool, err := o.postgres.Open(ctx, s.Name)
	if err != nil {
		return err
	}
	defer pool.Close()
	if keep > 0 {
		cfg.Retention = &relay.RetentionConfig{Keep: keep}
	}
	var r doctorReport
	var publisher relay.Publisher
	if p != nil {
		// The other half is the database's, however long Kafka is waited for.
		half, done := context.WithTimeout(ctx, timeout/2)
		var refused *kafkaError
		switch err := kafka.Reach(half); {
		case errors.As(err, &refused):
			r.add(relay.Finding{About: "kafka", Grade: relay.Bad, Text: refused.text, Remedy: refused.remedy})
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			r.add(relay.Finding{About: "kafka", Grade: relay.Bad, Text: fmt.Sprintf("no broker has answered within %v", timeout/2), Remedy: "check -kafka, and what stands between, such as a firewall"})
		case err != nil:
			r.add(relay.Finding{About: "kafka", Grade: relay.Bad, Text: err.Error()})
		default:
			r.add(relay.Finding{About: "kafka", Grade: relay.Good, Text: "a broker answers over a connection as it is configured"})
			publisher = p
		}
		done()
	}
	for _, f := range relay.Examine(ctx, pool, publisher, topics, cfg) {
		r.add(f)
	}
	if p == nil {
		r.add(relay.Finding{About: "kafka", Grade: relay.Worth, Text: "not looked at", Remedy: "name brokers with -kafka"})
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err() // what was not looked at any more is no finding
	}
	if err := o.print(stdout, r); err != nil {
		return err
	}
	if r.Problems > 0 {
		fmt.Fprintf(stderr, "relay doctor: %s\n", count(r.Problems, "problem"))
		return config.ErrReported
	}
	return nil
}

// doctorReport is what "relay doctor" prints. Its JSON names are relied on by
// scripts: add some, change none.
type doctorReport struct {
	Findings []finding `json:"findings"`
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
}

type finding struct {
	About  string `json:"about"`
	Grade  string `json:"grade"` // ok, warning, problem
	Text   string `json:"text"`
	Remedy string `json:"remedy"`
}

func (r *doctorReport) add(f relay.Finding) {
	r.Findings = append(r.Findings, finding{f.About, string(f.Grade), f.Text, f.Remedy})
	switch f.Grade {
	case relay.Bad:
		r.Problems++
	case relay.Worth:
		r.Warnings++
	}
}

func (r doctorReport) text() string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-8s  %s: %s\n", f.Grade, f.About, f.Text)
		if f.Remedy != "" {
			fmt.Fprintf(&b, "          to do: %s\n", f.Remedy)
		}
	}
	return b.String()
}
