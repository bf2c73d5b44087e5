package cmdtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fenceline/fenceline/internal/devstack/testmain"
)

// patience bounds what a program is waited for.
const patience = 60 * time.Second

var (
	buildMu sync.Mutex
	binDir  string
	built   = map[string]string{}
)

// Binary is the path of a program of cmd/, built once per test binary.
func Binary(t testing.TB, name string) string {
	t.Helper()
	buildMu.Lock()
	defer buildMu.Unlock()
	if path := built[name]; path != "" {
		return path
	}
	if binDir == "" {
		dir, err := os.MkdirTemp("", "fenceline-cmdtest-")
		if err != nil {
			t.Fatal(err)
		}
		binDir = dir
		testmain.OnExit(func() error { return os.RemoveAll(dir) })
	}
	path := filepath.Join(binDir, name)
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/fenceline/fenceline/cmd/"+name).CombinedOutput()
	if err != nil {
		t.Fatalf("cmdtest: build %s: %v\n%s", name, err, out)
	}
	built[name] = path
	return path
}

// Env are variables for a program, each "NAME=value".
type Env []string

// Result is what a program left behind.
type Result struct {
	Code   int
	Stdout string
	Stderr string
}

// All is everything that it printed.
func (r Result) All() string { return r.Stdout + r.Stderr }

// Run runs a program to its end.
func Run(t testing.TB, env Env, program string, args ...string) Result {
	t.Helper()
	return Start(t, env, program, args...).Wait(t)
}

// Process is a running program.
type Process struct {
	name           string
	cmd            *exec.Cmd
	stdout, stderr buffer
	done           chan struct{}
	code           int
}

// Start starts a program; it is killed after the test if it still runs.
func Start(t testing.TB, env Env, program string, args ...string) *Process {
	t.Helper()
	p := &Process{name: program + " " + strings.Join(args, " "), done: make(chan struct{})}
	p.cmd = exec.Command(Binary(t, program), args...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("cmdtest: start %s: %v", program, err)
	}
	go func() {
		defer close(p.done)
		err := p.cmd.Wait()
		var exit *exec.ExitError
		switch {
		case err == nil:
		case errors.As(err, &exit):
			p.code = exit.ExitCode() // -1: by a signal
		default:
			p.code = -1
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
		if t.Failed() {
			t.Logf("%s printed:\n%s%s", program, p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

// Wait waits for the end. It fails the test after a minute.
func (p *Process) Wait(t testing.TB) Result {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		t.Fatalf("%s still runs after %s", p.name, patience)
	}
	return Result{p.code, p.stdout.String(), p.stderr.String()}
}

// Terminate asks the program to end with SIGTERM and waits for it.
func (p *Process) Terminate(t testing.TB) Result {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("cmdtest: %s: %v", p.name, err)
	}
	return p.Wait(t)
}

// WaitFor polls until ok, or fails the test: after a minute, or when the
// program has ended.
func (p *Process) WaitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-p.done:
			if ok() {
				return
			}
			t.Fatalf("%s ended with %d before %s", p.name, p.code, what)
		case <-ctx.Done():
			t.Fatalf("%s: waited for %s, in vain", p.name, what)
		case <-ticker.C:
		}
	}
}

// Logged reports whether the program has printed text to standard error.
func (p *Process) Logged(text string) bool { return strings.Contains(p.stderr.String(), text) }

// Stderr is what the program has printed to standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// buffer may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
