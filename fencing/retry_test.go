package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/fencing"
)

func TestRetryAsksAgainUntilThereIsAnAnswerAndCommitsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, proxy := w.behindProxy("a", 2)
	lease := a.acquire("k")
	for name, commit := range map[string]func(context.Context, fencing.Content) (fencing.Receipt, error){
		"callback": func(ctx context.Context, c fencing.Content) (fencing.Receipt, error) {
			return lease.Commit(ctx, c, write)
		},
		"batch": func(ctx context.Context, c fencing.Content) (fencing.Receipt, error) {
			return lease.CommitBatch(ctx, c, writeBatch)
		},
	} {
		_, err := commit(ctx, content(name, "x")) // so that the batch goes in one
		w.ok(err)
		asked := 0
		r, err := fencing.Retry(ctx, func(ctx context.Context) (fencing.Receipt, error) {
			if asked++; asked < 3 {
				proxy.DropNextCommitAnswer("the step")
			}
			return commit(ctx, content("the step of "+name, "x"))
		})
		w.ok(err)
		if asked != 2 || !r.Replayed {
			t.Errorf("%s: asked %d times, %+v", name, asked, r)
		}
	}
	w.wantWritten("k", written{4, 4, 4})
}

func TestRetryStopsAtEveryDefiniteAnswer(t *testing.T) {
	t.Parallel()
	refusal := &fencing.RefusedError{Answer: fencing.ErrStale}
	statement := &fencing.StatementError{Err: &pgconn.PgError{Code: "23505", Message: "duplicate", SeverityUnlocalized: "ERROR"}}
	argument := &fencing.StatementError{Err: fmt.Errorf("of a function of ours: %w", fencing.ErrInvalid)}
	down := &pgconn.PgError{Code: "57P03", Message: "starting up", SeverityUnlocalized: "FATAL"}
	for name, c := range map[string]struct {
		attempts []error
		want     []error // what the last error matches
		asked    int
	}{
		"committed": {[]error{nil}, nil, 1},
		"an error without an unknown outcome is the first": {[]error{down, nil}, []error{down}, 1},
		"a callback's":                         {[]error{errCallback, nil}, []error{errCallback}, 1},
		"unknown, then committed":              {[]error{fencing.ErrUnknownOutcome, nil}, nil, 2},
		"unknown, the server down, then stale": {[]error{fencing.ErrUnknownOutcome, down, down, refusal}, []error{fencing.ErrStale}, 4},
		"unknown, then not replicated":         {[]error{fencing.ErrUnknownOutcome, fencing.ErrNotReplicated}, []error{fencing.ErrNotReplicated}, 2},
		"unknown, then another history":        {[]error{fencing.ErrUnknownOutcome, fencing.ErrHistory, nil}, []error{fencing.ErrHistory}, 2},
		// What the first attempt has done is still open.
		"unknown, then a statement has an argument out of range": {[]error{fencing.ErrUnknownOutcome, argument, nil}, []error{fencing.ErrUnknownOutcome, argument}, 2},
		"unknown, then a statement fails":                        {[]error{fencing.ErrUnknownOutcome, statement, nil}, []error{fencing.ErrUnknownOutcome, statement}, 2},
		"unknown, then an error without a SQLSTATE":              {[]error{fencing.ErrUnknownOutcome, &pgconn.PgError{Message: "of a pooler"}, nil}, []error{fencing.ErrUnknownOutcome}, 2},
		"unknown, then misuse":                                   {[]error{fencing.ErrUnknownOutcome, fencing.ErrMisuse, nil}, []error{fencing.ErrUnknownOutcome, fencing.ErrMisuse}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			_, err := fencing.Retry(ctx, func(context.Context) (fencing.Receipt, error) {
				asked++
				return fencing.Receipt{}, c.attempts[asked-1]
			})
			if asked != c.asked || (err == nil) != (c.want == nil) {
				t.Fatalf("asked %d times, want %d: %v", asked, c.asked, err)
			}
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("%v does not match %v", err, want)
				}
			}
			if unknown := len(c.want) > 0 && c.want[0] == fencing.ErrUnknownOutcome; errors.Is(err, fencing.ErrUnknownOutcome) != unknown {
				t.Errorf("unknown is %v: %v", !unknown, err)
			}
		})
	}
}

func TestRetryEndsWithItsContextAndSaysThatTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	short, cancel := context.WithCancel(ctx)
	_, err := fencing.Retry(short, func(context.Context) (fencing.Receipt, error) {
		cancel()
		return fencing.Receipt{}, fencing.ErrUnknownOutcome
	})
	if !errors.Is(err, fencing.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// An attempt of the callback shape that got behind the gate answers for the one
// before: had that committed, it would have been replayed.
func TestRetryTakesAFailureBehindTheGateForAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.worker("a")
	lease := a.acquire("k")
	asked := 0
	_, err := fencing.Retry(ctx, func(ctx context.Context) (fencing.Receipt, error) {
		if asked++; asked == 1 {
			return fencing.Receipt{}, fencing.ErrUnknownOutcome // and in truth not committed
		}
		return lease.Commit(ctx, content("s", "x"), func(context.Context, fencing.Tx) error { return errCallback })
	})
	w.is(err, errCallback)
	if errors.Is(err, fencing.ErrUnknownOutcome) || asked != 2 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	a.clean(lease)
}
