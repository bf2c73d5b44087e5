package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// What no record brings about is looked for from time to time: what operators
// have decided, what an earlier process left over, streams that stand for too
// long, guards to forget, and dead letters to hand out. Every member does it, and
// of two that do the same at once one waits for the other's locks and finds
// nothing left.

const (
	// pendingPage is how many streams are looked for at once.
	pendingPage = 100
	// overdueMost is how many streams that stand are told apart at most.
	overdueMost = 10_000
)

// pin compares the number of partitions with what this consumer has read
// before. It comes before anything is read: while it can't be done, all partitions
// wait.
func (p *partition) pin(reading context.Context) error {
	pause := p.backoff()
	told := false
	for topic, n := range p.gen.Partitions() {
		for reading.Err() == nil {
			err := p.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) error {
				return p.guard.PinTopic(ctx, tx, topic, n)
			})
			if err == nil {
				break
			}
			var fatal *fatalError
			if !told && !errors.As(err, &fatal) {
				told = true
				for _, a := range p.gen.Assigned() {
					(&partition{runner: p.runner, assigned: a}).changed(Waiting, err)
				}
			}
			if err := p.outage(reading, pause, "the number of partitions was not compared, trying again", err); err != nil {
				return err
			}
		}
	}
	return nil
}

// poll does what is to be done from time to time, until reading ends.
func (p *partition) poll(reading context.Context) error {
	round := poller{p, p.polled}
	for reading.Err() == nil {
		for _, do := range []func(context.Context) error{round.pending, round.overflowing, round.overdue, round.forget} {
			if err := do(reading); err != nil {
				return err
			}
		}
		sleep(reading.Done(), p.cfg.PollInterval)
	}
	return nil
}

// poller goes its rounds during one generation.
type poller struct {
	*partition
	*polled
}

// polled is what one round leaves for the next, also of another generation: a
// rebalance raises no alarm again. Only the poller of the generation touches it.
type polled struct {
	// stands is since when the streams stand of which an alarm was raised.
	stands     map[StreamKey]time.Time
	forgetting Forgetting
	forgot     time.Time
}

// tell says that something was not done; it is tried again in the next round.
func (p *poller) tell(what string, err error) error {
	var fatal *fatalError
	if errors.As(err, &fatal) {
		return err
	}
	if p.applying.Err() == nil {
		p.log.Warn(what, "err", err)
	}
	return nil
}

// pending goes on with parked events, of which nothing may arrive any more. It goes
// through all of them once: those that fail for a passing reason stay pending, and
// however many these are, the others have their turn.
func (p *poller) pending(reading context.Context) error {
	var at StreamKey
	for reading.Err() == nil {
		var keys []StreamKey
		err := p.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) (err error) {
			keys, err = p.guard.pendingBehind(ctx, tx, at, pendingPage)
			return err
		})
		if err != nil {
			return p.tell("parked events were not looked for, trying again", err)
		}
		if len(keys) == 0 {
			return nil
		}
		at = keys[len(keys)-1]
		if err := p.resume(reading, keys); err != nil {
			if errors.Is(err, errStopped) {
				return nil
			}
			return err
		}
	}
	return nil
}

// overdue raises one alarm for each time that a stream stands for too long. Those
// that stand longest come first, so it asks for as many as it knows and some more:
// else whoever leaves a page of them standing would hear of no other.
func (p *poller) overdue(context.Context) error {
	var list []Blocked
	err := p.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) (err error) {
		list, err = p.guard.Overdue(ctx, tx, min(len(p.stands)+pendingPage, overdueMost))
		return err
	})
	if err != nil {
		return p.tell("streams that stand were not looked for, trying again", err)
	}
	now := make(map[StreamKey]time.Time, len(list))
	for _, s := range list {
		now[s.StreamKey] = s.Since
		if p.stands[s.StreamKey].Equal(s.Since) {
			continue
		}
		p.alarm(Alarm{Kind: Overdue, Stream: s.StreamKey, Text: fmt.Sprintf("%s has been standing at %d/%d since %s, because of: %s; records that wait: %d",
			s.StreamKey, s.Epoch, s.Seq, s.Since.UTC().Format(time.RFC3339), s.Reason, s.Parked)})
	}
	p.stands = now
	return nil
}

// forget begins a round when a tenth of the time has passed for which guards are
// kept, so that they are kept for hardly longer.
func (p *poller) forget(reading context.Context) error {
	if p.cfg.ForgetAfter <= 0 || time.Since(p.forgot) < p.cfg.ForgetAfter/10 {
		return nil
	}
	p.forgetting = Forgetting{}
	for reading.Err() == nil && !p.forgetting.Done {
		err := p.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) error {
			_, err := p.guard.Forget(ctx, tx, &p.forgetting)
			return err
		})
		if err != nil {
			return p.tell("guards were not forgotten, trying again", err)
		}
	}
	p.forgot = time.Now()
	return nil
}
