package consumer

import "github.com/fenceline/fenceline/internal/schema"

// A statement that is given arrays takes the first of them as (select $n). Of a
// bare parameter the planner counts what it holds, and finds a plan for the one
// guard of a small batch cheaper than one for any number, which it takes for ten: so
// it would plan anew for each transaction, which costs more than all else that
// the statement does. Behind a select both are ten, and the plan is kept.
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
	//
	// The look for what is there already is not for the result, which ON CONFLICT
	// sees to, but because an insert that comes to nothing costs five times as
	// much as a look. LATERAL with a LIMIT is what no planner turns into anything
	// but one index look-up for each key: while a table is young, and there are no
	// statistics, it would otherwise compare every key with every guard.
	createSQL = `
insert into @schema@.guard (consumer, stream, key)
select $1, t.stream, t.key
  from unnest((select $2::text[]), $3::text[]) as t(stream, key)
  left join lateral (select true as there from @schema@.guard g where g.consumer = $1 and g.stream = t.stream and g.key = t.key limit 1) x on true
 where x.there is null
 order by t.stream collate "C", t.key collate "C"
    on conflict do nothing`

	// The lock. NO KEY, because nobody refers to guards by foreign key with
	// anything else, and the key never changes. The keys come in key order (by
	// bytes, as Go compares them), which is sorted for once more, by their number,
	// before the first is looked up, and each is locked as it is looked up (a
	// locking clause in LATERAL can't be moved elsewhere). What changed while it
	// waited is read again: so it must be READ COMMITTED, and what is decided
	// afterwards is decided on the newest guard.
	//
	// A row says by number which key it is, and where it lies: that can't change
	// while it is locked, but by this transaction itself. What hardly any guard has
	// comes in one column that is null then: each column that is formatted, sent and
	// read is felt, at thousands of guards a second.
	lockSQL = `
select t.n, g.tid, ` + guardColumns + `
  from (select u.stream, u.key, u.n from unnest((select $2::text[]), $3::text[]) with ordinality as u(stream, key, n) order by u.n) t
 cross join lateral (select g.ctid as tid, g.* from @schema@.guard g where g.consumer = $1 and g.stream = t.stream and g.key = t.key for no key update) g`

	// The same for the one guard of an event that comes alone, which has no order
	// to keep.
	lockOneSQL = `
select 1::int8, g.ctid, ` + guardColumns + `
  from @schema@.guard g
 where g.consumer = $1 and g.stream = $2 and g.key = $3
   for no key update`

	guardColumns = `g.epoch, coalesce(g.token, 0), g.seq, coalesce(g.start_epoch, 0), coalesce(g.start_seq, 0), g.settled,
       case when g.end_seq is null and g.waiting_epoch is null and g.blocked is null and g.parked_rows = 0 and g.parked_bytes = 0 and not g.recheck
             and isempty(g.missed) and isempty(g.unstored_epochs) and cardinality(g.unstored) = 0 then null
            else json_build_object('end_seq', coalesce(g.end_seq, 0), 'waiting_epoch', coalesce(g.waiting_epoch, 0), 'blocked', coalesce(g.blocked, ''),
                   'parked_rows', g.parked_rows, 'parked_bytes', g.parked_bytes, 'recheck', g.recheck,
                   'missed', g.missed::text, 'unstored_epochs', g.unstored_epochs::text, 'unstored', to_json(g.unstored))::text
       end`

	// What is read behind the lock, in a statement of its own and so in a snapshot
	// of its own: whoever forgets a guard, discards a dead letter or flags a
	// partition holds the lock, or has committed. One row for each stream that is
	// known, and one at least; all but the stream is the same in each.
	//
	// truncated are partitions of which something went unread. Whoever accepts that
	// waits for those who decide while it is not accepted (KEY SHARE stands against
	// FOR UPDATE alone, and so against nobody who only moves the offset): a record
	// that is parked because of the flag is there when the parks are told to go on.
	// That and an overflow are rare, and each has an index with nothing else in it.
	factsSQL = `
select current_setting('transaction_isolation'), clock_timestamp(),
       to_json(array(select topic || '/' || partition from @schema@.consumer_offset where consumer = $1 and truncated_at is not null
                        for key share))::text,
       to_json(array(select topic || '/' || partition from @schema@.consumer_offset where consumer = $1 and overflow_offset is not null))::text,
       coalesce(s.stream, ''), coalesce(s.policy, ''), coalesce(s.start, ''), coalesce(s.forgotten, 0)
  from (select) one
  left join @schema@.consumer_stream s on s.consumer = $1 and s.stream = any ((select $2::text[])::text[])`

	streamsSQL = `
select stream, policy, start, forgotten
  from @schema@.consumer_stream
 where consumer = $1 and stream = any((select $2::text[])::text[])`

	// Only for streams whose policy is state, and few events have one.
	deadSQL = `
select d.stream, d.key, d.epoch, d.seq, d.discarded_at is not null
  from unnest((select $2::text[]), $3::text[], $4::int8[], $5::int8[]) as t(stream, key, epoch, seq)
  join @schema@.dead d on d.consumer = $1 and d.stream = t.stream and d.key = t.key and d.epoch = t.epoch and d.seq = t.seq`

	addStreamSQL = `
insert into @schema@.consumer_stream (consumer, stream, policy, start)
values ($1, $2, $3, $4)
    on conflict do nothing`

	// One statement moves all guards of the batch to which nothing happened but
	// that their next events were applied; another one (below) all others. The rows
	// are addressed by where the lock has found them: this transaction has them, so
	// nobody else has moved them, and it moves a guard once and as the last thing.
	// That this is so is checked by the number of the rows.
	advanceSQL = `
update @schema@.guard g
   set epoch = u.epoch, token = u.token, seq = u.seq, updated_at = clock_timestamp()
  from unnest((select $1::tid[]), $2::int8[], $3::int8[], $4::int8[]) as u(tid, epoch, token, seq)
 where g.ctid = u.tid`

	// The same for one guard.
	advanceOneSQL = `
update @schema@.guard g
   set epoch = $2, token = $3, seq = $4, updated_at = clock_timestamp()
 where g.ctid = $1`

	// blocked_since is the time since when the stream stands for the same reason.
	moveSQL = `
update @schema@.guard g
   set epoch = u.epoch, token = nullif(u.token, 0), seq = u.seq, missed = u.missed::int8multirange, end_seq = nullif(u.end_seq, 0),
       start_epoch = nullif(u.start_epoch, 0), start_seq = nullif(u.start_seq, 0), settled = u.settled,
       waiting_epoch = nullif(u.waiting_epoch, 0), blocked = nullif(u.blocked, ''),
       blocked_since = case when u.blocked = '' then null when u.blocked = g.blocked then g.blocked_since else clock_timestamp() end,
       parked_rows = u.parked_rows, parked_bytes = u.parked_bytes, recheck = u.recheck,
       updated_at = clock_timestamp()
  from unnest((select $1::tid[]), $2::int8[], $3::int8[], $4::int8[], $5::text[], $6::int8[], $7::int8[], $8::int8[], $9::bool[], $10::int8[], $11::text[],
              $12::int8[], $13::int8[], $14::bool[])
    as u(tid, epoch, token, seq, missed, end_seq, start_epoch, start_seq, settled, waiting_epoch, blocked, parked_rows, parked_bytes, recheck)
 where g.ctid = u.tid`

	// A copy of a parked record waits with the first one; only what a handler
	// said of it is newer.
	parkSQL = `
insert into @schema@.parked as p (consumer, stream, key, epoch, seq, kind, from_seq, topic, partition, kafka_offset, event_id,
       headers, kafka_key, value, timestamp_ms, reason, error, attempts, size)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
    on conflict (consumer, stream, key, epoch, seq, kind) do update
   set reason = excluded.reason, error = coalesce(excluded.error, p.error), attempts = p.attempts + excluded.attempts, updated_at = clock_timestamp()
 where excluded.reason = 'failing'
returning xmax = 0, size`

	unparkSQL = `
delete from @schema@.parked
 where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and kind = $6
returning size`

	failSQL = `
update @schema@.parked
   set reason = 'failing', error = $7, attempts = attempts + 1, updated_at = clock_timestamp()
 where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and kind = $6`

	// The same text twice is nothing new.
	unreadableSQL = `
update @schema@.parked
   set error = $7, updated_at = clock_timestamp()
 where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and kind = $6 and erased_at is null and error is distinct from $7`

	failingSQL = `
select exists (select from @schema@.parked
                where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and kind = 'data' and reason = 'failing')`

	parkedColumns = `epoch, seq, kind, from_seq, topic, partition, kafka_offset, headers, kafka_key, value, timestamp_ms, reason, attempts, erased_at is not null`

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

	waitingSQL = `
select coalesce((select min(epoch) from @schema@.parked where consumer = $1 and stream = $2 and key = $3 and epoch > $4::int8), 0)`

	// Streams that may go on although nothing of theirs arrives: somebody has said
	// so, or what did not fit has been read again. Each half has an index with
	// nothing else in it.
	pendingSQL = `
(select stream, key from @schema@.guard where consumer = $1 and recheck and (stream, key) > ($3::text, $4::text) order by stream, key limit $2)
union
(select g.stream, g.key
   from @schema@.guard g
  where g.consumer = $1 and g.unstored <> '{}' and (g.stream, g.key) > ($3::text, $4::text)
    and not exists (select from @schema@.consumer_offset o
                     where o.consumer = $1 and o.overflow_offset is not null and o.topic || '/' || o.partition = any(g.unstored))
  order by g.stream, g.key limit $2)
 order by 1, 2 limit $2`

	buryDeadSQL = `
insert into @schema@.dead as d (consumer, stream, key, epoch, seq, kind, topic, partition, kafka_offset, event_id,
       headers, kafka_key, value, timestamp_ms, error, size)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
    on conflict (consumer, stream, key, epoch, seq, kind) do update
   set error = case when d.erased_at is null then excluded.error else d.error end, attempts = d.attempts + 1, retry = false, updated_at = clock_timestamp()
returning xmax = 0, size`

	unburySQL = `
delete from @schema@.dead
 where consumer = $1 and stream = $2 and key = $3 and epoch = $4 and seq = $5 and discarded_at is null
returning size`

	quarantineSQL = `
insert into @schema@.quarantine (consumer, topic, partition, kafka_offset, digest, reason, error, stream, key, epoch, seq, kind,
       headers, kafka_key, value, timestamp_ms, size, erased_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, case when $18 then clock_timestamp() end)
    on conflict (consumer, topic, partition, kafka_offset, digest) do nothing`

	spoilSQL = `do $$ begin raise exception 'the guard gave this transaction up: it can only be rolled back'; end $$`
)

// statements are the above for one schema.
type statements struct {
	create, lock, lockOne, facts, streams, dead, addStream, advance, move         string
	park, unpark, fail, failing, unreadable, candidates, lowest, waiting, pending string
	bury, unbury, quarantine                                                      string
	limitStatements
	retryStatements
	watchStatements
	letterStatements
}

func newStatements(name string) statements {
	x := func(template string) string { return schema.Expand(template, name) }
	return statements{
		create: x(createSQL), lock: x(lockSQL), lockOne: x(lockOneSQL), facts: x(factsSQL), streams: x(streamsSQL), dead: x(deadSQL), addStream: x(addStreamSQL),
		advance: x(advanceSQL), move: x(moveSQL),
		park: x(parkSQL), unpark: x(unparkSQL), fail: x(failSQL), failing: x(failingSQL), unreadable: x(unreadableSQL), candidates: x(candidatesSQL),
		lowest: x(lowestSQL), waiting: x(waitingSQL), pending: x(pendingSQL),
		bury: x(buryDeadSQL), unbury: x(unburySQL), quarantine: x(quarantineSQL),
		limitStatements: newLimitStatements(x), retryStatements: newRetryStatements(x),
		watchStatements: newWatchStatements(x), letterStatements: newLetterStatements(x),
	}
}
