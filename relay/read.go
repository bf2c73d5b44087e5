package relay

import (
	"slices"
	"time"

	"github.com/fenceline/fenceline/outbox"
)

// read is the reading goroutine: it reads the main flow and the forks, page by
// page in turn, and hands the rows to the lanes. It alone takes snapshots, so a
// boundary is a moment that all flows share.
func (s *session) read() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	pace := newPace(s.cfg)
	heard, forget := s.beside.ears.hear()
	defer forget()
	announced := false
	for s.beside.turn(s.soft) {
		rows, more, err := s.step()
		s.beside.rest()
		if err != nil {
			if s.soft.Err() != nil {
				return nil
			}
			return err
		}
		wait := pace.next(rows, announced, s.beside.ears.listening())
		if more {
			continue
		}
		announced = false
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-during(wait, heard):
			announced = true
		case <-s.wake:
		case <-s.soft.Done():
			return nil
		}
	}
	return nil
}

// step reads a page of each flow that has something to read and finds room.
// more: there is more to read at once.
func (s *session) step() (rows int, more bool, err error) {
	// Before the next snapshot is taken: what is read beside a hold belongs to the
	// boundary at which the main flow stands now.
	var holds []*hold
	left := s.mainsTurn
	if !left {
		holds = s.resumable()
	}
	more = len(holds) == resumedAtOnce
	for _, h := range holds {
		n, again, err := s.readHeld(h)
		if err != nil {
			return rows, false, err
		}
		rows += n
		more = more || again
	}
	// Where these have taken the room, the next page that fits is the main flow's.
	s.mainsTurn = s.mainsTurn || rows > 0
	n, again, err := s.readMain()
	if err != nil {
		return rows, false, err
	}
	rows += n
	more = more || again || left && !s.mainsTurn // it had its turn, and they have theirs
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
	c, f, b, far := s.main.read, s.rest(&s.main), s.bound, s.high-s.bound.low > pairAfter
	waits := s.main.ahead >= maxAhead
	ready := s.room() && !waits
	s.starved = !ready
	s.mu.Unlock()
	if ready || waits { // it is not for lack of room that it waits
		s.mainsTurn = false
	}
	if !ready {
		return 0, false, nil // an acknowledgement wakes us
	}
	polled := c.boundary()
	if polled && far {
		own, err := s.reader.pair(s.soft)
		if err != nil {
			return 0, false, err
		}
		b = b.better(own)
	}
	var ch chunk
	if polled {
		// b holds for snapshots that are taken from now on, and so for the statement's.
		ch, err = s.reader.poll(s.soft, c, f, b)
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
		s.high = ch.high
		s.bound = s.bound.better(ch.bound)
		if !s.stale && (ch.high-s.storedLow > refreshAfter || s.silent()) {
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

// silentFor is after how many checkpoint intervals the cursors are stored though
// nothing of ours was acknowledged.
const silentFor = 10

// silent: others have published meanwhile, and we had nothing to store. What is
// kept of theirs is kept until the cursor of every shard has passed it, so ours
// have to say that they have. Called under the mutex.
func (s *session) silent() bool {
	return s.high > s.told && time.Since(s.toldAt) > silentFor*s.cfg.CheckpointInterval
}

// rest is what a flow of all topics reads: its shards, without the topics that
// forks have in all of them. (What they have in some of them is read, and left
// to them by dispatch.) Called under the mutex.
func (s *session) rest(of *flow) filter {
	taken := map[string]shardSet{}
	for _, f := range s.forks {
		if f.topic != "" && f.partition < 0 && !f.joined {
			taken[f.topic] |= f.flow.shards
		}
	}
	r := filter{shards: of.shards}
	for topic, shards := range taken {
		if of.shards&^shards == 0 {
			r.topics = append(r.topics, topic)
		}
	}
	slices.Sort(r.topics)
	return r
}

// dispatch hands what was read to the lanes. Called under the mutex.
func (s *session) dispatch(f *flow, ch chunk) {
	p := f.add(ch)
	if p == nil {
		return
	}
	for i := range ch.rows {
		it := item{row: &ch.rows[i], page: p, i: i}
		switch {
		case !f.beside && len(s.forks) > 0 && s.owner(it.row) != f:
			// Another flow's, which stands before this page: a fork that was
			// taken while the page was read, or has only a part of what is read
			// here; or, in a fork's page, what isn't its own.
			p.mark(i)
		case len(s.held) > 0 && s.isHeld(&it), it.void:
			p.mark(i)
		case it.bad != "" && it.Topic == "":
			s.hold(&it, &RefusedError{Reason: it.bad})
			p.mark(i)
		default:
			// Also what nobody can publish: its stream is held when what stands before
			// it in the lane is done, see lane.take.
			s.inFlight += it.weight
			s.topic(it.Topic).push(it)
			continue
		}
		it.unload()
	}
}

// unload lets what is large of a row go that isn't sent any more: the page keeps its
// rows until the last of them is done, which may be in a lane that stands still.
func (r *row) unload() { r.Payload, r.Headers = nil, nil }

// owner is the flow that has to publish a row: the fork of its partition, else
// that of its topic, else that of its shard, else the main flow. Called under
// the mutex.
func (s *session) owner(r *row) *flow {
	owner, rank := &s.main, 0
	for _, f := range s.forks {
		if k := f.rank(); k > rank && !f.joined && f.has(r) {
			owner, rank = &f.flow, k
		}
	}
	return owner
}

// elsewhere: a fork has the stream, not the main flow. Called under the mutex.
func (s *session) elsewhere(topic, key string) bool {
	r := row{shard: outbox.Shard(key)}
	r.Topic, r.Key = topic, key
	return s.owner(&r) != &s.main
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
