-- min-library: 1
--
-- Leases, complete: a line for those who wait, hand-over to a named successor,
-- rotation of a holder's token, an owner of a key, an end by an operator, and
-- histories that a database may begin by itself.
--
-- A further SQLSTATE of our own:
--   FL012 owner           the key belongs to another login

-- Only this login may acquire and commit under the key; null: every producer.
-- In the fence row, because F can rest on nothing but the row that it locks.
alter table @schema@.fence add column owner name;

-- What comes after a lease. All of it is liveness: a mistake here costs time.
alter table @schema@.lease
  add column successor      text,          -- who alone may acquire
  add column reserved_until timestamptz,   -- until then; afterwards anyone
  add column waiter         text,          -- who was refused and asks again
  add column waiter_until   timestamptz,   -- before then
  add column rotation       uuid;          -- makes a rotation repeatable whose answer was lost

-- whom: the successor of a hand-over or release, the operator of an expire.
alter table @schema@.turn add column whom text, add column login name;
alter table @schema@.turn alter column login set default session_user;   -- apart from add column: rows of before have no login
alter table @schema@.turn drop constraint turn_why_check;
alter table @schema@.turn add constraint turn_why_check
  check (why in ('acquire', 'release', 'advance', 'handover', 'rotate', 'expire', 'owner', 'open', 'close'));

-- What a database does that finds itself to be another history: null refuses,
-- 'bump' begins a new one by itself.
alter table @schema@.history add column on_new text check (on_new = 'bump');

create table @schema@.history_change (
  n       bigint generated always as identity primary key,
  why     text not null check (why in ('bump', 'bump by itself', 'confirm', 'policy')),
  who     text,
  login   name not null default session_user,
  since   bigint not null,                 -- the history's beginning after the step
  policy  text,
  before  jsonb not null,                  -- which database it was in, and which it is in
  after   jsonb not null,
  at      timestamptz not null default clock_timestamp()
);
comment on table @schema@.history_change is 'Who began a new history, or said that it is still the same, and when.';

-- Whatever path leads to a fence: a login that doesn't own it moves neither its
-- token nor its life. Operators may, to end what an owner has left behind.
create function @schema@._fence_owned() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if old.owner <> session_user and not pg_has_role(session_user, '@schema_name@_operator', 'member') then
    raise exception 'key % belongs to login %, this one is %', old.key, old.owner, session_user using errcode = 'FL012',
      detail = json_build_object('key', old.key, 'owner', old.owner, 'login', session_user)::text,
      hint = 'Connect as that login, or let an operator assign the key: relay lease own.';
  end if;
  return new;
end $$;
create trigger owned before update on @schema@.fence for each row
  when (old.owner is not null and (old.epoch, old.max_issued_token, old.closed_at) is distinct from (new.epoch, new.max_issued_token, new.closed_at))
  execute function @schema@._fence_owned();

-- The refusal of a database that is another history.
create function @schema@._other_history() returns void
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
          'found', json_build_object('system_identifier', i.system_identifier::text, 'timeline', i.timeline, 'database_oid', i.database_oid, 'self_oid', self), 'on_new', h.on_new)::text,
        hint = 'If nothing that was acknowledged can have been lost, an operator runs relay history confirm, or select @schema_name@.history_confirm(). Otherwise relay history bump, or select @schema_name@.history_bump(): every key then starts a new epoch.';
  end if;
end $$;

-- Begins a new history: every epoch from now on is above all that the lost side
-- can have issued. The clock, and not a counter, since a counter would be
-- restored with the database and be given out a second time.
create function @schema@._bump(p_above bigint, p_who text, p_by_itself boolean) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare n bigint; b jsonb;
begin
  -- A history that a crash takes back would be given out twice.
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  lock table @schema@.fence in exclusive mode;   -- commits in progress end first; whoever waits here finds the new history under its lock
  select jsonb_build_object('system_identifier', h.system_identifier::text, 'timeline', h.timeline, 'database_oid', h.database_oid, 'self_oid', h.self_oid) into b from @schema@.history h;
  if p_by_itself then
    -- A statement of its own behind the lock: of several who find out at once,
    -- one begins the history and the others find it begun.
    perform 1 from @schema@.history h, @schema@._identity() i
      where h.self_oid = h.tableoid and h.timeline = i.timeline and h.database_oid = i.database_oid and h.system_identifier = i.system_identifier;
    if found then return null; end if;
  end if;
  update @schema@.history h
     set system_identifier = i.system_identifier, timeline = i.timeline, database_oid = i.database_oid, self_oid = h.tableoid,
         since = greatest(h.epoch_floor + 1, @schema@._now_us(), p_above + 1), epoch_floor = greatest(h.epoch_floor + 1, @schema@._now_us(), p_above + 1)
    from @schema@._identity() i;
  update @schema@.history set epoch_floor = greatest(since, epoch_floor) returning since into n;
  -- No lease of before can commit any more: its holder must acquire anew, and
  -- must not keep others out by renewing it.
  update @schema@.lease set expires_at = '-infinity', successor = null, reserved_until = null where expires_at > '-infinity' or reserved_until is not null;
  insert into @schema@.history_change (why, who, since, policy, before, after)
    select case when p_by_itself then 'bump by itself' else 'bump' end, p_who, h.since, h.on_new, b,
           jsonb_build_object('system_identifier', h.system_identifier::text, 'timeline', h.timeline, 'database_oid', h.database_oid, 'self_oid', h.self_oid) from @schema@.history h;
  return n;
end $$;

-- Asked before each token and each checkpoint. A database that is another
-- history begins a new one where an operator has said that it shall, and
-- refuses otherwise.
create or replace function @schema@._same_history() returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  perform 1 from @schema@.history h, @schema@._identity() i
    where h.self_oid = h.tableoid and h.timeline = i.timeline and h.database_oid = i.database_oid and h.system_identifier = i.system_identifier;
  if found then return; end if;
  if (select on_new from @schema@.history) = 'bump' then
    perform @schema@._bump(0, null, true);
  else
    perform @schema@._other_history();
  end if;
end $$;

-- The gate can only refuse in another history: what it wrote would go with its
-- error. So whoever it has refused there, and who reads that the database may
-- begin a new history by itself, calls this in a transaction of its own.
create function @schema@.history_follow() returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$ begin perform @schema@._same_history(); end $$;

drop function @schema@.history_bump(bigint);
create function @schema@.history_bump(p_above bigint default 0, p_who text default null) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$ begin return @schema@._bump(p_above, p_who, false); end $$;

-- Says that nothing was lost: epochs go on.
drop function @schema@.history_confirm();
create function @schema@.history_confirm(p_who text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare b jsonb;
begin
  lock table @schema@.fence in exclusive mode;
  select jsonb_build_object('system_identifier', h.system_identifier::text, 'timeline', h.timeline, 'database_oid', h.database_oid, 'self_oid', h.self_oid) into b from @schema@.history h;
  update @schema@.history h
     set system_identifier = i.system_identifier, timeline = i.timeline, database_oid = i.database_oid, self_oid = h.tableoid
    from @schema@._identity() i;
  insert into @schema@.history_change (why, who, since, policy, before, after)
    select 'confirm', p_who, h.since, h.on_new, b,
           jsonb_build_object('system_identifier', h.system_identifier::text, 'timeline', h.timeline, 'database_oid', h.database_oid, 'self_oid', h.self_oid) from @schema@.history h;
end $$;

-- What the database does the next time that it finds itself to be another.
create function @schema@.history_on_new(p_policy text, p_who text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  if p_policy is null or p_policy not in ('refuse', 'bump') then
    raise exception 'in a new history there is refuse or bump, not %', coalesce(p_policy, 'null') using errcode = 'FL011';
  end if;
  update @schema@.history set on_new = nullif(p_policy, 'refuse');
  insert into @schema@.history_change (why, who, since, policy, before, after) select 'policy', p_who, h.since, p_policy, '{}', '{}' from @schema@.history h;
end $$;

-- Acquire or take over, in one transaction with the fence: once it has
-- committed, the old holder can commit nothing more, whether or not the new
-- one has written anything. The lease is judged on the database clock, read
-- after the locks: a transaction that waited would otherwise judge by the
-- time at which it began. To a winner, remaining counts from the moment at
-- which the question arrived, since its trust counts from when it asked: the
-- wait for a commit in progress is not taken from it.
drop function @schema@.acquire(text, text, interval, uuid, interval);
drop function @schema@.relay_acquire(text, text, interval, uuid, interval);
drop function @schema@._acquire(text, text, interval, uuid, interval);
create function @schema@._acquire(p_key text, p_holder text, p_ttl interval, p_attempt uuid, p_wait interval, p_own boolean, p_again interval,
  out won boolean, out epoch bigint, out token bigint, out holder text, out expires_at timestamptz, out remaining interval, out reserved boolean)
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
  if p_again < interval '1 ms' or p_again > interval '1 min' then
    raise exception 'who waits asks again within 1 ms to 1 min, not %', p_again using errcode = 'FL011';
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
      holder := l.holder; expires_at := l.expires_at; remaining := l.expires_at - n; reserved := false;
      if won then      -- the answer to this attempt was lost: the same again
        epoch := l.epoch; token := l.token; remaining := l.expires_at - arrived;
      elsif p_again is not null then
        -- First in line is who asked first and still asks. Never waited for: a
        -- renewal may have the row, and next time will do.
        update @schema@.lease t set waiter = p_holder, waiter_until = n + 2 * p_again
         where t.key = (select x.key from @schema@.lease x where x.key = p_key and (x.waiter is null or x.waiter = p_holder or x.waiter_until <= n) for no key update skip locked);
      end if;
      return;
    end if;
    if found and l.reserved_until > n and l.successor <> p_holder then
      won := false; holder := l.successor; expires_at := l.reserved_until; remaining := l.reserved_until - n; reserved := true;
      return;
    end if;
  end loop;
  -- A key that has served others is not to be had by naming oneself its owner.
  if p_own and f.owner is null then
    if f.max_issued_token > 0 then
      raise exception 'key % was acquired before and has no owner', p_key using errcode = 'FL012',
        detail = json_build_object('key', p_key, 'login', session_user)::text, hint = 'An operator assigns it: relay lease own.';
    end if;
    update @schema@.fence t set owner = session_user where t.key = p_key;
  end if;
  select a.epoch, a.token into epoch, token from @schema@._advance_locked(f, null, p_holder, 'acquire') a;
  won := true; holder := p_holder; expires_at := clock_timestamp() + p_ttl; remaining := expires_at - arrived; reserved := false;
  insert into @schema@.lease as t (key, epoch, token, holder, attempt, expires_at) values (p_key, epoch, token, p_holder, p_attempt, expires_at)
    on conflict (key) do update set epoch = excluded.epoch, token = excluded.token, holder = excluded.holder, attempt = excluded.attempt, expires_at = excluded.expires_at,
      successor = null, reserved_until = null, rotation = null,
      waiter = nullif(t.waiter, p_holder), waiter_until = case when t.waiter <> p_holder then t.waiter_until end;
end $$;

create function @schema@.acquire(p_key text, p_holder text, p_ttl interval, p_attempt uuid, p_wait interval, p_own boolean default false, p_again interval default null,
  out won boolean, out epoch bigint, out token bigint, out holder text, out expires_at timestamptz, out remaining interval, out reserved boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform @schema@._check_key(p_key, false);
  select * into won, epoch, token, holder, expires_at, remaining, reserved from @schema@._acquire(p_key, p_holder, p_ttl, p_attempt, p_wait, p_own, p_again);
end $$;
create function @schema@.relay_acquire(p_key text, p_holder text, p_ttl interval, p_attempt uuid, p_wait interval, p_own boolean default false, p_again interval default null,
  out won boolean, out epoch bigint, out token bigint, out holder text, out expires_at timestamptz, out remaining interval, out reserved boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform @schema@._check_key(p_key, true);
  -- Our own leases belong to every relay.
  select * into won, epoch, token, holder, expires_at, remaining, reserved from @schema@._acquire(p_key, p_holder, p_ttl, p_attempt, p_wait, false, p_again);
end $$;

-- Gives a lease up. The counter stays: the next holder's token is larger. Who
-- was first in line has the key to itself until it will have asked again: a
-- holder that comes back at once would otherwise win for ever.
create or replace function @schema@._release(p_key text, p_epoch bigint, p_token bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare l @schema@.lease; n timestamptz; next text;
begin
  select * into l from @schema@.lease t where t.key = p_key and t.epoch = p_epoch and t.token = p_token and t.expires_at > '-infinity' for no key update;
  if not found then return false; end if;
  n := clock_timestamp();
  next := case when l.waiter_until > n then l.waiter end;
  update @schema@.lease t set expires_at = '-infinity', successor = next, reserved_until = case when next is not null then l.waiter_until end, waiter = null, waiter_until = null where t.key = p_key;
  insert into @schema@.turn (key, epoch, token, holder, why, whom) values (p_key, p_epoch, p_token, l.holder, 'release', next);
  return true;
end $$;

-- Gives a lease to one named holder: for a while nobody else can acquire.
create function @schema@._hand_over(p_key text, p_epoch bigint, p_token bigint, p_successor text, p_for interval) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare l @schema@.lease; n timestamptz;
begin
  if p_successor is null or octet_length(p_successor) not between 1 and 255 then
    raise exception 'a holder''s name has 1 to 255 bytes' using errcode = 'FL011';
  end if;
  if p_for is null or p_for < interval '1 ms' or p_for > interval '1 day' then
    raise exception 'a lease is kept for a successor for 1 ms to 1 day, not for %', p_for using errcode = 'FL011';
  end if;
  select * into l from @schema@.lease t where t.key = p_key and t.epoch = p_epoch and t.token = p_token for no key update;
  n := clock_timestamp();
  -- What has expired is not its holder's to give: others may be about to take it.
  if l.key is null or l.expires_at <= n then return false; end if;
  update @schema@.lease t set expires_at = '-infinity', successor = p_successor, reserved_until = n + p_for, waiter = null, waiter_until = null where t.key = p_key;
  insert into @schema@.turn (key, epoch, token, holder, why, whom) values (p_key, p_epoch, p_token, l.holder, 'handover', p_successor);
  return true;
end $$;
create function @schema@.hand_over(p_key text, p_epoch bigint, p_token bigint, p_successor text, p_for interval) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$ begin perform @schema@._check_key(p_key, false); return @schema@._hand_over(p_key, p_epoch, p_token, p_successor, p_for); end $$;
create function @schema@.relay_hand_over(p_key text, p_epoch bigint, p_token bigint, p_successor text, p_for interval) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$ begin perform @schema@._check_key(p_key, true); return @schema@._hand_over(p_key, p_epoch, p_token, p_successor, p_for); end $$;

-- A holder advances itself and keeps the lease: receipts under a token that
-- stays the newest could never be swept. It waits for commits in progress, as a
-- takeover does, and what comes later under the old token is stale. The same
-- rotation again (its answer was lost) gets the same token. Our own leases have
-- no receipts, so there is no twin for the relay.
create function @schema@.rotate(p_key text, p_epoch bigint, p_token bigint, p_rotation uuid, p_wait interval, out epoch bigint, out token bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  f @schema@.fence;
  l @schema@.lease;
begin
  perform @schema@._check_key(p_key, false);
  perform @schema@._same_history();
  f := @schema@._lock_fence(p_key, p_wait);
  select * into l from @schema@.lease t where t.key = p_key;
  if f.closed_at is not null then
    raise exception 'key % is closed', p_key using errcode = 'FL005',
      detail = json_build_object('key', p_key, 'epoch', p_epoch, 'token', p_token, 'current_epoch', f.epoch, 'current_token', f.max_issued_token, 'closed_at', f.closed_at)::text;
  end if;
  if l.rotation = p_rotation and (l.epoch, l.token) = (f.epoch, f.max_issued_token) and (l.epoch, l.token) > (p_epoch, p_token) then
    epoch := l.epoch; token := l.token;
    return;
  end if;
  -- Of a lease that has expired nobody is the holder, though nobody took it yet.
  if l.key is null or (l.epoch, l.token) <> (p_epoch, p_token) or (f.epoch, f.max_issued_token) <> (p_epoch, p_token) or l.expires_at <= clock_timestamp() then
    raise exception '(%, %) of % is not a held lease', p_epoch, p_token, p_key using errcode = 'FL003',
      detail = json_build_object('key', p_key, 'epoch', p_epoch, 'token', p_token, 'current_epoch', f.epoch, 'current_token', f.max_issued_token, 'reason', 'the lease is over')::text;
  end if;
  select a.epoch, a.token into epoch, token from @schema@._advance_locked(f, null, l.holder, 'rotate') a;
  update @schema@.lease t set epoch = rotate.epoch, token = rotate.token, rotation = p_rotation where t.key = p_key;
end $$;

-- An operator ends a lease now, or what a key is reserved for. The fence is
-- left alone: until somebody acquires, the old holder can still commit.
create function @schema@.expire_lease(p_key text, p_who text, out ended boolean, out epoch bigint, out token bigint, out holder text)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare l @schema@.lease; n timestamptz;
begin
  if p_who is null or octet_length(p_who) not between 1 and 255 then
    raise exception 'who ends a lease says so, in 1 to 255 bytes' using errcode = 'FL011';
  end if;
  select * into l from @schema@.lease t where t.key = p_key for no key update;
  n := clock_timestamp();
  epoch := l.epoch; token := l.token; holder := l.holder;
  ended := coalesce(l.expires_at > '-infinity' or l.reserved_until > n, false);
  if not ended then return; end if;
  update @schema@.lease t set expires_at = '-infinity', successor = null, reserved_until = null, waiter = null, waiter_until = null where t.key = p_key;
  insert into @schema@.turn (key, epoch, token, holder, why, whom) values (p_key, l.epoch, l.token, l.holder, 'expire', p_who);
end $$;

-- An operator assigns a key to a login, before its first acquire or later, or
-- (null) to every producer.
create function @schema@.set_owner(p_key text, p_owner text, p_who text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare f @schema@.fence;
begin
  perform @schema@._check_key(p_key, false);
  if p_owner is not null and not exists (select 1 from pg_roles r where r.rolname = p_owner) then
    raise exception 'there is no login %', p_owner using errcode = 'FL011', hint = 'Nobody could commit under the key.';
  end if;
  f := @schema@._lock_fence(p_key, interval '5 s');
  update @schema@.fence t set owner = p_owner where t.key = p_key;
  insert into @schema@.turn (key, epoch, token, holder, why, whom) values (p_key, f.epoch, f.max_issued_token, p_owner, 'owner', p_who);
end $$;

-- R2: what became of an attempt that found no row at R1, F, H or W. Receipt
-- and fence are read in ONE statement, so from one snapshot: read one after the
-- other, fence first, a sweep could fall between, which takes the receipt and
-- raises a floor that was read already, and a committed result would be called
-- stale.
create or replace function @schema@._refuse(p_key text, p_epoch bigint, p_token bigint, p_step text, p_algo text, p_digest bytea) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare x record; evidence jsonb;
begin
  select f.key as fkey, f.epoch, f.max_issued_token, f.closed_at, f.floor_epoch, f.floor_token, f.owner, h.since,
         r.key as rkey, r.algo, r.digest, r.result, r.committed_at, r.xid
    into x
    from @schema@.history h
    left join @schema@.fence f on f.key = p_key
    left join @schema@.receipt r on r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step;
  evidence := jsonb_build_object('key', p_key, 'epoch', p_epoch, 'token', p_token, 'step', p_step,
    'current_epoch', x.epoch, 'current_token', x.max_issued_token);
  -- Before all: what another login has committed is not told either.
  if x.owner <> session_user then
    raise exception 'key % belongs to login %, this one is %', p_key, x.owner, session_user using errcode = 'FL012',
      detail = json_build_object('key', p_key, 'owner', x.owner, 'login', session_user)::text,
      hint = 'Connect as that login, or let an operator assign the key: relay lease own.';
  end if;
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

-- The gate. Returns when this is the first commit of (key, epoch, token,
-- step), with the fence locked to the end of the transaction and the receipt
-- written; raises for every other answer. It must be a statement of its own:
-- whatever else stands in the same statement would still see the snapshot of
-- before the lock wait. p_timeout bounds a holder that is paused behind the
-- gate, which would otherwise block the takeover for ever: its session ends.
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
  select shard into s from @schema@.fence where key = p_key and epoch = p_epoch and max_issued_token = p_token and closed_at is null and (owner is null or owner = session_user) for no key update;
  if not found then perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest); end if;
  -- H: a new statement, under the lock. Checked at each commit, since a
  -- connection that was opened on a standby survives its promotion.
  perform 1 from @schema@.history h, @schema@._identity() i
    where p_epoch >= h.since and h.self_oid = h.tableoid and h.timeline = i.timeline and h.database_oid = i.database_oid and h.system_identifier = i.system_identifier;
  if not found then
    perform @schema@._other_history();
    perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest);
  end if;
  -- W
  insert into @schema@.receipt (key, epoch, token, step, algo, digest, shard) values (p_key, p_epoch, p_token, p_step, p_algo, p_digest, s) on conflict do nothing returning committed_at into at;
  if not found then perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest); end if;
  return at;
end $$;

revoke all on function @schema@._fence_owned, @schema@._other_history, @schema@._bump, @schema@.history_follow, @schema@.history_bump, @schema@.history_confirm, @schema@.history_on_new,
  @schema@._acquire, @schema@.acquire, @schema@.relay_acquire, @schema@._hand_over, @schema@.hand_over, @schema@.relay_hand_over, @schema@.rotate, @schema@.expire_lease, @schema@.set_owner from public;
revoke all on @schema@.history_change from public;
grant execute on function @schema@.acquire, @schema@.hand_over, @schema@.rotate to @producer@;
grant execute on function @schema@.relay_acquire, @schema@.relay_hand_over to @relay@;
grant execute on function @schema@.history_follow to @producer@, @advancer@, @relay@;
grant execute on function @schema@.history_bump, @schema@.history_confirm, @schema@.history_on_new, @schema@.expire_lease, @schema@.set_owner to @operator@;
grant select on @schema@.history_change to @monitor@, @operator@;
