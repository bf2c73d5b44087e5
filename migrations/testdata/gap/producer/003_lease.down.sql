drop table @schema@.lease;
