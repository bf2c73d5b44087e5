package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
)

// following is what a consumer says for all its keys.
type following struct {
	name    string
	streams map[string]stream
	offsets map[logPartition]offset
	// set are the records in quarantine of which no position could be read.
	set map[logPlace]bool
}

type logPlace struct {
	logPartition
	offset int64
}

type stream struct {
	state     bool
	forgotten int64
}

type logPartition struct {
	topic     string
	partition int32
}

type offset struct {
	next     int64
	overflow int64 // from here on records may be unstored; -1 if none is
}

// NoConsumerError says that there are no guards of a consumer where it was looked
// for.
type NoConsumerError struct {
	// Name is the consumer's, Schema the one that was looked in, of Consumer.Pool's
	// database.
	Name, Schema string
}

// Error implements error.
func (e *NoConsumerError) Error() string {
	return fmt.Sprintf("verify: consumer %q has never read anything into schema %s of this database: check its name (that of consumer.Config) and the database", e.Name, e.Schema)
}

// ConsumerError says that something of a consumer could not be read.
type ConsumerError struct {
	// Name is the consumer's, Schema the one that its guards are in.
	Name, Schema string
	// Err is what kept it from being read: the database's, or that the schema isn't
	// there or is another version's.
	Err error
}

// Error names the consumer.
func (e *ConsumerError) Error() string { return fmt.Sprintf("verify: consumer %s: %v", e.Name, e.Err) }

// Unwrap gives what kept it from being read.
func (e *ConsumerError) Unwrap() error { return e.Err }

func (r *run) consumerTopics(ctx context.Context, c *Consumer) ([]string, error) {
	if err := schema.Check(ctx, c.Pool, c.Schema, schema.Consumer); err != nil {
		return nil, &ConsumerError{c.Name, c.Schema, err}
	}
	var known bool
	var topics []string
	err := reading(ctx, c.Pool, pgx.ReadCommitted, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, schema.Expand(`select exists (select 1 from @schema@.consumer_stream where consumer = $1) or exists (select 1 from @schema@.consumer_offset where consumer = $1)`, c.Schema), c.Name).Scan(&known)
		if err != nil || !known {
			return err
		}
		rows, err := tx.Query(ctx, schema.Expand(`select distinct topic from @schema@.consumer_offset where consumer = $1`, c.Schema), c.Name)
		if err == nil {
			topics, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	})
	switch {
	case err != nil:
		return nil, &ConsumerError{c.Name, c.Schema, fmt.Errorf("look for it and its topics: %w", err)}
	case !known:
		return nil, &NoConsumerError{c.Name, c.Schema}
	}
	return topics, nil
}

func (r *run) readConsumers(ctx context.Context) error {
	for i := range r.cfg.Consumers {
		c := &r.cfg.Consumers[i]
		// READ COMMITTED: what is read first is read as of before what comes later.
		err := reading(ctx, c.Pool, pgx.ReadCommitted, func(tx pgx.Tx) error { return r.readConsumer(ctx, tx, c, int32(i)) })
		if err != nil {
			return &ConsumerError{c.Name, c.Schema, err}
		}
	}
	return nil
}

func (r *run) readConsumer(ctx context.Context, tx pgx.Tx, c *Consumer, number int32) error {
	f := following{name: c.Name, streams: map[string]stream{}, offsets: map[logPartition]offset{}, set: map[logPlace]bool{}}
	query := func(sql string, to []any, each func() error) error {
		rows, err := tx.Query(ctx, schema.Expand(sql, c.Schema), c.Name)
		if err == nil {
			_, err = pgx.ForEachRow(rows, to, each)
		}
		return err
	}
	// First the offsets, then the guards: see doc.go.
	var p logPartition
	var o offset
	err := query(`select topic, partition, next_offset, coalesce(overflow_offset, -1) from @schema@.consumer_offset where consumer = $1`,
		[]any{&p.topic, &p.partition, &o.next, &o.overflow}, func() error {
			f.offsets[p] = o
			return nil
		})
	if err != nil {
		return fmt.Errorf("read its offsets: %w", err)
	}
	var name string
	var s stream
	err = query(`select stream, policy = 'state', forgotten from @schema@.consumer_stream where consumer = $1`,
		[]any{&name, &s.state, &s.forgotten}, func() error {
			f.streams[name] = s
			return nil
		})
	if err != nil {
		return fmt.Errorf("read its streams: %w", err)
	}
	var where logPlace
	err = query(`select topic, partition, kafka_offset from @schema@.quarantine where consumer = $1 and (stream is null or key is null or epoch is null or seq is null)`,
		[]any{&where.topic, &where.partition, &where.offset}, func() error {
			f.set[where] = true
			return nil
		})
	if err != nil {
		return fmt.Errorf("read its quarantine: %w", err)
	}
	r.follow = append(r.follow, f)

	// What is kept aside is read before the guards too: a record that is resumed
	// meanwhile is then below its guard.
	v := seen{source: aside, partition: number}
	err = query(`select stream, key, epoch, seq from @schema@.parked where consumer = $1
		union all select stream, key, epoch, seq from @schema@.dead where consumer = $1
		union all select stream, key, epoch, seq from @schema@.quarantine where consumer = $1 and stream is not null and key is not null and epoch is not null and seq is not null`,
		[]any{&v.stream, &v.key, &v.epoch, &v.seq}, func() error { return r.spool.add(&v) })
	if err != nil {
		return fmt.Errorf("read what it keeps aside: %w", err)
	}
	g := seen{source: inGuard, partition: number}
	var blocked bool
	err = query(`select stream, key, epoch, coalesce(token, 0), seq, missed::text, coalesce(start_epoch, 0), coalesce(start_seq, 0), blocked is not null
		from @schema@.guard where consumer = $1 and epoch > 0`,
		[]any{&g.stream, &g.key, &g.epoch, &g.token, &g.seq, &g.missed, &g.prevEpoch, &g.prevSeq, &blocked}, func() error {
			g.flags = 0
			if blocked {
				g.flags = flagBlocked
			}
			if r.report.Guards++; r.report.Guards%10_000 == 0 {
				r.cfg.Progress("guards", r.report.Guards, 0)
			}
			return r.spool.add(&g)
		})
	if err != nil {
		return fmt.Errorf("read its guards: %w", err)
	}
	return nil
}
