package relay

import (
	"slices"
	"time"
)

// read is the reading goroutine: it reads the main flow and the forks, page by
// page in turn, and hands the rows to the lanes. It alone takes snapshots, so a
// boundary is a moment that all flows share.
func (s *session) read() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	idle := s.cfg.PollMin
	for s.soft.Err() == nil {
		rows, more, err := s.step()
		if err != nil {
			if s.soft.Err() != nil {
				return nil
			}
			return err
		}
		if more {
			idle = s.cfg.PollMin
			continue
		}
		if rows > 0 {
			idle = s.cfg.PollMin
		}
		timer.Reset(idle)
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.soft.Done():
			return nil
		}
		if rows == 0 {
			idle = min(2*idle, s.cfg.PollMax)
		}
	}
	return nil
}

// step reads a page of each flow that has something to read and finds room.
// more: there is more to read at once.
func (s *session) step() (rows int, more bool, err error) {
	n, more, err := s.readMain()
	if err != nil {
		return n, false, err
	}
	rows += n
	for _, f := range s.runnable() {
		n, again, err := s.readFork(f)
		if err != nil {
			return rows, false, err
		}
		rows += n
		more = more || again
	}
	return rows, more, nil
}

// room: one more page fits into the budget. Called under the mutex.
func (s *session) room() bool {
	return s.inFlight+s.cfg.PageBytes <= s.cfg.MaxBytesInFlight
}

func (s *session) readMain() (rows int, more bool, err error) {
	s.mu.Lock()
	c, f, low := s.main.read, filter{topics: s.forked()}, s.pairLow
	ready := s.room() && s.main.ahead < maxAhead
	s.starved = !ready
	s.mu.Unlock()
	if !ready {
		return 0, false, nil // an acknowledgement wakes us
	}
	polled := c.boundary()
	var ch chunk
	if polled {
		// low was taken above, before the statement is sent: the pair that it
		// is of was committed before the snapshot.
		ch, err = s.reader.poll(s.soft, c, f, low)
	} else {
		ch, err = s.reader.next(s.soft, c, f)
	}
	if err != nil {
		return 0, false, err
	}
	if err := s.crash("read"); err != nil {
		return 0, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if polled {
		s.window = ch.during
		if ch.high-low > refreshAfter && !s.stale {
			s.stale = true
			signal(s.due)
		}
	}
	s.dispatch(&s.main, ch)
	if s.cfg.signals.read != nil {
		s.cfg.signals.read(s.main.read, len(ch.rows))
	}
	return len(ch.rows), !s.main.read.boundary(), nil
}

// forked are the topics that the main flow leaves out. Called under the mutex.
func (s *session) forked() []string {
	var topics []string
	for _, f := range s.forks {
		if !f.joined {
			topics = append(topics, f.topic)
		}
	}
	slices.Sort(topics)
	return topics
}

// dispatch hands what was read to the lanes. Called under the mutex.
func (s *session) dispatch(f *flow, ch chunk) {
	p := f.add(ch)
	if p == nil {
		return
	}
	for i := range ch.rows {
		it := item{row: ch.rows[i], page: p, i: i}
		switch {
		case f == &s.main && s.isForked(it.Topic):
			// The topic was refused while the page was read: its fork stands
			// before this page.
			p.mark(i)
		case s.isHeld(&it):
			p.mark(i)
		default:
			s.inFlight += it.weight
			s.topic(it.Topic).push(it)
		}
	}
	clear(ch.rows)
}

func (s *session) isForked(topic string) bool {
	f := s.forks[topic]
	return f != nil && !f.joined
}

// settle says that an item needs nothing more. Called under the mutex.
func (s *session) settle(it *item) bool {
	if !it.page.mark(it.i) {
		return false
	}
	s.inFlight -= it.weight
	if s.starved {
		s.starved = false
		signal(s.wake)
	}
	return true
}
