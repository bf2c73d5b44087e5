package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// rereading is when and how far a partition is read again from what did not fit.
//
// That there is room for something doesn't say that this reading gets to it: the
// next record of a full stream is missing as before, and a stream that is no
// longer blocked counts as one with room until all that did not fit was read, for
// what else of it lies there is not known. So readings may be in vain, and must
// leave time for what is new, where the missing record comes from: none begins
// before something was read behind where the last one began, unless there is
// nothing; and between two there is at least as much time as one took, twice as
// much after each that was in vain, but no more than a minute for that.
type rereading struct {
	to    int64     // where the reading that is under way, or was, began: up to there nothing is new
	began time.Time // when it was begun, zero: none was
	ended time.Time // when it came to where it had begun
	asked time.Time // when it was asked whether there is room
	some  bool      // something of it was applied
	vain  int       // so many in a row applied nothing
	moves uint64    // how many there were when it was begun, see overflows
}

// maxAgainPause bounds the pause between two readings that are in vain.
const maxAgainPause = time.Minute

// due tells whether it is time to ask whether there is room. at is the offset to
// read next, end where the log ended when it was last looked at.
func (r *rereading) due(now time.Time, at, end int64, every time.Duration) bool {
	switch {
	case at < r.to:
		return false // it is under way
	case r.ended.IsZero() && !r.began.IsZero():
		r.ended = now
		if r.vain++; r.some {
			r.vain = 0
		}
	}
	if at == r.to && at < end && !r.began.IsZero() {
		return false // there is something new
	}
	took := r.ended.Sub(r.began)
	pause := max(took, min(took<<min(r.vain, 16), maxAgainPause))
	return now.Sub(r.ended) >= pause && now.Sub(r.asked) >= every
}

// begin notes that the partition is read again.
func (r *rereading) begin(now time.Time, at int64) {
	r.to, r.began, r.ended, r.some = at, now, time.Time{}, false
}

// applied notes an event. One that was read again, or came out of the park, has
// made room, so that the next reading may get on as well.
func (r *rereading) applied(e *Result) {
	if e.Resumed || e.Offset < r.to {
		r.some, r.vain = true, 0
	}
}

// overflows is where by the database what did not fit of each partition begins. A
// partition is told of its own by each of its transactions; but where nothing
// arrives in it, not of a record of it that another partition's transaction has
// displaced (with a copy in another topic), here or in another member.
type overflows struct {
	mu    sync.Mutex
	at    map[Partition]int64
	moves uint64               // how often a stream has moved of which something did not fit
	notes uint64               // how many there were
	noted map[Partition]uint64 // which one was the last of each
}

func newOverflows() *overflows {
	return &overflows{at: make(map[Partition]int64), noted: make(map[Partition]uint64)}
}

// note is for what a partition's own transaction has told.
func (o *overflows) note(p Partition, at int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.notes++
	o.noted[p] = o.notes
	if o.at[p] = at; at == NoOffset {
		delete(o.at, p)
	}
}

// moved notes that a stream has moved of which something did not fit: that may be
// the next now. Whether there is room for it says nothing then. The park may be full
// again, of what came behind in the log, and have nothing in it that can go on.
func (o *overflows) moved() {
	o.mu.Lock()
	o.moves++
	o.mu.Unlock()
}

func (o *overflows) moving() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.moves
}

// asking says how many notes there were before all are asked for.
func (o *overflows) asking() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.notes
}

// set replaces all of which nothing was noted since.
func (o *overflows) set(all map[Partition]int64, since uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for p := range o.at {
		if o.noted[p] <= since {
			delete(o.at, p)
		}
	}
	for p, at := range all {
		if o.noted[p] <= since {
			o.at[p] = at
		}
	}
}

// of is NoOffset where all did fit.
func (o *overflows) of(p Partition) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if at, is := o.at[p]; is {
		return at
	}
	return NoOffset
}

// overflowing asks for all of them.
func (p *poller) overflowing(context.Context) error {
	var all map[Partition]int64
	since := p.overflows.asking()
	err := p.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) (err error) {
		all, err = p.offsets.overflowing(ctx, tx)
		return err
	})
	if err != nil {
		return p.tell("what did not fit was not looked for, trying again", err)
	}
	p.overflows.set(all, since)
	return nil
}

// overflowed notes where what did not fit begins.
func (p *partition) overflowed(at int64) {
	if at != NoOffset && p.over == NoOffset {
		p.alarm(Alarm{Partition: p.assigned.Partition, Kind: Full, From: at, To: p.offset,
			Text: "more waits than Config.Limits allows to keep: reading goes on, the offset stays, and what did not fit is read again when there is room"})
	}
	p.over = at
}

// seekBack goes back to what did not fit, when some of it may fit now. It is
// harmless under the guard.
//
// It never goes forwards. What did not fit can lie ahead, where its offset is one of
// a topic that was created anew since: reading gets there by itself, and nothing but
// that reads what lies in between.
func (p *partition) seekBack(reading context.Context) error {
	if p.over == NoOffset {
		p.overflowed(p.overflows.of(p.assigned.Partition))
	}
	if p.over == NoOffset || p.over >= p.offset || !p.again.due(time.Now(), p.offset, p.end, min(time.Second, p.cfg.PollInterval)) || reading.Err() != nil {
		return nil
	}
	p.again.asked = time.Now()
	moves := p.overflows.moving()
	room := moves != p.again.moves
	var err error
	if !room {
		err = p.inTx(func(ctx context.Context, tx pgx.Tx, _ *last) (err error) {
			room, err = p.guard.Room(ctx, tx, p.assigned.Partition)
			return err
		})
	}
	var fatal *fatalError
	switch {
	case errors.As(err, &fatal):
		return err
	case err != nil:
		p.log.Warn("whether there is room again is not known, asking again", "err", err)
	case room:
		p.log.Info("there is room again, reading what did not fit", "from", p.over, "to", p.offset)
		p.again.begin(time.Now(), p.offset)
		p.again.moves = moves
		p.offset = p.over
	}
	return nil
}
