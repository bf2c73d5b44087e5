package consumer

import (
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/outbox"
)

// erasable is a stored record of which an operator erases what it says.
type erasable struct {
	kind string
	at   Partition
	raw  KafkaRecord
	size int64
}

// erase erases what the records at a position say, and gives how many there
// were. The Kafka key stays: it is the stream's key, which is in the row's own.
func (o *Operator) erase(b *batch, e *entry, find, update string, epoch, seq int64) (int, error) {
	rows, err := b.tx.Query(b.ctx, find, o.guard.cfg.Consumer, e.Stream, e.Key, epoch, seq)
	if err != nil {
		return 0, fmt.Errorf("consumer: reading what is to be erased: %w", err)
	}
	records, err := pgx.CollectRows(rows, scanErasable)
	if err != nil {
		return 0, fmt.Errorf("consumer: reading what is to be erased: %w", err)
	}
	for i := range records {
		r := &records[i]
		reduced := o.reduce(r.at, r.raw)
		size := sizeOf(reduced)
		b.queue.Queue(update, o.guard.cfg.Consumer, e.Stream, e.Key, epoch, seq, r.kind, flatHeaders(reduced.Headers), size)
		b.count(e, 0, size-r.size)
	}
	return len(records), b.flush()
}

func scanErasable(row pgx.CollectableRow) (r erasable, err error) {
	var (
		headers [][]byte
		ms      int64
	)
	err = row.Scan(&r.kind, &r.at.Topic, &r.at.ID, &r.raw.Offset, &headers, &r.raw.Key, &r.raw.Value, &ms, &r.size)
	r.raw.Time, r.raw.Headers = time.UnixMilli(ms), wireHeaders(headers)
	return r, err
}

// reduce leaves of a record what says where it stands in its stream. Headers
// that a mapping of the consumer's own needs for that stay as well: all of them,
// since nobody else knows which.
func (o *Operator) reduce(p Partition, raw KafkaRecord) KafkaRecord {
	was := o.guard.cfg.Mapping.Delivery(p, raw)
	reduced := raw
	reduced.Value, reduced.Headers = nil, make([]outbox.WireHeader, 0, len(raw.Headers))
	for _, h := range raw.Headers {
		if needed(h.Key) {
			reduced.Headers = append(reduced.Headers, h)
		}
	}
	if is := o.guard.cfg.Mapping.Delivery(p, reduced); is.Malformed != nil || is.Position() != was.Position() {
		reduced.Headers = raw.Headers
	}
	return reduced
}

// needed are the headers without which a record has no place: who made it and
// what it was is not said by them.
func needed(name string) bool {
	switch name = strings.ToLower(name); name {
	case "ce_specversion", "ce_id", "ce_source", "ce_type", "ce_time":
		return true
	}
	return strings.HasPrefix(name, "ce_fence")
}
