//go:build unix

package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// A Process is a running or ended child.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// PID is the child's process id, which is also its process group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err tells how the child ended; nil is exit code 0. It may be called once Done is closed.
func (p *Process) Err() error { return p.err }

// Signal sends s. A child that has ended already is no error.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("supervise: signal process %d: %w", p.PID(), err)
	}
	return nil
}

// Wait blocks until the child has ended, or returns ctx's error.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Crash ends the child and all its children with SIGKILL, as a power cut of just this server would, and returns when
// all are gone. The child is frozen first, so that it neither forks nor cleans up while its children are killed.
func (p *Process) Crash(ctx context.Context) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	// SIGSTOP is delivered asynchronously; until the state says so the child may still fork.
	if err := poll(ctx, func() (bool, error) {
		table, err := processTable()
		if err != nil {
			return false, err
		}
		self, ok := table[p.PID()]
		return !ok || self.state == 'T' || self.state == 'Z', nil
	}); err != nil {
		return fmt.Errorf("supervise: freeze process %d: %w", p.PID(), err)
	}
	table, err := processTable()
	if err != nil {
		return err
	}
	family := descendants(table, p.PID())
	for _, pid := range family {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	if err := p.Wait(ctx); err != nil {
		return fmt.Errorf("supervise: process %d after SIGKILL: %w", p.PID(), err)
	}
	if err := poll(ctx, func() (bool, error) {
		table, err := processTable()
		if err != nil {
			return false, err
		}
		for _, pid := range family {
			// A zombie holds no memory, lock or file: whether pid 1 has reaped it is not our matter.
			if entry, ok := table[pid]; ok && entry.state != 'Z' {
				return false, nil
			}
		}
		return true, nil
	}); err != nil {
		return fmt.Errorf("supervise: children of process %d after SIGKILL: %w", p.PID(), err)
	}
	return nil
}

func poll(ctx context.Context, done func() (bool, error)) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
