-- min-library: 1
create table @schema@.guard (stream text primary key);
