package fencing

import "time"

// WaitInLine waits until n commits stand in a lease's line.
func WaitInLine(l *Lease, n int) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		l.line.mu.Lock()
		there := len(l.line.waiting)
		l.line.mu.Unlock()
		if there >= n {
			return
		}
	}
	panic("nobody stands in line")
}
