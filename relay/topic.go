package relay

import (
	"context"
	"errors"
	"sync"
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
		l = &lane{s: t.s, topic: t, partition: n, wake: make(chan struct{}, 1)}
		t.lanes[n] = l
		t.s.lanes.Add(1)
		go l.run()
	}
	l.queue = append(l.queue, it)
	signal(l.wake)
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
// outage. One that refuses the topic gets a fork for it, so that the rest flows,
// and is asked again: a topic may be created at any time.
func (t *topic) find() {
	s := t.s
	defer s.outages.over(t)
	again, refused := patience(50*time.Millisecond, 2*time.Second), patience(200*time.Millisecond, 5*time.Second)
	for s.soft.Err() == nil {
		d, err := s.pub.Describe(s.soft, t.name)
		if s.soft.Err() != nil {
			return
		}
		var refusal *TopicError
		wait := again.NextBackOff
		switch {
		case errors.As(err, &refusal):
		case err != nil:
			s.outages.failed(t, t.name, err)
		default:
			refusal = t.unfit(d)
		}
		if err == nil || refusal != nil {
			s.outages.over(t) // it has answered
			again.Reset()
		}
		s.mu.Lock()
		switch {
		case refusal != nil:
			s.refuse(t, refusal)
			wait = refused.NextBackOff
		case err == nil:
			t.use(d)
			s.mu.Unlock()
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

// use begins to send. Called under the mutex.
func (t *topic) use(d Topic) {
	t.usable, t.asking = true, false
	if t.partitions == 0 {
		t.partitions = t.s.pins.pin(t.name, d.Partitions)
		t.lanes = make([]*lane, d.Partitions)
	}
	t.batchBytes = min(t.s.cfg.BatchBytes, d.MaxMessageBytes-framing)
	queue := t.queue
	t.queue = nil
	for i := range queue {
		t.push(queue[i])
	}
	signal(t.s.wake) // a fork can go on
}

// unfit says why the topic can't be written to all the same; nil if it can.
func (t *topic) unfit(d Topic) *TopicError {
	d.Name = t.name
	return unfit(d, t.s.pins.get(t.name), t.s.cfg.MaxRecordBytes)
}

// pins are the partition counts with which this process has begun to write to
// topics. With another count the events of a stream would go on in another
// partition. They outlive sessions: they are about Kafka, not about PostgreSQL.
type pins struct {
	mu     sync.Mutex
	counts map[string]int
}

func (p *pins) get(topic string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[topic]
}

func (p *pins) pin(topic string, count int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts == nil {
		p.counts = map[string]int{}
	}
	if p.counts[topic] == 0 {
		p.counts[topic] = count
	}
	return p.counts[topic]
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

func (t *topic) check(ctx context.Context) {
	d, err := t.s.pub.Describe(ctx, t.name)
	var refusal *TopicError
	if err == nil {
		refusal = t.unfit(d)
	} else if !errors.As(err, &refusal) {
		return // no answer: the lanes notice by themselves
	}
	if refusal == nil {
		return
	}
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.s.refuse(t, refusal)
}
