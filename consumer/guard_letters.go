package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// DeadLetter is an event that its handler refused for good, on its way to a
// topic of dead letters.
type DeadLetter struct {
	Position
	// Topic, Partition and Offset say where the event lies.
	Topic     string
	Partition int
	Offset    int64
	// Error is what the handler said, Attempts how often it was tried.
	Error    string
	Attempts int
	DiedAt   time.Time
	// Record is the event as Kafka had it: a dead letter is published with the
	// same key, value and headers, so that whoever reads it can read it as what it
	// was.
	Record KafkaRecord
}

// DeadLetterSink publishes dead letters to a topic and returns when all of them
// are acknowledged. A letter may come more than once: the transaction that
// notes that it was published can fail, and so can the sink at another letter. The
// table stays what counts; nothing is ever read back from the topic.
//
// Where it answers an error, [Run] hands fewer at once to it, and goes on with the
// others when it has refused a letter that it was given alone; that one is tried
// again later.
type DeadLetterSink func(ctx context.Context, letters []DeadLetter) error

// ForwardDead hands up to limit dead letters, oldest first, that were not handed
// out before to sink, and notes that they were. Several members may do so at
// the same time. If it returns limit there may be more.
func (g *Guard) ForwardDead(ctx context.Context, tx pgx.Tx, limit int, sink DeadLetterSink) (int, error) {
	return g.forwardDead(ctx, tx, limit, positions{}, sink)
}

// forwardDead passes over those that are put aside.
func (g *Guard) forwardDead(ctx context.Context, tx pgx.Tx, limit int, aside positions, sink DeadLetterSink) (int, error) {
	rows, err := tx.Query(ctx, g.sql.forwardable, g.cfg.Consumer, limit, aside.streams, aside.keys, aside.epochs, aside.seqs)
	if err != nil {
		return 0, fmt.Errorf("consumer: reading dead letters: %w", err)
	}
	letters, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l DeadLetter, err error) {
		var (
			headers [][]byte
			ms      int64
		)
		err = row.Scan(&l.Stream, &l.Key, &l.Epoch, &l.Seq, &l.Kind, &l.Topic, &l.Partition, &l.Offset,
			&headers, &l.Record.Key, &l.Record.Value, &ms, &l.Error, &l.Attempts, &l.DiedAt)
		l.Record.Offset, l.Record.Time, l.Record.Headers = l.Offset, time.UnixMilli(ms), wireHeaders(headers)
		return l, err
	})
	if err != nil {
		return 0, fmt.Errorf("consumer: reading dead letters: %w", err)
	}
	if len(letters) == 0 {
		return 0, nil
	}
	if err := sink(ctx, letters); err != nil {
		return 0, fmt.Errorf("consumer: publishing %d dead letters: %w", len(letters), err)
	}
	var done positions
	for i := range letters {
		done.add(letters[i].Position)
	}
	if _, err := tx.Exec(ctx, g.sql.forwarded, g.cfg.Consumer, done.streams, done.keys, done.epochs, done.seqs); err != nil {
		return 0, fmt.Errorf("consumer: noting that dead letters were published: %w", err)
	}
	return len(letters), nil
}

type letterStatements struct{ forwardable, forwarded string }

func newLetterStatements(x func(string) string) letterStatements {
	return letterStatements{
		// Locked, so that of two members only one hands a letter out; a letter that
		// is being tried again is left alone until that is decided.
		forwardable: x(`
select stream, key, epoch, seq, kind, topic, partition, kafka_offset, headers, kafka_key, value, timestamp_ms, error, attempts, died_at
  from @schema@.dead d
 where consumer = $1 and forwarded_at is null and discarded_at is null and erased_at is null
   and not exists (select from unnest($3::text[], $4::text[], $5::int8[], $6::int8[]) as a(stream, key, epoch, seq)
                    where a.stream = d.stream and a.key = d.key and a.epoch = d.epoch and a.seq = d.seq)
 order by died_at limit $2
   for no key update of d skip locked`),
		forwarded: x(`
update @schema@.dead d set forwarded_at = clock_timestamp()
  from unnest($2::text[], $3::text[], $4::int8[], $5::int8[]) as t(stream, key, epoch, seq)
 where d.consumer = $1 and d.stream = t.stream and d.key = t.key and d.epoch = t.epoch and d.seq = t.seq and d.kind = 'data'`),
	}
}
