-- Turns that only this version knows go: the ones that remain say the same of
-- who held what. What is closed stays closed.
drop function @schema@.sweep_plan, @schema@.sweep_tombstones, @schema@.sweep_receipts, @schema@.sweep_floor, @schema@.sweep_floors, @schema@._sweep_until, @schema@._unpublished,
  @schema@.open, @schema@.close, @schema@._streams, @schema@._topics;
drop trigger epoch on @schema@.fence;
drop function @schema@._fence_epoch;
drop table @schema@.retention;
drop index @schema@.turn_at;
delete from @schema@.turn where why in ('close', 'open');
alter table @schema@.turn drop constraint turn_why_check;
alter table @schema@.turn add constraint turn_why_check check (why in ('acquire', 'release', 'advance'));
alter table @schema@.fence drop column end_xid, drop column end_pos;
