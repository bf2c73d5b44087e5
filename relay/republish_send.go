package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// sendAll sends a page's batches. When it ends early, LastPos says up to where
// all of it is done. Behind an event that is refused it goes on with the other
// partitions: whoever goes on behind it by pos must leave nothing out.
func (r *republisher) sendAll(ctx context.Context, order []*Batch) (err error) {
	before := r.report.LastPos
	r.here = map[int64]bool{}
	refused := map[string]bool{}
	for _, b := range order {
		lane := fmt.Sprintf("%s/%d", b.Topic, b.Partition)
		if refused[lane] {
			continue
		}
		e := r.pace(ctx, len(b.Records))
		if e == nil {
			e = r.mayGoOn(ctx)
		}
		if e == nil {
			e = r.send(ctx, b)
		}
		if isEvent(e) {
			refused[lane], err = true, lowest(err, e)
		} else if e != nil {
			err = e
			break
		}
	}
	if err == nil {
		return nil
	}
	next := int64(1<<63 - 1) // the first one that is not done
	for _, b := range order {
		for i := range b.Records {
			if pos := b.Records[i].Pos; !r.here[pos] {
				next = min(next, pos)
			}
		}
	}
	r.report.LastPos = before
	for pos := range r.here {
		if pos < next {
			r.report.LastPos = max(r.report.LastPos, pos)
		}
	}
	return err
}

// eventError: the broker refuses the event at pos.
type eventError struct {
	error
	pos int64
}

// Unwrap gives the error with its words.
func (e *eventError) Unwrap() error { return e.error }

// lowest is that of two refusals, or the only one, behind which all is to be done
// once more.
func lowest(a, b error) error {
	var x, y *eventError
	if errors.As(a, &x) && errors.As(b, &y) && x.pos < y.pos {
		return a
	}
	return b
}

func isEvent(err error) bool {
	var refused *eventError
	return errors.As(err, &refused)
}

// send makes attempts with the same batch until the broker has said what became
// of it; one that is refused is split until the event is known.
func (r *republisher) send(ctx context.Context, b *Batch) error {
	wait := patience(20*time.Millisecond, 2*time.Second)
	for {
		err := r.pub.Produce(ctx, b)
		var refused *RefusedError
		var topic *TopicError
		switch {
		case err == nil:
			for i := range b.Records {
				r.count(&b.Records[i])
			}
			r.sent += int64(len(b.Records))
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &topic), errors.Is(err, ErrFenced):
			return fmt.Errorf("relay: republish: %w", err)
		case errors.As(err, &refused) && len(b.Records) == 1:
			e := &b.Records[0]
			return &eventError{fmt.Errorf("relay: republish: the broker refuses the event at pos %d (topic %q, key %q, epoch %d, seq %d); go on behind it with -from-pos %d: %w", e.Pos, e.Stream, e.Key, e.Epoch, e.Seq, e.Pos+1, err), e.Pos}
		case errors.As(err, &refused):
			half := len(b.Records) / 2
			for _, part := range [][]outbox.Record{b.Records[:half], b.Records[half:]} {
				if err := r.send(ctx, &Batch{Topic: b.Topic, Partition: b.Partition, Records: part}); err != nil {
					return err
				}
			}
			return nil
		}
		r.cfg.Logger.Warn("broker does not acknowledge, trying again", "topic", b.Topic, "partition", b.Partition, "error", err)
		if err := r.tryAgain(ctx, wait.NextBackOff()); err != nil {
			return err
		}
	}
}

// target describes a topic, once, and refuses one that the relay would refuse.
func (r *republisher) target(ctx context.Context, topic string) (Topic, error) {
	if d, known := r.targets[topic]; known {
		return d, nil
	}
	var pinned int
	if err := r.conn.QueryRow(ctx, r.sql.pin, topic).Scan(&pinned); err != nil {
		return Topic{}, fmt.Errorf("relay: republish: look up the partition count of topic %q: %w", topic, err)
	}
	d, err := r.describe(ctx, topic)
	if err != nil {
		return d, err
	}
	d.Name = topic
	if refusal := unfit(d, pinned, r.cfg.MaxRecordBytes); refusal != nil {
		return d, fmt.Errorf("relay: republish: %w", refusal)
	}
	r.targets[topic] = d
	return d, nil
}

// describe asks until the broker has said what the topic is.
func (r *republisher) describe(ctx context.Context, topic string) (Topic, error) {
	wait := patience(20*time.Millisecond, 2*time.Second)
	for {
		d, err := r.pub.Describe(ctx, topic)
		var refused *TopicError
		switch {
		case err == nil:
			return d, nil
		case ctx.Err() != nil:
			return d, ctx.Err()
		case errors.As(err, &refused), errors.Is(err, ErrFenced):
			return d, fmt.Errorf("relay: republish: %w", err)
		}
		r.cfg.Logger.Warn("broker does not answer, trying again", "topic", topic, "error", err)
		if err := r.tryAgain(ctx, wait.NextBackOff()); err != nil {
			return d, err
		}
	}
}

// tryAgain waits before a further attempt. Relays are paused for the sake of a broker
// that is in trouble, mostly.
func (r *republisher) tryAgain(ctx context.Context, after time.Duration) error {
	if err := pause(ctx, after); err != nil {
		return err
	}
	return r.mayGoOn(ctx)
}
