package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
)

// fails counts the tries of parked events whose turn had come.
type fails map[Position]int

// resume goes on with the parked events of these streams until none is left
// that can. Each stream has transactions of its own, so that one that fails
// doesn't hold up the others. An error is errStopped or ends Run.
func (p *partition) resume(reading context.Context, keys []StreamKey) error {
	for _, key := range keys {
		pause := p.backoff()
		alone := false
		for more := true; more; {
			if reading.Err() != nil {
				return errStopped
			}
			var err error
			if more, err = p.resumeOnce(reading, key, &alone, pause); err != nil {
				return err
			}
		}
	}
	return nil
}

// resumeOnce is one try. more says that another one is due. alone is set when the
// events are to have transactions of their own: where it isn't known which one is
// at fault, that tells.
func (p *partition) resumeOnce(reading context.Context, key StreamKey, alone *bool, pause *backoff.ExponentialBackOff) (more bool, err error) {
	var results []Result
	began := time.Now()
	err = p.inBatch(func(ctx context.Context, tx pgx.Tx, last *last) (err error) {
		last.alone = *alone
		results, err = p.guard.resume(ctx, tx, []StreamKey{key}, p.handler, last)
		p.offsets.queueUnstored(&last.Batch, results)
		return err
	})
	if err == nil {
		p.committed(results, began)
		p.recovered()
		pause.Reset()
		return len(More(results)) > 0, nil
	}
	if p.applying.Err() != nil {
		return false, errStopped
	}
	var culprit *HandlerError
	var fatal *fatalError
	handled, sole := whole(err)
	switch known := errors.As(err, &culprit) && !blurred(err); {
	case isPassing(err) || errors.As(err, &fatal):
		more = true
		switch {
		case !tookConnection(err):
			more = !p.inTurn
		case *alone && sole != nil:
			p.resumedLost(&HandlerError{Delivery: *sole, Err: err}, err)
		default:
			*alone = true // it may be all of them that take too long
		}
		p.stream = key
		defer func() { p.stream = StreamKey{} }()
		return more, p.outage(reading, pause, "parked events were not applied for a passing reason, trying again", fmt.Errorf("parked events of %s: %w", key, err))
	case known:
		p.resumedFailed(reading, culprit, pause)
		return true, nil
	case sole != nil:
		p.resumedFailed(reading, &HandlerError{Delivery: *sole, Err: err}, pause)
		return true, nil
	case !*alone && handled > 1:
		*alone = true
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
	if p.giveUp(e, reason(e)) {
		delete(p.failed, pos)
		return
	}
	sleep(reading.Done(), pause.NextBackOff())
}

// giveUp tells the guard of a parked event that it fails for good.
func (p *partition) giveUp(e *HandlerError, cause error) bool {
	err := p.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) error {
		return p.guard.Fail(ctx, tx, e.Delivery, cause)
	})
	if err != nil {
		p.log.Warn("the parked event's failure was not recorded, trying again", "err", err)
	}
	return err == nil
}
