package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// What a transaction has read of a partition. Three things move at once.
//
// The offset only goes forwards: a member that lost the partition may commit its
// last batch after the new owner's first, and a partition that is read again
// from the beginning has still been read to where it was.
//
// The overflow is a range in which records lie that were decided and did not
// fit. A reading that goes through it from its beginning decides about all of
// it again: the range then begins where the reading stands, until its end is
// reached. What did not fit of what was read now ($7 to $8) is added. It is
// done behind the decisions, since these must not yet believe that nothing is
// left.
const offsetReadSQL = `
insert into @schema@.consumer_offset as o (consumer, topic, partition, next_offset, last_id, overflow_offset, overflow_end)
values ($1, $2, $3, $5, $6, $7::int8, $8::int8)
on conflict (consumer, topic, partition) do update
   set next_offset = greatest(o.next_offset, excluded.next_offset),
       last_id = case when o.next_offset < excluded.next_offset then excluded.last_id else o.last_id end,
       overflow_offset = least(` + overflowLeftSQL + `, $7::int8),
       overflow_end = case when ` + overflowLeftSQL + ` is null then $8::int8 else greatest(o.overflow_end, $8::int8) end,
       updated_at = clock_timestamp()
returning coalesce(overflow_offset, -1)`

// overflowLeftSQL is what is left of the overflow's beginning.
const overflowLeftSQL = `case when o.overflow_offset is null or $4::int8 > o.overflow_offset or $5::int8 <= o.overflow_offset then o.overflow_offset
                              when $5::int8 < o.overflow_end then $5::int8 end`

// offsetOverflowSQL adds to the overflow of another partition: a record that was
// displaced had come from there.
const offsetOverflowSQL = `
insert into @schema@.consumer_offset as o (consumer, topic, partition, next_offset, overflow_offset, overflow_end)
values ($1, $2, $3, 0, $4, $5)
on conflict (consumer, topic, partition) do update
   set overflow_offset = least(o.overflow_offset, excluded.overflow_offset), overflow_end = greatest(o.overflow_end, excluded.overflow_end)`

// Read is what a transaction has read of a partition.
type Read struct {
	Partition
	// From is the offset at which it began to read, Next the one to read next:
	// whatever lies between has been handed to [Guard.Apply] in this transaction.
	From, Next int64
	// LastID is the ID of the event at Next - 1; nil if there is none. It shows one
	// day whether the topic was created anew.
	LastID *uuid.UUID
}

// Progress is how far a partition was read.
type Progress struct {
	// Committable is the offset up to which nothing has to be read again: the one
	// to commit to Kafka, after the transaction.
	Committable int64
	// Overflow is the lowest offset of a record that did not fit and is to be read
	// again as soon as [Guard.Room] says so; [NoOffset] if there is none. Behind what
	// was read (of a topic that was created anew) there is nothing to go back to: read
	// on, and never from there.
	Overflow int64
}

// queueRead adds the statements to b that note what was read, with the results
// of the decisions about it. They come last in the transaction. out is filled
// when b's results are closed.
func (o *offsets) queueRead(b *pgx.Batch, r Read, results []Result, out *Progress) {
	var low, end *int64
	for i := range results {
		res := &results[i]
		if !res.Unstored {
			continue
		}
		at, behind := res.Offset, res.Offset+1
		if (Partition{res.Topic, res.Partition}) != r.Partition {
			b.Queue(o.overflow, o.consumer, res.Topic, res.Partition, at, behind)
			continue
		}
		if low == nil || at < *low {
			low = &at
		}
		if end == nil || behind > *end {
			end = &behind
		}
	}
	b.Queue(o.advance, o.readArgs(r, low, end)...).QueryRow(func(row pgx.Row) error {
		var overflow int64
		err := row.Scan(&overflow)
		if err == nil {
			*out = progress(r, overflow)
		}
		return err
	})
}

// readArgs are the arguments of offsetReadSQL. low and end are of what did not fit.
func (o *offsets) readArgs(r Read, low, end *int64) []any {
	var last pgtype.UUID // which the driver need not find out about each time
	if r.LastID != nil {
		last = pgtype.UUID{Bytes: *r.LastID, Valid: true}
	}
	return []any{o.consumer, r.Topic, r.ID, r.From, r.Next, last, low, end}
}

func progress(r Read, overflow int64) Progress {
	p := Progress{Committable: r.Next, Overflow: overflow}
	if overflow != NoOffset {
		p.Committable = min(r.Next, overflow)
	}
	return p
}

func anyUnstored(results []Result) bool {
	return slices.ContainsFunc(results, func(r Result) bool { return r.Unstored })
}

// queueUnstored does the same where nothing was read: records that were resumed
// can displace others.
func (o *offsets) queueUnstored(b *pgx.Batch, results []Result) {
	for i := range results {
		if res := &results[i]; res.Unstored {
			b.Queue(o.overflow, o.consumer, res.Topic, res.Partition, res.Offset, res.Offset+1)
		}
	}
}

// noteUnstored is that for whoever reads nothing, and has nobody who does it.
func (g *Guard) noteUnstored(ctx context.Context, tx pgx.Tx, results []Result) error {
	if !anyUnstored(results) {
		return nil
	}
	var b pgx.Batch
	newOffsets(g.cfg.Schema, g.cfg.Consumer).queueUnstored(&b, results)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("consumer: storing what did not fit: %w", err)
	}
	return nil
}

// Progress notes, in the transaction of the effects and behind [Guard.Apply],
// what it has read, with the results of that. It is for those who read Kafka
// themselves and have set [Limits]: [Run] does it by itself. It raises
// synchronous_commit where it is off: an offset that Kafka knows and the
// database has lost would be a hole.
func (g *Guard) Progress(ctx context.Context, tx pgx.Tx, r Read, results []Result) (out Progress, err error) {
	o := newOffsets(g.cfg.Schema, g.cfg.Consumer)
	var b pgx.Batch
	o.queueRead(&b, r, results, &out)
	b.Queue(durableSQL)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return Progress{}, fmt.Errorf("consumer: storing how far %s was read: %w", r.Partition, err)
	}
	return out, nil
}

// ErrPartitionsChanged is matched by every [*PartitionsChangedError].
var ErrPartitionsChanged = errors.New("consumer: the topic has another number of partitions")

// PartitionsChangedError says that a topic has another number of partitions than
// when this consumer first read it. The events of a key go to another partition
// since then, and what was not read of the old one can be overtaken; where a
// closed key was swept in between, nothing on the wire shows that. So reading
// on is an operator's decision: let the group read what was published before
// the change, make sure that no closed key was swept since, and then run
// `relay inbox topic accept`.
type PartitionsChangedError struct {
	Consumer, Topic string
	// Have is how many partitions there were, Found how many there are.
	Have, Found int
}

// Error implements error.
func (e *PartitionsChangedError) Error() string {
	return fmt.Sprintf("consumer: the number of partitions of topic %q is %d, and was %d when consumer %q began to read it: keys have moved; when everything that was published before is read and nothing was swept since, run `relay inbox topic accept`",
		e.Topic, e.Found, e.Have, e.Consumer)
}

// Is makes errors.Is(err, ErrPartitionsChanged) true.
func (e *PartitionsChangedError) Is(target error) bool { return target == ErrPartitionsChanged }

// PinTopic remembers with how many partitions a topic is read, the first time,
// and compares afterwards. A topic that was read by a version that didn't
// remember it is pinned as it is found. The error is a
// [*PartitionsChangedError] where it differs.
func (g *Guard) PinTopic(ctx context.Context, tx pgx.Tx, topic string, partitions int) error {
	var have int
	err := tx.QueryRow(ctx, g.sql.pin, g.cfg.Consumer, topic, partitions).Scan(&have)
	if errors.Is(err, pgx.ErrNoRows) {
		err = tx.QueryRow(ctx, g.sql.pin, g.cfg.Consumer, topic, partitions).Scan(&have)
	}
	if err != nil {
		return fmt.Errorf("consumer: remembering how many partitions %q has: %w", topic, err)
	}
	if have != partitions {
		return &PartitionsChangedError{Consumer: g.cfg.Consumer, Topic: topic, Have: have, Found: partitions}
	}
	return nil
}
