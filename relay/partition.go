package relay

import (
	"context"
	"fmt"
	"time"
)

// A partition without a leader must not hold the others up: what waits for it
// would fill the budget in the end, and keep the cursor where it is. So after a
// grace time it gets a fork, and the fork tries from time to time, with one
// batch, whether the partition is back. Nothing of it stays in memory meanwhile.
//
// The batch that failed is forgotten with the rest, though nobody knows what
// became of it: the fork begins at or before its first record and goes through
// the same lane, so an attempt that lands late has all its predecessors in the
// log.

// mostTries is how many forks of partitions try at the same time, however many
// there are: what they have on the way is bounded by it.
const mostTries = 4

// trouble is what a lane remembers of a batch that fails.
type trouble struct {
	since   time.Time
	answers int64 // the session's count of then
}

// desert takes the lane's partition out of the flows if it is this partition
// that fails and not the broker. It returns true if the batch is not the lane's
// any more.
func (l *lane) desert(t *trouble, cause error) bool {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.since.IsZero() {
		*t = trouble{time.Now(), s.answers}
	}
	if l.now == nil || s.ending {
		return false
	}
	trying := l.trying()
	if !trying {
		// Others go on, or would if this one didn't hold them up.
		if time.Since(t.since) < s.cfg.PartitionGrace || s.answers == t.answers && !s.starved && !s.outages.alone(l) {
			return false
		}
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.hard, 5*time.Second)
		_, err := s.pub.Describe(ctx, l.topic.name)
		cancel()
		s.mu.Lock()
		if err != nil || l.now == nil || s.ending {
			return false // nobody answers, or the topic as a whole is refused
		}
	}
	l.setAside(cause, !trying)
	return true
}

// trying: what is being sent is a fork's attempt. Called under the mutex.
func (l *lane) trying() bool {
	for _, f := range l.s.forks {
		if f.partition >= 0 && f.topic == l.topic.name && !f.joined && !f.proven && l.now[0].page.flow == &f.flow {
			return true
		}
	}
	return false
}

// setAside makes forks of what the lane has, and empties it. Called under the
// mutex.
func (l *lane) setAside(cause error, news bool) {
	s, t := l.s, l.topic
	s.unresume(t.name)
	reason := fmt.Sprintf("partition %d of %d fails while the broker answers: it has no leader, or too few in-sync replicas; look at it with the broker's tools and bring its replicas back", l.partition, t.partitions)
	var taken shardSet
	for _, f := range s.forks {
		// Forks that were taken when the topic had another number of partitions
		// may have rows in this lane too.
		if f.partition < 0 || f.topic != t.name || f.partition != l.partition && f.partitions == t.partitions {
			continue
		}
		if f.partitions == t.partitions {
			taken |= f.flow.shards
			f.reason, f.detail = reason, cause.Error()
		}
		f.rewind()
		f.postpone()
	}
	if rest := s.shards &^ taken; rest != 0 {
		before := len(s.forks)
		s.take(rest, fork{topic: t.name, partition: l.partition, partitions: t.partitions, reason: reason, detail: cause.Error()})
		for _, f := range s.forks[before:] {
			f.postpone()
		}
	}
	l.clear()
	if news {
		s.log.Error("partition set aside; its events wait, everything else flows", "topic", t.name, "partition", l.partition, "reason", reason, "error", cause)
		if s.cfg.Hooks.Forked != nil {
			s.cfg.Hooks.Forked(t.name, reason)
		}
		signal(s.due)
	}
	signal(s.wake) // there is room again
}

// postpone lets the fork wait before it tries again.
func (f *fork) postpone() {
	if f.wait == nil {
		f.wait = patience(200*time.Millisecond, 5*time.Second)
	}
	f.proven, f.after = false, time.Now().Add(f.wait.NextBackOff())
}

// leave: a fork is over. That of a partition may have had nothing to send any more,
// by which it would have shown that the partition is back. Called under the mutex.
func (s *session) leave(f *fork) {
	for _, o := range s.forks {
		if o.topic == f.topic && o.partition == f.partition {
			return
		}
	}
	if t := s.topics[f.topic]; t != nil && f.partition >= 0 && f.partition < len(t.lanes) && t.lanes[f.partition] != nil {
		s.outages.left(t.lanes[f.partition])
	}
}

// mayTry: a partition's fork that isn't proven sends one batch at a time, and
// few of them do at once. Called under the mutex.
func (s *session) mayTry(f *fork) bool {
	if f.partition < 0 || f.proven {
		return true
	}
	if f.flow.ahead > 0 || time.Now().Before(f.after) {
		return false
	}
	tries := 0
	for _, o := range s.forks {
		if o.partition >= 0 && !o.proven && o.flow.ahead > 0 {
			tries++
		}
	}
	return tries < mostTries
}

// share is how much a fork may read at once. Called under the mutex.
func (s *session) share(f *fork) (rows, bytes int) {
	if f.partition < 0 || f.proven {
		return s.reader.rows, s.reader.bytes
	}
	return min(s.reader.rows, s.cfg.BatchRecords), min(s.reader.bytes, s.cfg.BatchBytes)
}

// proven takes note of an acknowledgement. Called under the mutex.
func (s *session) proven(items []item) {
	for _, f := range s.forks {
		if f.partition >= 0 && !f.proven && !f.joined && items[0].page.flow == &f.flow {
			f.proven = true
			if f.wait != nil {
				f.wait.Reset()
			}
			signal(s.wake)
		}
	}
}
