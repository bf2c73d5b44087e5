package fencing

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// lane is one transaction after the other.
type lane struct {
	turn     int                // how many transactions it has done
	since    time.Time          // its transaction is under way, with none before it
	took     time.Duration      // its last transaction
	share    int                // how many members the next one is to have
	gathered chan struct{}      // closed when so many wait; nil when the lane isn't gathering
	slow     bool               // its transaction takes so long that another lane runs in its place
	empty    context.CancelFunc // ends the wait for a connection; nil where it doesn't wait
}

func (q *line) run(l *lane) {
	for q.once(l) {
	}
}

// once commits one transaction's worth of members. They stay in line until
// there is a connection, so that they can leave, and that more can come.
func (q *line) once(l *lane) (more bool) {
	q.gather(l)
	q.mu.Lock()
	first := q.first()
	if first < 0 || q.brisk() > q.width {
		delete(q.lanes, l)
		q.mu.Unlock()
		return false
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(q.waiting[first].ctx)) // its values are for tracing
	defer cancel()
	l.empty = cancel
	q.mu.Unlock()

	conn, err := q.f.connection(ctx)
	q.mu.Lock()
	l.empty = nil
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
	if len(members) > 0 && q.first() >= 0 { // more than go in one transaction
		q.start()
	}
	q.mu.Unlock()
	switch {
	case len(members) == 0:
		return true
	case q.piped && !members[0].alone:
		return q.stream(ctx, l, conn, members)
	}
	return q.fly(ctx, l, conn, members)
}

// fly commits members in a transaction, and waits for its answer.
func (q *line) fly(ctx context.Context, l *lane, conn *pgxpool.Conn, members []*member) (more bool) {
	if q.shared {
		turn := l.turn
		defer time.AfterFunc(laneTime, func() { q.heldUp(l, turn) }).Stop()
	}
	l.since = time.Now()
	returned := false
	var again []*member
	defer func() {
		if p := recover(); !returned { // of an argument's own encoder
			more = q.fell(l, members, p)
			return
		}
		q.landed(l, members, again)
	}()
	o, culprit := q.send(ctx, conn, members)
	again = settle(members, o, culprit)
	returned = true
	return true
}

// stream sends members, and behind them those who wait, one transaction behind
// the other, as long as there are any.
func (q *line) stream(ctx context.Context, l *lane, conn *pgxpool.Conn, members []*member) (more bool) {
	p := newPipe(ctx, q.f, conn.Conn())
	next, returned := members, false
	defer func() {
		panicked := recover() // of an argument's own encoder, before anything of it was sent
		for p.busy() {
			q.land(l, p)
		}
		p.close()
		q.f.rollback(conn)
		if !returned {
			more = q.fell(l, next, panicked)
		}
	}()
	for answered := false; ; answered = true {
		for next != nil || !p.full() {
			if next == nil {
				if next = q.follow(l, answered); next == nil {
					break
				}
			}
			if !p.busy() {
				l.since = time.Now()
			}
			if p.send(q.f.pack(next)) {
				next, answered = nil, false
				continue
			}
			if p.busy() { // they wait in line, which they can leave
				q.back(next)
				next = nil
			}
			break
		}
		if !p.busy() {
			break
		}
		q.land(l, p)
	}
	returned = true
	switch {
	case next == nil:
	case p.broken: // they go on another connection
		q.landed(l, next, next)
	case p.conn.IsClosed(): // while a statement was prepared
		for _, m := range next {
			m.answer(Receipt{}, m.connectError(p.closed()))
		}
		q.landed(l, next, nil)
	default:
		p.close()
		return q.fly(ctx, l, conn, next)
	}
	return true
}

// follow takes those who go behind what is under way: as many as a transaction can
// have. One that has all of them costs less than two of which the second need not
// wait for its turn.
func (q *line) follow(l *lane, answered bool) []*member {
	q.mu.Lock()
	coming := answered && l.share == q.full() // those who were just answered may be about to commit again
	q.mu.Unlock()
	if coming {
		q.gather(l)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.waiting); n < q.full() || q.waiting[0].alone {
		return nil
	}
	return q.take()
}

// land reads the answer of the transaction in front, and answers its members.
// When it has failed, so have those sent behind it, and all go again in the order
// in which they came.
func (q *line) land(l *lane, p *pipe) {
	pk, returned := p.flying[0], false
	defer func() {
		if returned {
			return
		}
		panicked := recover() // of Config.Wake, or of a hook of the connection's
		if p.busy() && p.flying[0] == pk {
			p.give(fmt.Errorf("a hook of the connection's has panicked: %v", panicked))
		}
		p.broken = true
		q.fell(l, pk.members, panicked)
		for p.busy() {
			q.land(l, p)
		}
	}()
	o := p.receive()
	again := pk.members
	switch {
	case o.fate == refused && o.at == 0 && pk.behind && code(o.err) == "25P02":
	case o.fate == refused && p.outdated(pk, o):
		// So says a pooler, or a standby, as well: the second time, pgx is asked.
		for _, m := range pk.members {
			m.alone, m.replanned = m.replanned, true
		}
	default:
		again = settle(pk.members, o, q.f.unpack(pk, o))
	}
	defer func() { q.landed(l, pk.members, again) }() // behind those that follow, and so in front of them in line
	returned = true
	for p.broken && p.busy() {
		q.land(l, p)
	}
}

// fell is landed for members for whom something of the caller's has panicked, or
// ended the lane's goroutine: then another one takes its place.
func (q *line) fell(l *lane, members []*member, p any) (more bool) {
	if p == nil {
		p = errGone
	}
	q.landed(l, members, q.f.panicked(members, p))
	if p != errGone {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.lanes, l)
	q.start()
	return false
}
