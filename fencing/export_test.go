package fencing

import "time"

// WaitInLine waits until n commits stand in a lease's line.
func WaitInLine(l *Lease, n int) { waitInLine(l.line, n) }

// RenewNow renews leases at once.
func RenewNow(f *Fences, leases ...*Lease) { f.renewOnce(leases) }

// Trusted is until when a handle believes in its lease.
func Trusted(l *Lease) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trusted
}

// WaitForCallbacks waits until n callbacks stand in a lease's line.
func WaitForCallbacks(l *Lease, n int) { waitInLine(l.calls, n) }

// GatherFor is how long a lane waits for company after a transaction.
var GatherFor = gatherFor

// WaitInGroup waits until n commits of the batch shape stand in the line of all
// keys.
func WaitInGroup(f *Fences, n int) { waitInLine(f.group, n) }

// WaitForGroupCallbacks waits until n callbacks stand in the line of all keys.
func WaitForGroupCallbacks(f *Fences, n int) { waitInLine(f.groupCalls, n) }

func waitInLine(q *line, n int) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		q.mu.Lock()
		there := len(q.waiting)
		q.mu.Unlock()
		if there >= n {
			return
		}
	}
	panic("nobody stands in line")
}

// WaitForTurns waits until n commits of the batch shape are under way for a key,
// at the server or waiting for their turn.
func WaitForTurns(f *Fences, key string, n int) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		f.turns.mu.Lock()
		k := f.turns.keys[key]
		there := k != nil && k.users >= n
		f.turns.mu.Unlock()
		if there {
			return
		}
	}
	panic("nobody waits for a turn")
}

// WaitForTurn waits until n commits stand in the line of a key, not sent yet.
func WaitForTurn(f *Fences, key string, n int) {
	WaitForTurns(f, key, n)
	f.turns.mu.Lock()
	q := f.turns.keys[key].line
	f.turns.mu.Unlock()
	waitInLine(q, n)
}

// LendFor has commits follow each other on a connection for so long. It comes before
// the first of them.
func LendFor(f *Fences, d time.Duration) { f.lent = d }

// WaitUnderWay waits until n commits of a key's line are at the server.
func WaitUnderWay(f *Fences, key string, n int) {
	f.turns.mu.Lock()
	q := f.turns.keys[key].line
	f.turns.mu.Unlock()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		q.mu.Lock()
		there := q.inside
		q.mu.Unlock()
		if there >= n {
			return
		}
	}
	panic("nobody is under way")
}

// The bounds of what a connection keeps prepared, and what goes through a pipe.
const (
	PreparedMost = preparedMost
	PipeMost     = pipeMost
	PipeTime     = pipeTime
)

// Turns is how many keys somebody commits under.
func Turns(f *Fences) int {
	f.turns.mu.Lock()
	defer f.turns.mu.Unlock()
	return len(f.turns.keys)
}

// WaitForContenders waits until n campaign for a key in a process.
func WaitForContenders(f *Fences, key string, n int) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		f.mu.Lock()
		c := f.contests[key]
		there := c != nil && len(c.queue) >= n
		f.mu.Unlock()
		if there {
			return
		}
	}
	panic("nobody campaigns")
}
