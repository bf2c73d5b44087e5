package consumer

import "github.com/fenceline/fenceline/internal/schema"

// The lists read columns that the monitor may read; what a record says, and what
// a handler said of it, only the statements named full.
const (
	parkedStored = `0::int8, stream, key, epoch, seq, kind, from_seq, topic, partition, kafka_offset, event_id::text, reason, attempts, size::int8,
       parked_at, updated_at, '', '', erased_at is not null`
	deadStored = `0::int8, stream, key, epoch, seq, kind, seq, topic, partition, kafka_offset, event_id::text, '', attempts, size::int8,
       died_at, updated_at, case when retry then 'retry' else '' end, case when discarded_at is null then '' else 'discarded' end, erased_at is not null`
	quarantineStored = `id, coalesce(stream, ''), coalesce(key, ''), coalesce(epoch, 0), coalesce(seq, 0), coalesce(kind, ''), coalesce(seq, 0),
       topic, partition, kafka_offset, '', reason, attempts, size::int8, quarantined_at, updated_at, coalesce(retry, ''), coalesce(outcome, ''), erased_at is not null`
	saysStored = `, coalesce(error, ''), headers, kafka_key, value, timestamp_ms`

	atStored = ` where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5`
)

// kindOrder is "kind desc" as a number: what is compared with a row must ascend
// in all of its columns.
func kindOrder(kind string) string {
	return "case " + kind + " when 'skip' then 0 when 'end' then 1 else 2 end"
}

type operatorStatements struct {
	known                                                                                   string
	audit, audits                                                                           string
	blockedList, parkedList, deadList, quarantineList, parkedFull, deadFull, quarantineFull string
	guardRow, partitionList, unfail, parkedEnd, parkedOf, parkedAt, eraseParked             string
	deadRow, deadAt, retryDead, discardDead, eraseDead                                      string
	quarantinedRow, retryQuarantined, discardQuarantined, eraseQuarantined                  string
	truncatedAt, accept, recheckAll, pinned, topicState, pin                                string
}

func newOperatorStatements(name string) operatorStatements {
	x := func(template string) string { return schema.Expand(template, name) }
	return operatorStatements{
		known: x(`
select exists (select from @schema@.consumer_stream where consumer = $1) or exists (select from @schema@.consumer_offset where consumer = $1)
    or exists (select from @schema@.consumer_topic where consumer = $1) or exists (select from @schema@.quarantine where consumer = $1)`),
		audit: x(`
insert into @schema@.consumer_audit (consumer, action, who, reason, stream, key, epoch, from_seq, to_seq, topic, partition, from_offset, to_offset, detail)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14::jsonb)`),
		audits: x(`
select id, at, action, coalesce(who, ''), reason, actor, coalesce(stream, ''), coalesce(key, ''), coalesce(epoch, 0), coalesce(from_seq, 0), coalesce(to_seq, 0),
       coalesce(topic, ''), coalesce(partition, 0), coalesce(from_offset, -1), coalesce(to_offset, -1), detail::text
  from @schema@.consumer_audit
 where consumer = $1 and ($2::text = '' or stream = $2) and ($3::text = '' or key = $3)
 order by id desc limit $4`),

		blockedList: x(`
select stream, key, blocked, blocked_since, epoch, seq, parked_rows, parked_bytes, unstored <> '{}'
  from @schema@.guard
 where consumer = $1 and blocked is not null and ($2::text = '' or stream = $2) and ($3::text = '' or key = $3)
   and (stream, key) > ($4::text collate "C", $5::text collate "C")
 order by stream, key limit $6`),
		parkedList: x(`select ` + parkedStored + `
  from @schema@.parked
 where consumer = $1 and stream = $2 and key = $3
   and (epoch > $4::int8 or epoch = $4::int8 and (from_seq, ` + kindOrder("kind") + `, seq) > (coalesce((
         select from_seq from @schema@.parked where consumer = $1 and stream = $2 and key = $3 and epoch = $4::int8 and seq = $5::int8 and kind = $6::text), $5::int8),
         ` + kindOrder("$6::text") + `, $5::int8))
 order by epoch, from_seq, kind desc, seq limit $7`),
		deadList: x(`select ` + deadStored + `
  from @schema@.dead
 where consumer = $1 and ($2::text = '' or stream = $2) and ($3::text = '' or key = $3) and ($4 or discarded_at is null)
   and (stream, key, epoch, seq) > ($5::text collate "C", $6::text collate "C", $7::int8, $8::int8)
 order by stream, key, epoch, seq limit $9`),
		quarantineList: x(`select ` + quarantineStored + `
  from @schema@.quarantine
 where consumer = $1 and ($2::text = '' or stream = $2) and ($3::text = '' or key = $3) and ($4 or resolved_at is null) and id > $5
 order by id limit $6`),
		parkedFull:     x(`select ` + parkedStored + saysStored + ` from @schema@.parked` + atStored + ` order by kind limit 1`),
		deadFull:       x(`select ` + deadStored + saysStored + ` from @schema@.dead` + atStored),
		quarantineFull: x(`select ` + quarantineStored + saysStored + ` from @schema@.quarantine where consumer = $1 and id = $2`),
		guardRow: x(`
select g.epoch, coalesce(g.token, 0), g.seq, g.missed::text, coalesce(g.end_seq, 0), coalesce(g.start_epoch, 0), coalesce(g.start_seq, 0), g.settled,
       coalesce(g.waiting_epoch, 0), coalesce(g.blocked, ''), g.blocked_since, g.parked_rows, g.parked_bytes, g.unstored, g.recheck, g.updated_at,
       coalesce(s.policy, ''), coalesce(s.start, ''), coalesce(s.forgotten, 0)
  from @schema@.guard g
  left join @schema@.consumer_stream s on s.consumer = g.consumer and s.stream = g.stream
 where g.consumer = $1 and g.stream = $2 and g.key = $3`),
		partitionList: x(`
select topic, partition, next_offset, coalesce(overflow_offset, -1), truncated_at, coalesce(truncated_from, -1), coalesce(truncated_to, -1)
  from @schema@.consumer_offset where consumer = $1 order by topic, partition`),

		// What was erased can't be tried.
		unfail: x(`
update @schema@.parked set reason = 'gap', updated_at = clock_timestamp()
 where consumer = $1 and stream = $2 and key = $3 and reason in ('failing', 'conflict') and erased_at is null`),
		parkedEnd: x(`
select exists (select from @schema@.parked
                where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq between $5 and $6 and kind = 'end')`),
		parkedOf: x(`select count(*) > 0, coalesce(max(seq), 0) from @schema@.parked where consumer = $1 and stream = $2 and key = $3 and epoch = $4`),
		parkedAt: x(`select kind, topic, partition, kafka_offset, headers, kafka_key, value, timestamp_ms, size::int8 from @schema@.parked` + atStored),
		eraseParked: x(`
update @schema@.parked set value = null, headers = $7, size = $8, reason = 'failing', error = 'what it said was erased by an operator',
       erased_at = clock_timestamp(), updated_at = clock_timestamp()` + atStored + ` and kind = $6`),

		deadRow:     x(`select size::int8, discarded_at is not null, erased_at is not null from @schema@.dead` + atStored),
		deadAt:      x(`select kind, topic, partition, kafka_offset, headers, kafka_key, value, timestamp_ms, size::int8 from @schema@.dead` + atStored),
		retryDead:   x(`update @schema@.dead set retry = true, updated_at = clock_timestamp()` + atStored),
		discardDead: x(`update @schema@.dead set discarded_at = clock_timestamp(), retry = false, updated_at = clock_timestamp()` + atStored),
		eraseDead: x(`
update @schema@.dead set value = null, headers = $7, size = $8, error = 'what it said was erased by an operator', retry = false,
       erased_at = clock_timestamp(), updated_at = clock_timestamp()` + atStored + ` and kind = $6`),

		quarantinedRow: x(`
select topic, partition, kafka_offset, headers, kafka_key, value, timestamp_ms, reason, erased_at is not null, resolved_at is not null
  from @schema@.quarantine where consumer = $1 and id = $2`),
		retryQuarantined: x(`
update @schema@.quarantine set retry = $3, stream = $4, key = $5, epoch = $6, seq = $7, kind = $8, updated_at = clock_timestamp()
 where consumer = $1 and id = $2 and resolved_at is null and erased_at is null`),
		discardQuarantined: x(`
update @schema@.quarantine set resolved_at = clock_timestamp(), outcome = 'discarded', retry = null, updated_at = clock_timestamp()
 where consumer = $1 and id = $2 and resolved_at is null`),
		eraseQuarantined: x(`
update @schema@.quarantine set value = null, kafka_key = null, headers = '{}', size = 0, retry = null, erased_at = clock_timestamp(), updated_at = clock_timestamp(),
       error = case when reason = 'malformed' then 'what it said was erased by an operator' else error end
 where consumer = $1 and id = $2 and erased_at is null`),

		truncatedAt: x(`
select truncated_at is not null, coalesce(truncated_from, -1), coalesce(truncated_to, -1)
  from @schema@.consumer_offset where consumer = $1 and topic = $2 and partition = $3 for update`),
		accept: x(`
update @schema@.consumer_offset set truncated_at = null, truncated_from = null, truncated_to = null, updated_at = clock_timestamp()
 where consumer = $1 and topic = $2 and partition = $3`),
		recheckAll: x(`
update @schema@.guard g set recheck = true
  from (select stream, key from @schema@.guard where consumer = $1 and blocked is not null order by stream, key for no key update) b
 where g.consumer = $1 and g.stream = b.stream and g.key = b.key and not g.recheck`),
		pinned: x(`select partitions from @schema@.consumer_topic where consumer = $1 and topic = $2 for update`),
		topicState: x(`
select o.partition, o.next_offset, o.overflow_offset is null and o.truncated_at is null,
       not exists (select from @schema@.parked p where p.consumer = o.consumer and p.topic = o.topic and p.partition = o.partition)
  from @schema@.consumer_offset o where o.consumer = $1 and o.topic = $2`),
		pin: x(`update @schema@.consumer_topic set partitions = $3, pinned_at = clock_timestamp() where consumer = $1 and topic = $2`),
	}
}
