package consumer

import "github.com/fenceline/fenceline/internal/schema"

const (
	// Rows that are missing are created first, since only what is there can be
	// locked: of two members who see the first event of a stream, one waits
	// here until the other has committed. It is a statement of its own because
	// a statement doesn't see the rows that another has committed while it
	// waited; the next one does.
	//
	// In key order, like the next: whoever needs several guards takes them in
	// the same order, and no two wait for each other. Epoch 0 says that nothing
	// is known yet.
	createSQL = `
insert into @schema@.guard (consumer, stream, key)
select $1, t.stream, t.key
  from unnest($2::text[], $3::text[]) as t(stream, key)
 order by t.stream collate "C", t.key collate "C"
    on conflict do nothing`

	// The lock. NO KEY, because nobody refers to guards by foreign key with
	// anything else, and the key never changes. PostgreSQL sorts before it
	// locks, and reads again what changed while it waited: so it must be READ
	// COMMITTED, and what is decided afterwards is decided on the newest guard.
	lockSQL = `
select g.stream, g.key, g.epoch, coalesce(g.token, 0), g.seq, g.missed::text, coalesce(g.end_seq, 0),
       coalesce(g.start_epoch, 0), coalesce(g.start_seq, 0), g.settled, coalesce(g.waiting_epoch, 0), coalesce(g.blocked, '')
  from unnest($2::text[], $3::text[]) as t(stream, key)
  join @schema@.guard g on g.consumer = $1 and g.stream = t.stream and g.key = t.key
 order by g.stream collate "C", g.key collate "C"
   for no key update of g`

	// What follows is read behind the lock: whoever forgets a guard, discards a
	// dead letter or flags a partition holds it, or has committed.
	factsSQL = `select current_setting('transaction_isolation'), clock_timestamp()`

	streamsSQL = `
select stream, policy, start, forgotten
  from @schema@.consumer_stream
 where consumer = $1 and stream = any($2)`

	truncatedSQL = `
select topic, partition
  from @schema@.consumer_offset
 where consumer = $1 and truncated_at is not null`

	// Only for streams whose policy is state, and few events have one.
	deadSQL = `
select d.stream, d.key, d.epoch, d.seq, d.discarded_at is not null
  from unnest($2::text[], $3::text[], $4::int8[], $5::int8[]) as t(stream, key, epoch, seq)
  join @schema@.dead d on d.consumer = $1 and d.stream = t.stream and d.key = t.key and d.epoch = t.epoch and d.seq = t.seq`

	addStreamSQL = `
insert into @schema@.consumer_stream (consumer, stream, policy, start)
values ($1, $2, $3, $4)
    on conflict do nothing`

	// One statement moves all guards of the batch. blocked_since is the time
	// since when the stream stands for the same reason.
	moveSQL = `
update @schema@.guard g
   set epoch = u.epoch, token = nullif(u.token, 0), seq = u.seq, missed = u.missed::int8multirange, end_seq = nullif(u.end_seq, 0),
       start_epoch = nullif(u.start_epoch, 0), start_seq = nullif(u.start_seq, 0), settled = u.settled,
       waiting_epoch = nullif(u.waiting_epoch, 0), blocked = nullif(u.blocked, ''),
       blocked_since = case when u.blocked = '' then null when u.blocked = g.blocked then g.blocked_since else clock_timestamp() end,
       updated_at = clock_timestamp()
  from unnest($2::text[], $3::text[], $4::int8[], $5::int8[], $6::int8[], $7::text[], $8::int8[], $9::int8[], $10::int8[], $11::bool[], $12::int8[], $13::text[])
    as u(stream, key, epoch, token, seq, missed, end_seq, start_epoch, start_seq, settled, waiting_epoch, blocked)
 where g.consumer = $1 and g.stream = u.stream and g.key = u.key`

	// A copy of a parked record waits with the first one; only what a handler
	// said of it is newer.
	parkSQL = `
insert into @schema@.parked as p (consumer, stream, key, epoch, seq, kind, from_seq, topic, partition, kafka_offset, event_id,
       headers, kafka_key, value, timestamp_ms, reason, error, attempts)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
    on conflict (consumer, stream, key, epoch, seq, kind) do update
   set reason = excluded.reason, error = coalesce(excluded.error, p.error), attempts = p.attempts + excluded.attempts, updated_at = clock_timestamp()
 where excluded.reason = 'failing'`

	unparkSQL = `
delete from @schema@.parked
 where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and kind = $6`

	failSQL = `
update @schema@.parked
   set reason = 'failing', error = $7, attempts = attempts + 1, updated_at = clock_timestamp()
 where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and kind = $6`

	failingSQL = `
select exists (select from @schema@.parked
                where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and kind = 'data' and reason = 'failing')`

	parkedColumns = `epoch, seq, kind, topic, partition, kafka_offset, headers, kafka_key, value, timestamp_ms, reason, attempts`

	// What a guard at ($4, $5) with missed $6 may decide, in order: what it has
	// passed, what may come next, and the beginnings of later lives.
	candidatesSQL = `
select ` + parkedColumns + `
  from @schema@.parked
 where consumer = $1 and stream = $2 and key = $3
   and (epoch < $4 or epoch = $4 and (from_seq <= $5::int8 + $7::int8 or $6::text::int8multirange @> seq) or epoch > $4 and from_seq = 1)
 order by epoch, from_seq, kind desc, seq
 limit $7::int8`

	lowestSQL = `
select ` + parkedColumns + `
  from @schema@.parked
 where consumer = $1 and stream = $2 and key = $3
 order by epoch, from_seq, kind desc, seq
 limit 1`

	// What could not be stored may be of any later life.
	waitingSQL = `
select case when exists (select from @schema@.consumer_offset where consumer = $1 and overflow_offset is not null) then $4::int8 + 1
            else coalesce((select min(epoch) from @schema@.parked where consumer = $1 and stream = $2 and key = $3 and epoch > $4::int8), 0) end`

	// A blocked stream whose lowest parked record is not where a hole begins:
	// the transaction that had its turn had enough of them.
	pendingSQL = `
select g.stream, g.key
  from @schema@.guard g
 cross join lateral (select p.epoch, p.from_seq, p.reason
                       from @schema@.parked p
                      where p.consumer = g.consumer and p.stream = g.stream and p.key = g.key
                      order by p.epoch, p.from_seq, p.kind desc, p.seq
                      limit 1) p
 where g.consumer = $1 and g.blocked = 'gap' and p.reason <> 'failing'
   and (p.epoch < g.epoch
        or p.epoch = g.epoch and p.from_seq <= g.seq + 1
           and (g.settled or not exists (select from @schema@.consumer_offset o where o.consumer = $1 and o.truncated_at is not null))
        or p.epoch > g.epoch and p.from_seq = 1)
 order by g.stream, g.key
 limit $2`

	buryDeadSQL = `
insert into @schema@.dead as d (consumer, stream, key, epoch, seq, kind, topic, partition, kafka_offset, event_id,
       headers, kafka_key, value, timestamp_ms, error)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
    on conflict (consumer, stream, key, epoch, seq, kind) do update
   set error = excluded.error, attempts = d.attempts + 1, updated_at = clock_timestamp()`

	unburySQL = `
delete from @schema@.dead
 where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and discarded_at is null`

	quarantineSQL = `
insert into @schema@.quarantine (consumer, topic, partition, kafka_offset, digest, reason, error, stream, key, epoch, seq, kind,
       headers, kafka_key, value, timestamp_ms)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
    on conflict (consumer, topic, partition, kafka_offset, digest) do nothing`

	spoilSQL = `do $$ begin raise exception 'the guard gave this transaction up: it can only be rolled back'; end $$`
)

// statements are the above for one schema.
type statements struct {
	create, lock, streams, truncated, dead, addStream, move           string
	park, unpark, fail, failing, candidates, lowest, waiting, pending string
	bury, unbury, quarantine                                          string
}

func newStatements(name string) statements {
	x := func(template string) string { return schema.Expand(template, name) }
	return statements{
		create: x(createSQL), lock: x(lockSQL), streams: x(streamsSQL), truncated: x(truncatedSQL), dead: x(deadSQL),
		addStream: x(addStreamSQL), move: x(moveSQL),
		park: x(parkSQL), unpark: x(unparkSQL), fail: x(failSQL), failing: x(failingSQL), candidates: x(candidatesSQL),
		lowest: x(lowestSQL), waiting: x(waitingSQL), pending: x(pendingSQL),
		bury: x(buryDeadSQL), unbury: x(unburySQL), quarantine: x(quarantineSQL),
	}
}
