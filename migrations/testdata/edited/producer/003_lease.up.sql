-- min-library: 2
create table @schema@.lease (key text primary key);
