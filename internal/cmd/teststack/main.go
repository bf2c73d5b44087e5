package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/fenceline/fenceline/internal/devstack"
	"github.com/fenceline/fenceline/internal/devstack/apachekafka"
	"github.com/fenceline/fenceline/internal/kafkatest"
	"github.com/fenceline/fenceline/internal/pgtest"
)

func main() {
	flags := flag.NewFlagSet("teststack", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: teststack [-kafka] [-durable] [-postgres-version N] -- COMMAND [ARGUMENT…]\nStarts PostgreSQL (and Apache Kafka), runs the command with them, stops them.")
		flags.PrintDefaults()
	}
	kafka := flags.Bool("kafka", false, "start Apache Kafka too, and run the tests against it instead of kfake")
	durable := flags.Bool("durable", false, "keep fsync and full_page_writes on, as programs insist on that are no tests")
	major := flags.Int("postgres-version", 0, "major version of PostgreSQL, fetched if this machine hasn't it (default: whatever this machine has)")
	heap := flags.Int("kafka-heap", 512, "limit of Kafka's heap in MB")
	switch err := flags.Parse(os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		os.Exit(2)
	case flags.NArg() == 0:
		flags.Usage()
		os.Exit(2)
	}
	code, err := run(flags.Args(), *kafka, *durable, *major, *heap)
	if err != nil {
		fmt.Fprintln(os.Stderr, "teststack:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run returns the command's exit code. An error says what went wrong besides: with a server, or that the command
// couldn't start.
func run(command []string, withKafka, durable bool, major, heap int) (code int, err error) {
	// The terminal sends Ctrl-C to the command as well; here it only ends the waiting for servers to start.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	progress := func(text string) { fmt.Fprintln(os.Stderr, "teststack:", text) }

	begin := time.Now()
	postgres, err := devstack.StartPostgres(ctx, devstack.PostgresConfig{Durable: durable, Major: major, Progress: progress})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, postgres.Stop(context.Background())) }()
	progress(fmt.Sprintf("PostgreSQL %s (%s) on 127.0.0.1:%d", postgres.Version(), postgres.Source(), postgres.Port()))
	env := append(os.Environ(), pgtest.EnvDSN+"="+postgres.DSN("postgres"))
	if major != 0 {
		env = append(env, fmt.Sprintf("%s=%d", pgtest.EnvVersion, major))
	}

	if withKafka {
		broker, err := apachekafka.Start(ctx, apachekafka.Config{Progress: progress, MaxHeapMB: heap})
		if err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, broker.Stop(context.Background())) }()
		progress(fmt.Sprintf("Apache Kafka %s on %s", apachekafka.Version, broker.Addr()))
		env = append(env, kafkatest.EnvKind+"=apache", kafkatest.EnvAddr+"="+broker.Addr())
	}
	progress(fmt.Sprintf("servers ready in %.1f s", time.Since(begin).Seconds()))

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = env
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("run the command: %w", err)
	}
	finished := make(chan error, 1)
	go func() { finished <- cmd.Wait() }()
	select {
	case err := <-finished:
		return exitCode(err)
	case <-ctx.Done():
		// SIGTERM, unlike Ctrl-C, reached only us. Passing either on does no harm.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return exitCode(<-finished)
	}
}

func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode(), nil
	default:
		return 1, fmt.Errorf("the command: %w", err)
	}
}
