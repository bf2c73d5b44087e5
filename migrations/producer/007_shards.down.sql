-- no loss: relay_checkpoint.shards, relay_fork.id, relay_fork.partition, relay_fork.partitions, relay_fork.shards, relay_instance
--
-- Back to one cursor: the oldest of the shards', which is always safe, since
-- what lies between is published a second time at most. Of two snapshots of one
-- cluster the older one has the smaller xmax, or with the same one more that
-- still ran.
do $$
declare
  current bigint[];
  least @schema@.relay_checkpoint;
  oldest @schema@.relay_fork;
  t record;
  same boolean;
begin
  select array_agg(newest.n) into current from (select max(c.n) as n from @schema@.relay_checkpoint c cross join unnest(c.shards) s group by s) newest;
  if cardinality(current) is distinct from 64 then   -- a shard was never published: from the beginning
    delete from @schema@.relay_checkpoint;
    delete from @schema@.relay_fork;
    return;
  end if;
  select c.* into least from @schema@.relay_checkpoint c where c.n = any (current)
    order by pg_snapshot_xmax(c.s1), (select count(*) from pg_snapshot_xip(c.s1)) desc, c.last_pos limit 1;
  select bool_and(c.s1::text = least.s1::text and c.s2::text is not distinct from least.s2::text) into same from @schema@.relay_checkpoint c where c.n = any (current);
  if not same then least.s2 := null; least.high := null; least.low2 := null; least.last_pos := 0; end if;
  select max(c.n) into least.n from @schema@.relay_checkpoint c;
  delete from @schema@.relay_checkpoint;
  insert into @schema@.relay_checkpoint select (least).*;
  for t in select k.topic, count(distinct s) filter (where k.partition is null) = 64 as whole from @schema@.relay_fork k cross join unnest(k.shards) s group by 1 loop
    select k.* into oldest from @schema@.relay_fork k where k.topic = t.topic
      order by pg_snapshot_xmax(k.s1), (select count(*) from pg_snapshot_xip(k.s1)) desc, k.last_pos limit 1;
    select bool_and(k.s1::text = oldest.s1::text and k.s2::text is not distinct from oldest.s2::text) into same from @schema@.relay_fork k where k.topic = t.topic;
    delete from @schema@.relay_fork k where k.topic = t.topic;
    -- Where it didn't have all of the topic, the rest was the main cursor's.
    continue when not t.whole and ((pg_snapshot_xmax(oldest.s1)::text::numeric, -(select count(*) from pg_snapshot_xip(oldest.s1)))
                                 > (pg_snapshot_xmax(least.s1)::text::numeric, -(select count(*) from pg_snapshot_xip(least.s1))));
    if not (same and t.whole) then oldest.s2 := null; oldest.high := null; oldest.low2 := null; oldest.last_pos := 0; end if;
    insert into @schema@.relay_fork (topic, s1, low, s2, high, low2, last_pos, reason, detail, since)
      values (t.topic, oldest.s1, oldest.low, oldest.s2, oldest.high, oldest.low2, oldest.last_pos, oldest.reason, oldest.detail, oldest.since);
  end loop;
end $$;

drop function @schema@.relay_checkpoint, @schema@.relay_leave, @schema@.relay_meet;
drop table @schema@.relay_instance;
alter table @schema@.relay_fork drop constraint relay_fork_partition, drop column shards, drop column partitions, drop column partition, drop column id;
alter table @schema@.relay_fork add constraint relay_fork_pkey primary key (topic);
comment on table @schema@.relay_fork is 'Topics that the broker refuses, each with its own cursor: the rest flows on.';
alter table @schema@.relay_checkpoint alter column n drop default, drop column shards;
drop sequence @schema@.relay_checkpoint_n;
comment on table @schema@.relay_checkpoint is 'How far the relay has published. The newest row counts.';
alter table @schema@.outbox drop constraint outbox_shard;

create or replace function @schema@._unpublished(p_key text, p_xid xid8, p_pos bigint) returns text
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
revoke all on function @schema@.relay_checkpoint from public;
grant execute on function @schema@.relay_checkpoint to @relay@;
