package consumer

import (
	"hash/maphash"
	"sync"
)

// known remembers of which streams a guard was seen, so that a batch needs to
// create only what it has not seen: to look for each key before it is locked
// costs half as much as to lock it.
//
// It is a hint and decides nothing. Only a guard that an earlier transaction had
// committed is noted, and a guard that isn't there although it is noted (it was
// forgotten since, or two streams have one hash) is found missing by the lock,
// which then creates it. It is bounded: the older half is dropped when the newer
// one is full.
type known struct {
	seed maphash.Seed

	mu         sync.Mutex
	young, old map[uint64]struct{}
}

// knownStreams is how many streams each half holds: the two of them take about
// 4 MB when they are full.
const knownStreams = 1 << 16

func newKnown() *known { return &known{seed: maphash.MakeSeed()} }

// strangers returns those of keys that are not known.
func (n *known) strangers(keys []StreamKey) []StreamKey {
	n.mu.Lock()
	defer n.mu.Unlock()
	var unknown []StreamKey
	for _, k := range keys {
		h := maphash.Comparable(n.seed, k)
		if _, is := n.young[h]; is {
			continue
		}
		if _, is := n.old[h]; is {
			n.add(h)
			continue
		}
		unknown = append(unknown, k)
	}
	return unknown
}

// note notes keys whose guards are committed.
func (n *known) note(keys []StreamKey) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, k := range keys {
		n.add(maphash.Comparable(n.seed, k))
	}
}

func (n *known) add(h uint64) {
	if len(n.young) >= knownStreams {
		n.old, n.young = n.young, nil
	}
	if n.young == nil {
		n.young = make(map[uint64]struct{})
	}
	n.young[h] = struct{}{}
}
