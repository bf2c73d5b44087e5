package fencing

import (
	"context"
	"sync"
)

// turnsOfAKey is how many commits of the batch shape under one key a process has at
// the server at a time where they can't follow each other on a connection: one that
// commits, and one that waits for its fence there, so that the lock changes hands
// with no turn of the network between.
const turnsOfAKey = 2

// turns lets the commits of a key that are no lease's wait in the process instead of
// at the server, where each would have a connection and wait for the fence's lock; a
// lock that many wait for costs the server more than the commit. It is a matter of
// cost alone: who goes first is for the lock, as it is between processes. The zero
// value is usable.
type turns struct {
	mu   sync.Mutex
	keys map[string]*turn
}

// turn is a key that somebody commits under.
type turn struct {
	line    *line         // in which each has a transaction of its own; nil where there are tickets
	tickets chan struct{} // one in it for each commit at the server
	users   int           // at the server or waiting; the last one removes the key
}

// of gives a key's turn, until leave is called.
func (t *turns) of(f *Fences, key string) (k *turn, leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k = t.keys[key]
	if k == nil {
		k = &turn{}
		if f.piped {
			k.line = f.ownLine(1)
		} else {
			k.tickets = make(chan struct{}, turnsOfAKey)
		}
		if t.keys == nil {
			t.keys = map[string]*turn{}
		}
		t.keys[key] = k
	}
	k.users++
	return k, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(t.keys, key)
		}
	}
}

// inTurn commits a member by itself, when it is its key's turn.
func (f *Fences) inTurn(ctx context.Context, m *member) (Receipt, error) {
	k, leave := f.turns.of(f, m.gate.Position.Key)
	defer leave() // also behind a panic, of an argument's own encoder
	if k.line != nil {
		m.single = nil // it has been told
		return k.line.commit(ctx, m)
	}
	select {
	case k.tickets <- struct{}{}:
		defer func() { <-k.tickets }()
	case <-ctx.Done():
		return Receipt{}, m.waitError(context.Cause(ctx))
	}
	conn, err := f.connection(ctx)
	if err != nil {
		return Receipt{}, m.connectError(err)
	}
	defer conn.Release()
	f.commitMembers(ctx, conn, []*member{m})
	return m.receipt, m.err
}
