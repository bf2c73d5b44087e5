drop table @schema@.guard;
