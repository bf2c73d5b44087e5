package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fenceline/fenceline/internal/pgsession"
)

// Retry calls commit until its outcome is known: after [ErrUnknownOutcome] it
// calls it again, with growing pauses of about 50 ms to 5 s. commit is one of
// the commits of this package, called with the same position and the same
// content each time:
//
//	receipt, err := fencing.Retry(ctx, func(ctx context.Context) (fencing.Receipt, error) {
//		return lease.Commit(ctx, content, write)
//	})
//
// It rests on what makes every commit repeatable: the receipt of (key, epoch,
// token, step) is written in the commit's own transaction. If the first attempt
// has committed, the second one is answered by that receipt, also after a
// takeover; if not, it commits, or it is told why it cannot. So commit takes
// effect once at most, however often it is called. What else commit does is
// done as often as it is called.
//
// Retry returns with the first answer: a receipt, a refusal, or an error after
// which it is known that nothing was written. An error of an attempt that came
// to no unknown outcome is returned at once, whatever it is. After an unknown
// one, an attempt that does not reach the database's gate (a lost connection, a
// server that starts up or is still a standby) answers nothing, and is
// repeated. So what is left is: ctx has ended, or an attempt of the batch shape
// failed in one of its statements. The error then matches ErrUnknownOutcome
// too, and the question can be asked again, from any process.
func Retry(ctx context.Context, commit func(ctx context.Context) (Receipt, error)) (Receipt, error) {
	if err := isFunc(commit != nil); err != nil {
		return Receipt{}, err
	}
	pauses := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond), backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
	var unknown error // the first one
	for {
		receipt, err := commit(ctx)
		switch {
		case err == nil, errors.Is(err, ErrNotReplicated), answers(err), receipt.behind:
			return receipt, err
		case unknown == nil && !errors.Is(err, ErrUnknownOutcome):
			return receipt, err
		case unknown == nil:
			unknown = err
		case !asksAgain(err):
			return Receipt{}, &wrappedError{fmt.Sprintf("fencing: an earlier attempt's outcome is unknown, and a retry failed: %v", err), ErrUnknownOutcome, err}
		}
		timer := time.NewTimer(pauses.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return Receipt{}, &wrappedError{fmt.Sprintf("%v; gave up asking: %v", unknown, context.Cause(ctx)), ErrUnknownOutcome, errors.Join(context.Cause(ctx), err)}
		}
	}
}

// answers says that an error answers for all attempts: the gate has compared,
// or refuses whoever comes.
func answers(err error) bool {
	if errors.As(err, new(*StatementError)) {
		return false // whatever a statement of the caller's has met
	}
	return gateRefusal(err) != nil || errors.Is(err, ErrHistory) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrIsolation)
}

// asksAgain says that an attempt did not get as far as the gate's answer, so
// that the next one may.
func asksAgain(err error) bool {
	if errors.Is(err, ErrUnknownOutcome) || errors.Is(err, ErrGateTimeout) {
		return true
	}
	if _, ok := errors.AsType[*unreachedError](err); ok {
		return true
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false // the caller's own
	}
	switch pg.Code[:min(2, len(pg.Code))] { // who stands between may send none
	case "08", "53", "57": // connection, resources, operator intervention
		return true
	}
	switch pg.Code {
	case "25006", "40001", "40P01", "55P03": // a standby that is not promoted yet; chosen to give way
		return true
	}
	return pgsession.Recovering(pg)
}

// unreachedError is that of an attempt which has not had the gate's answer.
type unreachedError struct {
	text  string
	cause error
}

func (e *unreachedError) Error() string { return e.text + ": " + e.cause.Error() }
func (e *unreachedError) Unwrap() error { return e.cause }

func connectError(key string, err error) error {
	return &unreachedError{fmt.Sprintf("fencing: commit of %q: nothing was written: connect", key), err}
}
