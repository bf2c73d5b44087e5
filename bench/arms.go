package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// arm is a way to bring the events of an outbox to Kafka.
type arm struct {
	name string
	// what it is, for the report: the configuration that was chosen.
	note string
	// fill loads the events into the arm's own database.
	fill func(ctx context.Context, conn *pgx.Conn, w workload, topic string) error
	// work publishes until ctx ends, in a process of its own. It calls ready
	// once connected and loaded; what follows is measured.
	work func(ctx context.Context, job job, ready func()) error
	// java arms run elsewhere.
	java *connectArm
}

// job is what a child process is told.
type job struct {
	dsn, kafka, topic string
	events            int
}

const (
	envArm    = "BENCH_ARM"
	envDSN    = "BENCH_DSN"
	envKafka  = "BENCH_KAFKA"
	envTopic  = "BENCH_TOPIC"
	envEvents = "BENCH_EVENTS"
)

func (j job) environ(name string) []string {
	return append(os.Environ(), envArm+"="+name, envDSN+"="+j.dsn, envKafka+"="+j.kafka, envTopic+"="+j.topic, envEvents+"="+strconv.Itoa(j.events))
}

// child is the whole of a child process: it says "ready", waits for a line, and
// works until its standard input ends.
func child(name string) error {
	a := findArm(name)
	if a == nil {
		return fmt.Errorf("there is no arm %q", name)
	}
	events, err := strconv.Atoi(os.Getenv(envEvents))
	if err != nil {
		return err
	}
	j := job{dsn: os.Getenv(envDSN), kafka: os.Getenv(envKafka), topic: os.Getenv(envTopic), events: events}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	in := bufio.NewReader(os.Stdin)
	err = a.work(ctx, j, func() {
		fmt.Println("ready")
		_, _ = in.ReadString('\n')
		go func() {
			_, _ = in.ReadString('\n')
			cancel()
		}()
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func findArm(name string) *arm {
	for i := range drainArms {
		if drainArms[i].name == name {
			return &drainArms[i]
		}
	}
	return nil
}
