package fencing

import (
	"context"
	"sync"
)

// turnsOfAKey is how many commits of the batch shape under one key a process
// has at the server at a time: one that commits, and one that waits for its
// fence there, so that the lock changes hands with no turn of the network
// between. More would wait as well, each with a connection of its own, and a
// wait for a lock that many wait for costs the server more than the commit.
const turnsOfAKey = 2

// turns lets the commits of a key wait in the process instead of at the server.
// It is a matter of cost alone: who goes first is for the fence's lock, as it is
// between processes. The zero value is usable.
type turns struct {
	mu   sync.Mutex
	keys map[string]*turn
}

// turn is a key that somebody commits under.
type turn struct {
	tickets chan struct{} // one in it for each commit at the server
	users   int           // at the server or waiting; the last one removes the key
}

// take waits for one of the key's turns, in the order of coming. The caller gives
// it back with the function returned, unless there is an error: ctx's.
func (t *turns) take(ctx context.Context, key string) (giveBack func(), err error) {
	t.mu.Lock()
	k := t.keys[key]
	if k == nil {
		k = &turn{tickets: make(chan struct{}, turnsOfAKey)}
		if t.keys == nil {
			t.keys = map[string]*turn{}
		}
		t.keys[key] = k
	}
	k.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(t.keys, key)
		}
	}
	select {
	case k.tickets <- struct{}{}:
		return func() { <-k.tickets; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
