-- Old libraries don't know the column and don't need to.
-- min-library: 1
alter table @schema@.fence add column note text;
commit;
