package consumer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// RetryDead lets the consumer try a dead letter again: it is the same decision
// as the first time, so it is applied unless something newer was, and is gone
// then. One that fails again stays.
func (o *Operator) RetryDead(ctx context.Context, key StreamKey, epoch, seq int64, note Note) error {
	return o.dead(ctx, "retry", key, epoch, seq, note, func(b *batch, e *entry, l deadRow) error {
		switch {
		case l.discarded:
			return &RefusedError{"retry", l.at.String(), "the dead letter was discarded"}
		case l.erased:
			return &RefusedError{"retry", l.at.String(), "what it said was erased"}
		}
		b.queue.Queue(o.sql.retryDead, o.guard.cfg.Consumer, key.Stream, key.Key, epoch, seq)
		e.recheck, e.changed = true, true
		return nil
	})
}

// DiscardDead gives a dead letter up: no copy of the event is ever applied. The
// row stays, since that is how copies are known.
func (o *Operator) DiscardDead(ctx context.Context, key StreamKey, epoch, seq int64, note Note) error {
	return o.dead(ctx, "discard", key, epoch, seq, note, func(b *batch, e *entry, l deadRow) error {
		if l.discarded {
			return &RefusedError{"discard", l.at.String(), "the dead letter was discarded before"}
		}
		b.queue.Queue(o.sql.discardDead, o.guard.cfg.Consumer, key.Stream, key.Key, epoch, seq)
		b.count(e, -1, -l.size)
		return nil
	})
}

// EraseDead erases what a dead letter says: its value, its headers but for those
// that say where it stands, and its handler's error. It can't be tried again.
func (o *Operator) EraseDead(ctx context.Context, key StreamKey, epoch, seq int64, note Note) error {
	return o.dead(ctx, "erase", key, epoch, seq, note, func(b *batch, e *entry, l deadRow) error {
		if l.discarded {
			l.size = 0 // not counted any more
		}
		before := e.bytes
		if _, err := o.erase(b, e, o.sql.deadAt, o.sql.eraseDead, epoch, seq); err != nil {
			return err
		}
		if l.discarded {
			e.bytes = before
		}
		return nil
	})
}

// deadRow is what an operator must know of a dead letter.
type deadRow struct {
	at                Position
	size              int64
	discarded, erased bool
}

func (o *Operator) dead(ctx context.Context, action string, key StreamKey, epoch, seq int64, note Note, f func(*batch, *entry, deadRow) error) error {
	return o.act(ctx, action, key, note, func(b *batch, e *entry) ([]AuditEntry, error) {
		l := deadRow{at: Position{StreamKey: key, Epoch: epoch, Seq: seq}}
		rows, err := b.tx.Query(ctx, o.sql.deadRow, o.guard.cfg.Consumer, key.Stream, key.Key, epoch, seq)
		if err != nil {
			return nil, fmt.Errorf("consumer: reading the dead letter %s: %w", l.at, err)
		}
		found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (x deadRow, err error) {
			return x, row.Scan(&x.size, &x.discarded, &x.erased)
		})
		if err != nil {
			return nil, fmt.Errorf("consumer: reading the dead letter %s: %w", l.at, err)
		}
		if len(found) == 0 {
			return nil, &RefusedError{action, l.at.String(), "there is no such dead letter"}
		}
		l.size, l.discarded, l.erased = found[0].size, found[0].discarded, found[0].erased
		if err := f(b, e, l); err != nil {
			return nil, err
		}
		return []AuditEntry{{StreamKey: key, Epoch: epoch, FromSeq: seq, ToSeq: seq, Detail: `{"of": "dead"}`}}, nil
	})
}
