-- min-library: 1
--
-- What an operator decides about streams that are held and topics that are
-- refused: retry, skip, retire, accept. A command sets a state and is noted in
-- relay_audit; the relay acts.
--
-- A skip and a retirement are verdicts on rows of the outbox: the event is never
-- published any more, by whomever, and a skip marker stands for it. The verdict
-- is a property of the row, committed before anything is sent, so that each
-- later copy says the same.
--
-- SQLSTATE of our own, beside those of the first migration:
--   FL020 not possible    what was asked for doesn't go together with how things are; the hint says what does

-- Without a default, so no row is rewritten; the rule is checked from here on.
alter table @schema@.outbox
  add column verdict    text,             -- skipped, or retired with its topic
  add column skip_from  bigint,           -- the range that one marker stands for; it is sent in the place of the last row,
  add column skip_to    bigint,           --   the others are passed over
  add column verdict_at timestamptz;      -- the marker's time
alter table @schema@.outbox add constraint outbox_verdict check (
  case when verdict is null then skip_from is null and skip_to is null and verdict_at is null
       when kind = 'end' then verdict = 'retired' and skip_from is null and skip_to is null and verdict_at is not null
       else verdict in ('skipped', 'retired') and skip_from is not null and skip_to is not null and skip_from > 0 and skip_from <= seq and seq <= skip_to and (seq = 1) = (skip_from = 1) and verdict_at is not null end) not valid;

alter table @schema@.relay_held
  add column state    text   not null default 'held' check (state in ('held', 'retry', 'skip')),
  add column asked    bigint not null default 0,      -- counts requests, so that the answer to an older one changes nothing
  add column asked_by text,
  add column asked_at timestamptz,
  add column why      text,
  add column skip_to  bigint;                         -- of the newest skip

-- The partition count with which the relay has begun to write to a topic. With
-- another one the events of a key would go on in another partition, and
-- overtake those before them.
create table @schema@.relay_topic (
  topic      text collate "C" primary key,
  partitions int not null check (partitions > 0),
  pinned_at  timestamptz not null default clock_timestamp(),
  retired_at timestamptz,
  retired_by text,
  why        text
);
comment on table @schema@.relay_topic is 'What the relay knows of the topics it has written to: their partition counts, and which are retired.';

create table @schema@.relay_audit (
  n      bigint generated always as identity primary key,
  at     timestamptz not null default clock_timestamp(),
  who    text  not null,
  login  text  not null default session_user,
  action text  not null,
  topic  text,
  key    text,
  detail jsonb not null
);
comment on table @schema@.relay_audit is 'What operators have told the relay, and what became of it; the newest 10,000.';

create function @schema@._relay_audit(p_who text, p_action text, p_topic text, p_key text, p_detail jsonb) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare last bigint;
begin
  if p_who is null or octet_length(p_who) not between 1 and 255 then
    raise exception 'who does this says so, in 1 to 255 bytes' using errcode = 'FL011';
  end if;
  insert into @schema@.relay_audit (who, action, topic, key, detail) values (p_who, p_action, p_topic, p_key, jsonb_strip_nulls(p_detail)) returning n into last;
  delete from @schema@.relay_audit where n <= last - 10000;
end $$;

-- Asks for a held stream to be published again, from the record on at which it
-- is held. True: the request is new.
create function @schema@.relay_held_retry(p_topic text, p_key text, p_who text, p_why text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare h @schema@.relay_held;
begin
  select * into h from @schema@.relay_held t where t.topic = p_topic and t.key = p_key for update;
  if not found then
    raise exception 'no stream of topic % with key % is held', p_topic, p_key using errcode = 'FL020', hint = 'It may have been resumed meanwhile: relay held list.';
  end if;
  if h.state = 'skip' then
    raise exception 'the record was skipped by % at %, and can never be published again', h.asked_by, h.asked_at using errcode = 'FL020',
      hint = 'The relay sends the marker and resumes the stream by itself; if none is active, start one.';
  end if;
  perform @schema@._relay_audit(p_who, 'held retry', p_topic, p_key, jsonb_build_object('epoch', h.epoch, 'seq', h.seq, 'pos', h.pos, 'why', p_why, 'reason', h.reason));
  if h.state = 'retry' then return false; end if;
  update @schema@.relay_held t set state = 'retry', asked = asked + 1, asked_by = p_who, asked_at = clock_timestamp(), why = p_why where t.topic = p_topic and t.key = p_key;
  return true;
end $$;

-- Gives up the record at which a stream is held, and those behind it up to
-- p_through (null: no more than that one): the verdict is in the rows when this
-- commits. Only while the relay leaves the stream alone: when a retry was asked
-- for, the event may be on its way, and must not arrive behind its own marker.
-- A range stops before the end record of its epoch, which consumers need to pass
-- from one life to the next. The first record of a life has a marker of its own,
-- which carries what only that record knows: history and prev.
create function @schema@.relay_held_skip(p_topic text, p_key text, p_through bigint, p_who text, p_why text, out first bigint, out last bigint, out stopped_at_end boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  h @schema@.relay_held;
  o record;
  n bigint;
  at timestamptz := clock_timestamp();
begin
  select * into h from @schema@.relay_held t where t.topic = p_topic and t.key = p_key for update;
  if not found then
    raise exception 'no stream of topic % with key % is held', p_topic, p_key using errcode = 'FL020', hint = 'It may have been resumed meanwhile: relay held list.';
  end if;
  if h.state = 'retry' then
    raise exception 'a retry was asked for by % at %, so the record may be on its way', h.asked_by, h.asked_at using errcode = 'FL020',
      hint = 'Wait until it is resumed, or held again; if no relay is active, start one.';
  elsif h.state = 'skip' then
    raise exception 'it was skipped by % at %, up to seq %', h.asked_by, h.asked_at, h.skip_to using errcode = 'FL020',
      hint = 'The relay sends the marker and resumes the stream by itself; if none is active, start one.';
  end if;
  first := h.seq; last := coalesce(p_through, h.seq); stopped_at_end := false;
  if last < first then
    raise exception 'the range from seq % to % is empty', first, last using errcode = 'FL011', hint = 'A skip begins with the record at which the stream is held.';
  end if;
  select x.kind, x.verdict, x.verdict_at into o from @schema@.outbox x where x.topic = p_topic and x.key = p_key and x.epoch = h.epoch and x.seq = h.seq;
  if not found then
    raise exception 'the record (epoch %, seq %) is not in the outbox', h.epoch, h.seq using errcode = 'FL020', hint = 'Somebody has deleted it. A retry passes over what is not there; consumers will find a hole.';
  elsif o.kind = 'end' then
    raise exception 'the record is the end of a life, which cannot be skipped: consumers need it to pass to the next life' using errcode = 'FL020', hint = 'Mend what the broker refuses, and retry; or retire the topic if it is gone.';
  elsif o.verdict is not null then
    raise exception 'the record was % at %; what the broker has refused is its marker', o.verdict, o.verdict_at using errcode = 'FL020', hint = 'A retry sends the marker again, never the event.';
  end if;
  select x.seq into n from @schema@.outbox x where x.topic = p_topic and x.key = p_key and x.epoch = h.epoch and x.seq > h.seq and x.seq <= last and x.kind = 'end';
  if found then last := n - 1; stopped_at_end := true; end if;
  select count(*) into n from @schema@.outbox x where x.topic = p_topic and x.key = p_key and x.epoch = h.epoch and x.seq between first and last and x.verdict is null;
  if n <> last - first + 1 then
    raise exception 'of the range from seq % to % there are % records', first, last, n using errcode = 'FL020', hint = 'A range ends at or before the newest record of its epoch.';
  end if;
  update @schema@.outbox x set verdict = 'skipped', verdict_at = at,
         skip_from = case when x.seq = 1 then 1 else greatest(relay_held_skip.first, 2) end, skip_to = case when x.seq = 1 then 1 else relay_held_skip.last end
   where x.topic = p_topic and x.key = p_key and x.epoch = h.epoch and x.seq between relay_held_skip.first and relay_held_skip.last;
  update @schema@.relay_held t set state = 'skip', asked = asked + 1, asked_by = p_who, asked_at = at, why = p_why, skip_to = relay_held_skip.last where t.topic = p_topic and t.key = p_key;
  perform @schema@._relay_audit(p_who, 'held skip', p_topic, p_key, jsonb_build_object('epoch', h.epoch, 'from', first, 'to', last, 'why', p_why, 'reason', h.reason));
end $$;

-- The relay's own retry, once what explains a refusal has changed.
create function @schema@.relay_held_auto(p_topic text, p_key text, p_why text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  update @schema@.relay_held t set state = 'retry', asked = asked + 1, asked_by = 'the relay', asked_at = clock_timestamp(), why = p_why where t.topic = p_topic and t.key = p_key and t.state = 'held';
  if not found then return false; end if;
  perform @schema@._relay_audit('the relay', 'held retry', p_topic, p_key, jsonb_build_object('why', p_why));
  return true;
end $$;

-- What became of streams that were resumed: gone (all of it that the side read
-- is acknowledged), held again, or moved on. Under the relay's token, as a
-- checkpoint: an instance that was paused could delete the row of a stream that
-- another one is holding.
create function @schema@.relay_held_settle(p_lease text, p_epoch bigint, p_token bigint, p_streams jsonb) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare s record;
begin
  perform @schema@._check_key(p_lease, true);
  perform 1 from @schema@.fence where key = p_lease and epoch = p_epoch and max_issued_token = p_token for no key update;
  if not found then
    raise exception 'the lease % with (%, %) is not the newest any more', p_lease, p_epoch, p_token using errcode = 'FL003',
      detail = (select json_build_object('key', p_lease, 'epoch', p_epoch, 'token', p_token, 'current_epoch', f.epoch, 'current_token', f.max_issued_token)::text from (select 1) one left join @schema@.fence f on f.key = p_lease);
  end if;
  for s in select * from jsonb_to_recordset(p_streams) as x(topic text, key text, became text, asked bigint, pos bigint, epoch bigint, seq bigint, reason text, detail text) loop
    case s.became
    when 'gone' then
      delete from @schema@.relay_held t where t.topic = s.topic and t.key = s.key;
      perform @schema@._relay_audit('the relay', 'resumed', s.topic, s.key, '{}') where found;
    when 'held' then
      -- A request that came after the one that this answers stays.
      update @schema@.relay_held t set pos = s.pos, epoch = s.epoch, seq = s.seq, reason = s.reason, detail = s.detail, since = clock_timestamp(),
             state = case when t.asked = s.asked then 'held' else t.state end
       where t.topic = s.topic and t.key = s.key;
      perform @schema@._relay_audit('the relay', 'held again', s.topic, s.key, jsonb_build_object('epoch', s.epoch, 'seq', s.seq, 'pos', s.pos, 'reason', s.reason)) where found;
    when 'moved' then
      update @schema@.relay_held t set pos = s.pos, epoch = s.epoch, seq = s.seq where t.topic = s.topic and t.key = s.key and t.pos < s.pos;
    end case;
  end loop;
end $$;

-- Pins the partition count of a topic, unless it is pinned; null asks only.
create function @schema@.relay_topic_pin(p_topic text, p_partitions int, out partitions int, out retired boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  if p_partitions is not null then
    -- First look, then write: a pin is asked for again and again.
    perform 1 from @schema@.relay_topic t where t.topic = p_topic;
    if not found then insert into @schema@.relay_topic (topic, partitions) values (p_topic, p_partitions) on conflict do nothing; end if;
  end if;
  select t.partitions, t.retired_at is not null into partitions, retired from @schema@.relay_topic t where t.topic = p_topic;
  retired := coalesce(retired, false);
end $$;

-- Retires a topic that is gone: all that waits for it gets its verdict, end
-- records included, and the relay goes on without it.
create function @schema@.relay_topic_retire(p_topic text, p_who text, p_why text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare t @schema@.relay_topic;
begin
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

-- The verdict on rows of a retired topic, by the relay as it reads them. Null:
-- the topic isn't retired (any more), and nothing was done.
create function @schema@.relay_topic_judge(p_topic text, p_pos bigint[]) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare n bigint;
begin
  -- Locked, so that no verdict is given once an accept has committed.
  perform 1 from @schema@.relay_topic t where t.topic = p_topic and t.retired_at is not null for share;
  if not found then return null; end if;
  update @schema@.outbox o set verdict = 'retired', verdict_at = clock_timestamp(), skip_from = case when o.kind <> 'end' then o.seq end, skip_to = case when o.kind <> 'end' then o.seq end
   where o.pos = any (p_pos) and o.topic = p_topic and o.verdict is null;
  get diagnostics n = row_count;
  return n;
end $$;

-- Accepts a topic as it is now: with another partition count, or again after it
-- was retired. p_drained is the operator's word that every consumer group has
-- read all that was in the topic: what is there could otherwise be overtaken by
-- what comes, in another partition. And since a tombstone was swept, a new life
-- of its key doesn't say where the old one ended, which is what lets a consumer
-- find out that it has not read everything.
create function @schema@.relay_topic_accept(p_topic text, p_partitions int, p_drained boolean, p_who text, p_why text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare t @schema@.relay_topic; refused timestamptz; swept timestamptz;
begin
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

-- Notes that events were published again.
create function @schema@.relay_republished(p_who text, p_topic text, p_key text, p_detail jsonb) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as
$$ begin perform @schema@._relay_audit(p_who, 'republish', p_topic, p_key, coalesce(p_detail, '{}')); end $$;

revoke all on function @schema@._relay_audit, @schema@.relay_held_retry, @schema@.relay_held_skip, @schema@.relay_held_auto, @schema@.relay_held_settle,
  @schema@.relay_topic_pin, @schema@.relay_topic_retire, @schema@.relay_topic_judge, @schema@.relay_topic_accept, @schema@.relay_republished from public;
revoke all on @schema@.relay_topic, @schema@.relay_audit from public;
grant execute on function @schema@.relay_held_auto, @schema@.relay_held_settle, @schema@.relay_topic_pin, @schema@.relay_topic_judge, @schema@.relay_republished to @relay@;
grant execute on function @schema@.relay_held_retry, @schema@.relay_held_skip, @schema@.relay_topic_retire, @schema@.relay_topic_accept to @operator@;
grant select on @schema@.relay_topic to @relay@, @monitor@, @operator@;
grant select on @schema@.relay_audit to @monitor@, @operator@;
grant select (verdict, skip_from, skip_to, verdict_at) on @schema@.outbox to @monitor@, @operator@;
