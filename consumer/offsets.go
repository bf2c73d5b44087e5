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
select next_offset, last_id, truncated_at is not null
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

	// The one statement that may move an offset back: the log is another one
	// now, or has lost its end. The flag, once set, is an operator's to clear,
	// so it keeps its first time.
	offsetRestartSQL = `
insert into @schema@.consumer_offset as o (consumer, topic, partition, next_offset, last_id, truncated_at)
values ($1, $2, $3, $4, null, case when $5 then clock_timestamp() end)
on conflict (consumer, topic, partition) do update
   set next_offset = excluded.next_offset, last_id = null, updated_at = clock_timestamp(),
       truncated_at = coalesce(o.truncated_at, excluded.truncated_at)`

	// A consumer whose commit was acknowledged and is then lost in a crash
	// would find Kafka's offset ahead of it. Only off and local are raised:
	// remote_apply stays what it is.
	durableSQL = `
select set_config('synchronous_commit', 'on', true)
 where current_setting('synchronous_commit') in ('off', 'local')`
)

// offsets reads and writes the offsets of one consumer.
type offsets struct {
	consumer             string
	load, store, restart string
}

func newOffsets(schemaName, consumer string) *offsets {
	return &offsets{
		consumer: consumer,
		load:     schema.Expand(offsetLoadSQL, schemaName),
		store:    schema.Expand(offsetStoreSQL, schemaName),
		restart:  schema.Expand(offsetRestartSQL, schemaName),
	}
}

// stored is what the database knows of a partition.
type stored struct {
	next      int64     // NoOffset if nothing was ever read
	last      uuid.UUID // the event at next-1, or zero
	truncated bool
}

type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (o *offsets) read(ctx context.Context, q rowQuerier, p Partition) (s stored, err error) {
	var last *uuid.UUID
	err = q.QueryRow(ctx, o.load, o.consumer, p.Topic, p.ID).Scan(&s.next, &last, &s.truncated)
	if errors.Is(err, pgx.ErrNoRows) {
		return stored{next: NoOffset}, nil
	}
	if err != nil {
		return s, fmt.Errorf("consumer: reading the offset of %s: %w", p, err)
	}
	if last != nil {
		s.last = *last
	}
	return s, nil
}

// queue adds what a batch's transaction must say before it commits.
func (o *offsets) queue(b *pgx.Batch, p Partition, next int64, last *uuid.UUID) {
	b.Queue(o.store, o.consumer, p.Topic, p.ID, next, last)
	b.Queue(durableSQL)
}

// place is where to begin reading, and what is alarming about it.
type place struct {
	offset  int64
	begin   bool // the database has no offset yet
	restart bool // the database's offset must be set to it, whatever it is
	flag    bool // events went unread
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
	switch {
	case s.next == NoOffset:
		// Stored at once: whether the log had a beginning can be told only now.
		out.offset, out.begin = in.start, true
		if in.committed > in.start {
			alarm(OffsetAhead, in.start, in.committed, "this consumer's database has no offset, but Kafka has one: the log is read from its beginning")
		}
		// Whoever joins late takes what comes first as its baseline, unless it
		// must see the origin, or was there before.
		if in.start > 0 && (in.origin || in.committed != NoOffset) {
			out.flag, out.restart = true, true
			alarm(Truncated, 0, in.start, "the log doesn't begin at 0 any more: earlier events can't be read")
		}
		return out
	case s.next > in.end:
		out.offset, out.flag, out.restart = in.start, true, true
		alarm(Truncated, in.end, s.next, "the log ends before the offset that was reached: the topic was created anew, or lost its end; it is read from its beginning")
	case in.replaced:
		out.offset, out.flag, out.restart = in.start, true, true
		alarm(Truncated, in.start, s.next, "the log has another event at the offset that was reached: the topic was created anew; it is read from its beginning")
	case s.next < in.start:
		out.offset, out.flag, out.restart = in.start, true, true
		alarm(Truncated, s.next, in.start, "the log begins behind the offset that was reached: events were deleted before they were read")
	case in.committed != NoOffset && in.committed < s.next:
		out.offset = max(in.committed, in.start) // the group was rewound, or its last commit is missing
	case in.committed > s.next:
		alarm(OffsetAhead, s.next, in.committed, "Kafka's offset is ahead of this consumer's database, which was restored or has lost a commit")
	}
	return out
}
