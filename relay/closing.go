package relay

import "slices"

// undescribed is the reason of such a fork, which is no refusal: for that a topic
// must not be retired.
const undescribed = "the broker had not described it when an instance stopped"

// closeLanes ends what a session sends without leaving gaps. A cursor says how
// far everything is acknowledged. What was acknowledged, or is on its way,
// behind a row that is still queued, would be read and published once more by
// whoever comes next. So those rows are sent as well, and no others. Only what
// waits for the broker to describe its topic can't be: that may take as long as an
// outage. It gets a fork, which the next session reads, and the cursor passes it.
func (s *session) closeLanes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eachLane(func(l *lane) {
		for i := range l.now {
			p := l.now[i].page
			p.until = max(p.until, l.now[i].i+1)
		}
	})
	flows := []*flow{&s.main}
	for _, f := range s.forks {
		flows = append(flows, &f.flow)
	}
	for _, h := range s.held {
		if h.side != nil {
			flows = append(flows, &h.side.flow)
		}
	}
	for _, f := range flows {
		sent := false // something of a later page was
		for _, p := range slices.Backward(f.pages) {
			for i := len(p.done) - 1; i >= p.until; i-- {
				if sent || p.done[i] {
					p.until = i + 1
					break
				}
			}
			sent = sent || p.until > 0
		}
	}
	for _, t := range s.topics {
		if slices.ContainsFunc(t.queue, func(it item) bool { return it.i < it.page.until }) {
			s.putAside(t, undescribed, "the next one asks")
		}
	}
	s.eachLane(func(l *lane) {
		// Nothing of a stream overtakes what is left behind of it: with a fork
		// that has joined, or the side of a held stream, the rows of one flow stand
		// in front of another's.
		left := map[string]bool{}
		l.queue = slices.DeleteFunc(l.queue, func(it item) bool {
			gone := it.i >= it.page.until || left[it.Key]
			if gone {
				left[it.Key] = true
			}
			return gone
		})
	})
	s.closed = true
	close(s.closing)
}

// eachLane is called under the mutex.
func (s *session) eachLane(do func(l *lane)) {
	for _, t := range s.topics {
		for _, l := range t.lanes {
			if l != nil {
				do(l)
			}
		}
	}
}
