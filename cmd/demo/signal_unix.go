//go:build unix

package main

import (
	"fmt"
	"syscall"
)

// canPause: the story pauses processes and ends them without warning, which
// Unix can.
func canPause() error { return nil }

// pause stops the process as a suspended virtual machine would: between two
// instructions, wherever it is. resume lets it go on as if nothing had been.
func (ch *child) pause() error  { return ch.signal(syscall.SIGSTOP) }
func (ch *child) resume() error { return ch.signal(syscall.SIGCONT) }

func (ch *child) signal(s syscall.Signal) error {
	if err := syscall.Kill(ch.pid, s); err != nil {
		return fmt.Errorf("%s: %v: %w", ch.name, s, err)
	}
	return nil
}

// crash ends the process without giving it a chance to tidy up.
func (ch *child) crash() {
	_ = syscall.Kill(ch.pid, syscall.SIGKILL) // it may be gone already
}
