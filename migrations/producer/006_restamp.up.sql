-- min-library: 1
--
-- After a dump was loaded into another cluster, the transaction ids that the
-- rows and the relay's cursor carry mean nothing there: those from beyond the
-- new cluster's own count as still to come, and what is committed now counts
-- as long since published. The relay refuses to start on such a database; this
-- is the remedy. It rewrites transaction ids only, never positions: what is in
-- the outbox is published again, byte-identical, which consumers refuse as
-- duplicates.
create function @schema@.history_restamp() returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare n bigint;
begin
  perform @schema@._same_history();
  -- Nothing is appended meanwhile, so every later event has a later transaction
  -- id and a later position than every row that is rewritten here.
  lock table @schema@.outbox in share row exclusive mode;
  update @schema@.outbox set xid = pg_current_xact_id();
  get diagnostics n = row_count;
  delete from @schema@.relay_checkpoint;
  delete from @schema@.relay_fork;      -- the main cursor reads everything again; held streams stay held, by pos
  return n;
end $$;
revoke all on function @schema@.history_restamp from public;
grant execute on function @schema@.history_restamp to @operator@;
