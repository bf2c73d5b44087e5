-- min-library: 1
--
-- The lives of a key, and how long what they leave behind is kept.
--
-- close() ends a life: the fence row stays as a tombstone, and each stream of
-- the key gets an end record. open() begins the next one, under a larger epoch.
-- The sweep_…() functions take away what nobody can ask for any more: receipts,
-- turns, and in the end the tombstone with all memory of the key.

-- Which transaction wrote the end records of a closed key, and the highest
-- position among them: enough to tell from the relay's cursor whether
-- everything of the key is published, without a look into the outbox.
alter table @schema@.fence add column end_xid xid8, add column end_pos bigint;

alter table @schema@.turn drop constraint turn_why_check;
alter table @schema@.turn add constraint turn_why_check check (why in ('acquire', 'release', 'advance', 'close', 'open'));
-- The sweep's work list is the turns, oldest first. By time and not by n: a
-- clock that was wrong for a while must not block what comes behind.
create index turn_at on @schema@.turn (at, n);

-- When the last tombstone was removed: from then on a consumer may meet lives
-- that carry no prev, so a topic's partition count must not have changed since.
create table @schema@.retention (
  one          boolean primary key default true check (one),
  tombstone_at timestamptz
);
comment on table @schema@.retention is 'When the sweep last removed the tombstone of a key.';
insert into @schema@.retention default values;

-- No epoch of before comes back, whoever writes the row: not that of a tombstone
-- which was swept and then restored by hand. (A new row begins at epoch 1, under
-- which nothing can commit, and gets its epoch in a later statement.)
create function @schema@._fence_epoch() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if (tg_op = 'UPDATE' and new.epoch = old.epoch) or (tg_op = 'INSERT' and new.epoch = 1 and new.max_issued_token = 0) then return new; end if;
  if new.epoch < (select epoch_floor from @schema@.history) then
    raise exception 'epoch % of % is below the floor: it may have been used before', new.epoch, new.key
      using errcode = 'FL009', hint = 'Epochs only rise. Nothing but the functions of this schema should write this table.';
  end if;
  return new;
end $$;
create trigger epoch before insert or update of epoch on @schema@.fence for each row execute function @schema@._fence_epoch();

-- How the functions below read: by index, row by row. They come to tables that
-- may hold a hundred rows or as many millions, in sessions that keep plans; what
-- the planner would gain by a whole scan of a small table is not worth a whole
-- scan of a large one. Hence the settings that they carry. Where a plan that was
-- switched off is the only one there is, it counts as so dear that compiling it
-- would seem to pay: seconds, for a statement of microseconds. Hence jit.

-- The topics that any key remembers, from the last to the first. One descent
-- of the index for each, instead of an index by key, for which every append
-- would pay. Backwards, because the newest row of a stream is the one that
-- lives: dead ones, which a held snapshot keeps, lie before it and are not met.
create function @schema@._topics() returns setof text
language plpgsql volatile set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare t text := '~';       -- sorts behind every topic's name
begin
  loop
    select h.topic into t from @schema@.head h where h.topic < t order by h.topic desc, h.key desc, h.epoch desc, h.seq desc limit 1;
    exit when not found;
    return next t;
  end loop;
end $$;

-- The last position of each stream of a key.
create function @schema@._streams(p_key text, out topic text, out epoch bigint, out seq bigint) returns setof record
language plpgsql volatile set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
begin
  for topic in select * from @schema@._topics() loop
    select h.epoch, h.seq into epoch, seq from @schema@.head h where h.topic = _streams.topic and h.key = p_key order by h.epoch desc, h.seq desc limit 1;
    if found then return next; end if;
  end loop;
end $$;

-- Ends a life of a key. It is a commit like any other: under the lock of the
-- fence, with a receipt (of a step of its own) that makes it repeatable, also
-- after the key was opened again. The receipt names no transaction, so it is no
-- pass: nothing can be appended behind an end record.
--
-- An end record goes to every stream that the key remembers, also to one
-- without an event in this life: then it is the life's first record there and
-- carries prev and history, so that a consumer can follow from life to life.
create function @schema@.close(p_key text, p_epoch bigint, p_token bigint, p_timeout interval default interval '15 s') returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  close_step   constant text  := 'fenceline:close';
  close_digest constant bytea := sha256('fenceline:close');
  ms   text := greatest(1, (extract(epoch from p_timeout) * 1000)::bigint)::text;
  s    smallint;
  h    bigint;
  who  text;
  st   record;
  n    bigint;
  last bigint;
  at   timestamptz;
begin
  perform @schema@._check_key(p_key, false);
  -- A life that a crash can reopen has not ended.
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  -- As at the gate: a session that is paused here must not block others for ever.
  perform set_config('idle_in_transaction_session_timeout', ms, true), set_config('statement_timeout', ms, true);
  -- What this transaction may still append would come behind the end record.
  if exists (select 1 from @schema@.receipt r where r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp() and r.key = p_key) then
    raise exception 'this transaction has passed the gate of %, and closing it needs one of its own', p_key using errcode = 'FL009', hint = 'Commit first, then close.';
  end if;
  -- The facts of the check are in the row that is locked, as in enter(). After
  -- the wait for a commit in progress, its events have their seq.
  select shard into s from @schema@.fence where key = p_key and epoch = p_epoch and max_issued_token = p_token and closed_at is null for no key update;
  if not found then
    -- The tombstone says it as long as it stands, also without its receipt.
    select f.closed_at into at from @schema@.fence f where f.key = p_key and f.epoch = p_epoch and f.max_issued_token = p_token and f.closed_at is not null;
    if found then
      raise exception '% was closed by this before', p_key using errcode = 'FL001',
        detail = jsonb_build_object('key', p_key, 'epoch', p_epoch, 'token', p_token, 'step', close_step, 'current_epoch', p_epoch, 'current_token', p_token, 'committed_at', at, 'closed_at', at)::text;
    end if;
    perform @schema@._refuse(p_key, p_epoch, p_token, close_step, 'close/1', close_digest);
  end if;
  select i.since into h from @schema@.history i, @schema@._identity() c
    where p_epoch >= i.since and i.self_oid = i.tableoid and i.timeline = c.timeline and i.database_oid = c.database_oid and i.system_identifier = c.system_identifier;
  if not found then
    perform @schema@._same_history();
    perform @schema@._refuse(p_key, p_epoch, p_token, close_step, 'close/1', close_digest);
  end if;
  insert into @schema@.receipt (key, epoch, token, step, algo, digest, shard, xid) values (p_key, p_epoch, p_token, close_step, 'close/1', close_digest, s, '0') on conflict do nothing;
  if not found then perform @schema@._refuse(p_key, p_epoch, p_token, close_step, 'close/1', close_digest); end if;
  for st in select * from @schema@._streams(p_key) loop
    n := case when st.epoch = p_epoch then st.seq + 1 else 1 end;
    delete from @schema@.head t where t.topic = st.topic and t.key = p_key and t.epoch = st.epoch and t.seq = st.seq;
    insert into @schema@.head (topic, key, epoch, seq) values (st.topic, p_key, p_epoch, n);
    insert into @schema@.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, kind, source, history, prev_epoch, prev_seq)
      values (gen_random_uuid(), st.topic, p_key, 'fenceline.end', '', st.topic, p_key, s, p_epoch, p_token, n, 'end', 'fenceline',
        case when n = 1 then h end, case when n = 1 then st.epoch end, case when n = 1 then st.seq end) returning pos into last;
  end loop;
  update @schema@.fence f set closed_at = clock_timestamp(), end_xid = pg_current_xact_id(), end_pos = coalesce(last, 0) where f.key = p_key returning f.closed_at into at;
  update @schema@.lease l set expires_at = '-infinity' where l.key = p_key returning l.holder into who;
  insert into @schema@.turn (key, epoch, token, holder, why) values (p_key, p_epoch, p_token, who, 'close');
  return at;
end $$;
comment on function @schema@.close is 'Ends this life of a key. Its streams get end records; nothing commits under it until it is opened again.';

-- Begins a life of a key that is closed, or new, or of before this history. Of
-- one that is open it only tells the epoch. The first token is still to be
-- acquired.
-- The epoch comes from the clock, never below the floor, and above the old
-- one: so it never comes back, whatever was swept, restored or rolled back.
create function @schema@.open(p_key text, p_wait interval default interval '5 s', out epoch bigint, out opened boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  f @schema@.fence;
  known boolean;
begin
  perform @schema@._check_key(p_key, false);
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  perform @schema@._same_history();
  known := exists (select 1 from @schema@.fence t where t.key = p_key);
  f := @schema@._lock_fence(p_key, p_wait);
  update @schema@.fence t set epoch = greatest(h.epoch_floor, @schema@._now_us(), f.epoch + 1), max_issued_token = 0, closed_at = null, end_xid = null, end_pos = null
    from @schema@.history h where t.key = p_key and (t.closed_at is not null or t.epoch < h.since) returning t.epoch into epoch;
  opened := found or not known;
  epoch := coalesce(epoch, f.epoch);
  if opened then
    insert into @schema@.turn (key, epoch, token, why) values (p_key, open.epoch, 0, 'open');
  end if;
end $$;
comment on function @schema@.open is 'Begins the next life of a closed key, under a larger epoch. Does nothing to one that is open.';

-- What is published. The relay stores how far it has come as a snapshot, and
-- inside a window also as a pos (see relay_checkpoint); a refused topic has a
-- cursor of its own, which then counts instead; a held stream has a row. All of
-- them are written in one transaction and are read here in one statement, so
-- from one moment; and all are as acknowledged by the broker, never ahead.
--
-- It is enough to look at the end records. Whatever else is in a stream of the
-- key was committed before its end record took the fence's lock: it is visible
-- wherever the end record is, has a smaller pos, and so is behind every cursor
-- that the end record is behind.
--
-- Gives null when everything of the key is published, else why not.
create function @schema@._unpublished(p_key text, p_xid xid8, p_pos bigint) returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
begin
  return (
    with main as (select c.s1, c.s2, c.last_pos from @schema@.relay_checkpoint c order by c.n desc limit 1)
    select case when bool_or(exists (select 1 from @schema@.relay_held d where d.topic = s.topic and d.key = p_key)) then 'held'
      when not bool_and(coalesce(pg_visible_in_snapshot(p_xid, coalesce(k.s1, m.s1)), false)
        or coalesce(p_pos <= case when k.topic is null then m.last_pos else k.last_pos end
                and pg_visible_in_snapshot(p_xid, case when k.topic is null then m.s2 else k.s2 end), false)) then 'unpublished' end
      from @schema@._streams(p_key) s left join main m on true left join @schema@.relay_fork k on k.topic = s.topic);
end $$;

-- The moment before which a turn must lie for what it has put an end to. A
-- commit can be asked for again during the retry window, and the last such
-- request can be under way for the residence: so the two add up, and count from
-- the turn, after which nothing was committed below it.
create function @schema@._sweep_until(p_retry interval, p_residence interval, p_limit int) returns timestamptz
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if p_retry is null or p_residence is null or p_retry < interval '0' or p_residence < interval '0' then
    raise exception 'retry window and residence are from 0 on, these are % and %', p_retry, p_residence using errcode = 'FL011';
  end if;
  if p_limit is null or p_limit not between 1 and 100000 then
    raise exception 'a batch is from 1 to 100000, this one is %', p_limit using errcode = 'FL011';
  end if;
  perform @schema@._same_history();
  return clock_timestamp() - p_retry - p_residence;
end $$;

-- The sweep goes through the turns in the order of their time, a range at a
-- time, with three transactions for each range. A turn at (epoch, token) says
-- that from its time on nothing commits below; a closing, nor at it.
--
-- First, the floors: from then on whoever finds no receipt is told
-- "unconfirmable", not "stale". This is the only part that locks what commits
-- lock, and the lock is held for this one statement: receipts go in a later
-- transaction. It waits for nobody: a fence that is locked is busy, and
-- sweep_floor() is for it. A floor rises to the newest receipt that goes, not
-- to the turn: above it, "stale" is certain.
-- Gives the range: from behind (p_at, p_n) to (at, n), at most p_limit turns,
-- and the turns whose fence was busy.
create function @schema@.sweep_floors(p_retry interval, p_residence interval, p_limit int, p_at timestamptz, p_n bigint,
  out turns int, out at timestamptz, out n bigint, out busy bigint[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare until timestamptz := @schema@._sweep_until(p_retry, p_residence, p_limit);
begin
  turns := 0; busy := '{}';
  select d.i, d.at, d.n into turns, at, n from (
    select t.at, t.n, row_number() over (order by t.at, t.n) as i from @schema@.turn t where (t.at, t.n) > (p_at, p_n) and t.at < until order by t.at, t.n limit p_limit) d
    order by d.i desc limit 1;
  if not found then turns := 0; return; end if;
  with want as materialized (
    select distinct on (d.key) d.key, r.epoch, r.token, d.n from (
      select t.n, t.key, t.epoch, t.token - (t.why <> 'close')::int as token from @schema@.turn t
       where (t.at, t.n) > (p_at, p_n) and (t.at, t.n) <= (sweep_floors.at, sweep_floors.n)) d
      cross join lateral (select x.epoch, x.token from @schema@.receipt x where x.key = d.key and (x.epoch, x.token) <= (d.epoch, d.token) order by x.epoch desc, x.token desc limit 1) r
     order by d.key, d.epoch desc, d.token desc),
  wanted as materialized (
    select w.* from want w join @schema@.fence f on f.key = w.key where (f.floor_epoch, f.floor_token) < (w.epoch, w.token)),
  mine as (
    -- That the fence has moved past is judged again, by the row that is locked.
    select f.key, w.epoch, w.token from @schema@.fence f join wanted w on w.key = f.key
     where (f.floor_epoch, f.floor_token) < (w.epoch, w.token)
       and ((w.epoch, w.token) < (f.epoch, f.max_issued_token) or (f.closed_at is not null and (w.epoch, w.token) = (f.epoch, f.max_issued_token)))
     order by f.key for no key update of f skip locked),
  raised as (
    update @schema@.fence f set floor_epoch = m.epoch, floor_token = m.token from mine m where f.key = m.key returning f.key)
  select coalesce(array_agg(w.n), '{}') into busy from wanted w where w.key not in (select r.key from raised r);
end $$;

-- The floor of one key whose fence was busy. Queues for it, at most p_wait, and
-- holds nothing else meanwhile; otherwise the receipts of a key that is never
-- idle would stay for ever. False: still busy.
create function @schema@.sweep_floor(p_retry interval, p_residence interval, p_n bigint, p_wait interval) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  until timestamptz := @schema@._sweep_until(p_retry, p_residence, 1);
  t record;
begin
  select x.key, r.epoch, r.token into t from @schema@.turn x
    cross join lateral (select y.epoch, y.token from @schema@.receipt y where y.key = x.key and (y.epoch, y.token) <= (x.epoch, x.token - (x.why <> 'close')::int) order by y.epoch desc, y.token desc limit 1) r
   where x.n = p_n and x.at < until;
  if not found then return true; end if;
  perform set_config('lock_timeout', greatest(1, (extract(epoch from p_wait) * 1000)::bigint)::text, true);
  update @schema@.fence f set floor_epoch = t.epoch, floor_token = t.token
   where f.key = t.key and (f.floor_epoch, f.floor_token) < (t.epoch, t.token)
     and ((t.epoch, t.token) < (f.epoch, f.max_issued_token) or (f.closed_at is not null and (t.epoch, t.token) = (f.epoch, f.max_issued_token)));
  return true;
exception when lock_not_available then return false;
end $$;

-- Second, the receipts at or below the floors, which no commit can add to any
-- more, and the turns that have nothing left to do. Locks nothing that a commit
-- locks. more: p_limit was reached.
create function @schema@.sweep_receipts(p_retry interval, p_residence interval, p_limit int, p_at timestamptz, p_n bigint, p_to_at timestamptz, p_to_n bigint,
  out receipts int, out turns int, out more boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  until timestamptz := @schema@._sweep_until(p_retry, p_residence, p_limit);
  t record;
  gone int;
begin
  receipts := 0; turns := 0; more := false;
  for t in
    select x.n, x.key, x.epoch, x.token - (x.why <> 'close')::int as token, f.floor_epoch, f.floor_token,
           x.why = 'close' and f.epoch = x.epoch and f.closed_at is not null as standing
      from @schema@.turn x left join @schema@.fence f on f.key = x.key
     where (x.at, x.n) > (p_at, p_n) and (x.at, x.n) <= (p_to_at, p_to_n) and x.at < until
     order by x.at, x.n for update of x skip locked
  loop
    delete from @schema@.receipt r where r.ctid = any (array(
      select c.ctid from @schema@.receipt c where c.key = t.key and (c.epoch, c.token) <= (t.floor_epoch, t.floor_token) limit p_limit - receipts for update skip locked));
    get diagnostics gone = row_count;
    receipts := receipts + gone;
    more := receipts >= p_limit;
    exit when more;
    if not t.standing and not exists (select 1 from @schema@.receipt r where r.key = t.key and (r.epoch, r.token) <= (t.epoch, t.token)) then
      delete from @schema@.turn x where x.n = t.n;
      turns := turns + 1;
    end if;
  end loop;
end $$;

-- Third, the tombstones: fence, lease and memory of a key that was closed, has
-- no receipt left, and of which everything is published. Whoever asks about it
-- from then on is told "unconfirmable", because there is no such key.
--
-- The floor of epochs rises in the same transaction, before the row goes. A new
-- life inserts its row first and reads the floor in a later statement: if the
-- insert had to wait for this transaction, or came after it, that statement
-- sees the floor. (It rises to now, so that one rise does for all that were
-- opened before: the history's row is read by every commit.)
-- The memory of a key goes together with its fence: what comes next has a
-- larger epoch, and begins at 1.
-- Only closed fences are locked, which no commit locks.
create function @schema@.sweep_tombstones(p_retry interval, p_residence interval, p_limit int, p_at timestamptz, p_n bigint, p_to_at timestamptz, p_to_n bigint, p_foreign_relay boolean,
  out tombstones int, out unpublished int, out unpublished_key text, out held int, out held_key text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  until  timestamptz := @schema@._sweep_until(p_retry, p_residence, p_limit);
  c      record;
  reason text;
  keys   text[] := '{}';
  epochs bigint[] := '{}';
  gone   text[];
  newest bigint;
  t      text;
begin
  tombstones := 0; unpublished := 0; held := 0;
  for c in
    select f.key, f.epoch, f.end_xid, f.end_pos from @schema@.turn x join @schema@.fence f on f.key = x.key and f.epoch = x.epoch and f.closed_at is not null
     where (x.at, x.n) > (p_at, p_n) and (x.at, x.n) <= (p_to_at, p_to_n) and x.at < until and x.why = 'close'
       and not exists (select 1 from @schema@.receipt r where r.key = x.key)
     order by x.at, x.n
  loop
    reason := case when p_foreign_relay then null else @schema@._unpublished(c.key, c.end_xid, c.end_pos) end;
    if reason is null then
      keys := keys || c.key; epochs := epochs || c.epoch;
    elsif reason = 'held' then
      held := held + 1; held_key := coalesce(held_key, c.key);
    else
      unpublished := unpublished + 1; unpublished_key := coalesce(unpublished_key, c.key);
    end if;
  end loop;
  select array_agg(l.key), max(l.epoch) into gone, newest from (
    select f.key, f.epoch from @schema@.fence f join unnest(keys, epochs) as w(key, epoch) on f.key = w.key and f.epoch = w.epoch and f.closed_at is not null
     order by f.key for update of f skip locked) l;
  if gone is null then return; end if;
  update @schema@.history set epoch_floor = greatest(newest + 1, @schema@._now_us()) where epoch_floor <= newest;
  for t in select * from @schema@._topics() loop
    delete from @schema@.head h where h.topic = t and h.key = any (gone);
  end loop;
  delete from @schema@.lease l where l.key = any (gone);
  delete from @schema@.fence f where f.key = any (gone);
  delete from @schema@.turn x where (x.at, x.n) > (p_at, p_n) and (x.at, x.n) <= (p_to_at, p_to_n) and x.at < until and x.why = 'close' and x.key = any (gone);
  update @schema@.retention set tombstone_at = clock_timestamp();
  tombstones := cardinality(gone);
end $$;

-- What a sweep would do now, and why the rest stays. Reads only, counts up to
-- p_limit of each. until: when the first of them can go, where time decides.
create function @schema@.sweep_plan(p_retry interval, p_residence interval, p_limit int, p_foreign_relay boolean)
returns table (goes boolean, what text, reason text, n bigint, more boolean, example text, until timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  due timestamptz := @schema@._sweep_until(p_retry, p_residence, p_limit);
begin
  return query
  with past as materialized (
    select t.at, t.n, t.key, t.epoch, t.token - (t.why <> 'close')::int as token, t.why from @schema@.turn t where t.at < due order by t.at, t.n limit p_limit),
  ahead as materialized (
    select t.at, t.n, t.key, t.epoch, t.token - (t.why <> 'close')::int as token, t.why,
           case when t.at + p_retry > clock_timestamp() then 'retry window' else 'residence' end as reason
      from @schema@.turn t where t.at >= due order by t.at, t.n limit p_limit),
  reach as materialized (
    select distinct on (p.key) p.key, p.epoch, p.token from past p join @schema@.fence f on f.key = p.key
     where (p.epoch, p.token) < (f.epoch, f.max_issued_token) or f.closed_at is not null order by p.key, p.epoch desc, p.token desc),
  going as (
    select r.key from reach p join @schema@.receipt r on r.key = p.key and (r.epoch, r.token) <= (p.epoch, p.token) limit p_limit),
  waiting as (      -- by the first turn past it, which is the first that lets it go
    select distinct on (r.key, r.epoch, r.token, r.step) r.key, a.reason, a.at
      from ahead a join @schema@.receipt r on r.key = a.key and (r.epoch, r.token) <= (a.epoch, a.token)
      left join reach p on p.key = a.key where p.key is null or (r.epoch, r.token) > (p.epoch, p.token)
     order by r.key, r.epoch, r.token, r.step, a.at limit p_limit),
  newest as (       -- those of the newest token: by key, never over all receipts
    select r.key from @schema@.fence f join @schema@.receipt r on r.key = f.key and r.epoch = f.epoch and r.token = f.max_issued_token where f.closed_at is null limit p_limit),
  stones as materialized (
    select x.key, x.at, x.reason as wait, f.end_xid, f.end_pos from (select key, epoch, at, why, null as reason from past union all select key, epoch, at, why, reason from ahead) x
      join @schema@.fence f on f.key = x.key and f.epoch = x.epoch and f.closed_at is not null where x.why = 'close'),
  judged as materialized (
    select s.key, s.at, coalesce(s.wait, case when p_foreign_relay then null else @schema@._unpublished(s.key, s.end_xid, s.end_pos) end) as reason from stones s),
  lines as (
    select true as goes, 'receipts' as what, null as reason, g.key, null::timestamptz as at from going g
    union all select false, 'receipts', w.reason, w.key, w.at from waiting w
    union all select false, 'receipts', 'newest token', w.key, null from newest w
    union all select j.reason is null, 'tombstones', j.reason, j.key, j.at from judged j)
  select l.goes, l.what, l.reason, count(*), count(*) >= p_limit, min(l.key),
         case when l.reason in ('retry window', 'residence') then min(l.at) + p_retry + p_residence end
    from lines l group by 1, 2, 3
  union all select true, 'turns', null, count(*), count(*) >= p_limit, null, null from past
  union all select false, 'turns', a.reason, count(*), count(*) >= p_limit, null, min(a.at) + p_retry + p_residence from ahead a group by a.reason
  order by 1 desc, 2, 3;
end $$;

revoke all on function @schema@._fence_epoch, @schema@._topics, @schema@._streams, @schema@.close, @schema@.open, @schema@._unpublished, @schema@._sweep_until,
  @schema@.sweep_floors, @schema@.sweep_floor, @schema@.sweep_receipts, @schema@.sweep_tombstones, @schema@.sweep_plan from public;
revoke all on @schema@.retention from public;
grant execute on function @schema@.close, @schema@.open to @producer@;
grant execute on function @schema@.sweep_floors, @schema@.sweep_floor, @schema@.sweep_receipts, @schema@.sweep_tombstones, @schema@.sweep_plan to @operator@;
grant select on @schema@.retention to @monitor@, @operator@;
