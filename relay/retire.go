package relay

import (
	"context"
	"errors"
	"fmt"
)

// errDecided is what a topic is refused for when an operator has decided something
// else about it: for a moment, and not because anything is wrong.
var errDecided = errors.New("an operator's decision")

// look finds out whether, and how, a topic can be written to: what operators
// have decided about it, what the broker says of it, and the partition count
// with which the relay began to write to it, which is pinned here if it isn't
// yet. Every instance, now and after any restart, finds the same pin.
//
// The error is a *TopicError for a topic that must not be written to, a *pinError
// if it is the database that gave no answer, and any other if the broker didn't.
func (t *topic) look(ctx context.Context) (d Topic, retired bool, err error) {
	pinned, retired, err := t.s.pin(ctx, t.name, nil)
	if err != nil || retired {
		return Topic{Name: t.name}, retired, err
	}
	if d, err = t.s.pub.Describe(ctx, t.name); err != nil {
		return d, false, err
	}
	d.Name = t.name
	if pinned == 0 {
		// Only a topic that is written to is pinned.
		if refusal := unfit(d, 0, t.s.cfg.MaxRecordBytes); refusal != nil {
			return d, false, refusal
		}
		if pinned, retired, err = t.s.pin(ctx, t.name, &d.Partitions); err != nil || retired {
			return d, retired, err
		}
	}
	if refusal := unfit(d, pinned, t.s.cfg.MaxRecordBytes); refusal != nil {
		return d, false, refusal
	}
	return d, false, nil
}

// pin asks for the pinned partition count of a topic, 0 if there is none. With a
// count it pins that first, unless there is one.
func (s *session) pin(ctx context.Context, topic string, count *int) (pinned int, retired bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := write(ctx, s.pool, s.sql.topicPin, []any{topic, count}, &pinned, &retired); err != nil {
		return 0, false, &pinError{fmt.Errorf("relay: look up the partition count of topic %q: %w", topic, err)}
	}
	return pinned, retired, nil
}

// pinError is the database's, and none of what the broker may be told of.
type pinError struct{ error }

func (e *pinError) Unwrap() error { return e.error }

// judge takes the place of send for a topic that is retired: instead of going to
// Kafka, rows get their verdict. So a fork of such a topic ends like any other:
// it reads what has waited, joins the main flow, and its row goes; and what
// producers may still append to the topic doesn't wait either.
func (l *lane) judge(items []item) bool {
	pos := make([]int64, len(items))
	for i := range items {
		pos[i] = items[i].Pos
	}
	s := l.s
	var judged *int64
	ctx, cancel := context.WithTimeout(s.hard, answerWithin)
	defer cancel()
	if err := write(ctx, s.pool, s.sql.topicJudge, []any{l.topic.name, pos}, &judged); err != nil {
		s.fail(fmt.Errorf("relay: give the events of the retired topic %q their verdict: %w", l.topic.name, err))
		return false
	}
	if err := s.crash("judged"); err != nil {
		s.fail(err)
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.now == nil {
		return false
	}
	if judged == nil {
		// Accepted again meanwhile: nothing was judged, the items are as they were.
		s.refuse(l.topic, &TopicError{Topic: l.topic.name, Reason: "it was accepted again and is being looked at", Err: errDecided})
		return false
	}
	s.answers++
	s.proven(items)
	for i := range items {
		if s.settle(&items[i]) {
			s.acks++
		}
		items[i].unload()
	}
	if !l.topic.told {
		l.topic.told = true
		s.log.Warn("topic is retired; its events get their verdict instead of being published", "topic", l.topic.name, "events", *judged)
	}
	if s.acks >= s.cfg.CheckpointEvery {
		signal(s.due)
	}
	return true
}

// check looks whether a topic in use is still what it was.
func (t *topic) check(ctx context.Context) {
	s := t.s
	d, retired, err := t.look(ctx)
	var refusal *TopicError
	if err != nil && !errors.As(err, &refusal) {
		return // no answer: the lanes notice by themselves
	}
	s.mu.Lock()
	if refusal == nil && retired != t.retired {
		refusal = &TopicError{Topic: t.name, Reason: "an operator has retired it, or accepted it again; it is being looked at", Err: errDecided}
	}
	if refusal != nil {
		if t.usable {
			s.refuse(t, refusal)
		}
		s.mu.Unlock()
		return
	}
	t.described(d)
	s.mu.Unlock()
	s.tryAgain(ctx, t)
}
