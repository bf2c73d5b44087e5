-- min-library: 1
--
-- Protected tables: a table of the user's that refuses each write whose
-- transaction has not passed the gate of that row's key, whoever writes.
--
-- Mechanism: AFTER ROW triggers with a WHEN clause, and BEFORE TRUNCATE ones.
-- Row triggers, because a write straight into a partition goes past the
-- statement triggers of its parent, while row triggers are cloned to every
-- partition, also to those that are attached later. AFTER, because then the
-- row's key is what all other triggers have left. WHEN, because a row that
-- passes then queues nothing; the trigger's body only refuses.
--
-- What PUBLIC may do is execute in_gate, and nothing else. It needs no usage
-- of the schema: names are looked up when a trigger is created, by the table's
-- owner, and a writer only executes what was found then. Usage for PUBLIC
-- would let everybody make columns of our tables' row types, which keep the
-- tables from being changed. Hence the trigger functions call nothing of this
-- schema by name: the writer could not.

-- Whether the caller's own transaction has passed the gate of a key, and
-- nothing about anybody else's: the receipt must be written by this very
-- transaction, which its xid says; and not in an earlier life of the cluster in
-- which the same xid occurred, which committed_at says.
--
-- Takes text, so that no cast function of a table's owner runs with the rights
-- of this one's owner. The key is compared byte by byte, whatever collation its
-- column has; the collation is named, or a column with one of its own would
-- fail. The key is compared outside of the inner select (offset 0 keeps it
-- there), so that receipts can only be found by their xid, which few share: a
-- session that has made its plan while the table was small would else look
-- through all receipts of a busy key for each row. Never null, since WHEN takes
-- null for "fine". PL/pgSQL, because it keeps its plan for the session; a
-- function in SQL is planned anew for each statement.
create function @schema@.in_gate(p_key text) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
  return exists (
    select from (
      select r.key from @schema@.receipt r
       where r.xid = pg_current_xact_id_if_assigned() and r.committed_at >= transaction_timestamp() offset 0) mine
     where mine.key = p_key collate "C");
end $$;
comment on function @schema@.in_gate is 'Whether this transaction has passed the gate of a key. Tells only of the caller''s own transaction, so everybody may ask.';

-- The refusal. Runs as the writer, who may have no right on this schema. The
-- key's column is looked up by what the trigger depends on, which a rename of
-- the column does not change.
create function @schema@._refuse_write() returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  col text;
  before text;
  after text;
begin
  with recursive up as (     -- from a partition's trigger to that of the protected table, which is what depends on the column
    select oid, tgparentid from pg_trigger where tgrelid = tg_relid and tgname = tg_name
    union all
    select t.oid, t.tgparentid from up join pg_trigger t on t.oid = up.tgparentid)
  select a.attname into col
    from up
    join pg_depend d on d.classid = 'pg_trigger'::regclass and d.objid = up.oid and d.refclassid = 'pg_class'::regclass and d.refobjsubid > 0
    join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
   where up.tgparentid = 0 limit 1;
  if tg_op <> 'INSERT' then before := to_jsonb(old) ->> col; end if;
  if tg_op <> 'DELETE' then after := to_jsonb(new) ->> col; end if;
  if tg_op <> 'DELETE' and after is null then
    raise exception 'table %.% is protected: a row without a key (% is null) belongs to no gate', quote_ident(tg_table_schema), quote_ident(tg_table_name), quote_ident(col)
      using errcode = 'FL007', schema = tg_table_schema, table = tg_table_name, column = coalesce(col, ''),
        hint = 'Give the row the key under which it is committed.';
  end if;
  raise exception 'table %.% is protected: this transaction has not passed the gate of %', quote_ident(tg_table_schema), quote_ident(tg_table_name),
      case when tg_op = 'UPDATE' and before is distinct from after then coalesce(quote_literal(before), 'null') || ' and of ' || quote_literal(after) || ', between which the row moves'
           else coalesce(quote_literal(coalesce(after, before)), 'null') end
    using errcode = 'FL007', schema = tg_table_schema, table = tg_table_name, column = coalesce(col, ''),
      detail = jsonb_build_object('operation', lower(tg_op), 'old_key', before, 'new_key', after)::text,
      hint = 'Write inside the commit of a lease on that key (fencing: Commit; SQL: select @schema_name@.enter(...) first, in the same transaction). '
        || 'For a repair by hand, the table''s owner can take the protection off: select @schema_name@.unprotect(table).';
end $$;

-- TRUNCATE has no rows, so no key whose gate could be passed.
create function @schema@._refuse_truncate() returns trigger
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  raise exception 'table %.% is protected: TRUNCATE removes the rows of every key, and no gate is that of every key', quote_ident(tg_table_schema), quote_ident(tg_table_name)
    using errcode = 'FL007', schema = tg_table_schema, table = tg_table_name,
      hint = 'Delete the rows of a key inside its commit, or let the table''s owner take the protection off first: select @schema_name@.unprotect(table).';
end $$;

-- A table and all partitions below it.
create function @schema@._with_partitions(p_table regclass) returns setof oid
language sql volatile set search_path = pg_catalog, pg_temp as
$$ select p_table::oid union select relid::oid from pg_partition_tree(p_table) $$;

-- Protects a table. Not a definer function: it creates triggers on the
-- caller's own table with the caller's own rights. Run again it changes the key
-- column, and covers what was added since. Waits for the transactions that are
-- writing the table, and makes those wait that come after; a lock_timeout of
-- the caller's bounds that.
create function @schema@.protect(p_table regclass, p_key_column name) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  c pg_class;
  col record;
  t oid;
begin
  select * into c from pg_class where oid = p_table;
  if not found then
    raise exception 'a table to protect is missing' using errcode = 'FL011';
  end if;
  if c.relkind <> all (array['r', 'p']) then
    raise exception '% is a %, and only tables can be protected', p_table,
        case c.relkind when 'v' then 'view' when 'm' then 'materialized view' when 'f' then 'foreign table' when 'i' then 'index' when 'I' then 'index' when 'S' then 'sequence' else 'thing of another kind' end
      using errcode = 'FL011', hint = case c.relkind when 'v' then 'Protect the tables that the view writes to.'
        when 'f' then 'Protect the table where it is: what its own server writes does not come by here.' else 'Name an ordinary or a partitioned table.' end;
  end if;
  if c.relnamespace = '@schema_name@'::regnamespace then
    raise exception '% is one of the toolkit''s own tables, which nobody writes but its functions', p_table using errcode = 'FL011';
  end if;
  if not pg_has_role(c.relowner, 'USAGE') then
    raise exception 'only the owner of % (%) may protect it, and % is not', p_table, pg_get_userbyid(c.relowner), current_user
      using errcode = '42501', hint = format('Connect as %I, or as a member of it.', pg_get_userbyid(c.relowner));
  end if;
  if c.relkind = 'r' and exists (select 1 from pg_inherits where inhparent = p_table) then
    raise exception '% has tables that inherit from it: a write to one of those would show in it and go past its triggers', p_table
      using errcode = 'FL011', hint = 'Use a partitioned table, or end the inheritance.';
  end if;
  select x.relid::regclass as rel into col from pg_partition_tree(p_table) x join pg_class f on f.oid = x.relid where f.relkind = 'f' limit 1;
  if found then
    raise exception 'partition % of % is a foreign table: what its own server writes does not come by here', col.rel, p_table
      using errcode = 'FL011', hint = 'Detach it, and protect the table where it is.';
  end if;
  if exists (select 1 from pg_trigger where tgrelid = p_table and tgparentid <> 0 and tgfoid = '@schema_name@._refuse_write'::regproc) then
    raise exception '% is a partition of a protected table, and protected with it', p_table using errcode = 'FL011', hint = 'Protect the table that it is a partition of.';
  end if;
  select a.attname, format_type(a.atttypid, a.atttypmod) as type, a.attgenerated, coalesce(nullif(y.typbasetype, 0), y.oid) as base into col
    from pg_attribute a join pg_type y on y.oid = a.atttypid where a.attrelid = p_table and a.attname = p_key_column and a.attnum > 0 and not a.attisdropped;
  if not found then
    raise exception 'table % has no column %', p_table, coalesce(quote_ident(p_key_column), 'null') using errcode = 'FL011',
      hint = (select 'It has ' || string_agg(quote_ident(attname), ', ' order by attnum) || '.' from pg_attribute where attrelid = p_table and attnum > 0 and not attisdropped);
  end if;
  while (select typtype from pg_type where oid = col.base) = 'd' loop     -- a domain over a domain
    select typbasetype into col.base from pg_type where oid = col.base;
  end loop;
  if col.base <> all (array['text'::regtype, 'varchar'::regtype, 'bpchar'::regtype]) then
    raise exception 'column % of % is of type %, and a key is text', quote_ident(col.attname), p_table, col.type
      using errcode = 'FL011', hint = format('Protect by a text column that holds the key, for example one that is generated: alter table %s add fence_key text generated always as (...) stored.', p_table);
  end if;
  -- Of an update both the old and the new key count; the old one is looked at
  -- only where it differs, byte by byte: a column's own collation may call
  -- different keys equal.
  execute format('create or replace trigger %I after insert on %s for each row when (not @schema@.in_gate(new.%I::text)) execute function @schema@._refuse_write()',
    '@schema_name@_gate_insert', p_table, col.attname);
  execute format('create or replace trigger %I after update on %s for each row when (not @schema@.in_gate(new.%3$I::text) or (old.%3$I::text collate "C" is distinct from new.%3$I::text collate "C" and not @schema@.in_gate(old.%3$I::text))) execute function @schema@._refuse_write()',
    '@schema_name@_gate_update', p_table, col.attname);
  execute format('create or replace trigger %I after delete on %s for each row when (not @schema@.in_gate(old.%I::text)) execute function @schema@._refuse_write()',
    '@schema_name@_gate_delete', p_table, col.attname);
  -- Statement triggers are not cloned, so each partition gets its own. One
  -- that is attached later has none until protect is run again, which
  -- protected() says; nobody but its owner may truncate it unless told so, since
  -- rights on a table are none on its partitions.
  for t in select @schema@._with_partitions(p_table) loop
    execute format('create or replace trigger %I before truncate on %s execute function @schema@._refuse_truncate()', '@schema_name@_gate_truncate', t::regclass);
  end loop;
end $$;
comment on function @schema@.protect is 'Makes a table refuse writes of transactions that have not passed the gate of the row''s key. Run by the table''s owner.';

-- Takes the protection off; false if there was none.
create function @schema@.unprotect(p_table regclass) returns boolean
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  g record;
  any_dropped boolean := false;
begin
  if not exists (select 1 from pg_class where oid = p_table) then
    raise exception 'a table to unprotect is missing' using errcode = 'FL011';
  end if;
  if not exists (select 1 from pg_class where oid = p_table and pg_has_role(relowner, 'USAGE')) then
    raise exception 'only the owner of % may take its protection off, and % is not', p_table, current_user using errcode = '42501';
  end if;
  if exists (select 1 from pg_trigger where tgrelid = p_table and tgparentid <> 0 and tgfoid = '@schema_name@._refuse_write'::regproc) then
    raise exception '% is protected as a partition', p_table using errcode = 'FL011', hint = 'Unprotect the table that it is a partition of.';
  end if;
  for g in select tgname, tgrelid::regclass as rel from pg_trigger
            where tgrelid in (select @schema@._with_partitions(p_table)) and tgparentid = 0
              and tgfoid in ('@schema_name@._refuse_write'::regproc, '@schema_name@._refuse_truncate'::regproc) loop
    execute format('drop trigger %I on %s', g.tgname, g.rel);
    any_dropped := true;
  end loop;
  return any_dropped;
end $$;
comment on function @schema@.unprotect is 'Takes the protection off a table. Run by the table''s owner.';

-- The protected tables of this database. gaps is empty where nothing is open;
-- otherwise it names what is, such as "truncate of public.leaf" for a partition
-- that was attached after protect, or a trigger that somebody has disabled.
create function @schema@.protected(out table_schema name, out table_name name, out key_column name, out gaps text[]) returns setof record
language sql volatile set search_path = pg_catalog, pg_temp as $$
  with ours as (
    select t.oid, t.tgrelid, t.tgparentid, t.tgfoid, t.tgtype & 60 as event, t.tgenabled in ('O', 'A') as enabled
      from pg_trigger t where t.tgfoid in ('@schema_name@._refuse_write'::regproc, '@schema_name@._refuse_truncate'::regproc)),
  roots as (
    select tgrelid as oid, min(oid) as a_trigger from ours where tgparentid = 0 and tgfoid = '@schema_name@._refuse_write'::regproc group by tgrelid)
  select n.nspname, c.relname,
         (select a.attname from pg_depend d join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
           where d.classid = 'pg_trigger'::regclass and d.objid = r.a_trigger and d.refclassid = 'pg_class'::regclass and d.refobjid = r.oid and d.refobjsubid > 0 limit 1),
         array(select w.what || ' of ' || m::regclass
                 from @schema@._with_partitions(r.oid) m, (values (1, 'insert', 4), (2, 'update', 16), (3, 'delete', 8), (4, 'truncate', 32)) w(i, what, event)
                where not exists (select 1 from ours o where o.tgrelid = m and o.event & w.event <> 0 and o.enabled)
                order by m::regclass::text, w.i)
    from roots r join pg_class c on c.oid = r.oid join pg_namespace n on n.oid = c.relnamespace
   order by 1, 2
$$;
comment on function @schema@.protected is 'The protected tables, by which column, and what is still open of each.';

-- To create a trigger takes the right to execute its function; so those who own
-- tables of business rows need a role of this schema, once.
revoke all on function @schema@.in_gate, @schema@._refuse_write, @schema@._refuse_truncate, @schema@._with_partitions, @schema@.protect, @schema@.unprotect, @schema@.protected from public;
grant execute on function @schema@.in_gate to public;
grant execute on function @schema@.protect, @schema@.unprotect, @schema@._refuse_write, @schema@._refuse_truncate to @producer@, @operator@;
grant execute on function @schema@.protected, @schema@._with_partitions to @producer@, @operator@, @monitor@;
