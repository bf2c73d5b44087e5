package fencingtest

import (
	"errors"
	"testing"

	"github.com/fenceline/fenceline/fencing"
)

// WantRefused checks that err is a refusal with the given answer (ErrStale,
// ErrConflict, ErrUnconfirmable, ErrClosed), and returns what it rests on.
func WantRefused(t testing.TB, err, answer error) fencing.Evidence {
	t.Helper()
	var r *fencing.RefusedError
	if !errors.As(err, &r) || !errors.Is(err, answer) {
		t.Fatalf("the answer is %v, want a refusal: %v", err, answer)
		return fencing.Evidence{}
	}
	return r.Evidence
}

// WantReplayed checks that a commit was answered by an earlier one's receipt.
func WantReplayed(t testing.TB, receipt fencing.Receipt, err error) {
	t.Helper()
	if err != nil || !receipt.Replayed {
		t.Fatalf("the answer is %+v, %v, want the receipt of an earlier commit", receipt, err)
	}
}
