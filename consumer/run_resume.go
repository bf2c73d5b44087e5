package consumer

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
)

// fails counts the tries of parked events whose turn had come.
type fails map[Position]int

// pendingPage is how many streams are looked for at once.
const pendingPage = 100

// pending goes on with parked events that an earlier process left over, of
// which nothing may arrive any more.
func (p *partition) pending(reading context.Context) error {
	pause := p.backoff()
	var before []StreamKey
	for reading.Err() == nil {
		var keys []StreamKey
		err := p.inTx(func(ctx context.Context, tx pgx.Tx) (err error) {
			keys, err = p.guard.Pending(ctx, tx, pendingPage)
			return err
		})
		switch {
		case err != nil:
			if err := p.outage(reading, pause, "parked events were not looked for, trying again", err); err != nil {
				return err
			}
		case len(keys) == 0 || slices.Equal(keys, before):
			return nil // none is left, or none that goes on
		default:
			before = keys
			if err := p.resume(reading, keys); err != nil {
				return err
			}
		}
	}
	return errStopped
}

// resume goes on with the parked events of these streams until none is left
// that can. Each stream has transactions of its own, so that one that fails
// doesn't hold up the others. An error is errStopped or ends Run.
func (p *partition) resume(reading context.Context, keys []StreamKey) error {
	for _, key := range keys {
		pause := p.backoff()
		for more := true; more; {
			if reading.Err() != nil {
				return errStopped
			}
			var err error
			if more, err = p.resumeOnce(reading, key, pause); err != nil {
				return err
			}
		}
	}
	return nil
}

// resumeOnce is one try. more says that another one is due.
func (p *partition) resumeOnce(reading context.Context, key StreamKey, pause *backoff.ExponentialBackOff) (more bool, err error) {
	var results []Result
	began := time.Now()
	err = p.inTx(func(ctx context.Context, tx pgx.Tx) (err error) {
		results, err = p.guard.Resume(ctx, tx, []StreamKey{key}, p.handler)
		return err
	})
	if err == nil {
		p.committed(results, began)
		pause.Reset()
		return len(More(results)) > 0, nil
	}
	if p.applying.Err() != nil {
		return false, errStopped
	}
	var culprit *HandlerError
	var fatal *fatalError
	switch known := errors.As(err, &culprit) && !blurred(err); {
	case isPassing(err) || errors.As(err, &fatal):
		return true, p.outage(reading, pause, "parked events were not applied for a passing reason, trying again", err)
	case known:
		p.resumedFailed(reading, culprit, pause)
		return true, nil
	default:
		// They stay parked; what arrives next of the stream may make them go on.
		p.log.Error("parked events can't go on, and it isn't known which one is at fault", "stream", key.String(), "err", err)
		return false, nil
	}
}

// resumedFailed counts the try of an event out of the park. When it has had
// enough of them, its guard is told so in a transaction of its own, and whatever
// made it its turn can go on without it.
func (p *partition) resumedFailed(reading context.Context, e *HandlerError, pause *backoff.ExponentialBackOff) {
	pos := e.Delivery.Position()
	if p.failed == nil {
		p.failed = make(fails)
	}
	p.failed[pos]++
	if !p.tried(&e.Delivery, e, p.failed[pos]) {
		sleep(reading.Done(), pause.NextBackOff())
		return
	}
	err := p.inTx(func(ctx context.Context, tx pgx.Tx) error {
		return p.guard.Fail(ctx, tx, e.Delivery, reason(e))
	})
	if err != nil {
		p.log.Warn("the parked event's failure was not recorded, trying again", "err", err)
		sleep(reading.Done(), pause.NextBackOff())
		return
	}
	delete(p.failed, pos)
}
