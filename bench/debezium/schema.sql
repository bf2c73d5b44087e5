-- The table of Debezium's documentation, and a publication of it alone, so that
-- the connector needs no more rights than to read it.
create table outbox (
  id            uuid         primary key,
  aggregatetype varchar(255) not null,
  aggregateid   varchar(255) not null,
  type          varchar(255) not null,
  payload       bytea,
  created_at    timestamptz  not null default clock_timestamp()
);
create publication dbz_outbox for table outbox with (publish = 'insert');
