package fencing

import "sync"

// turns are the lines in which commits of the batch shape that are no lease's
// wait for each other, one for each key: each is a transaction of its own, and
// waits in the process instead of at the server, where each would have a
// connection and wait for the fence's lock; a lock that many wait for costs the
// server more than the commit. It is a matter of cost alone: who goes first is
// for the lock, as it is between processes. The zero value is usable.
type turns struct {
	mu   sync.Mutex
	keys map[string]*turn
}

// turn is a key that somebody commits under.
type turn struct {
	line  *line
	users int // in line or under way; the last one removes the key
}

// unpiped is how many connections the commits of one key have where they can't
// follow each other on one: the second one waits for the fence at the server, so
// that the lock changes hands with no turn of the network between.
const unpiped = 2

// line gives the key's line, until leave is called.
func (t *turns) line(f *Fences, key string) (q *line, leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.keys[key]
	if k == nil {
		k = &turn{line: f.ownLine(1)}
		if t.keys == nil {
			t.keys = map[string]*turn{}
		}
		t.keys[key] = k
	}
	k.users++
	return k.line, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(t.keys, key)
		}
	}
}
