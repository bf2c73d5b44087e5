-- min-library: 1
create table @schema@.fence (key text primary key, token bigint not null);
create table @schema@.setting (id int primary key, value text, since timestamptz not null default clock_timestamp());
insert into @schema@.setting values (1, 'seeded by @schema_name@'), (2, null);
create table @schema@.event (pos bigint, payload bytea) partition by range (pos);
create table @schema@.event_1 partition of @schema@.event for values from (0) to (1000);
grant select on @schema@.fence to @producer@;
