-- min-library: 1
--
-- A new history is above all that is recorded, whatever the clock says; and what an
-- operator has said about a key or about histories is on the disk when he is told.

-- As before, but that the epochs of all fences count. A life that began by a clock
-- that was ahead of this one (another server's, before the promotion; this one's,
-- before it was set back) would otherwise be of the new history too: its holder would
-- commit on, and tokens that the lost side has issued would be issued again.
create or replace function @schema@._bump(p_above bigint, p_who text, p_by_itself boolean) returns bigint
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare n bigint; b jsonb;
begin
  if p_above >= 4611686018427387904 then
    raise exception 'epochs go to 2^62, and would have to be above %', p_above using errcode = 'FL011', hint = 'No event of a larger one could be published, and they never fall.';
  end if;
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
  -- Behind the lock as well: no epoch is allotted meanwhile.
  select greatest(h.epoch_floor + 1, @schema@._now_us(), p_above + 1, (select max(f.epoch) + 1 from @schema@.fence f)) into n from @schema@.history h;
  update @schema@.history h
     set system_identifier = i.system_identifier, timeline = i.timeline, database_oid = i.database_oid, self_oid = h.tableoid, since = n, epoch_floor = n
    from @schema@._identity() i;
  -- No lease of before can commit any more: its holder must acquire anew, and
  -- must not keep others out by renewing it.
  update @schema@.lease set expires_at = '-infinity', successor = null, reserved_until = null where expires_at > '-infinity' or reserved_until is not null;
  insert into @schema@.history_change (why, who, since, policy, before, after)
    select case when p_by_itself then 'bump by itself' else 'bump' end, p_who, h.since, h.on_new, b,
           jsonb_build_object('system_identifier', h.system_identifier::text, 'timeline', h.timeline, 'database_oid', h.database_oid, 'self_oid', h.self_oid) from @schema@.history h;
  return n;
end $$;

create or replace function @schema@.history_on_new(p_policy text, p_who text default null) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  if p_policy is null or p_policy not in ('refuse', 'bump') then
    raise exception 'in a new history there is refuse or bump, not %', coalesce(p_policy, 'null') using errcode = 'FL011';
  end if;
  update @schema@.history set on_new = nullif(p_policy, 'refuse');
  insert into @schema@.history_change (why, who, since, policy, before, after) select 'policy', p_who, h.since, p_policy, '{}', '{}' from @schema@.history h;
end $$;

create or replace function @schema@.set_owner(p_key text, p_owner text, p_who text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare f @schema@.fence;
begin
  perform @schema@._check_key(p_key, false);
  -- An owner that a crash takes back leaves the key to everybody.
  perform set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') in ('off', 'local');
  if p_owner is not null and not exists (select 1 from pg_roles r where r.rolname = p_owner) then
    raise exception 'there is no login %', p_owner using errcode = 'FL011', hint = 'Nobody could commit under the key.';
  end if;
  f := @schema@._lock_fence(p_key, interval '5 s');
  update @schema@.fence t set owner = p_owner where t.key = p_key;
  insert into @schema@.turn (key, epoch, token, holder, why, whom) values (p_key, f.epoch, f.max_issued_token, p_owner, 'owner', p_who);
end $$;
