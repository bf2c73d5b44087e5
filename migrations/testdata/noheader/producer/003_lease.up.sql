-- the newest
create table @schema@.lease (key text primary key);
