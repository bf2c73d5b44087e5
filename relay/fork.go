package relay

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/fenceline/fenceline/outbox"
)

// fork is a part of the work with a cursor of its own, so that the main flow
// can go on without it: shards that stand at another place than most, a topic
// that the broker refuses, a partition that has no leader (of some shards each).
//
// It begins as a copy of the cursor, as acknowledged, of the flow that it is
// taken out of: everything of its rows before that is published (or in an
// earlier fork that is), and that flow leaves them out from the next page on.
// What of them was already acknowledged beyond that point is published twice.
//
// Once it can, the fork reads windows of its own, which end where the main
// flow's windows end. When both stand at the same boundary S, the fork joins:
// its rows are back in the flow that they came from before the next snapshot is
// taken, so that what is visible in S is the fork's and what isn't is that
// flow's; the lanes keep the two in order. That flow may be another fork: then
// it has to stand at S as well, see join. The fork is forgotten with the
// checkpoint that follows its last acknowledgement and the main flow's at S.
// Guarded by the session's mutex.
type fork struct {
	flow flow
	// topic is empty in a fork of shards. partition is -1 in one that is not of
	// a partition; partitions is how many the topic had when it was taken, by
	// which its rows are told from others.
	topic      string
	partition  int
	partitions int

	reason, detail string
	since          time.Time
	joined         bool
	gate           *pending // joined: the main flow's last page of then
	turns          int      // counts rewinds, so that a page read before one is known
	dirty          bool

	// Of a partition's fork, see partition.go: its lane has acknowledged
	// something since it was taken; else when it may try again.
	proven bool
	after  time.Time
	wait   *backoff.ExponentialBackOff
}

// rank orders the forks that a row can be in: the partition's before the
// topic's, the topic's before its shard's.
func (f *fork) rank() int {
	switch {
	case f.topic == "":
		return 1
	case f.partition < 0:
		return 2
	}
	return 3
}

// has: the row is of the part of the work that this fork was made for.
func (f *fork) has(r *row) bool {
	return f.flow.shards.has(r.shard) && (f.topic == "" || f.topic == r.Topic) &&
		(f.partition < 0 || outbox.Partition([]byte(r.Key), f.partitions) == f.partition)
}

// over: all of its rows that are acknowledged are behind the main flow's cursor
// too.
func (f *fork) over() bool {
	return f.joined && len(f.flow.pages) == 0 && (f.gate == nil || f.gate.passed)
}

// inherits: some rows of the other would be this fork's if that were not there. Two
// partitions' forks share rows where the topic had another number of partitions in
// between.
func (f *fork) inherits(of *fork) bool {
	if f.flow.shards&of.flow.shards == 0 || f.topic != "" && f.topic != of.topic {
		return false
	}
	return f.rank() < of.rank() || f.overlaps(of)
}

// overlaps: both are of a partition, by another number of them, and can have the same
// rows.
func (f *fork) overlaps(o *fork) bool {
	return f.rank() == 3 && o.rank() == 3 && f.topic == o.topic && f.flow.shards&o.flow.shards != 0 && f.partitions != o.partitions
}

// sameRow: to store one of the two can take the row of the other away, as the database
// tells forks apart by topic, partition and shards. Two of one partition there are
// where the topic had another number of partitions in between. Whatever shards they
// have: a third one may share some with each, and is stored with the first.
func (f *fork) sameRow(o *fork) bool { return f.topic == o.topic && f.partition == o.partition }

// rewind goes back to what is acknowledged, also when it had joined: it stands
// at or before everything of its rows that other flows have read since.
func (f *fork) rewind() {
	f.flow.rewind()
	f.turns++
	f.joined, f.gate = false, nil
}

// take makes forks of a topic's rows, or those of one of its partitions, in the
// given shards: one for each flow that has them now. Called under the mutex.
func (s *session) take(shards shardSet, like fork) {
	var from []*flow
	for _, rank := range []int{2, 1} {
		for _, f := range s.forks {
			// Also a fork that has joined and is not over: it can stand before
			// the flow that it has joined.
			if f.rank() == rank && rank < like.rank() && (f.topic == "" || f.topic == like.topic) {
				from = append(from, &f.flow)
			}
		}
	}
	for _, flw := range append(from, &s.main) {
		part := shards & flw.shards
		if part == 0 {
			continue
		}
		shards &^= part
		f := like
		f.flow = flow{shards: part, read: flw.acked, acked: flw.acked}
		f.since, f.dirty = time.Now(), true
		s.forks = append(s.forks, &f)
	}
}

// refuse takes a topic out of the flows. Called under the mutex.
func (s *session) refuse(t *topic, e *TopicError) {
	t.usable = false
	detail := e.Error()
	if e.Err != nil {
		detail = e.Err.Error()
	}
	news := s.putAside(t, e.Reason, detail)
	if news {
		if errors.Is(e.Err, errDecided) {
			s.log.Info("an operator has decided about a topic; it is looked at anew", "topic", t.name, "reason", e.Reason)
		} else {
			s.log.Error("topic refused; its events wait, everything else flows", "topic", t.name, "reason", e.Reason, "error", e.Err)
			if s.cfg.Hooks.Forked != nil {
				s.cfg.Hooks.Forked(t.name, e.Reason)
			}
		}
		signal(s.due)
	}
	t.ask()
}

// putAside leaves everything of a topic that is not acknowledged to forks; news: it
// was not with them already. Called under the mutex.
func (s *session) putAside(t *topic, reason, detail string) (news bool) {
	s.unresume(t.name)
	var taken shardSet
	for _, f := range s.forks {
		if f.topic != t.name {
			continue
		}
		if f.partition < 0 {
			taken |= f.flow.shards
			if reason == undescribed && !f.joined {
				f.rewind() // what is known of it already says more
				continue
			}
			news = news || f.reason != reason || f.joined
			f.dirty = f.dirty || f.reason != reason || f.joined
			f.reason, f.detail = reason, detail
		}
		f.rewind()
	}
	if rest := s.shards &^ taken; rest != 0 {
		news = true
		s.take(rest, fork{topic: t.name, partition: -1, reason: reason, detail: detail}) // before clear moves the cursors
	}
	t.clear()
	return news
}

// runnable are the forks that can read on, those of shards first, since the
// others can't join before them.
func (s *session) runnable() []*fork {
	s.mu.Lock()
	defer s.mu.Unlock()
	var forks []*fork
	for _, f := range s.forks {
		if !f.joined && (f.topic == "" || s.topic(f.topic).usable) && s.room() && f.flow.ahead < maxAhead && s.mayTry(f) {
			forks = append(forks, f)
		}
	}
	slices.SortStableFunc(forks, func(a, b *fork) int { return cmp.Compare(a.rank(), b.rank()) })
	return forks
}

// askAgain has the topics of the forks that were loaded described.
func (s *session) askAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.forks {
		if f.topic != "" {
			s.topic(f.topic)
		}
	}
	for k := range s.held {
		s.topic(k.topic) // it may be retired
	}
}

func (s *session) readFork(f *fork) (rows int, more bool, err error) {
	s.mu.Lock()
	if !s.room() || !s.mayTry(f) { // others may have been read since it was found runnable
		s.mu.Unlock()
		return 0, false, nil
	}
	c, turns := f.flow.read, f.turns
	if c.boundary() {
		// A window ends where one of the main flow's does: the newest, and one
		// of this database session. An end that was loaded can be older than where the
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
			c = c.open(w.s2, w.high, bound{w.low2, w.young2})
		}
	}
	what := s.rest(&f.flow)
	if f.topic != "" {
		what = filter{shards: f.flow.shards, topics: []string{f.topic}, only: true}
	}
	limit, bytes := s.share(f)
	s.mu.Unlock()
	ch, err := s.reader.upTo(s.soft, c, what, limit, bytes)
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
	// At the end of the newest window there is nothing more before the next one.
	over := f.joined || f.flow.read.boundary() && f.flow.read.s1.text == s.window.s2.text
	return len(ch.rows), !over && s.mayTry(f), nil
}

// join gives a fork's rows back if it stands where the main flow stands, at a
// boundary, and so does every fork that would have some of the rows from there
// on. No snapshot is taken meanwhile: this is the goroutine that takes them.
// Called under the mutex.
func (s *session) join(f *fork) {
	at := s.main.read
	if !at.boundary() || at.s1.text != f.flow.read.s1.text {
		return
	}
	for _, o := range s.forks {
		if !o.joined && o.inherits(f) && (!o.flow.read.boundary() || o.flow.read.s1.text != at.s1.text) {
			return
		}
	}
	f.joined, f.dirty, f.gate = true, true, s.main.last()
	if f.topic == "" {
		s.main.shards |= f.flow.shards
		s.log.Debug("shards have caught up", "shards", f.flow.shards.list())
	}
	if s.cfg.signals.joined != nil {
		s.cfg.signals.joined(f.topic, at.s1.text)
	}
	signal(s.due)
	for _, o := range s.forks {
		if f.topic == "" || o.topic == f.topic && !o.joined {
			return
		}
	}
	if t := s.topics[f.topic]; t != nil && t.retired {
		s.log.Info("all that waited for a retired topic has its verdict", "topic", f.topic)
	} else {
		s.log.Info("topic is published again and has caught up", "topic", f.topic)
	}
	if s.cfg.Hooks.Joined != nil {
		s.cfg.Hooks.Joined(f.topic)
	}
}
