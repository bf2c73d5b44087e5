package relay

import (
	"errors"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// framing is what a batch takes beyond the one record in it, and to spare.
const framing = 128

// topic is what the session knows of a topic. Guarded by the session's mutex.
type topic struct {
	s    *session
	name string
	// usable: the broker has described it, and it may be written to.
	usable     bool
	asking     bool // a goroutine is finding out
	partitions int  // 0: not known yet
	batchBytes int
	lanes      []*lane
	// retired: rows get their verdict instead of being sent; judging says that
	// the lanes are made for that, told that it was logged.
	retired, judging, told bool
	maxMessageBytes        int // as described last
	// queue are items that wait until the topic is usable.
	queue []item
}

// topic finds a topic, and has a new one described. Called under the mutex.
func (s *session) topic(name string) *topic {
	t := s.topics[name]
	if t == nil {
		t = &topic{s: s, name: name}
		s.topics[name] = t
		t.ask()
	}
	return t
}

// push hands an item to its lane. Called under the mutex.
func (t *topic) push(it item) {
	if !t.usable {
		t.queue = append(t.queue, it)
		return
	}
	n := outbox.Partition([]byte(it.Key), t.partitions)
	l := t.lanes[n]
	if l == nil {
		l = &lane{s: t.s, topic: t, partition: n, judges: t.judging, wake: make(chan struct{}, 1)}
		t.lanes[n] = l
		t.s.lanes.Add(1)
		go l.run()
	}
	l.queue = append(l.queue, it)
	if len(l.queue) == 1 { // else it is told, or will look before it waits
		signal(l.wake)
	}
}

// clear takes everything of the topic off its way. Called under the mutex.
func (t *topic) clear() {
	for i := range t.queue {
		t.s.settle(&t.queue[i])
	}
	t.queue = nil
	for _, l := range t.lanes {
		if l != nil {
			l.clear()
			t.s.outages.left(l)
		}
	}
}

// ask starts to find out whether the topic can be written to, until it can.
// Called under the mutex.
func (t *topic) ask() {
	if t.asking || t.s.ending {
		return
	}
	t.asking = true
	t.s.background.Add(1)
	go func() {
		defer t.s.background.Done()
		t.find()
	}()
}

// find asks until the topic is usable. A broker that doesn't answer is an
// outage, a database that doesn't is none of the broker's. One that refuses the topic gets a fork for it, so that the rest flows,
// and is asked again: a topic may be created at any time.
func (t *topic) find() {
	s := t.s
	defer s.outages.over(t)
	again, refused := patience(50*time.Millisecond, 2*time.Second), patience(200*time.Millisecond, 5*time.Second)
	told := false
	for s.soft.Err() == nil {
		began := time.Now()
		d, retired, err := t.look(s.soft)
		if s.soft.Err() != nil {
			return
		}
		var refusal *TopicError
		var database *pinError
		wait := again.NextBackOff
		switch {
		case errors.As(err, &refusal):
		case fatal(err):
			s.fail(err)
			return
		case errors.As(err, &database):
			if !told {
				told = true
				s.log.Warn("cannot look up what is known of a topic; its events wait, trying again", "topic", t.name, "error", err)
			}
		case err != nil:
			s.outages.failed(t, t.name, began, err)
		}
		if err == nil || refusal != nil {
			s.outages.over(t) // it has answered
			again.Reset()
		}
		s.mu.Lock()
		t.described(d)
		switch {
		case refusal != nil:
			s.refuse(t, refusal)
			wait = refused.NextBackOff
		case err == nil:
			t.use(d, retired)
			s.mu.Unlock()
			s.tryAgain(s.soft, t)
			return
		}
		s.mu.Unlock()
		pause := time.NewTimer(wait())
		select {
		case <-pause.C:
		case <-s.soft.Done():
			pause.Stop()
		}
	}
}

// use begins to send, or to give verdicts if the topic is retired. Called under
// the mutex, when nothing of the topic is in its lanes.
func (t *topic) use(d Topic, retired bool) {
	t.usable, t.asking, t.retired, t.told = true, false, retired, false
	t.batchBytes = t.s.cfg.BatchBytes
	if retired {
		d.Partitions = 1
	} else {
		t.batchBytes = min(t.batchBytes, d.MaxMessageBytes-framing)
	}
	// Another count than before is one that an operator has accepted. A lane of
	// before ends with the session.
	if t.partitions != d.Partitions || t.judging != retired {
		t.partitions, t.judging = d.Partitions, retired
		t.lanes = make([]*lane, d.Partitions)
	}
	t.s.look = true // a held stream may go on
	queue := t.queue
	t.queue = nil
	for i := range queue {
		t.push(queue[i])
	}
	signal(t.s.wake) // a fork can go on
}

// watchTopics looks from time to time whether the topics in use are still what
// they were.
func (s *session) watchTopics() error {
	tick := time.NewTicker(s.cfg.TopicCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.soft.Done():
			return nil
		}
		for _, t := range s.usable() {
			t.check(s.soft)
		}
	}
}

func (s *session) usable() []*topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	var topics []*topic
	for _, t := range s.topics {
		if t.usable {
			topics = append(topics, t)
		}
	}
	return topics
}
