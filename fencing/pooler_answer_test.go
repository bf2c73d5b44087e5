package fencing_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/fenceline/fenceline/fencing"
)

// A pooler that loses its server while COMMIT is under way says so in an error of
// its own. That nothing was written is what only the server can say.
func TestAPoolersErrorInPlaceOfAnAnswerIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 2)
	lease := a.acquire("k")
	for shape, commit := range map[string]func(string) (fencing.Receipt, error){
		"callback": func(step string) (fencing.Receipt, error) { return lease.Commit(ctx, content(step, "x"), write) },
		"batch": func(step string) (fencing.Receipt, error) {
			return lease.CommitBatch(ctx, content(step, "x"), writeBatch)
		},
	} {
		_, err := commit("first " + shape)
		w.ok(err)
		for _, severity := range []string{"ERROR", "FATAL"} {
			step := shape + " " + severity
			failed := proxy.FailNextCommitAnswer(step, severity, "08P01", "server conn crashed?")
			_, err := commit(step)
			<-failed
			if !errors.Is(err, fencing.ErrUnknownOutcome) || strings.Contains(err.Error(), "nothing was written") {
				t.Errorf("%s: %v", step, err)
			}
			r, err := fencing.Retry(ctx, func(context.Context) (fencing.Receipt, error) { return commit(step) })
			w.ok(err)
			if !r.Replayed {
				t.Errorf("%s: %+v", step, r)
			}
		}
	}
	w.wantWritten("k", written{6, 6, 6})

	// Neither is it an answer to an acquire, a rotation or a close.
	proxy.FailNextCommitAnswer("other", "ERROR", "08P01", "server conn crashed?")
	a.acquire("other")
	proxy.FailNextCommitAnswer("k", "ERROR", "08P01", "server conn crashed?")
	if pos, err := lease.Rotate(ctx); err != nil || pos.Token != 2 {
		t.Errorf("rotate: %v, %v", pos, err)
	}
	proxy.FailNextCommitAnswer("k", "ERROR", "08P01", "server conn crashed?")
	if c, err := lease.Close(ctx); err != nil || !c.Replayed {
		t.Errorf("close: %+v, %v", c, err)
	}
}
