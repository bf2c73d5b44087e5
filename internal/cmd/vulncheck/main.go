package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"
)

const (
	// staleAfter is the age from which a pinned database is called old.
	staleAfter = 60 * 24 * time.Hour
	// probeTimeout bounds the one request that decides whether the public
	// database can be reached.
	probeTimeout = 15 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	code, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
	}
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	flags := flag.NewFlagSet("vulncheck", flag.ContinueOnError)
	flags.SetOutput(stderr)
	tool := flags.String("govulncheck", "govulncheck", "the govulncheck `program` to run")
	toolchain := flags.String("toolchain", "", "the Go `release` whose standard library is looked at, such as go1.26.0 (default: the one that runs)")
	pinned := flags.Bool("pinned", false, "use the pinned database without asking the public one")
	if err := flags.Parse(args); err != nil {
		return 1, errors.New("bad arguments; see vulncheck -h")
	}
	patterns := flags.Args()
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}

	db, modified, err := choose(ctx, *pinned, stdout)
	if err != nil {
		return 1, err
	}
	if db.cleanup != nil {
		defer db.cleanup()
	}
	age := time.Since(modified)
	fmt.Fprintf(stdout, "vulncheck: database: %s (%s), last modified %s, %d days old\n",
		db.kind, db.url, modified.UTC().Format(time.RFC3339), int(age.Hours()/24))
	if age > staleAfter {
		fmt.Fprintf(stdout, "vulncheck: WARNING: this database is older than %d days; newer reports are not in it\n", int(staleAfter.Hours()/24))
	}

	env := os.Environ()
	if *toolchain != "" {
		env = append(env, "GOTOOLCHAIN="+*toolchain)
	}
	version, err := goVersion(ctx, env)
	if err != nil {
		return 1, err
	}
	fmt.Fprintf(stdout, "vulncheck: standard library: %s\n", version)

	cmd := exec.CommandContext(ctx, *tool, append([]string{"-db", db.url}, patterns...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, stdout, stderr
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode(), fmt.Errorf("govulncheck ended with code %d", exit.ExitCode())
	default:
		return 1, fmt.Errorf("run %s: %w; build it with make bin/govulncheck", *tool, err)
	}
}

type database struct {
	kind    string
	url     string
	cleanup func()
}

// choose returns the public database if it answers, else the pinned one.
func choose(ctx context.Context, pinnedOnly bool, out io.Writer) (database, time.Time, error) {
	if !pinnedOnly {
		modified, err := probe(ctx, publicURL)
		if err == nil {
			return database{kind: "public", url: publicURL}, modified, nil
		}
		fmt.Fprintf(out, "vulncheck: the public database can't be used: %v\n", err)
		fmt.Fprintf(out, "vulncheck: FALLING BACK to the pinned database %s@%s\n", pinnedModule, pinnedVersion)
	}
	reports, err := download(ctx)
	if err != nil {
		return database{}, time.Time{}, fmt.Errorf("no vulnerability database: %w", err)
	}
	dir, err := os.MkdirTemp("", "vulncheck-")
	if err != nil {
		return database{}, time.Time{}, fmt.Errorf("no vulnerability database: %w", err)
	}
	cleanup := func() { _ = os.RemoveAll(dir) }
	n, err := layOut(reports.fs, dir, reports.modified)
	if err == nil && n < fewestReports {
		err = fmt.Errorf("%s@%s holds %d reports, at least %d were expected", pinnedModule, pinnedVersion, n, fewestReports)
	}
	if err != nil {
		cleanup()
		return database{}, time.Time{}, fmt.Errorf("no vulnerability database: %w", err)
	}
	return database{kind: fmt.Sprintf("pinned, %d reports", n), url: fileURL(dir), cleanup: cleanup}, reports.modified, nil
}
