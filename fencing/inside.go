package fencing

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
)

// A callback holds the lock on its key's fence. What waits for that lock, or for
// the lease's commits to end, would wait for itself if it was called in the
// callback: until the gate's timeout ends the session, or for ever where it is
// the callback that waits. So the context of a callback says which commit it is
// of, and the calls that would wait refuse it at once. That is no matter of
// goroutines: whoever works for the callback has its context. Who calls with
// another context can't be told from somebody else; that wait is bounded, by the
// gate's timeout (see drain).

// inside is a commit whose callback runs.
type inside struct {
	f       *Fences
	gates   []Gate
	company []*member // who shares the transaction
	lending *lending
	outer   *inside     // whose callback this one was called in; nil for none
	over    atomic.Bool // the callback has returned: nothing waits for itself any more
}

type insideKey struct{}

// enclose marks the context of a callback, until the function that it returns is
// called.
func (s *session) enclose(ctx context.Context, l *lending) (context.Context, func()) {
	in := &inside{f: s.f, gates: s.gates, company: s.company, lending: l}
	in.outer, _ = ctx.Value(insideKey{}).(*inside)
	return context.WithValue(ctx, insideKey{}, in), func() { in.over.Store(true) }
}

// running is the innermost callback of the fences' commits that ctx is of and that
// still runs; nil for none.
func (f *Fences) running(ctx context.Context) *inside {
	in, _ := ctx.Value(insideKey{}).(*inside)
	return in.running(f)
}

// running is in, or the first one around it, that is of f and still runs.
func (in *inside) running(f *Fences) *inside {
	for in != nil && (in.f != f || in.over.Load()) {
		in = in.outer
	}
	return in
}

// notInside refuses what would wait for the commit in whose callback it is called.
// Where it would wait for another one that shares the transaction, the callback has
// to run again, alone.
func (f *Fences) notInside(ctx context.Context, what, key string) error {
	ofKey := func(g Gate) bool { return g.Position.Key == key }
	for in := f.running(ctx); in != nil; in = in.outer.running(f) {
		if slices.ContainsFunc(in.gates, ofKey) {
			return &wrappedError{fmt.Sprintf("fencing: %s %q: called in the callback of a commit of that key, for whose end it would wait: call it after Commit has returned", what, key), ErrMisuse, nil}
		}
		if slices.ContainsFunc(in.company, func(m *member) bool { return ofKey(m.gate) }) {
			in.lending.refuse(errInCompany)
			return errInCompany
		}
	}
	return nil
}
