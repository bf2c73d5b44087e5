-- min-library: 2
--
-- Bounded parks, and what operators do. From here on a guard knows how much of
-- its stream is parked, whether something of it did not fit, and whether its
-- parked records are to be decided again: a library of before would leave these
-- wrong.

-- None of the new columns may come into an index that each event's update would
-- have to touch: what an event changes (epoch to waiting_epoch, updated_at) is in
-- no index, so that its new version stays on the page.
alter table @schema@.guard
  add parked_rows  bigint not null default 0 check (parked_rows >= 0),
  add parked_bytes bigint not null default 0 check (parked_bytes >= 0),
  add unstored     text[] not null default '{}',      -- partitions (topic/number) of which a record did not fit
  add unstored_epochs int8multirange not null default '{}',   -- and of which epochs these were
  add recheck      boolean not null default false;    -- parked records may go on, and nobody has tried
create index guard_parked on @schema@.guard (consumer) include (parked_rows, parked_bytes) where parked_rows > 0;
create index guard_recheck on @schema@.guard (consumer, stream, key) where recheck;
create index guard_unstored on @schema@.guard (consumer, stream, key) where unstored <> '{}';

-- The range in which records lie that did not fit: from overflow_offset up to,
-- and without, overflow_end. The range of what went unread, where it is known.
alter table @schema@.consumer_offset
  add overflow_end   bigint,
  add truncated_from bigint,
  add truncated_to   bigint;
update @schema@.consumer_offset set overflow_end = greatest(next_offset, overflow_offset + 1) where overflow_offset is not null;
alter table @schema@.consumer_offset add check ((overflow_offset is null) = (overflow_end is null)), add check (overflow_end > overflow_offset);

-- size is about what a record takes; erased_at says that an operator has erased
-- what it said.
alter table @schema@.parked add size integer not null default 0, add erased_at timestamptz;
update @schema@.parked set size = coalesce(octet_length(value), 0) + coalesce(octet_length(kafka_key), 0) + pg_column_size(headers);

alter table @schema@.dead
  add size         integer not null default 0,
  add retry        boolean not null default false,   -- an operator wants it to be tried again
  add forwarded_at timestamptz,                       -- handed to the dead-letter topic
  add erased_at    timestamptz;
update @schema@.dead set size = coalesce(octet_length(value), 0) + coalesce(octet_length(kafka_key), 0) + pg_column_size(headers);
create index dead_retry on @schema@.dead (consumer, stream, key) where retry;
create index dead_unforwarded on @schema@.dead (consumer, died_at) where forwarded_at is null and discarded_at is null;

-- A record that was dealt with stays, as evidence.
alter table @schema@.quarantine
  add size        integer not null default 0,
  add attempts    integer not null default 1,
  add retry       text check (retry in ('retry', 'admit')),   -- what an operator wants to be done
  add resolved_at timestamptz,
  add outcome     text,                                       -- what became of it
  add erased_at   timestamptz,
  add updated_at  timestamptz not null default clock_timestamp();
create index quarantine_open on @schema@.quarantine (consumer, id) where resolved_at is null;
create index quarantine_retry on @schema@.quarantine (consumer, stream, key) where retry is not null;

-- How many partitions a topic had when it was first read: a key's events move to
-- another partition when the number grows, and overtake themselves.
create table @schema@.consumer_topic (
  consumer   text collate "C" not null check (octet_length(consumer) between 1 and 200),
  topic      text collate "C" not null,
  partitions integer not null check (partitions > 0),
  pinned_at  timestamptz not null default clock_timestamp(),
  primary key (consumer, topic)
);
comment on table @schema@.consumer_topic is 'The number of partitions with which each topic is read.';

alter table @schema@.consumer_audit add who text;   -- the name that was given; actor is the login

-- What a guard counts: parked records of a strict stream, dead letters of a state
-- stream (a stream has one of the two). Whatever waits is decided once more.
update @schema@.guard g set parked_rows = d.n, parked_bytes = d.size
  from (select consumer, stream, key, count(*) as n, sum(size) as size from @schema@.dead where discarded_at is null group by 1, 2, 3) d
 where g.consumer = d.consumer and g.stream = d.stream and g.key = d.key;
update @schema@.guard g set parked_rows = p.n, parked_bytes = p.size, recheck = true
  from (select consumer, stream, key, count(*) as n, sum(size) as size from @schema@.parked group by 1, 2, 3) p
 where g.consumer = p.consumer and g.stream = p.stream and g.key = p.key;

-- Forgets guards of lives that have ended: those that stand on their end record,
-- have nothing parked, nothing that did not fit and no dead letter, and did not
-- move for so long. It goes through the guards of a stream in key order, so many
-- at a time, and says behind which key to go on: null after the last. Whoever is
-- deciding about a guard holds its lock, and it is left for the next time.
--
-- forgotten rises in the same transaction in which the guards go: nobody can
-- find neither.
create function @schema@.forget_guards(of_consumer text, of_stream text, after_key text, idle interval, at_most integer,
                                       out forgotten bigint, out next_key text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  seen bigint;
  high bigint;
begin
  if idle < interval '0' or at_most < 1 then
    raise exception 'idle must not be negative and at_most be positive' using errcode = '22023';
  end if;
  -- A partition of which something went unread, or did not fit, may have records
  -- of any life.
  if exists (select from @schema@.consumer_offset o where o.consumer = of_consumer and (o.truncated_at is not null or o.overflow_offset is not null)) then
    forgotten := 0; return;
  end if;
  with page as materialized (
    select g.key from @schema@.guard g
     where g.consumer = of_consumer and g.stream = of_stream and g.key > after_key collate "C"
     order by g.key limit at_most
  ), ended as materialized (
    select g.key, g.epoch
      from page join @schema@.guard g on g.consumer = of_consumer and g.stream = of_stream and g.key = page.key
     where g.seq = g.end_seq and g.blocked is null and not g.recheck and g.unstored = '{}' and g.waiting_epoch is null
       and g.updated_at < clock_timestamp() - idle
       and not exists (select from @schema@.parked p where p.consumer = g.consumer and p.stream = g.stream and p.key = g.key)
       and not exists (select from @schema@.dead d where d.consumer = g.consumer and d.stream = g.stream and d.key = g.key and d.discarded_at is null)
     order by g.key
       for update of g skip locked
  ), gone as (
    delete from @schema@.guard g using ended
     where g.consumer = of_consumer and g.stream = of_stream and g.key = ended.key
    returning ended.epoch
  )
  select (select count(*) from page), (select max(page.key) from page), (select count(*) from gone), (select max(epoch) from gone)
    into seen, next_key, forgotten, high;
  if seen < at_most then next_key := null; end if;
  if forgotten > 0 then
    update @schema@.consumer_stream s set forgotten = greatest(s.forgotten, high) where s.consumer = of_consumer and s.stream = of_stream;
    if not found then
      raise exception 'stream % of consumer % has guards, but no settings', of_stream, of_consumer using errcode = 'XX001';
    end if;
  end if;
end $$;

-- Sets the offset of a partition to whatever it is now, and flags what went
-- unread. It is a function because a consumer may raise the flag and never take
-- it down. The range of two flags is their hull; without from, it is not known
-- where it begins.
create function @schema@.restart_partition(of_consumer text, of_topic text, of_partition integer, at bigint, flag boolean, lost_from bigint, lost_to bigint) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
  insert into @schema@.consumer_offset as o (consumer, topic, partition, next_offset, truncated_at, truncated_from, truncated_to)
  values (of_consumer, of_topic, of_partition, at, case when flag then clock_timestamp() end, case when flag then lost_from end, case when flag then lost_to end)
  on conflict (consumer, topic, partition) do update
     set next_offset = excluded.next_offset, last_id = null, updated_at = clock_timestamp(),
         overflow_offset = case when o.overflow_end > excluded.next_offset then greatest(o.overflow_offset, excluded.next_offset) end,
         overflow_end    = case when o.overflow_end > excluded.next_offset then o.overflow_end end,
         truncated_at    = coalesce(o.truncated_at, excluded.truncated_at),
         truncated_from  = case when o.truncated_at is null or not flag then coalesce(o.truncated_from, excluded.truncated_from) else least(o.truncated_from, excluded.truncated_from) end,
         truncated_to    = greatest(o.truncated_to, excluded.truncated_to)
$$;

-- Rights. A consumer may note what an operator has asked for as done; it can ask
-- for nothing, accept nothing and vouch for nothing.
revoke all on function @schema@.forget_guards, @schema@.restart_partition from public;
grant execute on function @schema@.forget_guards, @schema@.restart_partition to @consumer@;
grant execute on function @schema@.forget_guards to @operator@;
revoke all on @schema@.consumer_topic from public;
grant select, insert on @schema@.consumer_topic to @consumer@;
grant select, insert, update on @schema@.consumer_topic to @operator@;
grant select on @schema@.consumer_topic to @monitor@;

revoke update on @schema@.consumer_offset from @consumer@;
grant update (next_offset, last_id, overflow_offset, overflow_end, updated_at) on @schema@.consumer_offset to @consumer@;
grant insert (size) on @schema@.dead to @consumer@;
grant update (retry, forwarded_at) on @schema@.dead to @consumer@;
grant select on @schema@.quarantine to @consumer@;
grant insert (size, erased_at) on @schema@.quarantine to @consumer@;
grant update (retry, resolved_at, outcome, error, reason, attempts, updated_at) on @schema@.quarantine to @consumer@;

grant update on @schema@.quarantine to @operator@;
grant insert (who) on @schema@.consumer_audit to @operator@;

grant select (size, erased_at) on @schema@.parked to @monitor@;
grant select (size, retry, forwarded_at, erased_at) on @schema@.dead to @monitor@;
grant select (size, attempts, retry, resolved_at, outcome, erased_at, updated_at) on @schema@.quarantine to @monitor@;
