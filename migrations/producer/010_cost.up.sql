-- min-library: 1
--
-- The gate and the append once more, with less to do in each commit.

-- The check of the verdict, which each insert parsed and set up again: a tenth of
-- what a commit cost. A verdict comes by an update, so there it is looked at.
-- (Nobody but the owner of the tables could insert a row that has one; the relay
-- makes a marker of such a row or sends nothing for it.)
alter table @schema@.outbox drop constraint outbox_verdict;

create function @schema@._check_verdict() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
  if not coalesce(case when new.verdict is null then new.skip_from is null and new.skip_to is null and new.verdict_at is null
       when new.kind = 'end' then new.verdict = 'retired' and new.skip_from is null and new.skip_to is null and new.verdict_at is not null
       else new.verdict in ('skipped', 'retired') and new.skip_from > 0 and new.skip_from <= new.seq and new.seq <= new.skip_to and (new.seq = 1) = (new.skip_from = 1) and new.verdict_at is not null end, false) then
    raise exception 'the event %/%/% of (%, %) cannot have the verdict % on % to %', new.epoch, new.token, new.seq, new.topic, new.key, quote_nullable(new.verdict), new.skip_from, new.skip_to
      using errcode = '23514', table = 'outbox', constraint = 'outbox_verdict', hint = 'Verdicts are given by the functions of this schema alone: relay held skip, relay topic retire.';
  end if;
  return new;
end $$;
revoke all on function @schema@._check_verdict from public;
create trigger outbox_verdict before update on @schema@.outbox for each row execute function @schema@._check_verdict();

-- What a session cannot change by living on: cluster and database, as one text,
-- which a commit compares with what the session has once found out. (The timeline
-- does change under it, by a promotion, and is asked in each commit.)
alter table @schema@.history add column identity text not null generated always as (system_identifier::text || '/' || database_oid::text) stored;

create function @schema@._session_identity() returns text
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare id text;
begin
  -- The setting is no pass, only a memory: any other value than the recorded one
  -- has the file read again, and a rollback takes it back.
  select i.system_identifier || '/' || i.database_oid into id from @schema@._identity() i;
  perform set_config('fenceline.identity', id, false);
  return id;
end $$;
revoke all on function @schema@._session_identity from public;

-- enable_seqscan and jit: see append().
create or replace function @schema@.enter(p_key text, p_epoch bigint, p_token bigint, p_step text, p_algo text, p_digest bytea, p_timeout interval,
  p_topic text default null, p_id uuid default null, p_aggregatetype text default null, p_type text default null, p_subject text default null,
  p_source text default null, p_contenttype text default null, p_headers text default null, p_payload bytea default null) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  s smallint;
  at timestamptz;
  asked boolean := false;
  ms text := greatest(1, (date_part('epoch', p_timeout) * 1000)::bigint)::text;
  done text;
begin
  -- F: every fact of the check is in the row that is locked, because after a
  -- wait only that row is read again (a join or sub-select would be judged by
  -- the old snapshot). The epoch is among them: the tokens of two lives of a
  -- key may be equal numbers. First without a wait, which is all that most
  -- commits need; whatever is not as it mostly is finds no row here.
  select shard, set_config('idle_in_transaction_session_timeout', ms, true), set_config('statement_timeout', ms, true) into s, done, done from @schema@.fence
   where octet_length(p_step) <= 128 and octet_length(p_digest) between 16 and 64 and not starts_with(key, 'fenceline:') and not starts_with(p_step, 'fenceline:')
     and current_setting('transaction_isolation') = 'read committed' and current_setting('synchronous_commit') not in ('off', 'local')
     and key = p_key and epoch = p_epoch and max_issued_token = p_token and closed_at is null and (owner is null or owner = session_user) for no key update skip locked;
  if not found then
    perform @schema@._check_key(p_key, false);
    perform @schema@._check_step(p_step);
    if coalesce(octet_length(p_step) > 128 or octet_length(p_digest) not between 16 and 64, true) then
      raise exception 'a step has at most 128 bytes and a digest 16 to 64, these have % and %', octet_length(p_step), octet_length(p_digest) using errcode = '23514', table = 'receipt';
    end if;
    -- R1: only so that a replay does not queue behind a live commit.
    perform from @schema@.receipt r where r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step;
    if found then perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest); end if;
    -- A receipt that a crash can take back proves nothing.
    perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
    perform set_config('idle_in_transaction_session_timeout', ms, true), set_config('statement_timeout', ms, true);
    select shard into s from @schema@.fence where key = p_key and epoch = p_epoch and max_issued_token = p_token and closed_at is null and (owner is null or owner = session_user) for no key update;
    if not found then perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest); end if;
  end if;
  -- H: a new statement, under the lock. Checked at each commit, since a
  -- connection that was opened on a standby survives its promotion. W is in the
  -- same statement: what finds no history writes no receipt.
  loop
    insert into @schema@.receipt (key, epoch, token, step, algo, digest, shard)
      select p_key, p_epoch, p_token, p_step, p_algo, p_digest, s from @schema@.history h
       where p_epoch >= h.since and h.self_oid = h.tableoid and starts_with(pg_walfile_name(pg_current_wal_insert_lsn()), h.timeline)
         and h.identity = current_setting('fenceline.identity', true)
      on conflict do nothing
      returning committed_at into at;
    exit when found;
    -- What has committed before is certain, whatever the history.
    perform from @schema@.receipt r where r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step;
    if not found then
      if not asked then -- the session's first commit, mostly
        asked := true;
        perform @schema@._session_identity();
        continue;
      end if;
      perform @schema@._other_history();
    end if;
    perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest);
  end loop;
  -- The stream's row in head is found from the index's end, and moves: one
  -- update, where a delete and an insert would be two statements to set up. It is
  -- no update in place, since seq is in the key: the dead one is not met again.
  if p_id is not null and p_type <> '' and p_aggregatetype <> '' and p_source <> ''
     and octet_length(p_type || p_aggregatetype || p_source || coalesce(p_subject, '') || coalesce(p_contenttype, '')) <= 255
     and (p_headers is null or octet_length(p_headers::jsonb::text) <= 8192) and (p_payload is null or octet_length(p_payload) <= 900000) then
    with moved as (
      update @schema@.head h set seq = h.seq + 1
       where h.ctid = (select n.ctid from @schema@.head n where n.topic = p_topic and n.key = p_key and n.epoch = p_epoch order by n.seq desc limit 1)
      returning h.seq)
    insert into @schema@.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, subject, source, contenttype, headers)
      select p_id, p_aggregatetype, p_key, p_type, p_payload, p_topic, p_key, s, p_epoch, p_token, moved.seq, p_subject, p_source, p_contenttype, p_headers::jsonb from moved;
    if found then return at; end if; -- else the first of this life
  end if;
  if p_topic is not null or p_id is not null then
    perform @schema@.append(p_key, p_epoch, p_token, p_step, p_topic, array[p_id], array[p_aggregatetype], array[p_type], array[p_subject], array[p_source], array[p_contenttype], array[p_headers], array[p_payload]);
  end if;
  return at;
end $$;

-- The gate for several steps of one token at once, which commit together: F and
-- H are asked once for all of them. (No R1: they come from one process, which
-- sends one such transaction at a time.) Whoever of them has no first commit is
-- refused as by enter(), and the others with it; the detail names the step.
create or replace function @schema@.enter_many(p_key text, p_epoch bigint, p_token bigint, p_steps text[], p_algos text[], p_digests bytea[], p_timeout interval) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
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
  at := clock_timestamp();
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

-- enable_seqscan is for the planner. The newest head is found from the index's
-- end and the one that goes by its whole key, so that no dead row is met. A plan
-- that was made while the table had a page or two would read all of it, also
-- when it has grown; and under a held snapshot dead rows become more with each
-- commit. What has no index is read as before, but counts as so dear that it
-- would be worth a compilation of seconds: hence jit.
create or replace function @schema@.append(p_key text, p_epoch bigint, p_token bigint, p_step text, p_topic text, p_ids uuid[], p_aggregatetypes text[], p_types text[],
  p_subjects text[], p_sources text[], p_contenttypes text[], p_headers text[], p_payloads bytea[]) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  s smallint;
  head_epoch bigint;
  head_seq bigint;
  base bigint;          -- seq of the event before
  n bigint;
  written bigint;
begin
  -- A larger epoch is a new life of the stream: seq starts again.
  select pass.shard, newest.epoch, newest.seq, case when newest.epoch = p_epoch then newest.seq else 0 end, cardinality(p_ids) into s, head_epoch, head_seq, base, n
    from (select r.shard from @schema@.receipt r
           where r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step
             and r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp()) pass
    left join lateral (select h.epoch, h.seq from @schema@.head h where h.topic = p_topic and h.key = p_key order by h.epoch desc, h.seq desc limit 1) newest on true;
  if not found or head_epoch > p_epoch then
    raise exception 'this transaction has not passed the gate of (%, %, %)', p_key, p_epoch, p_token
      using errcode = 'FL007', hint = 'Append inside Commit, with the transaction that it hands out.';
  end if;
  -- In the order of the arrays, which is that of the scan: nothing is joined.
  -- The first record of a life remembers where the old one ended. What cannot
  -- be published cannot commit: it is left out here, and then missed. (The
  -- library measures the record exactly as encoded and refuses earlier; this
  -- is for everybody else.)
  insert into @schema@.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, subject, source, contenttype, headers, history, prev_epoch, prev_seq)
  select u.id, u.aggregatetype, p_key, u.type, u.payload, p_topic, p_key, s, p_epoch, p_token, base + u.i, u.subject, u.source, u.contenttype, u.headers::jsonb,
         case when base + u.i = 1 then (select h.since from @schema@.history h) end, case when base + u.i = 1 then head_epoch end, case when base + u.i = 1 then head_seq end
    from unnest(p_ids, p_aggregatetypes, p_types, p_subjects, p_sources, p_contenttypes, p_headers, p_payloads)
         with ordinality as u(id, aggregatetype, type, subject, source, contenttype, headers, payload, i)
   where translate(p_topic, 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-', '') = '' and octet_length(p_topic) between 1 and 249 and p_topic <> '.' and p_topic <> '..'
     and octet_length(u.type) between 1 and 255 and octet_length(u.aggregatetype) between 1 and 255 and octet_length(u.source) between 1 and 1024
     and coalesce(octet_length(u.subject), 0) <= 1024 and coalesce(octet_length(u.contenttype), 0) <= 255
     and 2 * octet_length(p_key) + octet_length(p_topic) + octet_length(u.type) + octet_length(u.source) + coalesce(octet_length(u.subject), 0)
       + coalesce(octet_length(u.headers::jsonb::text), 0) + coalesce(octet_length(u.payload), 0) <= 921600;
  get diagnostics written = row_count;
  if written is distinct from n then
    perform @schema@._refuse_event(p_key, p_topic, p_ids, p_aggregatetypes, p_types, p_subjects, p_sources, p_contenttypes, p_headers, p_payloads);
  end if;
  -- The row that was read moves, found by its whole key: by topic and key alone
  -- the dead ones would be read along.
  update @schema@.head h set epoch = p_epoch, seq = base + n where h.topic = p_topic and h.key = p_key and h.epoch = head_epoch and h.seq = head_seq;
  if not found then
    insert into @schema@.head (topic, key, epoch, seq) values (p_topic, p_key, p_epoch, base + n);
  end if;
  return base + n;
end $$;

-- append() for one event, which is what most commits append, at half the cost:
-- no arrays, and the two that are written are written by one statement. A topic
-- in which this life of the key has an event is one that Kafka takes. What is
-- not as it mostly is (the first event of a life, a text that is long or
-- missing, no pass) is append()'s.
create or replace function @schema@.append_one(p_key text, p_epoch bigint, p_token bigint, p_step text, p_topic text, p_id uuid, p_aggregatetype text, p_type text,
  p_subject text, p_source text, p_contenttype text, p_headers text, p_payload bytea) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  n bigint;
begin
  if p_id is not null and p_type <> '' and p_aggregatetype <> '' and p_source <> ''
     and octet_length(p_type || p_aggregatetype || p_source || coalesce(p_subject, '') || coalesce(p_contenttype, '')) <= 255
     and (p_headers is null or octet_length(p_headers::jsonb::text) <= 8192) and (p_payload is null or octet_length(p_payload) <= 900000) then
    with pass as (
      select r.shard from @schema@.receipt r
       where r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step
         and r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp()),
    moved as (
      update @schema@.head h set seq = h.seq + 1 from pass
       where h.ctid = (select n.ctid from @schema@.head n where n.topic = p_topic and n.key = p_key and n.epoch = p_epoch order by n.seq desc limit 1)
      returning h.seq, pass.shard)
    insert into @schema@.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, subject, source, contenttype, headers)
      select p_id, p_aggregatetype, p_key, p_type, p_payload, p_topic, p_key, moved.shard, p_epoch, p_token, moved.seq, p_subject, p_source, p_contenttype, p_headers::jsonb from moved
      returning seq into n;
    if found then return n; end if;
  end if;
  return @schema@.append(p_key, p_epoch, p_token, p_step, p_topic, array[p_id], array[p_aggregatetype], array[p_type], array[p_subject], array[p_source], array[p_contenttype], array[p_headers], array[p_payload]);
end $$;

drop function @schema@._system_identifier;
