-- Back to the gate and the append of before: the same rules in more statements.
drop function @schema@.enter;
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

revoke all on function @schema@.enter from public;
grant execute on function @schema@.enter to @producer@;

create or replace function @schema@.append(p_key text, p_epoch bigint, p_token bigint, p_step text, p_topic text, p_ids uuid[], p_aggregatetypes text[], p_types text[],
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
drop function @schema@._check_step, @schema@._refuse_event, @schema@._system_identifier, @schema@.enter_many, @schema@.append_one;

alter table @schema@.receipt
  add constraint receipt_step_check check (octet_length(step) <= 128),
  add constraint receipt_digest_check check (octet_length(digest) between 16 and 64),
  add constraint receipt_result_check check (octet_length(result) <= 8192);
alter table @schema@.outbox
  add constraint outbox_aggregatetype_check check (octet_length(aggregatetype) between 1 and 255),
  add constraint outbox_type_check check (octet_length(type) between 1 and 255),
  add constraint outbox_topic_check check (topic ~ '^[a-zA-Z0-9._-]{1,249}$' and topic not in ('.', '..')),
  add constraint outbox_key_check check (octet_length(key) between 1 and 512),
  add constraint outbox_seq_check check (seq > 0),
  add constraint outbox_kind_check check (kind in ('data', 'skip', 'end')),
  add constraint outbox_subject_check check (octet_length(subject) <= 1024),
  add constraint outbox_source_check check (octet_length(source) between 1 and 1024),
  add constraint outbox_contenttype_check check (octet_length(contenttype) <= 255),
  add constraint outbox_first check ((seq = 1) = (history is not null) and (prev_epoch is null) = (prev_seq is null) and (seq = 1 or prev_seq is null)),
  add constraint outbox_record_size check (2 * octet_length(key) + octet_length(topic) + octet_length(type) + octet_length(source)
    + coalesce(octet_length(subject), 0) + coalesce(octet_length(headers::text), 0) + coalesce(octet_length(payload), 0) <= 921600);
