package consumer

import "fmt"

// lossesBeforeSplit is how often a batch may lose its connection, at a place
// that isn't known, before its halves are tried alone.
const lossesBeforeSplit = 2

// losses counts, for the batch in hand, how often in a row an event has taken
// the connection with it. An outage doesn't count: then there is no transaction
// that an event could end. What is left is an administrator who ends sessions,
// which passes, and an event that ends its own each time (it makes the server
// run out of memory, or crash), which would hold the partition up for ever.
type losses struct {
	offset int64
	known  bool
	n      int
	// all is how many there were in a row wherever they were: a batch that takes
	// longer than what is between allows a transaction loses it each time, and at
	// another event.
	all int
}

// count notes one more loss at the event at the offset and gives how many there
// were in a row.
func (l *losses) count(offset int64, known bool) int {
	if l.offset != offset || l.known != known {
		*l = losses{offset: offset, known: known, all: l.all}
	}
	l.n++
	l.all++
	return l.n
}

// lossesBlamed makes the loss of connections a lasting failure of the event.
func (p *partition) lossesBlamed(d *Delivery, lost int, err error) {
	d.Failed = lostTooOften(lost, err)
	p.observeFailure(Failure{Partition: p.assigned.Partition, Err: d.Failed, Attempt: lost})
	p.log.Error("the event has taken the connection with it each time, and is given up", "event", d.Position().String(), "offset", d.Offset, "times", lost, "err", err)
}

// resumedLost is the same for an event out of the park.
func (p *partition) resumedLost(e *HandlerError, err error) {
	pos := e.Delivery.Position()
	if p.lost == nil {
		p.lost = make(fails)
	}
	p.lost[pos]++
	if n := p.lost[pos]; n >= p.cfg.LossLimit {
		p.log.Error("the parked event has taken the connection with it each time, and is given up", "event", pos.String(), "times", n, "err", err)
		if p.giveUp(e, lostTooOften(n, err)) {
			delete(p.lost, pos)
		}
	}
}

func lostTooOften(n int, err error) error {
	return fmt.Errorf("consumer: the connection was lost at this event %d times in a row, while new ones worked: %w", n, reason(err))
}
