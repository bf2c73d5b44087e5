package main

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// arm is a way to bring the events of an outbox to Kafka.
type arm struct {
	name string
	// what it is, for the report: the configuration that was chosen.
	note string
	// fill loads the events into the arm's own database.
	fill func(ctx context.Context, conn *pgx.Conn, w workload, topic string) error
	// work publishes until ctx ends, in a process of its own.
	work worker
	// program is for the arm whose process is the program that we ship.
	program bool
	// java arms run elsewhere.
	java *connectArm
	// divide is for an arm that is so slow that it would take most of the run: it
	// gets so much less to do. Zero stands for one.
	divide int
}

// of is the arm's part of a workload.
func (a *arm) of(w workload) workload {
	w.Events /= max(1, a.divide)
	return w
}

func findArm(name string) *arm {
	for i := range drainArms {
		if drainArms[i].name == name {
			return &drainArms[i]
		}
	}
	return nil
}
