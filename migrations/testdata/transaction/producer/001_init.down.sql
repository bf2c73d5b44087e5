drop table @schema@.event;
drop table @schema@.setting;
drop table @schema@.fence;
