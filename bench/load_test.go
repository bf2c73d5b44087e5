package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// recorder notes the order in which each key's events were committed.
type recorder struct {
	mu   sync.Mutex
	seqs map[string][]int
}

func (r *recorder) commit(_ context.Context, i int, payload []byte) error {
	n, ok := seqOf(payload)
	if !ok {
		return errors.New("a payload without a number")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key := steadyWorkload.key(i)
	r.seqs[key] = append(r.seqs[key], n)
	return nil
}

func (r *recorder) check(t *testing.T, want counts) {
	t.Helper()
	for key, n := range want {
		if len(r.seqs[key]) != n {
			t.Errorf("%s has %d events, want %d", key, len(r.seqs[key]), n)
		}
		for i, seq := range r.seqs[key] {
			if seq != i+1 {
				t.Fatalf("%s: event %d was committed as number %d", key, seq, i+1)
			}
		}
	}
}

func TestALoadCommitsTheEventsOfAKeyInOrder(t *testing.T) {
	r := &recorder{seqs: map[string][]int{}}
	sent, err := openLoop(t.Context(), r.commit, 0, 5000, time.Now(), 0, nil, func(int) {})
	if err != nil || sent != 5000 {
		t.Fatalf("%d, %v", sent, err)
	}
	w := steadyWorkload
	w.Events = sent
	r.check(t, w.counts())

	r = &recorder{seqs: map[string][]int{}}
	l := startClosedLoop(t.Context(), r.commit, 8)
	for l.committed.Load() < 5000 {
		time.Sleep(time.Millisecond)
	}
	want, err := l.end()
	if err != nil {
		t.Fatal(err)
	}
	r.check(t, want)
}

func TestALoadStopsWhenACommitFails(t *testing.T) {
	broken := errors.New("broken")
	const n = 100_000
	sent, err := openLoop(t.Context(), func(context.Context, int, []byte) error { return broken }, 0, n, time.Now(), 10*time.Microsecond, nil, func(int) {})
	if !errors.Is(err, broken) || sent == n {
		t.Errorf("after %d of %d events: %v", sent, n, err)
	}
}
