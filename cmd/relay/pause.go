package main

import (
	"context"
	"fmt"
	"io"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/relay"
)

func pause(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return setPause(ctx, true, "relay pause", "Keeps all relays of the schema from publishing, until \"relay resume\": over restarts too. "+
		"What is on its way to Kafka is finished, within seconds; events stay in the outbox meanwhile, and producers go on. Needs a login with the role <schema>_operator.", args, stdout)
}

func resume(ctx context.Context, args []string, stdout, _ io.Writer) error {
	return setPause(ctx, false, "relay resume", "Lets the relays publish again after \"relay pause\". Needs a login with the role <schema>_operator.", args, stdout)
}

// because adds a reason that somebody has given, if they have.
func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

func setPause(ctx context.Context, paused bool, name, summary string, args []string, stdout io.Writer) error {
	var (
		o      operation
		reason string
	)
	s := config.New(name, summary)
	o.postgres.Register(s)
	s.String(&reason, "reason", "", "", "why, in your words; it is noted, and shown by \"relay status\"")
	o.changing(s)
	s.Bool(&o.asJSON, "json", "", "print one JSON object")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	pool, err := o.postgres.Open(ctx, name)
	if err != nil {
		return err
	}
	defer pool.Close()
	changed, err := relay.SetPause(ctx, pool, o.postgres.Schema, paused, o.who, reason)
	if err != nil {
		return config.NeedsRole(err, o.postgres.Schema, schema.KindOperator)
	}
	return o.print(stdout, pauseSet{paused, changed})
}

// pauseSet is what pause and resume print.
type pauseSet struct {
	Paused  bool `json:"paused"`
	Changed bool `json:"changed"`
}

func (p pauseSet) text() string {
	switch {
	case p.Paused && p.Changed:
		return "paused: nothing is published until \"relay resume\"\n"
	case p.Paused:
		return "the relays were paused before; \"relay status\" says by whom\n"
	case p.Changed:
		return "resumed: the relays publish\n"
	}
	return fmt.Sprintln("the relays were not paused")
}
