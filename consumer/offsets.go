package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
)

// The offsets of a consumer are kept in its own database, in the transaction
// of the effects: Kafka's are only a copy, and nothing rests on either (the
// guards make every rereading harmless). What they are needed for is not to
// read too little: see locate.
const (
	offsetLoadSQL = `
select next_offset, last_id, truncated_at is not null, overflow_offset
  from @schema@.consumer_offset
 where consumer = $1 and topic = $2 and partition = $3`

	// Only forwards: a member that lost the partition may commit its last
	// batch after the new owner's first, and a partition that is read again
	// from the beginning has still been read to where it was.
	offsetStoreSQL = `
insert into @schema@.consumer_offset as o (consumer, topic, partition, next_offset, last_id)
values ($1, $2, $3, $4, $5)
on conflict (consumer, topic, partition) do update
   set next_offset = excluded.next_offset, last_id = excluded.last_id, updated_at = clock_timestamp()
 where o.next_offset < excluded.next_offset`

	offsetUnfitSQL = `
select topic, partition, overflow_offset from @schema@.consumer_offset where consumer = $1 and overflow_offset is not null`

	// What may move an offset back: the log is another one now, or has lost its
	// end. The flag, once set, is an operator's to clear, so it keeps its first
	// time, and a consumer may only raise it.
	offsetRestartSQL = `select @schema@.restart_partition($1, $2, $3, $4, $5, $6, $7)`

	// A consumer whose commit was acknowledged and is then lost in a crash
	// would find Kafka's offset ahead of it. Only off and local are raised:
	// remote_apply stays what it is.
	durableSQL = `
select set_config('synchronous_commit', 'on', true)
 where current_setting('synchronous_commit') in ('off', 'local')`
)

// offsets reads and writes the offsets of one consumer.
type offsets struct {
	consumer                                string
	load, store, restart, advance, overflow string
	unfit                                   string
	end, endOne                             string // see endSQL
}

func newOffsets(schemaName, consumer string) *offsets {
	return &offsets{
		consumer: consumer,
		load:     schema.Expand(offsetLoadSQL, schemaName),
		store:    schema.Expand(offsetStoreSQL, schemaName),
		restart:  schema.Expand(offsetRestartSQL, schemaName),
		advance:  schema.Expand(offsetReadSQL, schemaName),
		overflow: schema.Expand(offsetOverflowSQL, schemaName),
		unfit:    schema.Expand(offsetUnfitSQL, schemaName),
		end:      schema.Expand(endSQL(advanceSQL), schemaName),
		endOne:   schema.Expand(endSQL(advanceOneSQL), schemaName),
	}
}

// stored is what the database knows of a partition.
type stored struct {
	next      int64     // NoOffset if nothing was ever read
	last      uuid.UUID // the event at next-1, or zero
	truncated bool
	overflow  int64 // the lowest of what did not fit, or NoOffset
}

type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (o *offsets) read(ctx context.Context, q rowQuerier, p Partition) (s stored, err error) {
	var (
		last     *uuid.UUID
		overflow *int64
	)
	err = q.QueryRow(ctx, o.load, o.consumer, p.Topic, p.ID).Scan(&s.next, &last, &s.truncated, &overflow)
	if errors.Is(err, pgx.ErrNoRows) {
		return stored{next: NoOffset, overflow: NoOffset}, nil
	}
	if err != nil {
		return s, fmt.Errorf("consumer: reading the offset of %s: %w", p, err)
	}
	if last != nil {
		s.last = *last
	}
	s.overflow = NoOffset
	if overflow != nil {
		s.overflow = *overflow
	}
	return s, nil
}

// overflowing is where what did not fit begins, of each partition of which that is so.
func (o *offsets) overflowing(ctx context.Context, tx pgx.Tx) (map[Partition]int64, error) {
	all := make(map[Partition]int64)
	rows, err := tx.Query(ctx, o.unfit, o.consumer)
	if err == nil {
		var p Partition
		var at int64
		_, err = pgx.ForEachRow(rows, []any{&p.Topic, &p.ID, &at}, func() error {
			all[p] = at
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("consumer: reading what did not fit: %w", err)
	}
	return all, nil
}

// begin stores where a partition begins, or begins again, whatever is there.
func (o *offsets) begin(ctx context.Context, tx pgx.Tx, p Partition, at place) error {
	if _, err := tx.Exec(ctx, durableSQL); err != nil {
		return err
	}
	if !at.restart {
		_, err := tx.Exec(ctx, o.store, o.consumer, p.Topic, p.ID, at.offset, nil)
		return err
	}
	_, err := tx.Exec(ctx, o.restart, o.consumer, p.Topic, p.ID, at.offset, at.flag, at.from, at.to)
	return err
}

// place is where to begin reading, and what is alarming about it.
type place struct {
	offset  int64
	begin   bool // the database has no offset yet
	restart bool // the database's offset must be set to it, whatever it is
	flag    bool // events went unread: from ≤ offset < to
	from    int64
	to      int64
	alarms  []Alarm
}

// placement is everything that locate decides by.
type placement struct {
	partition  Partition
	stored     stored
	committed  int64 // Kafka's, or NoOffset
	start, end int64 // what the log has
	// replaced says that the log has another event at stored.next-1 than the
	// one that was read there.
	replaced bool
	// origin says that some stream must be read from its first event.
	origin bool
	// latest says that whoever is new begins at the end.
	latest bool
}

// locate says where to begin: at the lower of the two offsets, since a lower
// one costs time only and a higher one events. No offset in the database
// counts as the lowest: if Kafka has one, the database is not the one that it
// was written from.
func locate(in placement) (out place) {
	alarm := func(kind AlarmKind, from, to int64, text string) {
		out.alarms = append(out.alarms, Alarm{Partition: in.partition, Kind: kind, From: from, To: to, Text: text})
	}
	s := in.stored
	out.offset = s.next
	lost := func(from, to int64, text string) {
		out.flag, out.restart, out.from, out.to = true, true, from, to
		alarm(Truncated, from, to, text)
	}
	if s.overflow != NoOffset {
		out.offset = min(s.next, s.overflow)
	}
	switch {
	case s.next == NoOffset:
		// Stored at once: whether the log had a beginning can be told only now.
		out.offset, out.begin = in.start, true
		if in.latest && in.committed == NoOffset {
			out.offset = in.end
			return out
		}
		if in.committed > in.start {
			alarm(OffsetAhead, in.start, in.committed, "this consumer's database has no offset, but Kafka has one: the log is read from its beginning")
		}
		// Whoever joins late takes what comes first as its baseline, unless it
		// must see the origin, or was there before.
		if in.start > 0 && (in.origin || in.committed != NoOffset) {
			lost(0, in.start, "the log doesn't begin at 0 any more: earlier events can't be read")
		}
		return out
	case s.next > in.end:
		out.offset = in.start
		lost(in.end, s.next, "the log ends before the offset that was reached: the topic was created anew, or lost its end; it is read from its beginning")
	case in.replaced:
		out.offset = in.start
		lost(in.start, s.next, "the log has another event at the offset that was reached: the topic was created anew; it is read from its beginning")
	case out.offset < in.start:
		from := out.offset
		out.offset = in.start
		lost(from, in.start, "the log begins behind the offset that was reached: events were deleted before they were read")
	case in.committed != NoOffset && in.committed < out.offset:
		out.offset = max(in.committed, in.start) // the group was rewound, or its last commit is missing
	case in.committed > s.next:
		alarm(OffsetAhead, s.next, in.committed, "Kafka's offset is ahead of this consumer's database, which was restored or has lost a commit")
	}
	return out
}
