//go:build !unix

package supervise

import (
	"context"
	"os"
)

// A Guard ends its children, and removes its directory, when this process dies.
type Guard struct{}

// NewGuard returns ErrUnsupported.
func NewGuard(string) (*Guard, error) { return nil, ErrUnsupported }

// Start returns ErrUnsupported.
func (*Guard) Start(Spec) (*Process, error) { return nil, ErrUnsupported }

// Close returns ErrUnsupported.
func (*Guard) Close() error { return ErrUnsupported }

// A Process is a running or ended child.
type Process struct{}

// PID is 0.
func (*Process) PID() int { return 0 }

// Done is nil.
func (*Process) Done() <-chan struct{} { return nil }

// Err returns ErrUnsupported.
func (*Process) Err() error { return ErrUnsupported }

// Signal returns ErrUnsupported.
func (*Process) Signal(os.Signal) error { return ErrUnsupported }

// Wait returns ErrUnsupported.
func (*Process) Wait(context.Context) error { return ErrUnsupported }

// Crash returns ErrUnsupported.
func (*Process) Crash(context.Context) error { return ErrUnsupported }
