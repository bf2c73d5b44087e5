-- Run once, by a superuser or the owner of the database, with
--
--     psql -v ON_ERROR_STOP=1 -v password="$PASSWORD" -f setup.sql
--
-- after the migrations. The server needs wal_level = logical.

-- What the connector comes as: it may read the outbox, and nothing else of ours.
create role fenceline_debezium login replication password :'password';
grant usage on schema fenceline to fenceline_debezium;
grant select on fenceline.outbox to fenceline_debezium;

-- Inserts only: what retention does is no event, nor is the verdict of an
-- operator. Partitions come as the one table, and later ones by themselves.
create publication fenceline_outbox for table fenceline.outbox
  with (publish = 'insert', publish_via_partition_root = true);
