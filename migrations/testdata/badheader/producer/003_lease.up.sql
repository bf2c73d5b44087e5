-- min-library: 4
create table @schema@.lease (key text primary key);
