-- Back to the gate and the append of before, and their checks.
create function @schema@._system_identifier() returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare id bigint;
begin
  select c.system_identifier into id from pg_control_system() c;
  perform set_config('fenceline.system_identifier', id::text, false);
  return id;
end $$;
revoke all on function @schema@._system_identifier from public;

create or replace function @schema@.enter(p_key text, p_epoch bigint, p_token bigint, p_step text, p_algo text, p_digest bytea, p_timeout interval,
  p_topic text default null, p_id uuid default null, p_aggregatetype text default null, p_type text default null, p_subject text default null,
  p_source text default null, p_contenttype text default null, p_headers text default null, p_payload bytea default null) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  s smallint;
  at timestamptz;
  base bigint;        -- seq of the event before
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
  -- same statement: what finds no history writes no receipt; and so is the look
  -- at the stream. (The database's oid is read off the table's path.)
  insert into @schema@.receipt (key, epoch, token, step, algo, digest, shard)
    select p_key, p_epoch, p_token, p_step, p_algo, p_digest, s from @schema@.history h
     where p_epoch >= h.since and h.self_oid = h.tableoid and h.timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
       and h.database_oid = split_part(pg_relation_filepath(h.tableoid), '/', -2)::oid
       and (h.system_identifier::text = current_setting('fenceline.system_identifier', true) or h.system_identifier = @schema@._system_identifier())
    on conflict do nothing
    returning committed_at, (select h.seq from @schema@.head h where h.topic = p_topic and h.key = p_key and h.epoch = p_epoch order by h.seq desc limit 1) into at, base;
  if not found then
    -- What has committed before is certain, whatever the history.
    perform from @schema@.receipt r where r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step;
    if not found then perform @schema@._other_history(); end if;
    perform @schema@._refuse(p_key, p_epoch, p_token, p_step, p_algo, p_digest);
  end if;
  if base is not null and p_id is not null and p_type <> '' and p_aggregatetype <> '' and p_source <> ''
     and octet_length(p_type || p_aggregatetype || p_source || coalesce(p_subject, '') || coalesce(p_contenttype, '')) <= 255
     and (p_headers is null or octet_length(p_headers::jsonb::text) <= 8192) and (p_payload is null or octet_length(p_payload) <= 900000) then
    with gone as (delete from @schema@.head h where h.topic = p_topic and h.key = p_key and h.epoch = p_epoch and h.seq = base),
         newest as (insert into @schema@.head (topic, key, epoch, seq) values (p_topic, p_key, p_epoch, base + 1))
    insert into @schema@.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, subject, source, contenttype, headers)
      values (p_id, p_aggregatetype, p_key, p_type, p_payload, p_topic, p_key, s, p_epoch, p_token, base + 1, p_subject, p_source, p_contenttype, p_headers::jsonb);
  elsif p_topic is not null or p_id is not null then
    perform @schema@.append(p_key, p_epoch, p_token, p_step, p_topic, array[p_id], array[p_aggregatetype], array[p_type], array[p_subject], array[p_source], array[p_contenttype], array[p_headers], array[p_payload]);
  end if;
  return at;
end $$;

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
  insert into @schema@.receipt (key, epoch, token, step, algo, digest, shard, committed_at)
    select p_key, p_epoch, p_token, u.step, u.algo, u.digest, s, at
      from @schema@.history h, unnest(p_steps, p_algos, p_digests) u(step, algo, digest)
     where p_epoch >= h.since and h.self_oid = h.tableoid and h.timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
       and h.database_oid = split_part(pg_relation_filepath(h.tableoid), '/', -2)::oid
       and (h.system_identifier::text = current_setting('fenceline.system_identifier', true) or h.system_identifier = @schema@._system_identifier())
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
  -- The row that was read goes, by its whole key: by topic and key alone the
  -- dead ones would be read along.
  with gone as (delete from @schema@.head h where h.topic = p_topic and h.key = p_key and h.epoch = head_epoch and h.seq = head_seq)
  insert into @schema@.head (topic, key, epoch, seq) values (p_topic, p_key, p_epoch, base + n);
  return base + n;
end $$;

create or replace function @schema@.append_one(p_key text, p_epoch bigint, p_token bigint, p_step text, p_topic text, p_id uuid, p_aggregatetype text, p_type text,
  p_subject text, p_source text, p_contenttype text, p_headers text, p_payload bytea) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
declare
  s smallint;
  base bigint;
begin
  select r.shard, (select h.seq from @schema@.head h where h.topic = p_topic and h.key = p_key and h.epoch = p_epoch order by h.seq desc limit 1) into s, base
    from @schema@.receipt r
   where r.key = p_key and r.epoch = p_epoch and r.token = p_token and r.step = p_step
     and r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp();
  if base is not null and p_id is not null and p_type <> '' and p_aggregatetype <> '' and p_source <> ''
     and octet_length(p_type || p_aggregatetype || p_source || coalesce(p_subject, '') || coalesce(p_contenttype, '')) <= 255
     and (p_headers is null or octet_length(p_headers::jsonb::text) <= 8192) and (p_payload is null or octet_length(p_payload) <= 900000) then
    with gone as (delete from @schema@.head h where h.topic = p_topic and h.key = p_key and h.epoch = p_epoch and h.seq = base),
         newest as (insert into @schema@.head (topic, key, epoch, seq) values (p_topic, p_key, p_epoch, base + 1))
    insert into @schema@.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, subject, source, contenttype, headers)
      values (p_id, p_aggregatetype, p_key, p_type, p_payload, p_topic, p_key, s, p_epoch, p_token, base + 1, p_subject, p_source, p_contenttype, p_headers::jsonb);
    return base + 1;
  end if;
  return @schema@.append(p_key, p_epoch, p_token, p_step, p_topic, array[p_id], array[p_aggregatetype], array[p_type], array[p_subject], array[p_source], array[p_contenttype], array[p_headers], array[p_payload]);
end $$;

drop function @schema@._session_identity;
alter table @schema@.history drop column identity;
drop trigger outbox_verdict on @schema@.outbox;
drop function @schema@._check_verdict;
alter table @schema@.outbox add constraint outbox_verdict check (
  case when verdict is null then skip_from is null and skip_to is null and verdict_at is null
       when kind = 'end' then verdict = 'retired' and skip_from is null and skip_to is null and verdict_at is not null
       else verdict in ('skipped', 'retired') and skip_from is not null and skip_to is not null and skip_from > 0 and skip_from <= seq and seq <= skip_to and (seq = 1) = (skip_from = 1) and verdict_at is not null end) not valid;
