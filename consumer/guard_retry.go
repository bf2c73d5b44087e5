package consumer

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// recheck decides again what is stored of a stream, as far as somebody wants
// that: parked records, dead letters and quarantined records. Who applies a
// record is always the consumer, whose handler it is; what operators ask for is
// noted in the row, under the guard's lock, and carried out here, under it.
func (b *batch) recheck(e *entry) error {
	changed, err := b.settle(e)
	if err != nil {
		return err
	}
	strict := b.stream(e.Stream).Policy != State
	if strict && e.row != nil && (e.row.Blocked != "" || changed) {
		if err := b.resume(e); err != nil {
			return err
		}
	}
	if err := b.redrive(e, !strict); err != nil {
		return err
	}
	if e.recheck != b.more[e.StreamKey] {
		e.recheck, e.changed = b.more[e.StreamKey], true
	}
	return nil
}

// redrive tries the dead letters and the quarantined records of a stream that an
// operator wants to be tried.
func (b *batch) redrive(e *entry, dead bool) error {
	if err := b.flush(); err != nil {
		return err
	}
	if dead {
		letters, err := b.fetch(e, b.g.sql.deadRetry, b.g.cfg.Consumer, e.Stream, e.Key, min(b.budget, resumePage)+1)
		if err != nil {
			return err
		}
		for i := range letters {
			if b.budget == 0 || i == resumePage {
				b.more[e.StreamKey] = true
				return nil
			}
			b.budget--
			if letters[i].unreadable != nil {
				b.buryUnreadable(&letters[i])
				continue
			}
			if err := b.redriveDead(e, &letters[i].Delivery); err != nil {
				return err
			}
		}
	}
	records, err := b.fetchQuarantined(e, min(b.budget, resumePage)+1)
	if err != nil {
		return err
	}
	if dead {
		if err := b.findDead(records); err != nil {
			return err
		}
	}
	for i := range records {
		if b.budget == 0 || i == resumePage {
			b.more[e.StreamKey] = true
			return nil
		}
		b.budget--
		if err := b.redriveQuarantined(e, &records[i]); err != nil {
			return err
		}
	}
	return nil
}

// findDead finds the dead letters of what is in quarantine: a copy that lay there is
// one like others. One whose letter was discarded is never applied, and one that is
// applied takes its letter away.
func (b *batch) findDead(records []quarantinedRecord) error {
	var ps positions
	for i := range records {
		if d := &records[i].Delivery; d.Malformed == nil && b.g.check(d) == nil {
			ps.add(d.Position())
		}
	}
	if len(ps.epochs) == 0 {
		return nil
	}
	rows, err := b.tx.Query(b.ctx, b.g.sql.dead, b.g.cfg.Consumer, ps.streams, ps.keys, ps.epochs, ps.seqs)
	if err != nil {
		return fmt.Errorf("consumer: reading dead letters: %w", err)
	}
	defer rows.Close()
	if err := b.readDead(rows); err != nil {
		return fmt.Errorf("consumer: reading dead letters: %w", err)
	}
	return nil
}

// redriveDead decides a dead letter again, exactly as if a copy had arrived: the
// guard did not move for it, so it is applied unless something newer was.
// Decided it is a dead letter no more.
func (b *batch) redriveDead(e *entry, d *Delivery) error {
	d.origin = fromDead
	if b.dead == nil {
		b.dead = make(map[Position]deadState)
	}
	b.dead[d.Position()] = deadLetter
	dec := Decide(b.input(e, &d.Record, d.Partition))
	if _, err := b.carryOut(e, d, dec); err != nil {
		return err
	}
	b.unbury(e, d)
	b.resumed = append(b.resumed, b.result(d, dec))
	return nil
}

// quarantinedRecord is one that an operator wants to be tried.
type quarantinedRecord struct {
	Delivery
	admit bool
}

func (b *batch) redriveQuarantined(e *entry, q *quarantinedRecord) error {
	d := &q.Delivery
	b.admitted = q.admit
	defer func() { b.admitted = false }()
	if d.Malformed == nil {
		d.Malformed = b.g.check(d)
	}
	in := b.input(e, &d.Record, d.Partition)
	in.Malformed = d.Malformed
	dec := Decide(in)
	text := ""
	if dec.Outcome == Quarantined {
		text = b.explain(e.row, d, dec.Reason)
	}
	stored, err := b.carryOut(e, d, dec)
	if err != nil {
		return err
	}
	b.resolve(d, dec, stored, text)
	if dec.Moved && e.row.Blocked != "" {
		if err := b.resume(e); err != nil {
			return err
		}
	}
	b.resumed = append(b.resumed, b.result(d, dec))
	return nil
}

// resolve notes what became of a quarantined record that was tried. One that
// would wait elsewhere now and does not fit there stays where it is.
func (b *batch) resolve(d *Delivery, dec Decision, stored bool, text string) {
	switch {
	case !stored:
		b.queue.Queue(b.g.sql.tryLater, d.id, "it would be "+string(dec.Outcome)+" now, and that is full")
	case dec.Outcome == Quarantined:
		b.queue.Queue(b.g.sql.refuseAgain, d.id, string(dec.Reason), text)
	default:
		b.queue.Queue(b.g.sql.resolve, d.id, string(dec.Outcome))
	}
}

// fail notes that a stored event's handler fails for good.
func (b *batch) fail(d *Delivery, cause error) error {
	switch d.origin {
	case fromDead:
		_, err := b.tx.Exec(b.ctx, b.g.sql.failDead, b.g.cfg.Consumer, d.Stream, d.Key, d.Epoch, d.Seq, clean(cause))
		return err
	case fromQuarantine:
		e := b.entries[d.Position().StreamKey]
		if b.stream(d.Stream).Policy == State {
			if err := b.findDead([]quarantinedRecord{{Delivery: *d}}); err != nil {
				return err
			}
		}
		d.Failed, b.admitted = cause, true // it came as far as its handler
		dec := DecideFailed(b.input(e, &d.Record, d.Partition))
		stored, err := b.carryOut(e, d, dec)
		if err != nil {
			return err
		}
		b.resolve(d, dec, stored, clean(cause))
		return b.finish()
	}
	_, err := b.tx.Exec(b.ctx, b.g.sql.fail, b.g.cfg.Consumer, d.Stream, d.Key, d.Epoch, d.Seq, string(d.kind()), clean(cause))
	return err
}

func (b *batch) fetchQuarantined(e *entry, limit int) ([]quarantinedRecord, error) {
	rows, err := b.tx.Query(b.ctx, b.g.sql.quarantineRetry, b.g.cfg.Consumer, e.Stream, e.Key, limit)
	if err != nil {
		return nil, fmt.Errorf("consumer: reading the quarantine of %s: %w", e.StreamKey, err)
	}
	records, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (q quarantinedRecord, err error) {
		var (
			id, ms    int64
			p         Partition
			attempts  int
			headers   [][]byte
			raw       KafkaRecord
			retryKind string
		)
		if err := row.Scan(&id, &p.Topic, &p.ID, &raw.Offset, &headers, &raw.Key, &raw.Value, &ms, &attempts, &retryKind); err != nil {
			return q, err
		}
		raw.Time, raw.Headers = time.UnixMilli(ms), wireHeaders(headers)
		q.Delivery = b.g.cfg.Mapping.Delivery(p, raw)
		q.Attempt, q.Resumed, q.origin, q.id, q.admit = attempts+1, true, fromQuarantine, id, retryKind == "admit"
		if q.Malformed == nil && q.Position().StreamKey != e.StreamKey {
			// Whoever asked for it reads by another mapping. That is said of the
			// record, and is no reason to end for.
			q.Malformed = fmt.Errorf("consumer: it was to be tried as one of %s, and the consumer's mapping makes of it %s: set OperatorConfig.Mapping to that one", e.StreamKey, q.Position())
		}
		return q, nil
	})
	if err != nil {
		return nil, fmt.Errorf("consumer: reading the quarantine of %s: %w", e.StreamKey, err)
	}
	return records, nil
}

// explainStale finds out who gave up what is stale, and why.
func (b *batch) explainStale(results []Result) error {
	var (
		at     []int
		ks, ss []string
		es, qs []int64
	)
	for i, r := range results {
		if r.Outcome == Stale && r.Rule != "3c" {
			at = append(at, i)
			ss, ks, es, qs = append(ss, r.Stream), append(ks, r.Key), append(es, r.Epoch), append(qs, r.Seq)
		}
	}
	if len(at) == 0 {
		return nil
	}
	rows, err := b.tx.Query(b.ctx, b.g.sql.audited, b.g.cfg.Consumer, ss, ks, es, qs)
	if err != nil {
		return fmt.Errorf("consumer: reading the audit: %w", err)
	}
	var n int
	var why string
	_, err = pgx.ForEachRow(rows, []any{&n, &why}, func() error {
		results[at[n-1]].Why = why
		return nil
	})
	if err != nil {
		return fmt.Errorf("consumer: reading the audit: %w", err)
	}
	return nil
}

type retryStatements struct {
	deadRetry, failDead, quarantineRetry, resolve, refuseAgain, tryLater, open, audited string
}

func newRetryStatements(x func(string) string) retryStatements {
	return retryStatements{
		deadRetry: x(`
select epoch, seq, kind, seq, topic, partition, kafka_offset, headers, kafka_key, value, timestamp_ms, '', attempts, erased_at is not null
  from @schema@.dead
 where consumer = $1 and stream = $2 and key = $3 and retry and discarded_at is null and erased_at is null
 order by epoch, seq limit $4`),
		failDead: x(`
update @schema@.dead set error = $6, attempts = attempts + 1, retry = false, updated_at = clock_timestamp()
 where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5`),
		quarantineRetry: x(`
select id, topic, partition, kafka_offset, headers, kafka_key, value, timestamp_ms, attempts, retry
  from @schema@.quarantine
 where consumer = $1 and stream = $2 and key = $3 and retry is not null and resolved_at is null and erased_at is null
 order by epoch, seq, id limit $4`),
		resolve:     x(`update @schema@.quarantine set retry = null, resolved_at = clock_timestamp(), outcome = $2, updated_at = clock_timestamp() where id = $1`),
		refuseAgain: x(`update @schema@.quarantine set retry = null, reason = $2, error = $3, attempts = attempts + 1, updated_at = clock_timestamp() where id = $1`),
		tryLater:    x(`update @schema@.quarantine set retry = null, error = $2, attempts = attempts + 1, updated_at = clock_timestamp() where id = $1`),
		open: x(`
select count(*), coalesce(sum(size), 0)::int8
  from (select size from @schema@.quarantine where consumer = $1 and resolved_at is null limit $2) q`),
		// The latest word on an event counts.
		audited: x(`
select distinct on (t.n) t.n, a.action || ' by ' || coalesce(a.who, a.actor) || ': ' || a.reason
  from unnest((select $2::text[]), $3::text[], $4::int8[], $5::int8[]) with ordinality as t(stream, key, epoch, seq, n)
  join @schema@.consumer_audit a on a.consumer = $1 and a.stream = t.stream and a.key = t.key
   and a.epoch = t.epoch and t.seq between a.from_seq and a.to_seq and a.action in ('discard', 'adopt')
 order by t.n, a.id desc`),
	}
}
