package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fenceline/fenceline/internal/schema"
	"github.com/fenceline/fenceline/outbox"
)

func (r *run) sql(text string) string { return schema.Expand(text, r.cfg.Schema) }

// cursors is what the relay has promised, as JSON arrays for readProducer.
type cursors struct {
	flows, held string
	estimate    int64 // rows of the outbox, about
}

// cursorsSQL is one statement, so that a hold or a fork is seen with the cursor
// that went on without it. A flow without a topic is of all topics; what is in
// a fork's topic must be behind both, which errs towards "not yet published". A
// shard that no relay has stored a cursor for has published nothing.
const cursorsSQL = `
with newest as (
  select s::smallint as s, (select c.n from @schema@.relay_checkpoint c where s::smallint = any (c.shards) order by c.n desc limit 1) as n from generate_series(0, 63) s)
select coalesce((select jsonb_agg(c) from (
         select null::text as topic, g.shards, c.s1::text, c.s2::text, c.last_pos
           from (select n, array_agg(s) as shards from newest group by n) g left join @schema@.relay_checkpoint c on c.n = g.n
         union all
         select topic, shards, s1::text, s2::text, last_pos from @schema@.relay_fork) c), '[]')::text,
       coalesce((select jsonb_agg(h) from (select topic, key, pos from @schema@.relay_held) h), '[]')::text,
       coalesce((select sum(greatest(c.reltuples, 0))::bigint from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = '@schema_name@.outbox'::regclass), 0)`

func (r *run) readCursors(ctx context.Context) (*cursors, error) {
	if err := schema.Check(ctx, r.cfg.Producer, r.cfg.Schema, schema.Producer); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	var at cursors
	err := reading(ctx, r.cfg.Producer, pgx.ReadCommitted, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, r.sql(cursorsSQL)).Scan(&at.flows, &at.held, &at.estimate)
	})
	if err != nil {
		return nil, fmt.Errorf("verify: read the relay's cursors: %w", err)
	}
	return &at, nil
}

// streams are the topics that events were ever appended to, as far as remembered.
func (r *run) streams(ctx context.Context) ([]string, error) {
	// Skips from one topic to the next by index: a key's count doesn't matter.
	topics, err := r.names(ctx, `
with recursive t as (
  (select topic from @schema@.head order by topic limit 1)
  union all
  select (select h.topic from @schema@.head h where h.topic > t.topic order by h.topic limit 1) from t where t.topic is not null)
select topic from t where topic is not null`)
	if err != nil {
		return nil, fmt.Errorf("verify: list the topics of the outbox: %w", err)
	}
	return topics, nil
}

// names is one column of texts.
func (r *run) names(ctx context.Context, sql string) (names []string, err error) {
	err = reading(ctx, r.cfg.Producer, pgx.ReadCommitted, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, r.sql(sql))
		if err == nil {
			names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	})
	return names, err
}

// retired are the topics that an operator has given up.
func (r *run) retired(ctx context.Context) ([]string, error) {
	topics, err := r.names(ctx, `select topic from @schema@.relay_topic where retired_at is not null`)
	if err != nil {
		return nil, fmt.Errorf("verify: list the retired topics: %w", err)
	}
	return topics, nil
}

// formerly is that a topic had another number of partitions, up to when an
// operator accepted the present one.
type formerly struct {
	partitions int
	until      time.Time
}

// formerCounts gives, by topic, what an operator has accepted it away from; the
// oldest first.
func (r *run) formerCounts(ctx context.Context) (map[string][]formerly, error) {
	counts := map[string][]formerly{}
	err := reading(ctx, r.cfg.Producer, pgx.ReadCommitted, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, r.sql(`select topic, (detail ->> 'before')::int, at from @schema@.relay_audit
		where action = 'topic accept' and topic is not null and (detail ->> 'before')::int > 0 order by n`))
		if err != nil {
			return err
		}
		var topic string
		var f formerly
		_, err = pgx.ForEachRow(rows, []any{&topic, &f.partitions, &f.until}, func() error {
			counts[topic] = append(counts[topic], f)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("verify: list the partition counts that were: %w", err)
	}
	return counts, nil
}

// rowsSQL reads the outbox by primary key, with what its receipt, its fence and
// the relay say of each row.
const rowsSQL = `
select o.pos, o.id, o.aggregatetype, o.type, o.payload, o.topic, o.key, o.epoch, o.token, o.seq, o.kind, o.subject, o.source, o.contenttype, o.headers::text,
       o.history, o.prev_epoch, o.prev_seq, o.created_at,
       o.kind <> 'data' or exists (select 1 from @schema@.receipt r where r.key = o.key and r.epoch = o.epoch and r.token = o.token)
         or coalesce((o.epoch, o.token) <= (f.floor_epoch, f.floor_token), true) as receipt,
       coalesce((o.epoch, o.token) > (f.epoch, f.max_issued_token), false) as ahead, f.epoch, f.max_issued_token,
       exists (select 1 from jsonb_to_recordset($3::text::jsonb) h (topic text, key text, pos bigint) where h.topic = o.topic and h.key = o.key and o.pos >= h.pos) as held,
       coalesce((select bool_and(coalesce(pg_visible_in_snapshot(o.xid, c.s1::pg_snapshot) or c.s2 is not null and pg_visible_in_snapshot(o.xid, c.s2::pg_snapshot) and o.pos <= c.last_pos, false))
         from jsonb_to_recordset($4::text::jsonb) c (topic text, shards smallint[], s1 text, s2 text, last_pos bigint)
        where (c.topic is null or c.topic = o.topic) and o.shard = any (c.shards)), false) as behind,
       coalesce(o.verdict = 'retired', false) as retired
  from (select * from @schema@.outbox where pos > $1 order by pos limit $2) o
  left join @schema@.fence f on f.key = o.key
 order by o.pos`

// pageRows is small enough for payloads of the largest size.
const pageRows = 500

func (r *run) readProducer(ctx context.Context, at *cursors) error {
	var found error // of what was read, which has its own words
	err := reading(ctx, r.cfg.Producer, pgx.RepeatableRead, func(tx pgx.Tx) error {
		found = r.readOutbox(ctx, tx, at)
		return found
	})
	if err != nil && found == nil {
		return fmt.Errorf("verify: read the outbox: %w", err)
	}
	return found
}

func (r *run) readOutbox(ctx context.Context, tx pgx.Tx, at *cursors) error {
	if err := r.readHistory(ctx, tx); err != nil {
		return err
	}
	for after := int64(-1); ; {
		rows, err := tx.Query(ctx, r.sql(rowsSQL), after, pageRows, at.held, at.flows)
		if err != nil {
			return fmt.Errorf("verify: read the outbox: %w", err)
		}
		n := 0
		for rows.Next() {
			pos, err := r.row(rows)
			if err != nil {
				rows.Close()
				return err
			}
			after = pos
			n++
		}
		if err := rows.Err(); err != nil {
			return fmt.Errorf("verify: read the outbox: %w", err)
		}
		r.report.Events += int64(n)
		r.cfg.Progress("outbox", r.report.Events, at.estimate)
		if n < pageRows {
			break
		}
	}
	return r.readHeads(ctx, tx)
}

// readHistory finds out what the outbox still has, and since when the history
// runs.
func (r *run) readHistory(ctx context.Context, tx pgx.Tx) error {
	// A database that has lost nothing yet begins at pos 1. If it doesn't, its
	// oldest rows were dropped (or their transactions rolled back): what was
	// appended after the oldest one is still there. A minute is for rows that
	// were created before those in front of them.
	// Behind a partition that was dropped the same is true of what is there without
	// a gap; and of a plain table, from which a held stream's rows don't go, of what
	// isn't held.
	if _, err := tx.Exec(ctx, r.sql(`select from @schema@.outbox limit 1`)); err != nil { // first, so that no partition goes any more
		return fmt.Errorf("verify: read the outbox: %w", err)
	}
	whole, plain, err := r.readGaps(ctx, tx)
	if err != nil {
		return err
	}
	const oldest = `select o.pos, o.created_at from @schema@.outbox o where o.pos >= $1
		and not ($2 and exists (select 1 from @schema@.relay_held h where h.topic = o.topic and h.key = o.key and o.pos >= h.pos)) order by o.pos limit 1`
	var pos int64
	var created time.Time
	switch err := tx.QueryRow(ctx, r.sql(oldest), whole, plain).Scan(&pos, &created); {
	case errors.Is(err, pgx.ErrNoRows):
		r.since = 1<<63 - 1
	case err != nil:
		return fmt.Errorf("verify: read the outbox: %w", err)
	case pos > 1:
		r.since = created.Add(time.Minute).UnixMicro()
	}
	const history = `select h.since from @schema@.history h where exists (select 1 from @schema@.history_change c where c.why in ('bump', 'bump by itself'))`
	if err := tx.QueryRow(ctx, r.sql(history)).Scan(&r.born); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("verify: read the history: %w", err)
	}
	return nil
}

func (r *run) row(rows pgx.Rows) (pos int64, err error) {
	var (
		ev                            outbox.Record
		id                            [16]byte
		kind                          string
		subject, contenttype, headers *string
		history, prevEpoch, prevSeq   *int64
		receipt, ahead, held, behind  bool
		retired                       bool
		fenceEpoch, fenceToken        *int64
	)
	if err := rows.Scan(&ev.Pos, &id, &ev.AggregateType, &ev.Type, &ev.Payload, &ev.Topic, &ev.Key, &ev.Epoch, &ev.Token, &ev.Seq, &kind, &subject, &ev.Source, &contenttype, &headers,
		&history, &prevEpoch, &prevSeq, &ev.CreatedAt, &receipt, &ahead, &fenceEpoch, &fenceToken, &held, &behind, &retired); err != nil {
		return 0, fmt.Errorf("verify: read the outbox: %w", err)
	}
	ev.ID, ev.Kind, ev.Stream = id, outbox.Kind(kind), ev.Topic
	if subject != nil {
		ev.Subject = *subject
	}
	if contenttype != nil {
		ev.ContentType = *contenttype
	}
	if history != nil {
		ev.History = *history
	}
	if prevEpoch != nil && prevSeq != nil {
		ev.Prev = &outbox.Prev{Epoch: *prevEpoch, Seq: *prevSeq}
	}
	about := Finding{Stream: ev.Stream, Key: ev.Key, Epoch: ev.Epoch, Token: ev.Token, Seq: ev.Seq, Where: fmt.Sprintf("pos %d", ev.Pos)}
	say := func(k Kind, format string, args ...any) {
		f := about
		f.Kind, f.Detail = k, fmt.Sprintf(format, args...)
		r.found(f)
	}
	if headers != nil {
		if ev.Headers, err = outbox.DecodeHeaders([]byte(*headers)); err != nil {
			say(Gap, "its headers are not a list of names and values: %v", err)
		}
	}
	if !receipt {
		say(NoReceipt, "no receipt of (epoch %d, token %d), which is above the key's floor", ev.Epoch, ev.Token)
	}
	if ahead {
		say(Ahead, "the key's fence stands at (epoch %d, token %d)", *fenceEpoch, *fenceToken)
	}
	v := seen{source: inOutbox, stream: ev.Stream, key: ev.Key, offset: ev.Pos}
	v.event(&ev)
	switch {
	case retired:
		// Given up with its topic: no cursor promises it.
	case held:
		r.report.Held++
	case behind:
		v.flags |= flagBehind
	default:
		r.report.Waiting++
	}
	v.digest = fingerprint([]byte(ev.Key), outbox.WireValue(&ev), outbox.AppendWireHeaders(nil, &ev))
	return ev.Pos, r.spool.add(&v)
}

func (r *run) readHeads(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, r.sql(`select topic, key, epoch, seq from @schema@.head`))
	if err != nil {
		return fmt.Errorf("verify: read the streams' last positions: %w", err)
	}
	v := seen{source: inHead}
	_, err = pgx.ForEachRow(rows, []any{&v.stream, &v.key, &v.epoch, &v.seq}, func() error {
		r.report.Streams++ // once more if dead rows were left; see judge
		return r.spool.add(&v)
	})
	if err != nil {
		return fmt.Errorf("verify: read the streams' last positions: %w", err)
	}
	return nil
}
