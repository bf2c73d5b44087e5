package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fenceline/fenceline/internal/config"
)

// buildRelay builds our relay as "make build" does, into dir. What is measured
// of it is then what its users run: this program has every peer linked in, with
// versions of libraries that suit them all.
func buildRelay(ctx context.Context, dir string) (program string, err error) {
	program = filepath.Join(dir, "relay")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./cmd/relay")
	cmd.Dir = ".." // the module that this one is in
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the relay (%s): %w: run the benchmark in its own folder, bench/, with Go in PATH\n%s", cmd, err, out)
	}
	return program, nil
}

// gate is what a program is behind until it may begin: a shell, which becomes it.
// So the process is there and has used nothing when the measuring begins, and its
// peak is the program's own.
const gate = `echo ready; read -r go || exit 1; exec "$@"`

// relayRun is "relay run" behind the gate, as it comes but for three things: its
// log has errors only, for whoever asks why it ended; health and metrics are at a
// port of its own, since several run at once; and settings of whoever measures,
// in the environment, are not passed on.
func relayRun(program string, j job) *exec.Cmd {
	cmd := exec.Command("/bin/sh", "-c", gate, "sh", program, "run", "-kafka", j.kafka, "-http", "127.0.0.1:0", "-log-level", "error")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, config.Prefix) })
	cmd.Env = append(cmd.Env, config.Prefix+"POSTGRES_DSN="+j.dsn)
	return cmd
}
