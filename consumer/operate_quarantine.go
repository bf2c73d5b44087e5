package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// RetryQuarantined lets the consumer decide a quarantined record again: by a
// newer library that can read it, under a clock that has moved on, or on a guard
// that has. If it is refused again it stays.
func (o *Operator) RetryQuarantined(ctx context.Context, id int64, note Note) error {
	return o.tryQuarantined(ctx, "retry", id, note)
}

// Admit takes a record of a life whose guards were forgotten as the first one of
// its key: the operator vouches for it that it was not applied before. Nobody
// else can know.
func (o *Operator) Admit(ctx context.Context, id int64, note Note) error {
	return o.tryQuarantined(ctx, "admit", id, note)
}

func (o *Operator) tryQuarantined(ctx context.Context, action string, id int64, note Note) error {
	what := fmt.Sprintf("record %d in quarantine", id)
	q, err := o.quarantined(ctx, o.pool, id, action)
	if err != nil {
		return err
	}
	switch {
	case q.erased:
		return &RefusedError{action, what, "what it said was erased, or was not kept; it may still be in the log"}
	case action == "admit" && q.reason != BeforeMemory:
		return &RefusedError{action, what, fmt.Sprintf("it is there because it is %s: only what is from before the memory can be admitted", q.reason)}
	}
	// Which stream it is of may be known only now.
	d := o.guard.cfg.Mapping.Delivery(q.at, q.raw)
	if d.Malformed == nil {
		d.Malformed = checkRecord(&d.Record)
	}
	if d.Malformed != nil {
		return &RefusedError{action, what, "it still can't be read: " + clean(d.Malformed)}
	}
	at := d.Position()
	return o.act(ctx, action, at.StreamKey, note, func(b *batch, e *entry) ([]AuditEntry, error) {
		tag, err := b.tx.Exec(ctx, o.sql.retryQuarantined, o.guard.cfg.Consumer, id, action, at.Stream, at.Key, at.Epoch, at.Seq, string(at.Kind))
		if err != nil {
			return nil, fmt.Errorf("consumer: %s of %s: %w", action, what, err)
		}
		if tag.RowsAffected() == 0 {
			return nil, &RefusedError{action, what, "it was dealt with in the meantime"}
		}
		e.recheck, e.changed = true, true
		return []AuditEntry{{StreamKey: at.StreamKey, Epoch: at.Epoch, FromSeq: d.First(), ToSeq: at.Seq,
			Topic: q.at.Topic, Partition: q.at.ID, FromOffset: q.raw.Offset, ToOffset: q.raw.Offset + 1, Detail: fmt.Sprintf(`{"quarantine": %d}`, id)}}, nil
	})
}

// DiscardQuarantined closes the case of a quarantined record. It changes nothing
// of a stream: a key that a contradiction has blocked is let go on with
// [Operator.Retry].
func (o *Operator) DiscardQuarantined(ctx context.Context, id int64, note Note) error {
	return o.closeQuarantined(ctx, "discard", o.sql.discardQuarantined, id, note)
}

// EraseQuarantined erases what a quarantined record says: key, value, headers.
// Where it lay, and why it was refused, stays; of what could not be read, the
// text of the reason goes as well.
func (o *Operator) EraseQuarantined(ctx context.Context, id int64, note Note) error {
	return o.closeQuarantined(ctx, "erase", o.sql.eraseQuarantined, id, note)
}

func (o *Operator) closeQuarantined(ctx context.Context, action, sql string, id int64, note Note) error {
	if err := note.check(action); err != nil {
		return err
	}
	return o.tx(ctx, func(tx pgx.Tx) error {
		q, err := o.quarantined(ctx, tx, id, action)
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, sql, o.guard.cfg.Consumer, id)
		if err != nil {
			return fmt.Errorf("consumer: %s of record %d in quarantine: %w", action, id, err)
		}
		if tag.RowsAffected() == 0 {
			return &RefusedError{action, fmt.Sprintf("record %d in quarantine", id), "it was dealt with in the meantime"}
		}
		return o.audit(ctx, tx, action, note, []AuditEntry{{
			Topic: q.at.Topic, Partition: q.at.ID, FromOffset: q.raw.Offset, ToOffset: q.raw.Offset + 1, Detail: fmt.Sprintf(`{"quarantine": %d}`, id)}})
	})
}

// quarantinedRow is what an operator must know of a quarantined record.
type quarantinedRow struct {
	at       Partition
	raw      KafkaRecord
	reason   Reason
	erased   bool
	resolved bool
}

func (o *Operator) quarantined(ctx context.Context, db rowQuerier, id int64, action string) (q quarantinedRow, err error) {
	var (
		headers [][]byte
		ms      int64
	)
	err = db.QueryRow(ctx, o.sql.quarantinedRow, o.guard.cfg.Consumer, id).
		Scan(&q.at.Topic, &q.at.ID, &q.raw.Offset, &headers, &q.raw.Key, &q.raw.Value, &ms, &q.reason, &q.erased, &q.resolved)
	what := fmt.Sprintf("record %d in quarantine", id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return q, &RefusedError{action, what, "this consumer has none of that number"}
	case err != nil:
		return q, fmt.Errorf("consumer: reading %s: %w", what, err)
	case q.resolved && action != "erase":
		return q, &RefusedError{action, what, "it was dealt with before"}
	}
	q.raw.Time, q.raw.Headers = time.UnixMilli(ms), wireHeaders(headers)
	return q, nil
}
