-- Not by cascade: that would open tables which their owners believe protected.
do $$
declare tables text;
begin
  select string_agg(quote_ident(table_schema) || '.' || quote_ident(table_name), ', ') into tables from @schema@.protected();
  if tables is not null then
    raise exception 'tables are protected: %: as their owner, take the protection off first: select @schema_name@.unprotect(table)', tables using errcode = 'FL011';
  end if;
end $$;
drop function @schema@.protected, @schema@.unprotect, @schema@.protect, @schema@._with_partitions, @schema@._refuse_truncate, @schema@._refuse_write, @schema@.in_gate;
