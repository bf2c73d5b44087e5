-- Back to leases that are acquired, renewed and released. A rotation was an
-- advance of the holder's own; the other turns that only this version knows go.
drop trigger owned on @schema@.fence;
drop function @schema@.set_owner, @schema@.expire_lease, @schema@.rotate, @schema@.relay_hand_over, @schema@.hand_over, @schema@._hand_over,
  @schema@.relay_acquire, @schema@.acquire, @schema@._acquire, @schema@.history_on_new, @schema@.history_confirm, @schema@.history_bump, @schema@.history_follow;

create or replace function @schema@._same_history() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare h @schema@.history; i record; self oid;
begin
  select * into i from @schema@._identity();
  select * into h from @schema@.history;
  select tableoid into self from @schema@.history;
  if h.system_identifier is distinct from i.system_identifier or h.timeline is distinct from i.timeline
     or h.database_oid is distinct from i.database_oid or h.self_oid is distinct from self then
    raise exception 'this database is not the one in which the fences were issued: it was restored, promoted or copied'
      using errcode = 'FL006',
        detail = json_build_object('recorded', json_build_object('system_identifier', h.system_identifier::text, 'timeline', h.timeline, 'database_oid', h.database_oid, 'self_oid', h.self_oid),
          'found', json_build_object('system_identifier', i.system_identifier::text, 'timeline', i.timeline, 'database_oid', i.database_oid, 'self_oid', self))::text,
        hint = 'If nothing that was acknowledged can have been lost, an operator runs select @schema_name@.history_confirm(). Otherwise select @schema_name@.history_bump(): every key then starts a new epoch.';
  end if;
end $$;

create function @schema@.history_bump(p_above bigint default 0) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare n bigint;
begin
  lock table @schema@.fence in exclusive mode;   -- commits in progress end first; whoever waits here finds the new history under its lock
  update @schema@.history h
     set system_identifier = i.system_identifier, timeline = i.timeline, database_oid = i.database_oid, self_oid = h.tableoid,
         since = greatest(h.epoch_floor + 1, @schema@._now_us(), p_above + 1), epoch_floor = greatest(h.epoch_floor + 1, @schema@._now_us(), p_above + 1)
    from @schema@._identity() i;
  update @schema@.history set epoch_floor = greatest(since, epoch_floor) returning since into n;
  -- No lease of before can commit any more: its holder must acquire anew, and
  -- must not keep others out by renewing it.
  update @schema@.lease set expires_at = '-infinity' where expires_at > '-infinity';
  return n;
end $$;

create function @schema@.history_confirm() returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  update @schema@.history h
     set system_identifier = i.system_identifier, timeline = i.timeline, database_oid = i.database_oid, self_oid = h.tableoid
    from @schema@._identity() i;
end $$;

create function @schema@._acquire(p_key text, p_holder text, p_ttl interval, p_attempt uuid, p_wait interval,
  out won boolean, out epoch bigint, out token bigint, out holder text, out expires_at timestamptz, out remaining interval)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  f @schema@.fence;
  l @schema@.lease;
  n timestamptz;
  arrived timestamptz := clock_timestamp();
begin
  if p_holder is null or octet_length(p_holder) not between 1 and 255 then
    raise exception 'a holder''s name has 1 to 255 bytes' using errcode = 'FL011';
  end if;
  if p_ttl is null or p_ttl < interval '100 ms' or p_ttl > interval '1 day' then
    raise exception 'a lease time is from 100 ms to 1 day, this one is %', p_ttl using errcode = 'FL011';
  end if;
  perform @schema@._same_history();
  for attempt in 1..2 loop
    if attempt = 2 then
      f := @schema@._lock_fence(p_key, p_wait);
      if f.closed_at is not null then
        raise exception 'key % is closed', p_key using errcode = 'FL005',
          detail = json_build_object('key', p_key, 'current_epoch', f.epoch, 'current_token', f.max_issued_token, 'closed_at', f.closed_at)::text;
      end if;
    end if;
    -- The first time without a lock: a lease that is held is answered without
    -- waiting behind its holder's commit.
    select * into l from @schema@.lease t where t.key = p_key;
    n := clock_timestamp();
    if found and l.expires_at > n then
      won := coalesce(l.holder = p_holder and l.attempt = p_attempt, false);
      holder := l.holder; expires_at := l.expires_at; remaining := l.expires_at - n;
      if won then      -- the answer to this attempt was lost: the same again
        epoch := l.epoch; token := l.token; remaining := l.expires_at - arrived;
      end if;
      return;
    end if;
  end loop;
  select a.epoch, a.token into epoch, token from @schema@._advance_locked(f, null, p_holder, 'acquire') a;
  won := true; holder := p_holder; expires_at := clock_timestamp() + p_ttl; remaining := expires_at - arrived;
  insert into @schema@.lease as t values (p_key, epoch, token, p_holder, p_attempt, expires_at)
    on conflict (key) do update set epoch = excluded.epoch, token = excluded.token, holder = excluded.holder, attempt = excluded.attempt, expires_at = excluded.expires_at;
end $$;

create function @schema@.acquire(p_key text, p_holder text, p_ttl interval, p_attempt uuid, p_wait interval,
  out won boolean, out epoch bigint, out token bigint, out holder text, out expires_at timestamptz, out remaining interval)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform @schema@._check_key(p_key, false);
  select * into won, epoch, token, holder, expires_at, remaining from @schema@._acquire(p_key, p_holder, p_ttl, p_attempt, p_wait);
end $$;
create function @schema@.relay_acquire(p_key text, p_holder text, p_ttl interval, p_attempt uuid, p_wait interval,
  out won boolean, out epoch bigint, out token bigint, out holder text, out expires_at timestamptz, out remaining interval)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform @schema@._check_key(p_key, true);
  select * into won, epoch, token, holder, expires_at, remaining from @schema@._acquire(p_key, p_holder, p_ttl, p_attempt, p_wait);
end $$;
create or replace function @schema@._release(p_key text, p_epoch bigint, p_token bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare h text;
begin
  update @schema@.lease l set expires_at = '-infinity' where l.key = p_key and l.epoch = p_epoch and l.token = p_token and l.expires_at > '-infinity' returning l.holder into h;
  if h is null then return false; end if;
  insert into @schema@.turn (key, epoch, token, holder, why) values (p_key, p_epoch, p_token, h, 'release');
  return true;
end $$;

create or replace function @schema@._refuse(p_key text, p_epoch bigint, p_token bigint, p_step text, p_algo text, p_digest bytea) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare x record; evidence jsonb;
begin
  select f.key as fkey, f.epoch, f.max_issued_token, f.closed_at, f.floor_epoch, f.floor_token, h.since,
         r.key as rkey, r.algo, r.digest, r.result, r.committed_at, r.xid
    into x
    from @schema@.history h
    left join @schema@.fence f on f.key = p_key
    left join @schema@.receipt r on r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step;
  evidence := jsonb_build_object('key', p_key, 'epoch', p_epoch, 'token', p_token, 'step', p_step,
    'current_epoch', x.epoch, 'current_token', x.max_issued_token);
  if x.rkey is not null then
    if x.xid = pg_current_xact_id_if_assigned() and x.committed_at >= transaction_timestamp() then
      raise exception 'step "%" of % was entered twice in one transaction', p_step, p_key using errcode = 'FL009', detail = evidence::text;
    end if;
    evidence := evidence || jsonb_build_object('committed_at', x.committed_at, 'algo', x.algo, 'digest', encode(x.digest, 'hex'), 'presented_digest', encode(p_digest, 'hex'), 'result', encode(x.result, 'base64'));
    if x.algo <> p_algo then
      raise exception 'the receipt of % was made with digest %, this attempt with %', p_key, x.algo, p_algo using errcode = 'FL004', detail = (evidence || '{"reason": "algorithm"}')::text;
    end if;
    if x.digest = p_digest then
      raise exception '% has committed this before', p_key using errcode = 'FL001', detail = evidence::text;
    end if;
    raise exception '% has committed other content under the same token and step', p_key using errcode = 'FL002', detail = evidence::text;
  end if;
  if exists (select 1 from @schema@.receipt r where r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp() and r.key = p_key) then
    raise exception 'this transaction has already passed the gate of % under another token', p_key using errcode = 'FL009', detail = evidence::text;
  end if;
  if x.fkey is null or (p_epoch, p_token) <= (x.floor_epoch, x.floor_token) or (p_epoch, p_token) > (x.epoch, x.max_issued_token) or p_epoch < x.since then
    raise exception 'nothing here can say what became of (%, %) of %', p_epoch, p_token, p_key using errcode = 'FL004',
      detail = (evidence || jsonb_build_object('floor_epoch', x.floor_epoch, 'floor_token', x.floor_token, 'history', x.since, 'reason',
        case when x.fkey is null then 'unknown key' when p_epoch < x.since then 'earlier history' when (p_epoch, p_token) > (x.epoch, x.max_issued_token) then 'ahead of the fence' else 'receipts swept' end))::text;
  end if;
  if x.closed_at is not null and p_epoch = x.epoch then
    raise exception 'this life of % has ended', p_key using errcode = 'FL005', detail = (evidence || jsonb_build_object('closed_at', x.closed_at))::text;
  end if;
  raise exception '(%, %) of % is stale: the fence is at (%, %)', p_epoch, p_token, p_key, x.epoch, x.max_issued_token using errcode = 'FL003', detail = evidence::text;
end $$;

create or replace function @schema@.enter(p_key text, p_epoch bigint, p_token bigint, p_step text, p_algo text, p_digest bytea, p_timeout interval) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  s smallint;
  at timestamptz;
  ms text := greatest(1, (extract(epoch from p_timeout) * 1000)::bigint)::text;
begin
  perform @schema@._check_key(p_key, false);
  -- A receipt that a crash can take back proves nothing.
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  perform set_config('idle_in_transaction_session_timeout', ms, true), set_config('statement_timeout', ms, true);
  -- R1: only so that a replay does not queue behind a live commit.
  perform 1 from @schema@.receipt where key = p_key and epoch = p_epoch and token = p_token and step = p_step;
  if found then perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest); end if;
  -- F: every fact of the check is in the row that is locked, because after a
  -- wait only that row is read again (a join or sub-select would be judged by
  -- the old snapshot). The epoch is among them: the tokens of two lives of a
  -- key may be equal numbers.
  select shard into s from @schema@.fence where key = p_key and epoch = p_epoch and max_issued_token = p_token and closed_at is null for no key update;
  if not found then perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest); end if;
  -- H: a new statement, under the lock. Checked at each commit, since a
  -- connection that was opened on a standby survives its promotion.
  perform 1 from @schema@.history h, @schema@._identity() i
    where p_epoch >= h.since and h.self_oid = h.tableoid and h.timeline = i.timeline and h.database_oid = i.database_oid and h.system_identifier = i.system_identifier;
  if not found then
    perform @schema@._same_history();
    perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest);
  end if;
  -- W
  insert into @schema@.receipt (key, epoch, token, step, algo, digest, shard) values (p_key, p_epoch, p_token, p_step, p_algo, p_digest, s) on conflict do nothing returning committed_at into at;
  if not found then perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest); end if;
  return at;
end $$;

drop function @schema@._bump, @schema@._other_history, @schema@._fence_owned;
drop table @schema@.history_change;
alter table @schema@.history drop column on_new;
update @schema@.turn set why = 'advance' where why = 'rotate';
delete from @schema@.turn where why in ('handover', 'expire', 'owner');
alter table @schema@.turn drop constraint turn_why_check;
alter table @schema@.turn add constraint turn_why_check check (why in ('acquire', 'release', 'advance', 'close', 'open'));
alter table @schema@.turn drop column whom, drop column login;
alter table @schema@.lease drop column successor, drop column reserved_until, drop column waiter, drop column waiter_until, drop column rotation;
alter table @schema@.fence drop column owner;
revoke all on function @schema@.history_bump, @schema@.history_confirm, @schema@._acquire, @schema@.acquire, @schema@.relay_acquire from public;
grant execute on function @schema@.acquire to @producer@;
grant execute on function @schema@.relay_acquire to @relay@;
grant execute on function @schema@.history_bump, @schema@.history_confirm to @operator@;
