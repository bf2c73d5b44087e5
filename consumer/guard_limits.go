package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/outbox"
)

// Limits bound what a consumer keeps of records that it can't apply yet: parked
// records of strict streams, and dead letters of state streams. What would go
// beyond is decided as usual and not stored: its outcome has Unstored set, and
// whoever reads the log must come back to it. See [Guard.Progress].
//
// A limit is met, not exceeded by whole records: a record is stored while less
// than the limit is there. Several members count at the same time and may
// together go a little beyond the totals.
//
// Two kinds of record are stored whatever the limits say, since nothing would
// go on otherwise: the next event of its stream; and one that lies below
// something that is parked of its stream, which takes the place of the highest.
type Limits struct {
	// KeyRecords and KeyBytes hold for each stream (one key). Default to 10,000
	// and 64 MiB.
	KeyRecords, KeyBytes int64
	// Records and Bytes hold for all streams of the consumer together. Default
	// to 100,000 and 1 GiB.
	Records, Bytes int64
}

// Unlimited is a limit that nothing meets.
const Unlimited = int64(1) << 62

// check replaces what is zero, by the defaults or by no limit.
func (l *Limits) check(where string, defaults Limits) error {
	var errs []error
	for _, f := range []struct {
		name  string
		value *int64
		def   int64
	}{
		{"KeyRecords", &l.KeyRecords, defaults.KeyRecords}, {"KeyBytes", &l.KeyBytes, defaults.KeyBytes},
		{"Records", &l.Records, defaults.Records}, {"Bytes", &l.Bytes, defaults.Bytes},
	} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 1 {
			errs = append(errs, fmt.Errorf("consumer: %s.%s is %d, want more than zero, or consumer.Unlimited", where, f.name, *f.value))
		}
	}
	return errors.Join(errs...)
}

var (
	defaultLimits = Limits{KeyRecords: 10_000, KeyBytes: 64 << 20, Records: 100_000, Bytes: 1 << 30}
	noLimits      = Limits{KeyRecords: Unlimited, KeyBytes: Unlimited, Records: Unlimited, Bytes: Unlimited}
)

// refusals is what a batch could not store.
type refusals struct {
	total, totalBytes   int64 // of the consumer, as of the first question
	counted             bool
	queued, queuedBytes int64 // what may be stored when the queue is written
	displaced           []Result
}

// full tells whether the stream may keep no more. The consumer's total is
// counted once per batch, and only by one that parks: from the guards that have
// something, not from the records.
func (b *batch) full(e *entry) (bool, error) {
	l := &b.g.cfg.Limits
	if *l == noLimits {
		return false, nil
	}
	if !b.counted {
		if err := b.tx.QueryRow(b.ctx, b.g.sql.total, b.g.cfg.Consumer).Scan(&b.total, &b.totalBytes); err != nil {
			return false, fmt.Errorf("consumer: counting what is parked: %w", err)
		}
		b.counted = true
	}
	over := func() bool {
		return e.parked+e.queued >= l.KeyRecords || e.bytes+e.queuedBytes >= l.KeyBytes ||
			b.total+b.queued >= l.Records || b.totalBytes+b.queuedBytes >= l.Bytes
	}
	if over() && b.queued > 0 { // what is a copy of a stored one takes no room
		if err := b.flush(); err != nil {
			return false, err
		}
	}
	return over(), nil
}

// storing gives what is to be called with the answer of a statement that stores a record.
func (b *batch) storing(e *entry, size int64) func(pgx.Rows) error {
	e.queued, e.queuedBytes = e.queued+1, e.queuedBytes+size
	b.queued, b.queuedBytes = b.queued+1, b.queuedBytes+size
	return func(rows pgx.Rows) error {
		e.queued, e.queuedBytes = e.queued-1, e.queuedBytes-size
		b.queued, b.queuedBytes = b.queued-1, b.queuedBytes-size
		for rows.Next() {
			var fresh bool
			if err := rows.Scan(&fresh, &size); err != nil {
				return err
			}
			if fresh {
				b.count(e, 1, size)
			}
		}
		return rows.Err()
	}
}

// removing is the same for one that takes a record out.
func (b *batch) removing(e *entry) func(pgx.Rows) error {
	b.queued++
	return func(rows pgx.Rows) error {
		b.queued--
		for rows.Next() {
			var size int64
			if err := rows.Scan(&size); err != nil {
				return err
			}
			b.count(e, -1, -size)
		}
		return rows.Err()
	}
}

// count notes that the stream has n records more of so many bytes.
func (b *batch) count(e *entry, n, bytes int64) {
	e.parked, e.bytes = max(e.parked+n, 0), max(e.bytes+bytes, 0)
	b.total, b.totalBytes = b.total+n, b.totalBytes+bytes
	e.changed, e.top = true, nil
}

// room makes sure that a record that must wait can be stored. ok is false if it
// can't: that has been noted then.
func (b *batch) room(e *entry, d *Delivery, row *Row) (ok bool, err error) {
	full, err := b.full(e)
	if err != nil || !full || next(row, d) {
		return err == nil, err
	}
	for displaced := false; full; displaced = true {
		stored, high, size, err := b.highest(e, d)
		if err != nil || stored {
			return err == nil, err
		}
		if high == nil || !lower(d, high) {
			if !displaced {
				b.refuse(e, d)
			}
			return displaced, nil
		}
		b.displace(e, high, size)
		if full, err = b.full(e); err != nil {
			return false, err
		}
	}
	return true, nil
}

// next tells whether nothing is missing in front of the record: row is the guard
// as it will be.
func next(row *Row, d *Delivery) bool { return d.Epoch == row.Epoch && d.First() <= row.Seq+1 }

// lower is the order in which parked records are decided.
func lower(d, o *Delivery) bool {
	switch {
	case d.Epoch != o.Epoch:
		return d.Epoch < o.Epoch
	case d.First() != o.First():
		return d.First() < o.First()
	case d.kind() != o.kind():
		return d.kind() > o.kind()
	}
	return d.Seq < o.Seq
}

// highest finds what is parked last in its stream, and whether the record itself
// is parked already, or may be. While what is highest is known, a record above it
// needs no question: a stream that is full gets many of these.
//
// One that an operator has erased keeps its place: it would come back with all that
// it said when it is read again. What comes before it takes the place of another
// one, or, where there is no other one, none.
func (b *batch) highest(e *entry, d *Delivery) (stored bool, high *Delivery, size int64, err error) {
	if e.top != nil && lower(e.top, d) {
		return false, nil, 0, nil
	}
	if err := b.flush(); err != nil {
		return false, nil, 0, err
	}
	top, err := b.top(e, d, b.g.sql.highest)
	if err != nil || top == nil {
		return false, nil, 0, err
	}
	e.top, stored = &top.Delivery, top.stored
	if top.erased && !stored && lower(d, e.top) {
		if top, err = b.top(e, d, b.g.sql.highestKept); err != nil || top == nil {
			return err == nil, nil, 0, err
		}
	}
	return stored, &top.Delivery, top.size, nil
}

// parkedTop is what is parked last.
type parkedTop struct {
	Delivery
	size   int64
	erased bool
	stored bool // the record in hand, too
}

func (b *batch) top(e *entry, d *Delivery, sql string) (*parkedTop, error) {
	var h parkedTop
	var kind string
	err := b.tx.QueryRow(b.ctx, sql, b.g.cfg.Consumer, e.Stream, e.Key, d.Epoch, d.Seq, string(d.kind())).
		Scan(&h.stored, &h.Epoch, &h.Seq, &kind, &h.From, &h.Topic, &h.Partition, &h.Offset, &h.size, &h.erased)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("consumer: looking for what is parked last of %s: %w", e.StreamKey, err)
	}
	h.Stream, h.Key, h.Kind = e.Stream, e.Key, outbox.Kind(kind)
	if h.Kind != outbox.KindSkip {
		h.From = 0
	}
	return &h, nil
}

// displace takes the record that is parked last out of the park, for one that
// comes before it. It is as if it had not been stored: what the guard knows of
// it stays, and its offset is to be read again.
func (b *batch) displace(e *entry, high *Delivery, size int64) {
	b.queue.Queue(b.g.sql.unpark, b.g.cfg.Consumer, e.Stream, e.Key, high.Epoch, high.Seq, string(high.kind()))
	b.count(e, -1, -size)
	b.refuse(e, high)
	b.displaced = append(b.displaced, Result{
		Position: high.Position(), Outcome: Parked, Reason: Gap, Topic: high.Topic, Partition: high.Partition, Offset: high.Offset,
		Unstored: true, Displaced: true,
	})
}

// maxEpochs is how many ranges of epochs a guard remembers of what was not
// stored. Beyond, the two highest become one: what lies between may wait then
// for a record that is not there, until all has been read again.
const maxEpochs = 32

// refuse notes that the record is of this stream and not stored. The guard
// remembers of which epochs such records are: a later life must not be proven
// over them, and an earlier one not wait for them.
func (b *batch) refuse(e *entry, d *Delivery) {
	p := Partition{d.Topic, d.Partition}
	b.overflow[p] = true
	if name := p.String(); !slices.Contains(e.unstored, name) {
		e.unstored, e.flagged = append(e.unstored, name), true
	}
	if e.epochs.Contains(d.Epoch) {
		return
	}
	e.epochs, e.flagged = e.epochs.Add(d.Epoch, d.Epoch), true
	if n := len(e.epochs); n > maxEpochs {
		e.epochs[n-2].To = e.epochs[n-1].To
		e.epochs = e.epochs[:n-1]
	}
}

// holds tells whether something of the stream is still not stored.
func (b *batch) holds(e *entry) bool {
	for p, is := range b.overflow {
		if is && slices.Contains(e.unstored, p.String()) {
			return true
		}
	}
	return false
}

// settle forgets that something of the stream was not stored, when all of it has
// been read again, and finds anew what waits. changed says so.
func (b *batch) settle(e *entry) (changed bool, err error) {
	if len(e.unstored) == 0 || b.holds(e) {
		return false, nil
	}
	e.unstored, e.epochs, e.flagged = nil, nil, true
	if e.row == nil || e.row.WaitingEpoch == 0 {
		return true, nil
	}
	return true, b.findWaiting(e)
}

func (b *batch) anyFlagged() bool {
	for _, e := range b.entries {
		if e.flagged {
			return true
		}
	}
	return false
}

// flag writes down which streams have something that is not stored.
func (b *batch) flag() {
	for _, k := range b.order {
		if e := b.entries[k]; e.flagged {
			if e.unstored == nil {
				e.unstored = []string{}
			}
			b.queue.Queue(b.g.sql.flag, b.g.cfg.Consumer, k.Stream, k.Key, e.unstored, e.epochs.String())
		}
	}
}

func highestSQL(which string) string {
	return `
select exists (select from @schema@.parked where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and kind = $6),
       epoch, seq, kind, from_seq, topic, partition, kafka_offset, size, erased_at is not null
  from @schema@.parked
 where consumer = $1 and stream = $2 and key = $3` + which + `
 order by epoch desc, from_seq desc, kind, seq desc
 limit 1`
}

type limitStatements struct{ total, highest, highestKept, flag, room string }

func newLimitStatements(x func(string) string) limitStatements {
	return limitStatements{
		total:       x(`select coalesce(sum(parked_rows), 0)::int8, coalesce(sum(parked_bytes), 0)::int8 from @schema@.guard where consumer = $1 and parked_rows > 0`),
		highest:     x(highestSQL("")),
		highestKept: x(highestSQL("\n   and erased_at is null")),
		flag:        x(`update @schema@.guard set unstored = $4, unstored_epochs = $5::text::int8multirange where consumer = $1 and stream = $2 and key = $3`),
		// Something of the partition was not stored, and either its stream may keep
		// more now, or nothing of it is parked and the hole may be filled: its record
		// would then not have to be stored at all.
		room: x(`
select exists (
  select from @schema@.guard g
    join @schema@.consumer_stream s on s.consumer = g.consumer and s.stream = g.stream
    cross join (select coalesce(sum(parked_rows), 0) as n, coalesce(sum(parked_bytes), 0) as bytes from @schema@.guard where consumer = $1 and parked_rows > 0) t
   where g.consumer = $1 and g.unstored <> '{}' and $2 = any(g.unstored)
     and (g.blocked is null and s.policy = 'strict'
          or g.parked_rows < $3 and g.parked_bytes < $4 and t.n < $5 and t.bytes < $6))`),
	}
}

// Room tells whether a record of the partition that was not stored may be stored
// or applied now, so that it is worth while to read on from the partition's
// overflow. Such a reading gets on by one record at least. Don't ask while one
// is under way. Where Result.Unread was set since the last one began, there is no
// need to ask.
func (g *Guard) Room(ctx context.Context, tx pgx.Tx, p Partition) (room bool, err error) {
	l := &g.cfg.Limits
	err = tx.QueryRow(ctx, g.sql.room, g.cfg.Consumer, p.String(), l.KeyRecords, l.KeyBytes, l.Records, l.Bytes).Scan(&room)
	if err != nil {
		return false, fmt.Errorf("consumer: asking whether %s has room: %w", p, err)
	}
	return room, nil
}

// sizeOf is about what a record takes in the database.
func sizeOf(raw KafkaRecord) int64 {
	n := len(raw.Key) + len(raw.Value)
	for _, h := range raw.Headers {
		n += len(h.Key) + len(h.Value) + 8
	}
	return int64(min(n, 1<<31-1))
}
