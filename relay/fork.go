package relay

import "time"

// fork is a topic that the broker refuses, with a cursor of its own, so that
// the main flow can go on without it.
//
// It begins as a copy of the main flow's cursor as acknowledged: everything of
// the topic before that is published (or in an earlier fork that is), and the
// main flow leaves the topic out from the next statement on. What of the topic
// was already acknowledged beyond that point is published twice.
//
// Once the topic is usable, the fork reads windows of its own, which end where
// the main flow's windows end. When both stand at the same boundary S, the fork
// joins: the topic is back in the main flow before the next snapshot is taken,
// so that what is visible in S is the fork's and what isn't is the main flow's;
// the topic's lanes keep the two in order. The row goes with the checkpoint
// that follows the fork's last acknowledgement. Guarded by the session's mutex.
type fork struct {
	topic          string
	flow           flow
	reason, detail string
	since          time.Time
	joined         bool
	turns          int // counts rewinds, so that a page read before one is known
	dirty          bool
}

// refuse takes a topic out of the main flow. Called under the mutex.
func (s *session) refuse(t *topic, e *TopicError) {
	t.usable = false
	detail := e.Error()
	if e.Err != nil {
		detail = e.Err.Error()
	}
	f := s.forks[t.name]
	news := f == nil || f.reason != e.Reason || f.joined
	if f == nil {
		at := s.main.acked // before clear moves it
		f = &fork{topic: t.name, flow: flow{read: at, acked: at}, since: time.Now()}
		s.forks[t.name] = f
	} else {
		// Also when it had joined: it stands at or before everything of the
		// topic that the main flow has read since.
		f.flow.rewind()
		f.turns++
		f.joined = false
	}
	t.clear()
	if news {
		f.reason, f.detail, f.dirty = e.Reason, detail, true
		s.log.Error("topic refused; its events wait, everything else flows", "topic", t.name, "reason", e.Reason, "error", e.Err)
		if s.cfg.Hooks.Forked != nil {
			s.cfg.Hooks.Forked(t.name, e.Reason)
		}
		signal(s.due)
	}
	t.ask()
}

// runnable are the forks that can read on.
func (s *session) runnable() []*fork {
	s.mu.Lock()
	defer s.mu.Unlock()
	var forks []*fork
	for _, f := range s.forks {
		if !f.joined && s.topic(f.topic).usable && s.room() && f.flow.ahead < maxAhead {
			forks = append(forks, f)
		}
	}
	return forks
}

// askAgain has the topics of the forks that were loaded described.
func (s *session) askAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.forks {
		s.topic(name)
	}
}

func (s *session) readFork(f *fork) (rows int, more bool, err error) {
	s.mu.Lock()
	c, turns := f.flow.read, f.turns
	if c.boundary() {
		// A window ends where one of the main flow's does: the newest, and one
		// of this session. An end that was loaded can be older than where the
		// fork stands, since the two are stored as far as each is acknowledged;
		// going back to it with the fork's low bound would pass rows over.
		switch w := s.window; {
		case w.boundary(), f.joined:
			s.mu.Unlock()
			return 0, false, nil
		case c.s1.text == w.s2.text:
			s.join(f)
			s.mu.Unlock()
			return 0, false, nil
		default:
			c = c.open(w.s2, w.high, w.low2)
		}
	}
	s.mu.Unlock()
	ch, err := s.reader.next(s.soft, c, filter{topics: []string{f.topic}, only: true})
	if err != nil {
		return 0, false, err
	}
	if err := s.crash("read fork"); err != nil {
		return 0, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.turns != turns {
		return 0, true, nil // refused again meanwhile: from the beginning
	}
	s.dispatch(&f.flow, ch)
	f.dirty = true
	if f.flow.read.boundary() {
		s.join(f)
	}
	return len(ch.rows), !f.joined, nil
}

// join puts the topic back into the main flow if both stand at the same
// boundary. No snapshot is taken meanwhile: this is the goroutine that takes
// them. Called under the mutex.
func (s *session) join(f *fork) {
	if !s.main.read.boundary() || s.main.read.s1.text != f.flow.read.s1.text {
		return
	}
	f.joined, f.dirty = true, true
	s.log.Info("topic is published again and has caught up", "topic", f.topic)
	if s.cfg.Hooks.Joined != nil {
		s.cfg.Hooks.Joined(f.topic)
	}
	if s.cfg.signals.joined != nil {
		s.cfg.signals.joined(f.topic, f.flow.read.s1.text)
	}
	signal(s.due)
}
