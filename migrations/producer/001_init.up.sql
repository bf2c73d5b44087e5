-- min-library: 1
--
-- The producer's part: leases and fences, receipts, the outbox, and the
-- relay's bookkeeping. Whoever uses it does so through functions that run as
-- the owner (security definer): a login of a producer has no right on any
-- table, so it cannot set a token, read a payload, delete a receipt or write
-- the outbox outside the gate.
--
-- Conventions. Functions that begin with an underscore are internal: nobody
-- may execute them. A definer function pins its search_path and takes base
-- types only, so that no object of a caller is ever resolved inside it. They
-- are VOLATILE, which correctness rests on: each statement inside a volatile
-- function takes a new snapshot, so that what is read after a lock is what
-- the lock protects. Refusals are raised, never returned: in a pipelined batch
-- whatever is not an error lets the statements behind it commit.
--
-- SQLSTATEs of our own:
--   FL001 replayed        the same attempt has committed before
--   FL002 conflict        the same attempt has committed with other content
--   FL003 stale           the fence has moved past the presented token
--   FL004 unconfirmable   nothing here can say what became of the attempt
--   FL005 closed          this life of the key has ended
--   FL006 history         this is not the database the fences were issued in
--   FL007 no gate pass    the transaction has not passed the gate of that key
--   FL008 isolation       the transaction is not READ COMMITTED
--   FL009 misuse          the transaction contradicts itself
--   FL010 blocked         a commit in progress holds the fence
--   FL011 argument        an argument is out of range

-- Which history this database is: one row, written at install, replaced only
-- by an operator (history_bump, history_confirm).
create table @schema@.history (
  one               boolean primary key default true check (one),
  system_identifier bigint not null,
  timeline          text   not null,
  database_oid      oid    not null,   -- finds CREATE DATABASE … TEMPLATE and a dump loaded beside the original
  self_oid          oid    not null,   -- finds an old dump loaded over the same database
  since             bigint not null,   -- µs since 1970 of the install or the last bump: every epoch of this history is at or above it
  epoch_floor       bigint not null    -- every new life of a key starts at or above it
);
comment on table @schema@.history is 'Which history this database is. After a restore, promotion or copy nothing commits until an operator has confirmed it.';

-- What commits lock. A row changes only when the holder or the life of its key
-- changes, never with a commit or a heartbeat: so a long-running snapshot
-- somewhere in the database does not slow commits down.
create table @schema@.fence (
  key              text collate "C" primary key check (octet_length(key) between 1 and 512),
  epoch            bigint   not null check (epoch > 0),
  max_issued_token bigint   not null check (max_issued_token >= 0),
  shard            smallint not null,      -- murmur2(key) mod 64, computed once
  closed_at        timestamptz,
  floor_epoch      bigint   not null,      -- receipts at or below (floor_epoch, floor_token) are gone
  floor_token      bigint   not null
) with (fillfactor = 50);
comment on table @schema@.fence is 'The highest fencing token issued for each key. Every commit under a key locks its row and compares.';

-- What heartbeats update.
create table @schema@.lease (
  key        text collate "C" primary key,
  epoch      bigint not null,
  token      bigint not null,
  holder     text   not null,
  attempt    uuid,                          -- makes an acquire repeatable whose answer was lost
  expires_at timestamptz not null
) with (fillfactor = 50);
comment on table @schema@.lease is 'Who holds each key and until when. Liveness only: the fence decides who may commit.';

-- Who held what: one row for each step that changes it.
create table @schema@.turn (
  n      bigint generated always as identity primary key,
  key    text collate "C" not null,
  epoch  bigint not null,
  token  bigint not null,
  holder text,
  why    text not null check (why in ('acquire', 'release', 'advance')),
  at     timestamptz not null default clock_timestamp()
);
comment on table @schema@.turn is 'Who held which key under which token, since when and why.';

-- Proof that (key, epoch, token, step) has committed. It is written in the
-- transaction that it speaks of, and it is that transaction's pass for append:
-- xid is the top-level transaction id (xmin would be the subtransaction's).
create table @schema@.receipt (
  key          text collate "C" not null,
  epoch        bigint not null,
  token        bigint not null,
  step         text collate "C" not null check (octet_length(step) <= 128),
  algo         text   not null,
  digest       bytea  not null check (octet_length(digest) between 16 and 64),
  result       bytea  check (octet_length(result) <= 8192),
  shard        smallint not null,
  committed_at timestamptz not null default clock_timestamp(),
  xid          xid8   not null default pg_current_xact_id(),
  primary key (key, epoch, token, step)
);
create index receipt_xid on @schema@.receipt (xid);
comment on table @schema@.receipt is 'Proof of each commit, with the digest of its content: a retry is answered from here.';

-- The last position of each stream. Insert-only: an append inserts its own row
-- and deletes the one it has read, and the newest is found by the index
-- backwards, so that dead rows are never met under a held snapshot. One row
-- per stream that is updated instead falls to a fifth of its speed within a
-- minute there. The primary key is also what makes a seq unique across all
-- partitions of the outbox.
create table @schema@.head (
  topic text collate "C" not null,
  key   text collate "C" not null,
  epoch bigint not null,
  seq   bigint not null,
  primary key (topic, key, epoch, seq)
);

-- The order in which the relay reads. CACHE 1 is a promise: with a larger one
-- a later event of a stream could get the smaller pos.
create sequence @schema@.outbox_pos cache 1;

-- The events. Insert-only. The first five columns are Debezium's, so that its
-- outbox event router can read the table in our relay's place. xid is declared
-- before pos because defaults are evaluated in column order: whoever has a pos
-- has had its xid before, which the relay's low bound rests on.
create table @schema@.outbox (
  id            uuid  not null,
  aggregatetype text  not null check (octet_length(aggregatetype) between 1 and 255),
  aggregateid   text  not null,
  type          text  not null check (octet_length(type) between 1 and 255),
  payload       bytea,                         -- null is a tombstone, which is not the same as empty
  xid           xid8   not null default pg_current_xact_id(),
  pos           bigint not null default nextval('@schema_name@.outbox_pos'),
  topic         text collate "C" not null check (topic ~ '^[a-zA-Z0-9._-]{1,249}$' and topic not in ('.', '..')),
  key           text collate "C" not null check (octet_length(key) between 1 and 512),
  shard         smallint not null,
  epoch         bigint not null,
  token         bigint not null,
  seq           bigint not null check (seq > 0),
  kind          text   not null default 'data' check (kind in ('data', 'skip', 'end')),
  subject       text   check (octet_length(subject) <= 1024),
  source        text   not null check (octet_length(source) between 1 and 1024),
  contenttype   text   check (octet_length(contenttype) <= 255),
  headers       jsonb,                         -- ["name", "value", …] in order, null when there are none
  history       bigint,                        -- on seq 1: since which time the database's history runs
  prev_epoch    bigint,                        -- on seq 1: the last position of the stream's previous life,
  prev_seq      bigint,                        --           where it is remembered
  created_at    timestamptz not null default clock_timestamp(),
  constraint outbox_first check ((seq = 1) = (history is not null) and (prev_epoch is null) = (prev_seq is null) and (seq = 1 or prev_seq is null)),
  -- What cannot be published cannot commit. The library measures the record
  -- exactly as encoded and refuses earlier; this is for everybody else.
  constraint outbox_record_size check (2 * octet_length(key) + octet_length(topic) + octet_length(type) + octet_length(source)
    + coalesce(octet_length(subject), 0) + coalesce(octet_length(headers::text), 0) + coalesce(octet_length(payload), 0) <= 921600),
  primary key (pos)
) partition by range (pos);
create index outbox_xid on @schema@.outbox (xid, pos);                         -- stragglers, see the relay
create index outbox_stream on @schema@.outbox (topic, key, epoch, seq);        -- one stream in order
-- The partition's number is in the high bits of pos: to rotate, create the
-- next one and set the sequence to its start. A late rotation never fails a
-- commit, pos stays monotone, and look-ups by pos prune.
create table @schema@.outbox_0 partition of @schema@.outbox for values from (0) to (1099511627776);
comment on table @schema@.outbox is 'The events, in the order of pos. Insert-only; written through append() alone.';

-- (epoch, token) and the floor never fall and a reopened key has a larger
-- epoch: whatever the functions below should get wrong, this refuses.
create function @schema@._fence_monotone() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if new.key <> old.key
     or (new.epoch, new.max_issued_token) < (old.epoch, old.max_issued_token)
     or (new.floor_epoch, new.floor_token) < (old.floor_epoch, old.floor_token)
     or (old.closed_at is not null and new.closed_at is null and new.epoch <= old.epoch) then
    raise exception 'the fence of % cannot go from (%, %) to (%, %)', old.key, old.epoch, old.max_issued_token, new.epoch, new.max_issued_token
      using errcode = 'FL009', hint = 'Tokens and epochs only rise. Nothing but the functions of this schema should write this table.';
  end if;
  return new;
end $$;
create trigger monotone before update on @schema@.fence for each row execute function @schema@._fence_monotone();

create function @schema@._now_us() returns bigint
language sql volatile set search_path = pg_catalog, pg_temp as
$$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint $$;

-- Kafka's murmur2 of the key, mod 64: Java's default partitioner over 64
-- partitions. Runs once in the life of a key.
create function @schema@._shard(p_key text) returns smallint
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  mask constant bigint := 4294967295;
  m    constant bigint := 1540483477;
  b    bytea := convert_to(p_key, 'UTF8');
  n    int := length(b);
  h    bigint := 2538058380 # n;
  k    bigint;
  i    int := 0;
begin
  while n - i >= 4 loop
    k := get_byte(b, i)::bigint | (get_byte(b, i + 1)::bigint << 8) | (get_byte(b, i + 2)::bigint << 16) | (get_byte(b, i + 3)::bigint << 24);
    k := (k * m) & mask;
    k := k # (k >> 24);
    k := (k * m) & mask;
    h := ((h * m) & mask) # k;
    i := i + 4;
  end loop;
  if n - i = 3 then h := h # (get_byte(b, i + 2)::bigint << 16); end if;
  if n - i >= 2 then h := h # (get_byte(b, i + 1)::bigint << 8); end if;
  if n - i >= 1 then h := ((h # get_byte(b, i)::bigint) * m) & mask; end if;
  h := h # (h >> 13);
  h := (h * m) & mask;
  h := h # (h >> 15);
  return (h & 2147483647) % 64;
end $$;

-- Where this server is: the timeline of the WAL it writes now
-- (pg_control_checkpoint lags behind a promotion until the next checkpoint).
create function @schema@._identity(out system_identifier bigint, out timeline text, out database_oid oid)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select c.system_identifier, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), d.oid
  from pg_control_system() c, pg_database d where d.datname = current_database()
$$;

insert into @schema@.history (system_identifier, timeline, database_oid, self_oid, since, epoch_floor)
select i.system_identifier, i.timeline, i.database_oid, '@schema_name@.history'::regclass, n, n
from @schema@._identity() i, @schema@._now_us() n;

create function @schema@._same_history() returns void
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

-- history_bump begins a new history: every epoch from now on is above all
-- that the lost side can have issued. The clock, and not a counter, since a
-- counter would be restored with the database and be given out a second time.
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

-- history_confirm says that nothing was lost: epochs go on.
create function @schema@.history_confirm() returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  update @schema@.history h
     set system_identifier = i.system_identifier, timeline = i.timeline, database_oid = i.database_oid, self_oid = h.tableoid
    from @schema@._identity() i;
end $$;

-- Common refusals of arguments. Keys that begin with fenceline: are ours.
create function @schema@._check_key(p_key text, p_system boolean) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if p_key is null or octet_length(p_key) not between 1 and 512 then
    raise exception 'a key has 1 to 512 bytes, this one has %', coalesce(octet_length(p_key), 0) using errcode = 'FL011';
  end if;
  if starts_with(p_key, 'fenceline:') <> p_system then
    raise exception 'keys that begin with fenceline: are the toolkit''s own, and only they: %', p_key using errcode = 'FL011';
  end if;
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'the gate needs READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
      using errcode = 'FL008', hint = 'In a stricter isolation the snapshot is older than the lock. Begin with: begin isolation level read committed.';
  end if;
end $$;

-- Locks the fence row of a key, which is created if need be, and then its
-- lease row, against heartbeats. A commit in progress is waited for at most
-- p_wait; then the error names who holds it.
-- The row is updated in place for ever: a waiter on a row that is deleted and
-- inserted again would find nothing, and one on a row whose token restarts
-- without a larger epoch would pass.
create function @schema@._lock_fence(p_key text, p_wait interval) returns @schema@.fence
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  f @schema@.fence;
  before text := current_setting('lock_timeout');
  pids int[];
begin
  perform set_config('lock_timeout', greatest(1, (extract(epoch from p_wait) * 1000)::bigint)::text, true);
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
    raise exception 'a commit in progress holds the fence of %', p_key
      using errcode = 'FL010', detail = json_build_object('key', p_key, 'blocked_by', coalesce(pids, '{}'))::text,
        hint = 'Its session ends by the gate''s timeout at the latest. Try again, or look at pg_stat_activity for the pid.';
  end;
  perform set_config('lock_timeout', before, true);
  return f;
end $$;

-- Advances a locked fence: to the next token, to a given one, or, where the
-- key's epoch is of before the present history, into a new epoch.
create function @schema@._advance_locked(f @schema@.fence, p_token bigint, p_holder text, p_why text, out epoch bigint, out token bigint)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare fresh bigint;
begin
  -- An issued token that a crash takes back would be issued twice.
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  -- Otherwise seq order and token order of one transaction could diverge.
  if exists (select 1 from @schema@.receipt r where r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp() and r.key = f.key) then
    raise exception 'this transaction has already passed the gate of %, its token cannot move any more', f.key using errcode = 'FL009';
  end if;
  select greatest(h.epoch_floor, @schema@._now_us(), f.epoch + 1) into fresh from @schema@.history h where f.epoch < h.since;
  if fresh is not null then
    epoch := fresh;
    token := coalesce(p_token, 1);
    -- No receipt of an epoch of before can be written any more; those that
    -- survived stay and go on answering.
    update @schema@.fence t set epoch = _advance_locked.epoch, max_issued_token = _advance_locked.token where t.key = f.key;
  else
    epoch := f.epoch;
    token := coalesce(p_token, f.max_issued_token + 1);
    update @schema@.fence t set max_issued_token = _advance_locked.token where t.key = f.key;
  end if;
  insert into @schema@.turn (key, epoch, token, holder, why) values (f.key, epoch, token, p_holder, p_why);
end $$;

-- Acquire or take over, in one transaction with the fence: once it has
-- committed, the old holder can commit nothing more, whether or not the new
-- one has written anything. The lease is judged on the database clock, read
-- after the locks: a transaction that waited would otherwise judge by the
-- time at which it began. To a winner, remaining counts from the moment at
-- which the question arrived, since its trust counts from when it asked: the
-- wait for a commit in progress is not taken from it.
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

-- Renews many leases in one statement that never waits. A key that is missing
-- from the answer was busy (a takeover or release is under way): ask again.
-- ok is false when the lease is lost for good. Lease rows only: a heartbeat
-- never touches what commits lock.
create function @schema@._renew(p_keys text[], p_epochs bigint[], p_tokens bigint[], p_ttls interval[], p_system boolean)
returns table (key text, epoch bigint, token bigint, ok boolean)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
  return query
  with want as (select w.* from unnest(p_keys, p_epochs, p_tokens, p_ttls) as w(key, epoch, token, ttl) where starts_with(w.key, 'fenceline:') = p_system),
  mine as (select l.key, l.epoch, l.token, w.ttl from @schema@.lease l join want w on l.key = w.key and l.epoch = w.epoch and l.token = w.token
             where l.expires_at > '-infinity' order by l.key for no key update of l skip locked),
  up as (update @schema@.lease l set expires_at = clock_timestamp() + m.ttl from mine m where l.key = m.key returning l.key, l.epoch, l.token)
  select w.key, w.epoch, w.token, up.key is not null from want w left join up on up.key = w.key and up.epoch = w.epoch and up.token = w.token
   where up.key is not null
      or not exists (select 1 from @schema@.lease l where l.key = w.key and l.epoch = w.epoch and l.token = w.token and l.expires_at > '-infinity');
end $$;

-- Gives a lease up. The counter stays: the next holder's token is larger.
create function @schema@._release(p_key text, p_epoch bigint, p_token bigint) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare h text;
begin
  update @schema@.lease l set expires_at = '-infinity' where l.key = p_key and l.epoch = p_epoch and l.token = p_token and l.expires_at > '-infinity' returning l.holder into h;
  if h is null then return false; end if;
  insert into @schema@.turn (key, epoch, token, holder, why) values (p_key, p_epoch, p_token, h, 'release');
  return true;
end $$;

-- What producers may call. The relay's twins accept our own keys and nothing else.
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
create function @schema@.renew(p_keys text[], p_epochs bigint[], p_tokens bigint[], p_ttls interval[]) returns table (key text, epoch bigint, token bigint, ok boolean)
language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select * from @schema@._renew(p_keys, p_epochs, p_tokens, p_ttls, false) $$;
create function @schema@.relay_renew(p_keys text[], p_epochs bigint[], p_tokens bigint[], p_ttls interval[]) returns table (key text, epoch bigint, token bigint, ok boolean)
language sql volatile security definer set search_path = pg_catalog, pg_temp as
$$ select * from @schema@._renew(p_keys, p_epochs, p_tokens, p_ttls, true) $$;
create function @schema@.release(p_key text, p_epoch bigint, p_token bigint) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$ begin perform @schema@._check_key(p_key, false); return @schema@._release(p_key, p_epoch, p_token); end $$;
create function @schema@.relay_release(p_key text, p_epoch bigint, p_token bigint) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$ begin perform @schema@._check_key(p_key, true); return @schema@._release(p_key, p_epoch, p_token); end $$;

-- For those who bring their own lease: advances the fence inside the caller's
-- transaction. A larger token is taken, the same one again is a no-op (an
-- answer may have been lost), a smaller one is stale, and so is one that was
-- granted with a managed lease: two holders would have it. A managed lease of
-- the key ends with an advance. The role is not the producers': with it anyone
-- could take over a live lease.
create function @schema@.advance(p_key text, p_token bigint default null, out epoch bigint, out token bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare f @schema@.fence;
begin
  perform @schema@._check_key(p_key, false);
  if p_token is not null and p_token not between 1 and 4611686018427387904 then
    raise exception 'a token is from 1 to 2^62, this one is %', p_token using errcode = 'FL011';
  end if;
  perform @schema@._same_history();
  f := @schema@._lock_fence(p_key, interval '5 s');
  if f.closed_at is not null then
    raise exception 'key % is closed', p_key using errcode = 'FL005',
      detail = json_build_object('key', p_key, 'current_epoch', f.epoch, 'current_token', f.max_issued_token, 'closed_at', f.closed_at)::text;
  end if;
  if p_token <= f.max_issued_token and f.epoch >= (select since from @schema@.history) then
    if p_token = f.max_issued_token and not exists (select 1 from @schema@.lease l where l.key = p_key and l.epoch = f.epoch and l.token = f.max_issued_token) then epoch := f.epoch; token := f.max_issued_token; return; end if;
    raise exception 'token % of % is stale', p_token, p_key using errcode = 'FL003',
      detail = json_build_object('key', p_key, 'token', p_token, 'current_epoch', f.epoch, 'current_token', f.max_issued_token)::text;
  end if;
  update @schema@.lease l set expires_at = '-infinity' where l.key = p_key;
  select a.epoch, a.token into epoch, token from @schema@._advance_locked(f, p_token, null, 'advance') a;
end $$;

-- R2: what became of an attempt that found no row at R1, F, H or W. Receipt
-- and fence are read in ONE statement, so from one snapshot: read one after the
-- other, fence first, a sweep could fall between, which takes the receipt and
-- raises a floor that was read already, and a committed result would be called
-- stale.
create function @schema@._refuse(p_key text, p_epoch bigint, p_token bigint, p_step text, p_algo text, p_digest bytea) returns void
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

-- The gate. Returns when this is the first commit of (key, epoch, token,
-- step), with the fence locked to the end of the transaction and the receipt
-- written; raises for every other answer. It must be a statement of its own:
-- whatever else stands in the same statement would still see the snapshot of
-- before the lock wait. p_timeout bounds a holder that is paused behind the
-- gate, which would otherwise block the takeover for ever: its session ends.
create function @schema@.enter(p_key text, p_epoch bigint, p_token bigint, p_step text, p_algo text, p_digest bytea, p_timeout interval) returns timestamptz
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

-- The small result that a replay gets back.
create function @schema@.set_result(p_key text, p_epoch bigint, p_token bigint, p_step text, p_result bytea) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  if octet_length(p_result) > 8192 then
    raise exception 'a result has at most 8192 bytes, this one has %', octet_length(p_result) using errcode = 'FL011';
  end if;
  update @schema@.receipt set result = p_result where key = p_key and epoch = p_epoch and token = p_token and step = p_step
    and xid = pg_current_xact_id_if_assigned() and committed_at >= transaction_timestamp();
  if not found then raise exception 'this transaction has not passed the gate of %', p_key using errcode = 'FL007'; end if;
end $$;

-- Appends events to one topic, in order. The pass is the receipt: written by
-- this very transaction, which its xid says; and not of an earlier life of the
-- cluster in which the same xid occurred, which committed_at says. The fence
-- lock that enter took serialises the streams of the key, so seq is dense and
-- pos rises with it.
create function @schema@.append(p_key text, p_epoch bigint, p_token bigint, p_step text, p_topic text, p_ids uuid[], p_aggregatetypes text[], p_types text[],
  p_subjects text[], p_sources text[], p_contenttypes text[], p_headers text[], p_payloads bytea[]) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  last bigint;
begin
  if coalesce(cardinality(p_ids), 0) = 0 then
    raise exception 'nothing to append' using errcode = 'FL011';
  end if;
  with pass as (
    select r.shard, h.since from @schema@.receipt r, @schema@.history h
     where r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step
       and r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp()),
  newest as (
    select h.epoch, h.seq from @schema@.head h where h.topic = p_topic and h.key = p_key order by h.epoch desc, h.seq desc limit 1),
  base as (       -- a larger epoch is a new life of the stream: seq starts again, and its first record remembers where the old one ended
    select pass.shard, pass.since, coalesce(n.seq, 0) as seq, null::bigint as prev_epoch, null::bigint as prev_seq from pass left join newest n on true where n.epoch is null or n.epoch = p_epoch
    union all
    select pass.shard, pass.since, 0, n.epoch, n.seq from pass join newest n on n.epoch < p_epoch),
  gone as (
    delete from @schema@.head h using newest n, base where h.topic = p_topic and h.key = p_key and h.epoch = n.epoch and h.seq = n.seq),
  events as (
    insert into @schema@.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, subject, source, contenttype, headers, history, prev_epoch, prev_seq)
    select u.id, u.aggregatetype, p_key, u.type, u.payload, p_topic, p_key, base.shard, p_epoch, p_token, base.seq + u.i, u.subject, u.source, u.contenttype, u.headers::jsonb,
           case when base.seq + u.i = 1 then base.since end, case when base.seq + u.i = 1 then base.prev_epoch end, case when base.seq + u.i = 1 then base.prev_seq end
      from base, unnest(p_ids, p_aggregatetypes, p_types, p_subjects, p_sources, p_contenttypes, p_headers, p_payloads)
           with ordinality as u(id, aggregatetype, type, subject, source, contenttype, headers, payload, i)
     order by u.i)
  insert into @schema@.head (topic, key, epoch, seq) select p_topic, p_key, p_epoch, base.seq + cardinality(p_ids) from base returning seq into last;
  if last is null then
    raise exception 'this transaction has not passed the gate of (%, %, %)', p_key, p_epoch, p_token
      using errcode = 'FL007', hint = 'Append inside Commit, with the transaction that it hands out.';
  end if;
  return last;
end $$;

-- The relay's cursor: generations, inserted and never updated (an updated row
-- grows slow under a held snapshot); the newest counts. s1 is what has been
-- published; where s2 is set, a window of rows visible in s2 and not in s1 is
-- under way, and everything of it up to last_pos is acknowledged.
create table @schema@.relay_checkpoint (
  n         bigint primary key,
  epoch     bigint not null,
  token     bigint not null,
  s1        pg_snapshot not null,
  low       bigint not null,              -- every xid >= xmax(s1) has a pos above it
  s2        pg_snapshot,
  high      bigint,                       -- the sequence's value when s2 was taken
  low2      bigint,                       -- the low bound of the window that starts at s2
  last_pos  bigint not null default 0,
  pair_low  bigint not null,              -- see relay_checkpoint()
  pair_xid  xid8   not null,
  at        timestamptz not null default clock_timestamp()
);
comment on table @schema@.relay_checkpoint is 'How far the relay has published. The newest row counts.';

-- Streams that the relay does not publish because the broker refused a record
-- of theirs, from the position of that record on.
create table @schema@.relay_held (
  topic  text collate "C" not null,
  key    text collate "C" not null,
  pos    bigint not null,
  epoch  bigint not null,
  seq    bigint not null,
  reason text not null,
  detail text not null,
  since  timestamptz not null default clock_timestamp(),
  primary key (topic, key)
);
comment on table @schema@.relay_held is 'Streams held back because the broker refused a record: from which pos, and why.';

-- Topics that the broker refuses as a whole. Each has a cursor of its own, a
-- copy of the main one at the moment at which the main one went on without it.
create table @schema@.relay_fork (
  topic    text collate "C" primary key,
  s1       pg_snapshot not null,
  low      bigint not null,
  s2       pg_snapshot,
  high     bigint,
  low2     bigint,
  last_pos bigint not null default 0,
  reason   text not null,
  detail   text not null,
  since    timestamptz not null default clock_timestamp()
);
comment on table @schema@.relay_fork is 'Topics that the broker refuses, each with its own cursor: the rest flows on.';

-- Writes the next generation of the cursor, holds and forks with it, if the
-- caller's lease is still the newest: a paused relay can move nothing.
-- The order of the first two steps carries the low bound: L is read, and only
-- in a later statement the transaction gets its xid c. An append locks a fence
-- row, which gives it its xid, before it calls nextval; so whoever has an
-- xid > c has a pos > L. The other way round this is false, hence the check
-- that the caller's transaction has no xid yet.
create function @schema@.relay_checkpoint(p_key text, p_epoch bigint, p_token bigint, p_s1 pg_snapshot, p_low bigint, p_s2 pg_snapshot, p_high bigint, p_low2 bigint, p_last bigint,
  p_held jsonb, p_forks jsonb, p_joined text[], p_sync boolean, out pair_low bigint, out pair_xid xid8)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare g bigint;
begin
  perform @schema@._check_key(p_key, true);
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'a checkpoint is a transaction of its own' using errcode = 'FL009';
  end if;
  -- Not acknowledging a checkpoint to the disk at once is safe: the cursor is
  -- part of the same WAL as the rows it speaks of, and an older one repeats.
  if not p_sync then perform set_config('synchronous_commit', 'off', true); end if;
  pair_low := coalesce(pg_sequence_last_value('@schema_name@.outbox_pos'), 0);   -- not last_value: that says 1 before 1 was given out
  pair_xid := pg_current_xact_id();
  perform 1 from @schema@.fence where key = p_key and epoch = p_epoch and max_issued_token = p_token for no key update;
  if not found then
    raise exception 'the lease % with (%, %) is not the newest any more', p_key, p_epoch, p_token using errcode = 'FL003',
      detail = (select json_build_object('key', p_key, 'epoch', p_epoch, 'token', p_token, 'current_epoch', f.epoch, 'current_token', f.max_issued_token)::text from (select 1) one left join @schema@.fence f on f.key = p_key);
  end if;
  perform @schema@._same_history();
  select coalesce(max(n), 0) + 1 into g from @schema@.relay_checkpoint;
  insert into @schema@.relay_checkpoint (n, epoch, token, s1, low, s2, high, low2, last_pos, pair_low, pair_xid)
    values (g, p_epoch, p_token, p_s1, p_low, p_s2, p_high, p_low2, p_last, relay_checkpoint.pair_low, relay_checkpoint.pair_xid);
  delete from @schema@.relay_checkpoint where n < g - 2;
  insert into @schema@.relay_held (topic, key, pos, epoch, seq, reason, detail)
    select h.topic, h.key, h.pos, h.epoch, h.seq, h.reason, h.detail
      from jsonb_to_recordset(p_held) as h(topic text, key text, pos bigint, epoch bigint, seq bigint, reason text, detail text) on conflict do nothing;
  delete from @schema@.relay_fork where topic = any (p_joined);
  insert into @schema@.relay_fork as t (topic, s1, low, s2, high, low2, last_pos, reason, detail)
    select f.topic, f.s1, f.low, f.s2, f.high, f.low2, f.last_pos, f.reason, f.detail
      from jsonb_to_recordset(p_forks) as f(topic text, s1 pg_snapshot, low bigint, s2 pg_snapshot, high bigint, low2 bigint, last_pos bigint, reason text, detail text)
    on conflict (topic) do update set s1 = excluded.s1, low = excluded.low, s2 = excluded.s2, high = excluded.high, low2 = excluded.low2, last_pos = excluded.last_pos, reason = excluded.reason, detail = excluded.detail;
end $$;

-- Rights. Execute on a function is PUBLIC's by default: taken back for each.
revoke all on all functions in schema @schema@ from public;
revoke all on all tables in schema @schema@ from public;
grant usage on schema @schema@ to @producer@, @advancer@, @relay@, @operator@, @monitor@;
grant execute on function @schema@.acquire, @schema@.renew, @schema@.release, @schema@.enter, @schema@.set_result, @schema@.append to @producer@;
grant execute on function @schema@.advance to @advancer@;
grant execute on function @schema@.relay_acquire, @schema@.relay_renew, @schema@.relay_release, @schema@.relay_checkpoint to @relay@;
grant select on @schema@.outbox, @schema@.relay_checkpoint, @schema@.relay_held, @schema@.relay_fork to @relay@;
grant select on sequence @schema@.outbox_pos to @relay@, @monitor@, @operator@;
grant execute on function @schema@.history_bump, @schema@.history_confirm to @operator@;
grant select on @schema@.history, @schema@.fence, @schema@.lease, @schema@.turn, @schema@.head, @schema@.relay_checkpoint, @schema@.relay_held, @schema@.relay_fork to @monitor@, @operator@;
grant select (key, epoch, token, step, algo, digest, shard, committed_at, xid) on @schema@.receipt to @monitor@, @operator@;
-- Everything of an event but what it says.
grant select (id, aggregatetype, aggregateid, type, xid, pos, topic, key, shard, epoch, token, seq, kind, subject, source, contenttype, history, prev_epoch, prev_seq, created_at) on @schema@.outbox to @monitor@, @operator@;
