package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/fenceline/fenceline/internal/config"
	"github.com/fenceline/fenceline/internal/opshttp"
)

const probeUsage = `Usage:
  relay probe livez|readyz [flags]

"relay probe livez -help" prints the flags.
`

func probeHelp(_ context.Context, args []string, stdout, stderr io.Writer) error {
	return group("relay probe", "livez and readyz", probeUsage, args, stdout, stderr)
}

func probeLive(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return probe(ctx, "livez", "Asks a relay on this machine whether it is stuck. For health checks where no HTTP client is at hand, as in the image.", args, stdout, stderr)
}

func probeReady(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return probe(ctx, "readyz", "Asks a relay on this machine whether it is ready, and prints its reasons. For health checks where no HTTP client is at hand, as in the image.", args, stdout, stderr)
}

func probe(ctx context.Context, what, summary string, args []string, stdout, stderr io.Writer) error {
	var (
		addr    string
		timeout time.Duration
	)
	s := config.New("relay probe "+what, summary+" It exits with 0 if so, else with 1.")
	s.String(&addr, "http", "HTTP", defaultHTTP, "where it serves, as given to \"relay run\"", config.Check(opshttp.CheckAddr))
	s.Duration(&timeout, "timeout", "", 5*time.Second, 10*time.Millisecond, time.Minute, "time to wait for the answer")
	if err := config.Parse(s, args, stdout); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	said, err := opshttp.Probe(ctx, addr, "/"+what)
	if said != "" {
		fmt.Fprint(stdout, said)
	}
	if err != nil {
		fmt.Fprintln(stderr, "relay probe:", err)
		return errors.Join(config.ErrReported, err)
	}
	return nil
}
