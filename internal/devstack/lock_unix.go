//go:build unix

package devstack

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Lock takes the exclusive lock on file, creating it, and waits for other processes until ctx ends. The lock goes with
// unlock or with this process, however it ends.
func Lock(ctx context.Context, file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			_ = f.Close()
			return nil, fmt.Errorf("devstack: lock %s: %w", file, err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("devstack: another process holds %s: %w", file, ctx.Err())
		case <-ticker.C:
		}
	}
}
