-- min-library: 1
--
-- Commits of several keys of one process in one transaction: a group commit
-- (DeWitt et al., Implementation techniques for main memory database systems,
-- 1984), with the gate of each. What they share is BEGIN, COMMIT and its flush,
-- and the setting up of statements.

-- What takes arrays is planned once a session: a plan for the very arrays of a call
-- looks cheaper, by less than it costs to make.
alter function @schema@.enter_many set plan_cache_mode = force_generic_plan;
alter function @schema@.append set plan_cache_mode = force_generic_plan;

--   FL013 not together    some of the commits can't be in this transaction; the detail lists which

-- The gate for several commits, of whatever keys, that share a transaction. It
-- never waits: whose fence is locked by somebody else, and whoever has any other
-- answer than a first commit, is named in the detail (its index, from 0), nothing
-- is written for any, and the caller lets those go by themselves through enter(),
-- which waits and answers. So the locks of a group can't be part of a deadlock,
-- in whatever order they are taken. A key may be there with several steps.
create function @schema@.enter_group(p_keys text[], p_epochs bigint[], p_tokens bigint[], p_steps text[], p_algos text[], p_digests bytea[], p_timeout interval) returns timestamptz
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  n int := coalesce(cardinality(p_keys), 0);
  shards smallint[];
  at timestamptz;
  passed bigint;
  asked boolean := false;
  alone jsonb;
  ms text := greatest(1, (date_part('epoch', p_timeout) * 1000)::bigint)::text;
  done text;
begin
  if n = 0 or cardinality(p_epochs) is distinct from n or cardinality(p_tokens) is distinct from n or cardinality(p_steps) is distinct from n
     or cardinality(p_algos) is distinct from n or cardinality(p_digests) is distinct from n then
    raise exception 'as many epochs, tokens, steps, algorithms and digests as keys are needed, and at least one' using errcode = 'FL011';
  end if;
  -- A receipt that a crash can take back proves nothing.
  if current_setting('synchronous_commit') in ('off', 'local') then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  -- F, for each: every fact of the check is in the row that is locked, as in
  -- enter(); a row that was changed after this statement's snapshot and is free
  -- again is read again before it counts. Laterals that lock are not pulled up, so
  -- each is one look-up by key.
  select array_agg(l.shard order by u.i), count(l.shard), set_config('idle_in_transaction_session_timeout', ms, true), set_config('statement_timeout', ms, true)
    into shards, passed, done, done
    from unnest(p_keys, p_epochs, p_tokens, p_steps, p_algos, p_digests) with ordinality u(key, epoch, token, step, algo, digest, i)
    left join lateral (
      select f.shard from @schema@.fence f
       where f.key = u.key and f.epoch = u.epoch and f.max_issued_token = u.token and f.closed_at is null and (f.owner is null or f.owner = session_user)
         and not starts_with(f.key, 'fenceline:') and not starts_with(u.step, 'fenceline:')
         and octet_length(u.step) <= 128 and octet_length(u.digest) between 16 and 64 and u.algo is not null
         for no key update skip locked) l on true
   where current_setting('transaction_isolation') = 'read committed';
  if passed < n then
    select jsonb_agg(i - 1) into alone from generate_series(1, n) i where shards[i] is null;
    raise exception '% of % commits cannot share this transaction', n - passed, n using errcode = 'FL013', detail = alone::text, hint = 'Commit those that the detail lists by themselves: enter() says what is the matter with each.';
  end if;
  -- H and W: a new statement, under the locks, as in enter().
  at := clock_timestamp();
  loop
    insert into @schema@.receipt (key, epoch, token, step, algo, digest, shard, committed_at)
      select u.key, u.epoch, u.token, u.step, u.algo, u.digest, u.shard, at
        from @schema@.history h, unnest(p_keys, p_epochs, p_tokens, p_steps, p_algos, p_digests, shards) u(key, epoch, token, step, algo, digest, shard)
       where u.epoch >= h.since and h.self_oid = h.tableoid and starts_with(pg_walfile_name(pg_current_wal_insert_lsn()), h.timeline)
         and h.identity = current_setting('fenceline.identity', true)
      on conflict do nothing;
    get diagnostics passed = row_count;
    exit when passed = n;
    if passed = 0 and not asked then -- the session's first commit, mostly
      asked := true;
      perform @schema@._session_identity();
      continue;
    end if;
    -- Who has committed before. Otherwise a step is twice among them, or it is the
    -- history: then none goes in company.
    select jsonb_agg(u.i - 1) into alone
      from unnest(p_keys, p_epochs, p_tokens, p_steps) with ordinality u(key, epoch, token, step, i)
      cross join lateral (select r.xid from @schema@.receipt r where r.key = u.key and r.epoch = u.epoch and r.token = u.token and r.step = u.step limit 1) r
     where r.xid <> pg_current_xact_id();
    if alone is null then
      select jsonb_agg(i - 1) into alone from generate_series(1, n) i;
    end if;
    raise exception '% of % commits cannot share this transaction', jsonb_array_length(alone), n using errcode = 'FL013', detail = alone::text, hint = 'Commit those that the detail lists by themselves: enter() says what is the matter with each.';
  end loop;
  return at;
end $$;
revoke all on function @schema@.enter_group from public;
grant execute on function @schema@.enter_group to @producer@;

-- append() for the events of such a transaction, of several streams: those of a
-- stream in the order of the arrays. The pass of each is looked up. What is not
-- as most are (the first event of a life, several events of a stream, a text that
-- is long or missing, no pass) is append()'s; so an error is append()'s, and takes
-- all along. enable_seqscan and jit: see append().
create function @schema@.append_group(p_keys text[], p_epochs bigint[], p_tokens bigint[], p_steps text[], p_topics text[], p_ids uuid[], p_aggregatetypes text[], p_types text[],
  p_subjects text[], p_sources text[], p_contenttypes text[], p_headers text[], p_payloads bytea[], p_only boolean[]) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
declare
  done bigint[];        -- which events are written
  x record;
begin
  -- An update finds a row once at most: of several events of a stream one would be
  -- written here, and not always the first. Hence p_only, the caller's word that an
  -- event is its stream's only one; where it is wrong the order is another one, and
  -- nothing else.
  with moved as (
    update @schema@.head h set seq = h.seq + 1
      from unnest(p_keys, p_epochs, p_tokens, p_steps, p_topics, p_ids, p_aggregatetypes, p_types, p_subjects, p_sources, p_contenttypes, p_headers, p_payloads, p_only)
           with ordinality u(key, epoch, token, step, topic, id, aggregatetype, type, subject, source, contenttype, headers, payload, only_one, i)
      cross join lateral (select r.shard from @schema@.receipt r
                           where r.key = u.key and r.epoch = u.epoch and r.token = u.token and r.step = u.step
                             and r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp() limit 1) pass
      cross join lateral (select m.ctid as place from @schema@.head m where m.topic = u.topic and m.key = u.key and m.epoch = u.epoch order by m.seq desc limit 1) newest
     where h.ctid = newest.place and u.only_one
       and u.id is not null and u.type <> '' and u.aggregatetype <> '' and u.source <> ''
       and octet_length(u.type || u.aggregatetype || u.source || coalesce(u.subject, '') || coalesce(u.contenttype, '')) <= 255
       and (u.headers is null or octet_length(u.headers::jsonb::text) <= 8192) and (u.payload is null or octet_length(u.payload) <= 900000)
    returning u.*, h.seq as number, pass.shard),
  written as (
    insert into @schema@.outbox (id, aggregatetype, aggregateid, type, payload, topic, key, shard, epoch, token, seq, subject, source, contenttype, headers)
    select id, aggregatetype, key, type, payload, topic, key, shard, epoch, token, number, subject, source, contenttype, headers::jsonb from moved)
  select array_agg(i) into done from moved;
  if cardinality(done) is not distinct from cardinality(p_ids) then return; end if;
  for x in
    select u.key, u.epoch, u.token, min(u.step) as step, u.topic, array_agg(u.id order by u.i) as ids, array_agg(u.aggregatetype order by u.i) as aggregatetypes, array_agg(u.type order by u.i) as types,
           array_agg(u.subject order by u.i) as subjects, array_agg(u.source order by u.i) as sources, array_agg(u.contenttype order by u.i) as contenttypes, array_agg(u.headers order by u.i) as headers, array_agg(u.payload order by u.i) as payloads
      from unnest(p_keys, p_epochs, p_tokens, p_steps, p_topics, p_ids, p_aggregatetypes, p_types, p_subjects, p_sources, p_contenttypes, p_headers, p_payloads)
           with ordinality u(key, epoch, token, step, topic, id, aggregatetype, type, subject, source, contenttype, headers, payload, i)
     where u.i <> all (coalesce(done, '{}'))
     group by u.topic, u.key, u.epoch, u.token
     order by min(u.i)
  loop
    perform @schema@.append(x.key, x.epoch, x.token, x.step, x.topic, x.ids, x.aggregatetypes, x.types, x.subjects, x.sources, x.contenttypes, x.headers, x.payloads);
  end loop;
end $$;
revoke all on function @schema@.append_group from public;
grant execute on function @schema@.append_group to @producer@;
