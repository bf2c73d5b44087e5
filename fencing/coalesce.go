package fencing

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A hot key's commits are a serial chain: each waits for the fence, and so for
// the flush of the one before. Those of the batch shape under one lease all come
// from one process, so what is waiting when the chain is free goes together, in
// one transaction with one flush. Each member has its own receipt, and its own
// answer. By option ([Config.GroupCommit]) those of other keys go with them, see
// group.go. What is more than one transaction has follows it on the same
// connection, see pipe.go.
const (
	// coalesceStatements bounds what one transaction runs, whatever its members
	// queue; one of them may have more by itself.
	coalesceStatements = 512
	// coalesceTries is in how many transactions that fail a commit takes part
	// before it goes alone.
	coalesceTries = 2
	// gatherPart is the part of its last transaction's time that a lane waits for
	// those that were in it, and gatherMost how long at most: a transaction that has
	// waited for something of its own says nothing about the next one.
	gatherPart = 4
	gatherMost = 5 * time.Millisecond
	// together bounds how long a transaction is expected to take, by what each member
	// of the last one took: slow ones would wait for each other, and the time in which
	// COMMIT must be answered would have to do for all of them.
	together = time.Second
)

// line is a queue for commits of one shape: of a lease, or of all keys. It runs
// while somebody waits in it.
type line struct {
	f      *Fences
	max    int                                                                                       // members of a transaction
	send   func(ctx context.Context, conn *pgxpool.Conn, members []*member) (o outcome, culprit int) // commitMembers or commitCallbacks
	shared bool                                                                                      // by all keys: then nobody goes alone in it
	piped  bool                                                                                      // a lane's transactions may follow each other on one connection, see pipe

	width int // how many lanes

	mu      sync.Mutex
	waiting []*member
	lanes   map[*lane]struct{}  // those that run
	aloft   map[string]struct{} // the keys in the transactions under way, of a line that is shared
	inside  int                 // members in them
	each    time.Duration       // what a member of the newest transaction took
}

func newLine(f *Fences, width, most int, send func(ctx context.Context, conn *pgxpool.Conn, members []*member) (outcome, int)) *line {
	return &line{f: f, max: most, width: width, send: send, lanes: map[*lane]struct{}{}, aloft: map[string]struct{}{}}
}

// ownLine is the line of one key.
func (f *Fences) ownLine(most int) *line {
	q := newLine(f, 1, most, f.commitMembers)
	q.piped = f.piped
	return q
}

// commit waits for the member's answer. A context that ends takes it out of the
// line as long as it has not been sent.
func (q *line) commit(ctx context.Context, m *member) (Receipt, error) {
	if ctx.Err() != nil { // else it could be sent before it is taken out again
		return Receipt{}, m.waitError(context.Cause(ctx))
	}
	m.ctx = ctx
	q.mu.Lock()
	q.waiting = append(q.waiting, m)
	q.start()
	for l := range q.lanes {
		if l.gathered != nil && len(q.waiting) >= l.share {
			close(l.gathered)
			l.gathered = nil
		}
	}
	q.mu.Unlock()
	over := ctx.Done()
	for {
		select {
		case <-m.done:
			if m.panicked != nil {
				panic(m.panicked)
			}
			return m.receipt, m.err
		case <-m.single:
			return q.f.byItself(ctx, m)
		case b := <-m.baton:
			m.play(b)
		case <-over:
			connecting, left := q.leave(m)
			switch {
			case connecting:
				return Receipt{}, m.connectError(q.f.taken(context.Cause(ctx)))
			case left:
				return Receipt{}, m.waitError(context.Cause(ctx))
			}
			over = nil // sent: CommitTimeout bounds it, or the callback has been told
		}
	}
}

// leave takes a member out of the line, if it is in it; connecting: nobody was before
// it, and what it waited for was a connection.
func (q *line) leave(m *member) (connecting, left bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, m)
	if i < 0 {
		return false, false
	}
	for l := range q.lanes {
		connecting = connecting || l.empty != nil && q.inside == 0
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if len(q.waiting) == 0 {
		for l := range q.lanes {
			if l.empty != nil {
				l.empty()
			}
		}
	}
	return connecting, true
}

// start has another lane run, if there may be one. Called with mu held.
func (q *line) start() {
	if q.brisk() < q.width && len(q.lanes) < q.width+maxSlow {
		l := &lane{}
		q.lanes[l] = struct{}{}
		go q.run(l)
	}
}

// brisk counts the lanes that run and aren't held up. Called with mu held.
func (q *line) brisk() (n int) {
	for l := range q.lanes {
		if !l.slow {
			n++
		}
	}
	return n
}

// heldUp lets others go on beside a transaction that takes long: it waits for its
// fence, or for something else that is its own affair.
func (q *line) heldUp(l *lane, turn int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.turn != turn { // it is done
		return
	}
	l.slow = true
	if q.first() >= 0 {
		q.start()
	}
}

// first is the first one in line whose key is in no transaction under way; -1 if
// there is none. The lane in whose transaction the key is comes back for it.
// Called with mu held.
func (q *line) first() int {
	return slices.IndexFunc(q.waiting, func(m *member) bool {
		_, up := q.aloft[m.gate.Position.Key]
		return !up
	})
}

// landed is called when a transaction has ended, with those of its members that
// have no answer yet.
func (q *line) landed(l *lane, members, again []*member) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if len(again) < len(members) {
		l.took = now.Sub(l.since)
		q.each = l.took / time.Duration(len(members))
	}
	l.slow, l.since = false, now
	l.turn++
	q.inside -= len(members)
	// As many for each lane, of all that commit at present.
	l.share = q.share(len(members))
	for _, m := range members {
		delete(q.aloft, m.gate.Position.Key)
	}
	q.again(again)
}

// back puts members that were taken out of the line back in front of it.
func (q *line) back(members []*member) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inside -= len(members)
	q.again(members)
}

// again puts members in front of the line, but those that can't go on in it. Called
// with mu held.
func (q *line) again(again []*member) {
	again = slices.DeleteFunc(slices.Clone(again), func(m *member) bool {
		switch {
		case m.ctx.Err() != nil: // while it was in the transaction, when it could not leave
			m.answer(Receipt{}, m.waitError(context.Cause(m.ctx)))
		case q.shared && m.alone:
			close(m.single)
		default:
			return false
		}
		return true
	})
	q.waiting = slices.Insert(q.waiting, 0, again...)
}

// share is how many members of those that commit at present come to a lane: those
// that wait, are under way, or have just been answered. Called with mu held.
func (q *line) share(answered int) int {
	n := (len(q.waiting) + q.inside + answered + q.width - 1) / q.width
	return min(n, q.full())
}

// full is how many members a transaction can have. Called with mu held.
func (q *line) full() int {
	if q.each == 0 {
		return q.max
	}
	return max(1, min(q.max, int(min(together, q.f.cfg.CommitTimeout/4)/q.each)))
}

// gather lets the lane's share of members come before it goes on: those that it
// has just answered are about to. Otherwise every second transaction would have
// few, and the lanes would get in each other's way. It lasts for a part of the
// time that the last transaction took at most, so that nobody's commit takes much
// longer for it.
func (q *line) gather(l *lane) {
	q.mu.Lock()
	if len(q.waiting) >= l.share {
		q.mu.Unlock()
		return
	}
	gathered := make(chan struct{})
	l.gathered = gathered
	q.mu.Unlock()
	t := time.NewTimer(gatherFor(l.took))
	defer t.Stop()
	select {
	case <-gathered:
	case <-t.C:
		q.mu.Lock()
		l.gathered = nil
		q.mu.Unlock()
	}
}

func gatherFor(took time.Duration) time.Duration { return min(took/gatherPart, gatherMost) }

// take chooses who goes together: those who came first, as many as may. Two
// attempts of one step cannot be in one transaction: the second one waits for
// the first one's receipt. Nor can two positions of a key, of which one is stale
// at the least, or a key that is in another transaction of the line, whose lock
// it would wait for. And of a lease as many go together as it allows.
func (q *line) take() []*member {
	type step struct{ key, name string }
	type held struct {
		pos Position
		n   int
	}
	most := q.share(0) // lanes that are as full as each other get least in each other's way
	var together, stay []*member
	keys, steps, statements := map[string]held{}, map[step]bool{}, 0
	for i, m := range q.waiting {
		n, pos := 1, m.gate.Position
		if m.batch != nil {
			n += len(m.batch.queued)
		}
		if len(together) == most || len(together) > 0 && together[0].alone {
			stay = append(stay, q.waiting[i:]...)
			break
		}
		_, up := q.aloft[pos.Key]
		of, known := keys[pos.Key]
		if up || known && (of.pos != pos || of.n >= m.most) ||
			len(together) > 0 && (m.alone || steps[step{pos.Key, m.gate.Content.Step}] || statements+n > coalesceStatements) {
			stay = append(stay, m)
			continue
		}
		together = append(together, m)
		keys[pos.Key], steps[step{pos.Key, m.gate.Content.Step}] = held{pos, of.n + 1}, true
		statements += n
	}
	for key := range keys {
		if q.shared {
			q.aloft[key] = struct{}{}
		}
	}
	q.waiting = stay
	q.inside += len(together)
	return together
}

// settle gives the members their answers, and returns those who have none yet:
// one of them has failed, and the others with it.
func settle(members []*member, o outcome, culprit int) (again []*member) {
	var alone []*member
	for i, m := range members {
		m.tries++
		switch {
		case m.gone:
		case len(members) == 1,
			// One transaction, one fate: committed, or unknown to all.
			o.fate != refused && o.fate != rolledBack,
			// A refusal of the gate holds in any company: the others' receipts
			// are of other steps.
			i == culprit && (m.err == nil || definite(m.err)):
			close(m.done)
		case i == culprit, m.alone, m.tries >= coalesceTries:
			// The error may be due to what the others have written: alone, it
			// has none but its own.
			m.alone = true
			alone = append(alone, m)
		default:
			again = append(again, m)
		}
	}
	return append(again, alone...)
}

func (f *Fences) panicked(members []*member, p any) (again []*member) {
	if len(members) == 1 && p == errGone {
		members[0].answer(Receipt{}, &wrappedError{fmt.Sprintf("fencing: commit of %q: nothing was written: the encoder of an argument has ended its goroutine (runtime.Goexit), which is the library's", members[0].gate.Position.Key), ErrMisuse, nil})
		return nil
	}
	if len(members) == 1 {
		members[0].panicked = p
		members[0].answer(Receipt{}, fmt.Errorf("fencing: commit of %q: panic: %v", members[0].gate.Position.Key, p))
		return nil
	}
	for _, m := range members {
		m.alone = true
	}
	return members
}

func (m *member) answer(r Receipt, err error) {
	m.receipt, m.err = r, err
	close(m.done)
}
