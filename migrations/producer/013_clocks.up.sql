-- min-library: 1
--
-- What holds when a clock goes another way, and what is decided before anybody
-- acts upon it.

-- The pass of a transaction is a receipt that is no older than the transaction.
-- While a commit waits for its fence the clock may be set back.
alter table @schema@.receipt alter column committed_at set default greatest(clock_timestamp(), transaction_timestamp());

-- As before, but for the time.
create or replace function @schema@.enter_many(p_key text, p_epoch bigint, p_token bigint, p_steps text[], p_algos text[], p_digests bytea[], p_timeout interval) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  s smallint;
  at timestamptz;
  written bigint;
  n bigint;
  i int;
begin
  perform @schema@._check_key(p_key, false);
  n := coalesce(cardinality(p_steps), 0);
  if n = 0 or cardinality(p_algos) is distinct from n::int or cardinality(p_digests) is distinct from n::int then
    raise exception 'as many algorithms and digests as steps are needed, and at least one' using errcode = 'FL011';
  end if;
  perform @schema@._check_step(u.step) from unnest(p_steps) u(step) where starts_with(u.step, 'fenceline:');
  if exists (select from unnest(p_steps, p_algos, p_digests) u(step, algo, digest) where u.algo is null or coalesce(octet_length(u.step) > 128 or octet_length(u.digest) not between 16 and 64, true)) then
    raise exception 'a step has at most 128 bytes and a digest 16 to 64' using errcode = '23514', table = 'receipt';
  end if;
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  perform set_config('idle_in_transaction_session_timeout', t.ms, true), set_config('statement_timeout', t.ms, true)
    from (select greatest(1, (extract(epoch from p_timeout) * 1000)::bigint)::text as ms) t;
  -- F
  select shard into s from @schema@.fence where key = p_key and epoch = p_epoch and max_issued_token = p_token and closed_at is null and (owner is null or owner = session_user) for no key update;
  if not found then perform @schema@._refuse(p_key, p_epoch, p_token, p_steps[1], p_algos[1], p_digests[1]); end if;
  -- H and W
  at := greatest(clock_timestamp(), transaction_timestamp());
  perform @schema@._session_identity() from @schema@.history h where h.identity is distinct from current_setting('fenceline.identity', true);
  insert into @schema@.receipt (key, epoch, token, step, algo, digest, shard, committed_at)
    select p_key, p_epoch, p_token, u.step, u.algo, u.digest, s, at
      from @schema@.history h, unnest(p_steps, p_algos, p_digests) u(step, algo, digest)
     where p_epoch >= h.since and h.self_oid = h.tableoid and starts_with(pg_walfile_name(pg_current_wal_insert_lsn()), h.timeline)
       and h.identity = current_setting('fenceline.identity', true)
       and octet_length(u.step) <= 128 and octet_length(u.digest) between 16 and 64
    on conflict do nothing;
  get diagnostics written = row_count;
  if written is distinct from n then
    perform @schema@._other_history();
    -- Which of them has committed before. Otherwise a step is twice among them,
    -- or cannot be stored, or it is the history that refuses them all.
    select u.i into i from unnest(p_steps) with ordinality u(step, i)
      cross join lateral (select r.xid from @schema@.receipt r where r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = u.step limit 1) r
      where r.xid <> pg_current_xact_id() limit 1;
    i := coalesce(i, 1);
    perform @schema@._refuse(p_key, p_epoch, p_token, p_steps[i], p_algos[i], p_digests[i]);
  end if;
  return at;
end $$;

create or replace function @schema@.enter_group(p_keys text[], p_epochs bigint[], p_tokens bigint[], p_steps text[], p_algos text[], p_digests bytea[], p_timeout interval) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  n int := coalesce(cardinality(p_keys), 0);
  shards smallint[];
  at timestamptz;
  passed bigint;
  asked boolean := false;
  alone jsonb;
  ms text := greatest(1, (date_part('epoch', p_timeout) * 1000)::bigint)::text;
  done text;
begin
  if n = 0 or cardinality(p_epochs) is distinct from n or cardinality(p_tokens) is distinct from n or cardinality(p_steps) is distinct from n
     or cardinality(p_algos) is distinct from n or cardinality(p_digests) is distinct from n then
    raise exception 'as many epochs, tokens, steps, algorithms and digests as keys are needed, and at least one' using errcode = 'FL011';
  end if;
  -- A receipt that a crash can take back proves nothing.
  if current_setting('synchronous_commit') in ('off', 'local') then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  -- F, for each: every fact of the check is in the row that is locked, as in
  -- enter(); a row that was changed after this statement's snapshot and is free
  -- again is read again before it counts. Laterals that lock are not pulled up, so
  -- each is one look-up by key.
  select array_agg(l.shard order by u.i), count(l.shard), set_config('idle_in_transaction_session_timeout', ms, true), set_config('statement_timeout', ms, true)
    into shards, passed, done, done
    from unnest(p_keys, p_epochs, p_tokens, p_steps, p_algos, p_digests) with ordinality u(key, epoch, token, step, algo, digest, i)
    left join lateral (
      select f.shard from @schema@.fence f
       where f.key = u.key and f.epoch = u.epoch and f.max_issued_token = u.token and f.closed_at is null and (f.owner is null or f.owner = session_user)
         and not starts_with(f.key, 'fenceline:') and not starts_with(u.step, 'fenceline:')
         and octet_length(u.step) <= 128 and octet_length(u.digest) between 16 and 64 and u.algo is not null
         for no key update skip locked) l on true
   where current_setting('transaction_isolation') = 'read committed';
  if passed < n then
    select jsonb_agg(i - 1) into alone from generate_series(1, n) i where shards[i] is null;
    raise exception '% of % commits cannot share this transaction', n - passed, n using errcode = 'FL013', detail = alone::text, hint = 'Commit those that the detail lists by themselves: enter() says what is the matter with each.';
  end if;
  -- H and W: a new statement, under the locks, as in enter().
  at := greatest(clock_timestamp(), transaction_timestamp());
  loop
    insert into @schema@.receipt (key, epoch, token, step, algo, digest, shard, committed_at)
      select u.key, u.epoch, u.token, u.step, u.algo, u.digest, u.shard, at
        from @schema@.history h, unnest(p_keys, p_epochs, p_tokens, p_steps, p_algos, p_digests, shards) u(key, epoch, token, step, algo, digest, shard)
       where u.epoch >= h.since and h.self_oid = h.tableoid and starts_with(pg_walfile_name(pg_current_wal_insert_lsn()), h.timeline)
         and h.identity = current_setting('fenceline.identity', true)
      on conflict do nothing;
    get diagnostics passed = row_count;
    exit when passed = n;
    if passed = 0 and not asked then -- the session's first commit, mostly
      asked := true;
      perform @schema@._session_identity();
      continue;
    end if;
    -- Who has committed before. Otherwise a step is twice among them, or it is the
    -- history: then none goes in company.
    select jsonb_agg(u.i - 1) into alone
      from unnest(p_keys, p_epochs, p_tokens, p_steps) with ordinality u(key, epoch, token, step, i)
      cross join lateral (select r.xid from @schema@.receipt r where r.key = u.key and r.epoch = u.epoch and r.token = u.token and r.step = u.step limit 1) r
     where r.xid <> pg_current_xact_id();
    if alone is null then
      select jsonb_agg(i - 1) into alone from generate_series(1, n) i;
    end if;
    raise exception '% of % commits cannot share this transaction', jsonb_array_length(alone), n using errcode = 'FL013', detail = alone::text, hint = 'Commit those that the detail lists by themselves: enter() says what is the matter with each.';
  end loop;
  return at;
end $$;

-- As before, but that it waits for p_wait in all, for the fence and then for the
-- lease, and names whoever has the lease's row.
create or replace function @schema@._lock_fence(p_key text, p_wait interval) returns @schema@.fence
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  f @schema@.fence;
  before text := current_setting('lock_timeout');
  pids int[];
  began timestamptz := clock_timestamp();
  ms bigint := greatest(1, (extract(epoch from p_wait) * 1000)::bigint);
begin
  perform set_config('lock_timeout', ms::text, true);
  begin
    loop
      select * into f from @schema@.fence where key = p_key for no key update;
      exit when found;
      insert into @schema@.fence (key, epoch, max_issued_token, shard, floor_epoch, floor_token)
        values (p_key, 1, 0, @schema@._shard(p_key), 0, 0) on conflict do nothing;
      if found then
        -- A statement of its own, after the insert: whoever removed an earlier
        -- row of this key has committed by now, and has raised the floor
        -- before. Read first and inserted later, an epoch could come twice.
        -- Everything below the new life counts as gone: its receipts are.
        update @schema@.fence t set epoch = e.epoch, floor_epoch = e.epoch - 1, floor_token = 9223372036854775807
          from (select greatest(epoch_floor, @schema@._now_us()) epoch from @schema@.history) e
          where t.key = p_key returning t.* into f;
        exit;
      end if;
    end loop;
    -- What is left of the time. (A clock that was set meanwhile makes it no longer.)
    perform set_config('lock_timeout', greatest(1, least(ms, ms - (extract(epoch from clock_timestamp() - began) * 1000)::bigint))::text, true);
    perform 1 from @schema@.lease where key = p_key for no key update;
  exception when lock_not_available then
    select array_agg(l.pid) into pids from @schema@.fence t join pg_locks l
      on l.locktype = 'transactionid' and l.granted and l.transactionid = t.xmax where t.key = p_key;
    if pids is null then     -- locked in a savepoint and updated outside of it: xmax stands for both
      begin
        select array_agg(distinct l.pid) into pids from @schema@.fence t, pg_get_multixact_members(t.xmax) m join pg_locks l
          on l.locktype = 'transactionid' and l.granted and l.transactionid = m.xid where t.key = p_key;
      exception when others then null;     -- not one of those: the name is a help, not a promise
      end;
    end if;
    if pids is null then     -- the fence was to be had: somebody has the lease's row
      select array_agg(l.pid) into pids from @schema@.lease t join pg_locks l
        on l.locktype = 'transactionid' and l.granted and l.transactionid = t.xmax where t.key = p_key;
    end if;
    raise exception 'a commit in progress holds the fence of %', p_key
      using errcode = 'FL010', detail = json_build_object('key', p_key, 'blocked_by', coalesce(pids, '{}'))::text,
        hint = 'Its session ends by the gate''s timeout at the latest. Try again, or look at pg_stat_activity for the pid.';
  end;
  perform set_config('lock_timeout', before, true);
  return f;
end $$;

-- As before, but for the time since which a fork is there.
create or replace function @schema@.relay_checkpoint(p_keys text[], p_epochs bigint[], p_tokens bigint[], p_groups jsonb, p_forks jsonb, p_held jsonb, p_old bigint[], p_sync boolean,
  out pair_low bigint, out pair_xid xid8, out generations bigint[])
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  mine smallint[];
  locked bigint;
  lost record;
  known jsonb;
begin
  perform @schema@._check_key(k, true) from unnest(p_keys) k;
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'a checkpoint is a transaction of its own' using errcode = 'FL009';
  end if;
  -- Not acknowledging a checkpoint to the disk at once is safe: the cursor is
  -- part of the same WAL as the rows it speaks of, and an older one repeats.
  if not p_sync then perform set_config('synchronous_commit', 'off', true); end if;
  pair_low := coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0);   -- not last_value: that says 1 before 1 was given out
  pair_xid := pg_current_xact_id();
  -- In the order of keys, as every transaction that locks several fences.
  perform 1 from @schema@.fence f join unnest(p_keys, p_epochs, p_tokens) w(key, epoch, token)
      on f.key = w.key and f.epoch = w.epoch and f.max_issued_token = w.token
    order by f.key for no key update of f;
  get diagnostics locked = row_count;
  if locked is distinct from cardinality(p_keys)::bigint or locked = 0 then
    select w.key, w.epoch, w.token, f.epoch as current_epoch, f.max_issued_token as current_token into lost
      from unnest(p_keys, p_epochs, p_tokens) w(key, epoch, token) left join @schema@.fence f on f.key = w.key
      where (w.epoch, w.token) is distinct from (f.epoch, f.max_issued_token) order by w.key limit 1;
    raise exception 'the lease % with (%, %) is not the newest any more', lost.key, lost.epoch, lost.token using errcode = 'FL003', detail = row_to_json(lost)::text;
  end if;
  perform @schema@._same_history();
  mine := array(select substr(k, 17)::smallint from unnest(p_keys) k where k ~ '^fenceline:relay/[0-9][0-9]$');
  if exists (select from jsonb_array_elements(p_groups || p_forks) e cross join jsonb_array_elements_text(e -> 'shards') s where s::smallint <> all (mine)) then
    raise exception 'a checkpoint can only be of shards whose leases are shown' using errcode = 'FL009';
  end if;
  with stored as (
    insert into @schema@.relay_checkpoint (shards, epoch, token, s1, low, s2, high, low2, last_pos, pair_low, pair_xid)
    select g.shards, w.epoch, w.token, g.s1, g.low, g.s2, g.high, g.low2, g.last_pos, relay_checkpoint.pair_low, relay_checkpoint.pair_xid
      from jsonb_to_recordset(p_groups) as g(shards smallint[], s1 pg_snapshot, low bigint, s2 pg_snapshot, high bigint, low2 bigint, last_pos bigint)
      join unnest(p_keys, p_epochs, p_tokens) w(key, epoch, token) on w.key = 'fenceline:relay/' || lpad(g.shards[1]::text, 2, '0')
    returning n)
  select array_agg(n) into generations from stored;
  delete from @schema@.relay_checkpoint c where c.n = any (p_old)
    and not exists (select from unnest(c.shards) s where not exists (select from @schema@.relay_checkpoint d where d.n > c.n and s = any (d.shards)));
  insert into @schema@.relay_held (topic, key, pos, epoch, seq, reason, detail)
    select h.topic, h.key, h.pos, h.epoch, h.seq, h.reason, h.detail
      from jsonb_to_recordset(p_held) as h(topic text, key text, pos bigint, epoch bigint, seq bigint, reason text, detail text) on conflict do nothing;
  if p_forks <> '[]' then
    -- Since when is told by this clock, with which a sweep's time is compared: that
    -- of the row that is there, or now. The relay's own may go another way.
    known := (select jsonb_agg(jsonb_build_object('topic', k.topic, 'partition', k.partition, 'since', k.since))
                from (select topic, partition, min(since) as since from @schema@.relay_fork group by 1, 2) k);
    -- Out of the row that has been there, which may be of shards that are
    -- another instance's by now; and a new row.
    update @schema@.relay_fork k set shards = array(select s from unnest(k.shards) s where s <> all (f.shards))
      from (select j.topic, j.partition, array_agg(s) as shards
              from jsonb_to_recordset(p_forks) as j(topic text, partition int, shards smallint[]) cross join unnest(j.shards) s group by 1, 2) f
     where k.topic = f.topic and k.partition is not distinct from f.partition and k.shards && f.shards;
    delete from @schema@.relay_fork where shards = '{}';
    insert into @schema@.relay_fork (topic, partition, partitions, shards, s1, low, s2, high, low2, last_pos, reason, detail, since)
    select f.topic, f.partition, f.partitions, f.shards, f.s1, f.low, f.s2, f.high, f.low2, f.last_pos, f.reason, f.detail,
           coalesce((select k.since from jsonb_to_recordset(known) as k(topic text, partition int, since timestamptz) where k.topic = f.topic and k.partition is not distinct from f.partition), clock_timestamp())
      from jsonb_to_recordset(p_forks) as f(topic text, partition int, partitions int, shards smallint[], s1 pg_snapshot, low bigint, s2 pg_snapshot, high bigint, low2 bigint, last_pos bigint,
        reason text, detail text)
     where f.s1 is not null;
  end if;
end $$;

-- As before, but that each accept of a topic is kept: what is in the topic from
-- before goes by the count that it had then.
create or replace function @schema@._relay_audit(p_who text, p_action text, p_topic text, p_key text, p_detail jsonb) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare last bigint;
begin
  if p_who is null or octet_length(p_who) not between 1 and 255 then
    raise exception 'who does this says so, in 1 to 255 bytes' using errcode = 'FL011';
  end if;
  insert into @schema@.relay_audit (who, action, topic, key, detail) values (p_who, p_action, p_topic, p_key, jsonb_strip_nulls(p_detail)) returning n into last;
  delete from @schema@.relay_audit where n <= last - 10000 and action <> 'topic accept';
end $$;
comment on table @schema@.relay_audit is 'What operators have told the relay, and what became of it; the newest 10,000, and each accept of a topic.';

-- What is decided about a topic, and that nothing is published, is on the disk
-- before anybody acts upon it: the relay with the broker, an operator with
-- whatever he has paused it for. A crash that takes it back would have events
-- follow their own markers, or go on in another partition than those before them.
create or replace function @schema@.relay_topic_pin(p_topic text, p_partitions int, out partitions int, out retired boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  if p_partitions is not null then
    -- First look, then write: a pin is asked for again and again.
    perform 1 from @schema@.relay_topic t where t.topic = p_topic;
    if not found then
      -- What is written to the topic next goes by it.
      perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
      insert into @schema@.relay_topic (topic, partitions) values (p_topic, p_partitions) on conflict do nothing;
    end if;
  end if;
  select t.partitions, t.retired_at is not null into partitions, retired from @schema@.relay_topic t where t.topic = p_topic;
  retired := coalesce(retired, false);
end $$;

create or replace function @schema@.relay_topic_retire(p_topic text, p_who text, p_why text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare t @schema@.relay_topic;
begin
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  select * into t from @schema@.relay_topic x where x.topic = p_topic for update;
  if t.retired_at is not null then return false; end if;
  if not exists (select 1 from @schema@.relay_fork f where f.topic = p_topic and f.partition is null) then
    raise exception 'topic % is not refused by the broker, as far as the relay knows', p_topic using errcode = 'FL020',
      hint = 'Only a topic that is gone can be retired. Delete it first; the relay notices within a minute, and with the next event. If no relay is active, start one.';
  end if;
  -- A count is pinned with the first event that is sent; one that never existed has none.
  insert into @schema@.relay_topic as x (topic, partitions, retired_at, retired_by, why) values (p_topic, coalesce(t.partitions, 1), clock_timestamp(), p_who, p_why)
    on conflict (topic) do update set retired_at = excluded.retired_at, retired_by = excluded.retired_by, why = excluded.why;
  perform @schema@._relay_audit(p_who, 'topic retire', p_topic, null, jsonb_build_object('why', p_why, 'refused_because', (select min(f.reason) from @schema@.relay_fork f where f.topic = p_topic and f.partition is null)));
  return true;
end $$;

create or replace function @schema@.relay_topic_judge(p_topic text, p_pos bigint[]) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare n bigint;
begin
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  -- Locked, so that no verdict is given once an accept has committed.
  perform 1 from @schema@.relay_topic t where t.topic = p_topic and t.retired_at is not null for share;
  if not found then return null; end if;
  update @schema@.outbox o set verdict = 'retired', verdict_at = clock_timestamp(), skip_from = case when o.kind <> 'end' then o.seq end, skip_to = case when o.kind <> 'end' then o.seq end
   where o.pos = any (p_pos) and o.topic = p_topic and o.verdict is null;
  get diagnostics n = row_count;
  return n;
end $$;

create or replace function @schema@.relay_topic_accept(p_topic text, p_partitions int, p_drained boolean, p_who text, p_why text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare t @schema@.relay_topic; refused timestamptz; swept timestamptz;
begin
  -- What comes goes to where it says.
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  if p_partitions is null or p_partitions < 1 then
    raise exception 'a topic has at least one partition' using errcode = 'FL011';
  end if;
  select * into t from @schema@.relay_topic x where x.topic = p_topic for update;
  if not found then
    raise exception 'the relay has never written to topic %', p_topic using errcode = 'FL020', hint = 'Nothing is to be accepted: it takes whatever partition count it finds with the first event.';
  end if;
  if t.retired_at is null and t.partitions = p_partitions then
    raise exception 'topic % is pinned to % partitions already', p_topic, p_partitions using errcode = 'FL020', hint = 'Name the count that the topic has now.';
  end if;
  if p_drained is not true then
    raise exception 'events that are still unread in topic % could be overtaken by those that come', p_topic using errcode = 'FL020',
      hint = 'Wait until the lag of every consumer group is 0, and confirm that.';
  end if;
  select min(f.since) into refused from @schema@.relay_fork f where f.topic = p_topic;
  select r.tombstone_at into swept from @schema@.retention r;
  if swept >= refused then
    raise exception 'a tombstone was swept at %, after the topic was refused at %', swept, refused using errcode = 'FL020',
      hint = 'Create the topic with its old partition count again, or retire it and go on in a topic of another name.';
  end if;
  update @schema@.relay_topic x set partitions = p_partitions, pinned_at = clock_timestamp(), retired_at = null, retired_by = null, why = p_why where x.topic = p_topic;
  perform @schema@._relay_audit(p_who, 'topic accept', p_topic, null, jsonb_build_object('partitions', p_partitions, 'before', t.partitions, 'was_retired', t.retired_at is not null, 'why', p_why));
end $$;

create or replace function @schema@.relay_set_pause(p_paused boolean, p_who text, p_reason text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  lock table @schema@.relay_pause in share row exclusive mode;
  if coalesce((select p.paused from @schema@.relay_pause p order by p.n desc limit 1), false) = p_paused then return false; end if;
  insert into @schema@.relay_pause (paused, who, reason) values (p_paused, p_who, p_reason);
  perform @schema@._relay_audit(p_who, case when p_paused then 'pause' else 'resume' end, null, null, jsonb_build_object('why', p_reason));
  -- This is no commit of a producer's: one that waits here keeps nobody.
  perform pg_notify('@schema_name@_wake', 'pause');
  return true;
end $$;

-- As before, but that it begins no new history.
create or replace function @schema@.sweep_plan(p_retry interval, p_residence interval, p_limit int, p_foreign_relay boolean)
returns table (goes boolean, what text, reason text, n bigint, more boolean, example text, until timestamptz)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_column
declare
  due timestamptz;
begin
  perform @schema@._other_history();     -- which a sweep would end, where it may: a look doesn't
  due := @schema@._sweep_until(p_retry, p_residence, p_limit);
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
