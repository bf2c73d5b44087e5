package consumer

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// resumePage is how many parked records are in memory at once. They are whole
// records, each up to a megabyte.
const resumePage = 32

// resume decides what waits for a stream's guard to move, in order, under the
// guard's lock and in the transaction that moved it: otherwise an event that
// arrives in between would find the guard ahead of what is parked, or behind.
func (b *batch) resume(e *entry) error {
	for progress := true; progress; {
		progress = false
		// What this batch has parked must be found as well.
		if err := b.flush(); err != nil {
			return err
		}
		page, err := b.fetch(e, b.g.sql.candidates, b.g.cfg.Consumer, e.Stream, e.Key, e.row.Epoch, e.row.Seq, e.row.Missed.String(), resumePage)
		if err != nil {
			return err
		}
		for i := range page {
			if b.budget == 0 || len(b.resumed) > 0 && b.cut() {
				b.budget, progress = 0, false
				break
			}
			gone, err := b.retry(e, &page[i])
			if err != nil {
				return err
			}
			progress = progress || gone
		}
	}
	return b.reblock(e)
}

// storedRecord is a delivery out of the park, the dead letters or the quarantine.
type storedRecord struct {
	Delivery
	reason Reason
	erased bool // by an operator: it can't be applied any more
	// unreadable is set where the mapping can't read it any more: it has its
	// position then, and nothing else that could be decided by.
	unreadable *UnreadableError
}

// retry decides a parked record again. gone says that it is parked no more.
func (b *batch) retry(e *entry, p *storedRecord) (gone bool, err error) {
	if p.unreadable != nil {
		if !e.row.passed(&p.Record) {
			return false, nil
		}
		b.unpark(e, p, e.row.passing(&p.Record))
		return true, nil
	}
	dec := Decide(b.input(e, &p.Record, p.Partition))
	switch {
	case dec.Outcome == Applied && (p.reason == Failing || p.erased):
		return false, nil // that is for an operator to try, or to give up
	case dec.Outcome == Applied && b.operator:
		return false, nil // that is for the consumer, whose handler it is
	case dec.Outcome == Parked:
		if dec.Changed {
			e.row, e.changed = dec.Row, true
		}
		return false, nil
	}
	if _, err := b.carryOut(e, &p.Delivery, dec); err != nil {
		return false, err
	}
	b.unpark(e, p, dec)
	return true, nil
}

// unpark takes a record out of the park that has been decided.
func (b *batch) unpark(e *entry, p *storedRecord, dec Decision) {
	b.budget--
	b.queue.Queue(b.g.sql.unpark, b.g.cfg.Consumer, p.Stream, p.Key, p.Epoch, p.Seq, string(p.kind())).Query(b.removing(e))
	b.resumed = append(b.resumed, b.result(&p.Delivery, dec))
}

// reblock sets anew why the stream stands, by the lowest record that still
// waits. A conflict stays until an operator has looked at it.
func (b *batch) reblock(e *entry) error {
	if e.row.Blocked == InConflict {
		return nil
	}
	if err := b.flush(); err != nil {
		return err
	}
	row := *e.row
	row.Blocked = ""
	lowest, err := b.fetch(e, b.g.sql.lowest, b.g.cfg.Consumer, e.Stream, e.Key)
	if err != nil {
		return err
	}
	delete(b.more, e.StreamKey)
	if len(lowest) > 0 {
		row.Blocked = b.stands(e, &row, &lowest[0])
		if row.Blocked == "" { // the transaction has done enough, or applies nothing
			row.Blocked = Gap
			b.more[e.StreamKey] = true
			if !e.recheck {
				e.recheck, e.changed = true, true
			}
		}
	}
	if !row.equal(e.row) {
		e.row, e.changed = &row, true
	}
	return nil
}

// fetch reads stored records of a stream. That one can't be read any more is said
// of that one (it was read once, but by another mapping, or it was changed): an
// error would end the transaction of every record that has this one's stream go
// on, and with it the consumer.
func (b *batch) fetch(e *entry, sql string, args ...any) ([]storedRecord, error) {
	rows, err := b.tx.Query(b.ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("consumer: reading the park of %s: %w", e.StreamKey, err)
	}
	page, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p storedRecord, err error) {
		var (
			at                  = Position{StreamKey: e.StreamKey}
			from, offset, ms    int64
			topic               string
			partition, attempts int
			headers             [][]byte
			raw                 KafkaRecord
		)
		err = row.Scan(&at.Epoch, &at.Seq, &at.Kind, &from, &topic, &partition, &offset, &headers, &raw.Key, &raw.Value, &ms, &p.reason, &attempts, &p.erased)
		if err != nil {
			return p, err
		}
		raw.Offset, raw.Time, raw.Headers = offset, time.UnixMilli(ms), wireHeaders(headers)
		p.Delivery = b.g.cfg.Mapping.Delivery(Partition{topic, partition}, raw)
		p.Attempt, p.Resumed, p.origin = attempts+1, true, fromPark
		cause := p.Malformed
		if cause == nil {
			cause = checkRecord(&p.Record)
		}
		if cause == nil && p.Position() != at {
			cause = fmt.Errorf("consumer: the mapping makes %s of it", p.Position())
		}
		if cause == nil && p.First() != from { // it would give up more, or less, than it is known to
			cause = fmt.Errorf("consumer: the mapping has %s begin at %d, and it was stored as beginning at %d", p.Position(), p.First(), from)
		}
		if cause != nil {
			p.setUnreadable(at, from, topic, cause)
		}
		return p, nil
	})
	if err != nil {
		return nil, fmt.Errorf("consumer: reading the park of %s: %w", e.StreamKey, err)
	}
	return page, nil
}
