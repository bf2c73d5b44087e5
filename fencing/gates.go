package fencing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Gate is one of several that a transaction passes: whose position, and what
// the receipt there says.
type Gate struct {
	Position Position
	Content  Content
}

// CommitAll is [Fences.Commit] through several gates at once: what fn writes is
// committed under all of them or under none. Each gate gets a receipt of its
// own; receipts and fn's txs are in the order of gates. All txs are one
// transaction; which of them an event is appended with decides whose key it
// has.
//
// The fences are locked in the order of their keys' bytes, whatever the order
// of gates, so that two such commits cannot wait for each other. (The same
// order as the database's "C" collation, for those who call enter themselves.)
// A key may occur twice only with the same token, for two steps.
//
// Answers are Commit's. A refusal of any gate refuses the whole. Receipts are
// replayed together: where some of the gates have committed before and others
// have not, their steps were used for something else, and the answer is
// ErrMisuse. There is no lease whose trust would end fn's context; let ctx be
// one of theirs.
//
// Positions are those of their tokens: where a lease of theirs is rotated meanwhile
// ([Lease.Rotate]; its own commits do that now and then), the answer is ErrStale
// though it is held, nothing was written, and its new Position is the one to go on
// with. These commits count for no rotation: who makes no others calls Rotate.
func (f *Fences) CommitAll(ctx context.Context, gates []Gate, fn func(ctx context.Context, txs []Tx) error) ([]Receipt, error) {
	order, err := lockOrder(gates)
	if err := errors.Join(err, isFunc(fn != nil)); err != nil {
		return nil, err
	}
	for _, g := range gates {
		if err := f.notInside(ctx, "commit of", g.Position.Key); err != nil {
			return nil, err
		}
	}
	sorted := make([]Gate, len(gates))
	for i, j := range order {
		sorted[i] = gates[j]
	}
	s := session{f: f, gates: sorted, timeout: f.cfg.GateTimeout}
	inOrder := func(ctx context.Context, txs []Tx) error { return fn(ctx, unsort(order, txs)) }
	receipts, err := s.commit(ctx, inOrder)
	if f.follow(ctx, err) {
		receipts, err = s.commit(ctx, inOrder)
	}
	switch {
	case errors.Is(err, ErrReplayed) && !receipts[0].behind: // a gate's, not fn's
		receipts, err = f.askAll(ctx, sorted)
	case err == nil && receipts[0].Replayed: // of the only gate
		err = f.replayedWith(ctx, sorted[0])
	}
	if err != nil && !errors.Is(err, ErrNotReplicated) {
		return nil, err
	}
	return unsort(order, receipts), err
}

// lockOrder says which gate comes first, second and so on. Opposite orders in
// two transactions would be a deadlock (40P01) for one of them.
func lockOrder(gates []Gate) ([]int, error) {
	if len(gates) == 0 {
		return nil, &InvalidError{"gates", "are none: name at least one"}
	}
	type name struct {
		key, step string
	}
	tokens, seen := map[string]Position{}, map[name]bool{}
	order := make([]int, len(gates))
	for i, g := range gates {
		if err := errors.Join(g.Position.validate(), g.Content.validate()); err != nil {
			return nil, err
		}
		if p, ok := tokens[g.Position.Key]; ok && p != g.Position {
			return nil, &InvalidError{"gates", fmt.Sprintf("have %v and %v: of two tokens of a key one is stale", p, g.Position)}
		}
		n := name{g.Position.Key, g.Content.Step}
		if seen[n] {
			return nil, &InvalidError{"gates", fmt.Sprintf("have step %q of %q twice", n.step, n.key)}
		}
		tokens[g.Position.Key], seen[n] = g.Position, true
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(gates[a].Position.Key, gates[b].Position.Key) })
	return order, nil
}

func unsort[T any](order []int, sorted []T) []T {
	out := make([]T, len(sorted))
	for i, j := range order {
		out[j] = sorted[i]
	}
	return out
}

// askAll asks each gate by itself after one of them has answered "replayed".
// Their answers don't change any more: a receipt is only ever swept, and that
// has an answer of its own. A gate that would be passed now is not: its
// transaction is rolled back.
func (f *Fences) askAll(ctx context.Context, gates []Gate) ([]Receipt, error) {
	receipts := make([]Receipt, len(gates))
	var first *Gate
	var alone error // one of them may be on the primary only
	errNotYet := errors.New("passed")
	for i, g := range gates {
		r, err := f.commit(ctx, g.Position, g.Content, f.cfg.GateTimeout, nil, func(context.Context, Tx) error { return errNotYet })
		switch {
		case errors.Is(err, errNotYet):
			first = &gates[i]
		case errors.Is(err, ErrNotReplicated):
			alone = err
		case err != nil:
			return nil, err
		}
		receipts[i] = r
	}
	if first != nil {
		return nil, &wrappedError{fmt.Sprintf("fencing: %q has not committed step %q, but others of the gates have committed theirs: they were never one commit; use other steps", first.Position.Key, first.Content.Step), ErrMisuse, nil}
	}
	return receipts, alone
}
