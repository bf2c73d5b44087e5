-- What an operator's login has set decides again.
create or replace function @schema@.relay_held_skip(p_topic text, p_key text, p_through bigint, p_who text, p_why text, out first bigint, out last bigint, out stopped_at_end boolean)
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
create or replace function @schema@._outbox_parts() returns table (part text, name text, number bigint, lo bigint, hi bigint)
language sql volatile set search_path = pg_catalog, pg_temp as $$
  select format('%I.%I', n.nspname, c.relname), c.relname::text, b.lo >> 40, b.lo, b.hi
    from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_namespace n on n.oid = c.relnamespace
    cross join lateral (select m[1]::bigint as lo, m[2]::bigint as hi
      from regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''?(\d+)''?\) TO \(''?(\d+)''?\)') m) b
   where i.inhparent = '@schema_name@.outbox'::regclass and b.lo is not null
   order by b.lo
$$;
