package fencing

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A hot key's commits are a serial chain: each waits for the fence, and so for
// the flush of the one before. Those of the batch shape under one lease all come
// from one process, so what is waiting when the chain is free goes together, in
// one transaction with one flush. Each member has its own receipt, and its own
// answer.
const (
	// coalesceStatements bounds what one transaction runs, whatever its members
	// queue; one of them may have more by itself.
	coalesceStatements = 512
	// coalesceTries is in how many transactions that fail a commit takes part
	// before it goes alone.
	coalesceTries = 2
)

// line is the queue of a lease, for commits of one shape. It runs while somebody
// waits in it.
type line struct {
	f    *Fences
	max  int                                                                                       // members of a transaction
	send func(ctx context.Context, conn *pgxpool.Conn, members []*member) (o outcome, culprit int) // commitMembers or commitCallbacks

	mu      sync.Mutex
	waiting []*member
	running bool
	empty   context.CancelFunc // ends the wait for a connection
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
	if !q.running {
		q.running = true
		go q.run()
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
		case b := <-m.baton:
			m.play(b)
		case <-over:
			if q.leave(m) {
				return Receipt{}, m.waitError(context.Cause(ctx))
			}
			over = nil // sent: CommitTimeout bounds it, or the callback has been told
		}
	}
}

func (q *line) leave(m *member) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, m)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if len(q.waiting) == 0 && q.empty != nil {
		q.empty()
	}
	return true
}

func (q *line) run() {
	for q.once() {
	}
}

// once commits one transaction's worth of members. They stay in line until
// there is a connection, so that they can leave, and that more can come.
func (q *line) once() bool {
	q.mu.Lock()
	if len(q.waiting) == 0 {
		q.running = false
		q.mu.Unlock()
		return false
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(q.waiting[0].ctx)) // its values are for tracing
	defer cancel()
	q.empty = cancel
	q.mu.Unlock()

	conn, err := q.f.connection(ctx)
	// Who has been answered by the transaction before is about to come again:
	// they are let in first, or every second transaction has few members.
	runtime.Gosched()
	q.mu.Lock()
	q.empty = nil
	if err != nil {
		failed := slices.Clone(q.waiting) // what is deleted below is cleared
		if ctx.Err() != nil {
			failed = nil // who waited has left; who came since asks again
		}
		q.waiting = slices.Delete(q.waiting, 0, len(failed))
		q.mu.Unlock()
		for _, m := range failed {
			m.answer(Receipt{}, m.connectError(err))
		}
		return true
	}
	defer conn.Release()
	members := q.take()
	q.mu.Unlock()
	if len(members) == 0 {
		return true
	}

	again := members
	func() {
		defer func() {
			if p := recover(); p != nil { // of an argument's own encoder
				again = q.f.panicked(members, p)
			}
		}()
		o, culprit := q.send(ctx, conn, members)
		again = settle(members, o, culprit)
	}()
	if len(again) > 0 {
		q.mu.Lock()
		q.waiting = slices.Insert(q.waiting, 0, again...)
		q.mu.Unlock()
	}
	return true
}

// take chooses who goes together: those who came first, as many as may. Two
// attempts of one step cannot be in one transaction: the second one waits for
// the first one's receipt.
func (q *line) take() []*member {
	var together, stay []*member
	steps, statements := map[string]bool{}, 0
	for i, m := range q.waiting {
		n := 1
		if m.batch != nil {
			n += len(m.batch.queued)
		}
		switch {
		case len(together) == q.max || len(together) > 0 && together[0].alone:
			stay = append(stay, q.waiting[i:]...)
		case len(together) > 0 && (m.alone || m.gate.Position != together[0].gate.Position || steps[m.gate.Content.Step] || statements+n > coalesceStatements):
			stay = append(stay, m)
			continue
		default:
			together = append(together, m)
			steps[m.gate.Content.Step] = true
			statements += n
			continue
		}
		break
	}
	q.waiting = stay
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
		case i == culprit, m.tries >= coalesceTries:
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
