-- min-library: 1
--
-- The outbox's partitions: the next one in time, and the end of those that
-- nobody needs any more; and the operator's pause.
--
-- Each of these functions does one step in one transaction of its own. They may
-- run in several sessions at once, and end anywhere.

-- The cursors of the relays as stored: for each shard the newest one that
-- contains it, and which shards have it. Null stands for shards that have none
-- yet, of which nothing is published.
create view @schema@._relay_cursor as
  with newest as (
    select s::smallint as s, (select c.n from @schema@.relay_checkpoint c where s::smallint = any (c.shards) order by c.n desc limit 1) as n
      from generate_series(0, 63) s)
  select array_agg(newest.s order by newest.s) as shards, c.s1, c.low, c.s2, c.last_pos
    from newest left join @schema@.relay_checkpoint c on c.n = newest.n group by c.n;

-- What is published, as snapshots: those cursors, and that of each fork.
create view @schema@._relay_seen as
  select c.s1 from @schema@._relay_cursor c
  union all select f.s1 from @schema@.relay_fork f;

-- The partitions, from the catalogue: whoever attaches one by hand is seen too.
-- By name: one that is dropped meanwhile is then an undefined table, and nothing
-- worse.
create function @schema@._outbox_parts() returns table (part text, name text, number bigint, lo bigint, hi bigint)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select format('%I.%I', n.nspname, c.relname), c.relname::text, b.lo >> 40, b.lo, b.hi
    from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_namespace n on n.oid = c.relnamespace
    cross join lateral (select m[1]::bigint as lo, m[2]::bigint as hi
      from regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''?(\d+)''?\) TO \(''?(\d+)''?\)') m) b
   where i.inhparent = '@schema_name@.outbox'::regclass and b.lo is not null
   order by b.lo
$$;

-- Why a partition can't be dropped; null if it can. What it says is true of the
-- rows that are committed at that moment, so it counts only when no transaction
-- can add one: under the lock that outbox_drop takes.
--
-- Published is what is visible in the snapshot of every cursor. That is looked
-- up by two facts about the whole partition, each one look into the index on
-- xid: its largest xid is below the snapshot's xmax, and no row has one of the
-- xids that were running then. (Below xmin would be simpler, and would stop at
-- any transaction that stays open anywhere in the cluster.)
create function @schema@._outbox_kept(p_part text, p_hi bigint, p_keep interval) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare newest timestamptz; top xid8; c record; found_one boolean;
begin
  if coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0) < p_hi then return 'active'; end if;
  -- A held stream's events are not published, and the newest ones least of all:
  -- this is asked before the age, so that it is seen in time.
  execute format('select exists (select from @schema@.relay_held h where exists (select from %s o where o.topic = h.topic and o.key = h.key and o.pos >= h.pos))', p_part) into found_one;
  if found_one then return 'held'; end if;
  execute format('select xid from %s order by xid desc limit 1', p_part) into top;
  if top is not null then
    for c in select s1 from @schema@._relay_seen loop
      if c.s1 is null or top >= pg_snapshot_xmax(c.s1) then return 'unpublished'; end if;
      execute format('select exists (select from pg_snapshot_xip($1) x where exists (select from %s o where o.xid = x))', p_part) into found_one using c.s1;
      if found_one then return 'unpublished'; end if;
    end loop;
  end if;
  execute format('select created_at from %s order by pos desc limit 1', p_part) into newest;
  if newest > clock_timestamp() - p_keep then return 'young'; end if;
  return null;
end $$;

-- What there is, for those who look on: each partition, and why it would be
-- kept if published events were kept for p_keep.
create function @schema@.outbox_partitions(p_keep interval default '0')
  returns table (name text, number bigint, lo bigint, hi bigint, bytes bigint, active boolean, first_at timestamptz, last_at timestamptz, kept text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare p record;
begin
  for p in select * from @schema@._outbox_parts() loop
    begin
      name := p.name; number := p.number; lo := p.lo; hi := p.hi;
      bytes := pg_total_relation_size(p.part::regclass);
      active := coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0) >> 40 = p.number;
      execute format('select (select created_at from %1$s order by pos limit 1), (select created_at from %1$s order by pos desc limit 1)', p.part) into first_at, last_at;
      kept := @schema@._outbox_kept(p.part, p.hi, p_keep);
      return next;
    exception when undefined_table then null;    -- it has been dropped meanwhile
    end;
  end loop;
end $$;
comment on function @schema@.outbox_partitions is 'The partitions of the outbox, and why each is kept: active, young, unpublished, held, or null if it can go.';

-- One step towards the next partition: created, switched, or busy; null if the
-- present one is not due. It is due when its first event is p_age old, when it
-- has p_bytes, or when its numbers run out.
--
-- Create and switch are two transactions: setval can't be rolled back, and a
-- sequence that points at a partition that is not there fails every commit. The
-- table is made apart and attached, which lets commits go on; "partition of"
-- would have them wait.
-- A transaction that has appended before the partition came would not find it
-- if it appended once more: it has its lock already, and so takes no note of
-- what has changed. So the switch waits until no such transaction is left, at
-- most p_wait, during which commits wait behind it; then it says busy. A late
-- rotation fails nothing: the present partition has room for 2^40 events.
create function @schema@.outbox_rotate(p_age interval, p_bytes bigint, p_wait interval) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  last bigint;
  at   record;
  next bigint;
  born timestamptz;
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'each step of a rotation is a transaction of its own' using errcode = 'FL009';
  end if;
  if (select relkind from pg_class where oid = '@schema_name@.outbox'::regclass) <> 'p' then return null; end if;
  perform set_config('lock_timeout', '5s', true);
  -- Two rotations at once would create, or pass over, the same partition. Not in
  -- conflict with what appends and readers take.
  lock table only @schema@.outbox in share update exclusive mode;
  last := coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0);
  select * into at from @schema@._outbox_parts() p where p.number = last >> 40;
  if at.part is not null then
    execute format('select created_at from %s order by pos limit 1', at.part) into born;
    if not coalesce(born <= clock_timestamp() - p_age, false)
       and not (born is not null and pg_total_relation_size(at.part::regclass) >= p_bytes)
       and at.hi - last > 4294967296 then
      return null;
    end if;
  end if;
  select min(p.number) into next from @schema@._outbox_parts() p where p.number > last >> 40;
  if next is not null then
    perform set_config('lock_timeout', greatest(1, (extract(epoch from p_wait) * 1000)::bigint)::text, true);
    begin
      lock table only @schema@.outbox in share mode;
    exception when lock_not_available then return 'busy';
    end;
    -- Above everything that was handed out, so positions only rise. What is
    -- handed out from here on goes to whoever locks after us.
    last := pg_sequence_last_value('@schema_name@.outbox_pos');
    if next <= last >> 40 then return null; end if;
    perform setval('@schema_name@.outbox_pos', next << 40);
    return 'switched';
  end if;
  next := (last >> 40) + 1;
  execute format('create table @schema@.%I (like @schema@.outbox including all)', 'outbox_' || next);
  execute format('alter table @schema@.outbox attach partition @schema@.%I for values from (%s) to (%s)', 'outbox_' || next, next << 40, (next + 1) << 40);
  return 'created';
end $$;
comment on function @schema@.outbox_rotate is 'One step towards the next partition of the outbox, if the present one is due: created, switched, busy, or null.';

-- Drops a partition, or says why not: active, young, unpublished, held, gone,
-- or busy if the lock wasn't to be had within p_wait. While it waits, and no
-- longer than that, commits wait behind it.
--
-- The order of lock and check is what keeps events. A transaction that has
-- appended to this partition and not yet committed holds a lock on the table:
-- the drop waits for it. Checked before the wait, its rows were not there to be
-- seen; checked after, in a statement of its own and so under a new snapshot,
-- they are. From the lock on nobody adds one.
-- The parent comes first, since DROP locks it too: a writer that has the parent
-- and asks for the partition would otherwise be in a deadlock with us.
create function @schema@.outbox_drop(p_number bigint, p_keep interval, p_wait interval) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  at  record;
  why text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'dropping a partition needs READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
      using errcode = 'FL008', hint = 'In a stricter isolation the check would not see what was committed while it waited for the lock.';
  end if;
  perform @schema@._same_history();
  select * into at from @schema@._outbox_parts() p where p.number = p_number;
  if at.part is null then return 'gone'; end if;
  perform set_config('lock_timeout', greatest(1, (extract(epoch from p_wait) * 1000)::bigint)::text, true);
  begin
    -- So that the lock is asked for only where there is a point in it.
    why := @schema@._outbox_kept(at.part, at.hi, p_keep);
    if why is not null then return why; end if;
    lock table only @schema@.outbox in access exclusive mode;
    execute format('lock table %s in access exclusive mode', at.part);
  exception
    when lock_not_available then return 'busy';
    when undefined_table then return 'gone';
  end;
  why := @schema@._outbox_kept(at.part, at.hi, p_keep);
  if why is not null then return why; end if;
  execute format('drop table %s', at.part);
  return 'dropped';
end $$;
comment on function @schema@.outbox_drop is 'Drops a partition of the outbox of which everything is published and older than p_keep, or says why not.';

-- The same row by row, for an outbox that is one plain table: looks at p_limit
-- rows behind p_after and deletes those of them that are published, old enough
-- and not held. No lock is needed: a row that is visible in every cursor's
-- snapshot is published, whatever else is going on.
-- Gives the last position that it has looked at, null at the end.
create function @schema@.outbox_delete(p_keep interval, p_after bigint, p_limit int, out deleted bigint, out last bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare n bigint; until timestamptz := clock_timestamp() - p_keep;
begin
  perform @schema@._same_history();
  with looked as materialized (
    select o.pos, o.xid, o.topic, o.key, o.created_at from @schema@.outbox o where o.pos > p_after order by o.pos limit p_limit),
  gone as (
    delete from @schema@.outbox o using looked l
     where o.pos = l.pos and l.created_at <= until
       and not exists (select from @schema@._relay_seen s where s.s1 is null or not pg_visible_in_snapshot(l.xid, s.s1))
       and not exists (select from @schema@.relay_held h where h.topic = l.topic and h.key = l.key and l.pos >= h.pos)
     returning 1)
  select (select count(*) from gone), (select max(l.pos) from looked l), (select count(*) from looked l where l.created_at <= until) into deleted, last, n;
  -- Nothing behind a page of young rows is old.
  if n < p_limit then last := null; end if;
end $$;
comment on function @schema@.outbox_delete is 'Deletes published events older than p_keep from an outbox that is not partitioned, a bounded number at a time.';

-- Whether relays publish: the newest row counts, the others tell who it was
-- before.
create table @schema@.relay_pause (
  n      bigint generated always as identity primary key,
  paused boolean not null,
  who    text not null check (octet_length(who) between 1 and 255),
  login  text not null default session_user,
  reason text not null check (octet_length(reason) <= 1024),
  at     timestamptz not null default clock_timestamp()
);
comment on table @schema@.relay_pause is 'When an operator has told the relays to pause or to go on, who, and why.';

create function @schema@.relay_set_pause(p_paused boolean, p_who text, p_reason text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  lock table @schema@.relay_pause in share row exclusive mode;
  if coalesce((select p.paused from @schema@.relay_pause p order by p.n desc limit 1), false) = p_paused then return false; end if;
  insert into @schema@.relay_pause (paused, who, reason) values (p_paused, p_who, p_reason);
  perform @schema@._relay_audit(p_who, case when p_paused then 'pause' else 'resume' end, null, null, jsonb_build_object('why', p_reason));
  -- This is no commit of a producer's: one that waits here keeps nobody.
  perform pg_notify('@schema_name@_wake', 'pause');
  return true;
end $$;
comment on function @schema@.relay_set_pause is 'Tells all relays to publish nothing, or to go on. False if it was so already.';

revoke all on function @schema@._outbox_parts, @schema@._outbox_kept, @schema@.outbox_partitions, @schema@.outbox_rotate, @schema@.outbox_drop, @schema@.outbox_delete, @schema@.relay_set_pause from public;
revoke all on @schema@._relay_cursor, @schema@._relay_seen, @schema@.relay_pause from public;
grant execute on function @schema@.outbox_partitions to @relay@, @operator@, @monitor@;
grant execute on function @schema@.outbox_rotate, @schema@.outbox_drop, @schema@.outbox_delete to @relay@, @operator@;
grant execute on function @schema@.relay_set_pause to @operator@;
grant select on @schema@.relay_pause to @relay@, @operator@, @monitor@;
grant select on @schema@._relay_cursor, @schema@._relay_seen to @relay@, @operator@, @monitor@;
-- A relay tells its own state to those who monitor it, and examines what it
-- rests on.
grant select on @schema@.lease, @schema@.relay_instance, @schema@.history, @schema@.head to @relay@;
