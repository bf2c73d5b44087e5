package relay

import (
	"errors"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/fenceline/fenceline/outbox"
)

// lane is a partition's way to Kafka: a queue in the order of pos, and one
// request in flight.
//
// First copies of a stream stand in the log in order and without holes,
// because everything of a stream goes through one lane, and a lane sends a
// record only when each one before it in the queue is acknowledged, or belongs
// to a stream that is held from there on:
//
//   - what is queued behind the batch in flight waits for its answer;
//   - after an answer that doesn't say what happened, the very same batch goes
//     out again, however often;
//   - a batch that is split is sent in order, half by half;
//   - when a record is refused, or is one that append can't have written, its
//     stream's later records leave the lane before anything behind it is sent.
//
// When the lane is emptied because its topic is refused, the fork begins at or
// before the first record that was not acknowledged, and goes through this same
// goroutine: an attempt of before that lands late has all its predecessors in
// the log.
type lane struct {
	s         *session
	topic     *topic
	partition int
	judges    bool // the topic is retired; see retire.go
	wake      chan struct{}

	// Guarded by the session's mutex:
	queue []item
	now   []item // being sent; nil when void, see clear
}

// item is an event on its way. The row belongs to the page, and is not copied
// until it is sent.
type item struct {
	*row
	page *pending
	i    int // its place in the page
}

func (l *lane) run() {
	defer l.s.lanes.Done()
	for l.s.hard.Err() == nil {
		items, over := l.take()
		switch {
		case items != nil:
			l.send(items)
			l.done()
			continue
		case over:
			return
		}
		select {
		case <-l.wake:
		case <-l.s.closing:
		case <-l.s.hard.Done():
		}
	}
}

// take cuts the next batch: what is there, up to the limits. Nothing is waited
// for, so batches grow only when the broker is slower than the reader. over: the
// session ends, and the lane has nothing left.
func (l *lane) take() (items []item, over bool) {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.soft.Err() != nil && !s.closed {
		return nil, false // closeLanes says what is still to be sent
	}
	n, bytes := 0, 0
	for n < len(l.queue) && n < s.cfg.BatchRecords {
		if l.queue[n].bad != "" {
			// By itself, and in its turn: held before a record in front of it is
			// refused, the stream would be recorded as held behind that one.
			if n == 0 {
				n = 1
			}
			break
		}
		bytes += l.queue[n].weight
		if n > 0 && bytes > l.topic.batchBytes {
			break
		}
		n++
	}
	if n == 0 {
		return nil, s.closed
	}
	l.now = slices.Clone(l.queue[:n])
	clear(l.queue[:n])
	if l.queue = l.queue[n:]; len(l.queue) == 0 {
		l.queue = nil
	}
	return l.now, false
}

func (l *lane) done() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.now = nil
}

// clear takes everything out of the lane, which counts as done: a fork takes
// care of it. A request in flight is left to end by itself; its answer counts
// for nothing any more. Called under the mutex.
func (l *lane) clear() {
	for i := range l.queue {
		l.s.settle(&l.queue[i])
	}
	for i := range l.now {
		l.s.settle(&l.now[i])
	}
	l.queue, l.now = nil, nil
}

// send returns true when each item is acknowledged or given to a hold. After
// false nothing more of the batch may be sent: the lane was emptied, or the
// session has ended.
func (l *lane) send(items []item) bool {
	items, valid := l.sendable(items)
	if !valid || len(items) == 0 {
		return valid
	}
	if l.judges {
		return l.judge(items)
	}
	if items[0].bad != "" {
		return l.refused(items, &RefusedError{Reason: items[0].bad})
	}
	b := &Batch{Topic: l.topic.name, Partition: l.partition, Records: make([]outbox.Record, len(items))}
	for i := range items {
		b.Records[i] = items[i].Record
	}
	err := l.produce(b)
	var refused *RefusedError
	var topic *TopicError
	switch {
	case err == nil:
		return l.acknowledged(b, items)
	case l.s.hard.Err() != nil, errors.Is(err, errVoid):
	case errors.As(err, &refused):
		return l.refused(items, refused)
	case errors.As(err, &topic):
		l.s.mu.Lock()
		if l.now != nil { // else the topic is refused already
			l.s.refuse(l.topic, topic)
		}
		l.s.mu.Unlock()
	default:
		l.s.fail(err)
	}
	return false
}

// sendable leaves out what belongs to streams that are held, which is a
// question to be asked anew for each half of a batch.
func (l *lane) sendable(items []item) (_ []item, valid bool) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.now == nil || l.s.hard.Err() != nil {
		return nil, false
	}
	if len(l.s.held) == 0 {
		return items, true
	}
	keep := make([]item, 0, len(items))
	for i := range items {
		if l.s.isHeld(&items[i]) {
			l.s.settle(&items[i])
			items[i].unload()
		} else {
			keep = append(keep, items[i])
		}
	}
	return keep, true
}

// errVoid: the lane was emptied while its batch was being retried.
var errVoid = errors.New("relay: the batch is no longer this lane's")

// produce makes attempts until the broker has said what became of the batch.
// An outage is not a failure: it ends when it ends, and nothing counts tries.
func (l *lane) produce(b *Batch) error {
	s := l.s
	var wait *backoff.ExponentialBackOff
	aside := false
	defer func() {
		if !aside {
			s.outages.over(l)
		}
	}()
	var trouble trouble
	for attempts := 1; ; attempts++ {
		began := time.Now()
		err := s.pub.Produce(s.hard, b)
		var refused *RefusedError
		var topic *TopicError
		if err == nil || s.hard.Err() != nil || errors.As(err, &refused) || errors.As(err, &topic) || errors.Is(err, ErrFenced) {
			return err
		}
		if !l.fails(began, err) {
			return errVoid // nobody waits for it any more
		}
		if s.cfg.Hooks.Retried != nil {
			s.cfg.Hooks.Retried(b.Topic, b.Partition, attempts, err)
		}
		if l.desert(&trouble, err) {
			aside = true
			s.outages.aside(l)
			return errVoid
		}
		if wait == nil {
			wait = patience(20*time.Millisecond, 2*time.Second)
		}
		pause := time.NewTimer(wait.NextBackOff())
		select {
		case <-pause.C:
		case <-s.hard.Done():
			pause.Stop()
			return s.hard.Err()
		}
		if l.void() {
			return errVoid
		}
	}
}

// fails takes note of an attempt that had no answer, unless the batch isn't the lane's
// any more. It is one step: between the two the lane could be emptied, which ends its
// outage, and another one would begin that nobody is in.
func (l *lane) fails(began time.Time, err error) bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.now == nil {
		return false
	}
	l.s.outages.failed(l, l.topic.name, began, err)
	return true
}

func (l *lane) void() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.now == nil
}

// patience backs off without ever giving up.
func patience(first, most time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(first), backoff.WithMaxInterval(most), backoff.WithMaxElapsedTime(0))
}

func (l *lane) acknowledged(b *Batch, items []item) bool {
	s := l.s
	if h := s.cfg.Hooks.Acknowledged; h != nil {
		h(b)
	}
	if err := s.crash("acknowledged"); err != nil {
		s.fail(err)
		return false
	}
	bytes := 0
	s.mu.Lock()
	for i := range items {
		bytes += items[i].weight
		if s.settle(&items[i]) {
			s.acks++
		}
	}
	s.answers++
	s.proven(items)
	if s.acks >= s.cfg.CheckpointEvery {
		signal(s.due)
	}
	s.mu.Unlock()
	if h := s.cfg.Hooks.Published; h != nil {
		h(b.Topic, b.Partition, len(items), bytes, time.Since(items[0].CreatedAt))
	}
	for i := range items {
		items[i].unload()
	}
	return true
}

// refused isolates what the broker objects to, and sends the rest.
func (l *lane) refused(items []item, e *RefusedError) bool {
	var named []int
	for _, i := range e.Indexes {
		if i >= 0 && i < len(items) {
			named = append(named, i)
		}
	}
	if len(items) == 1 {
		named = []int{0}
	}
	if len(named) == 0 {
		half := len(items) / 2
		return l.send(items[:half]) && l.send(items[half:])
	}
	if e.TooLarge {
		l.topic.measure(l.s.hard, items[named[0]].weight)
	}
	l.s.mu.Lock()
	for _, i := range named {
		if l.now != nil { // else a fork has taken the items over
			l.s.hold(&items[i], e)
		}
	}
	l.s.mu.Unlock()
	return l.send(items)
}
