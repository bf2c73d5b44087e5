package migrations

// SQL of the migrator itself, as templates like the files. All of it runs inside
// a transaction that attempt began.

// settle makes a transaction independent of the login's defaults: an empty
// search path so that everything must be qualified, no timeout that a login has
// for its short queries (of a transaction there is one from PostgreSQL 17 on), texts
// that are read as they are written, and one spelling of every type, because rows
// that were seeded are recognised by their text.
const settle = `
set local search_path = '';
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
select pg_catalog.set_config('transaction_timeout', '0', true) from pg_catalog.pg_settings where name = 'transaction_timeout';
set local standard_conforming_strings = on;
set local timezone = 'UTC';
set local datestyle = 'ISO, YMD';
set local intervalstyle = 'postgres';
set local bytea_output = 'hex';
set local extra_float_digits = 1`

// lock serialises migrators of one schema. It must come before anything that
// decides what there is to do is read, and in a statement of its own, so that
// under READ COMMITTED the next statement's snapshot has what the previous
// holder committed.
const lock = `select pg_catalog.pg_advisory_xact_lock($1::bigint)`

// createVersions and what follows is run as the owner role.
const createVersions = `create table if not exists @schema@.schema_version (
    part        text        not null check (part in ('producer', 'consumer')),
    version     integer     not null check (version > 0),
    name        text        not null,
    checksum    text        not null,                    -- SHA-256 of the up template, hex
    min_library integer     not null check (min_library between 1 and version),
    schema_name text        not null,                    -- the name that was substituted
    seeds       jsonb       not null default '{}',       -- table -> md5 of each row that the migration inserted
    applied_at  timestamptz not null default clock_timestamp(),
    applied_by  text        not null default session_user,
    primary key (part, version)
);
comment on table @schema@.schema_version is 'fenceline migrations that are applied; written by the migrator only';
grant usage on schema @schema@ to @producer@, @advancer@, @relay@, @operator@, @consumer@, @monitor@;
grant select on @schema@.schema_version to @producer@, @advancer@, @relay@, @operator@, @consumer@, @monitor@`

const insertVersion = `
insert into @schema@.schema_version (part, version, name, checksum, min_library, schema_name, seeds)
values ($1::text, $2::int, $3::text, $4::text, $5::int, $6::text, $7::jsonb)`

const deleteVersion = `delete from @schema@.schema_version where part = $1::text and version = $2::int`

const selectVersions = `
select part, version, name, checksum, schema_name, applied_at, applied_by
from @schema@.schema_version where part = $1::text order by version`

const selectSeeds = `select seeds from @schema@.schema_version where part = $1::text and version = $2::int`

// inspectSchema answers even where the login has no right on the schema.
const inspectSchema = `
select n.nspname is not null,
       coalesce(pg_catalog.pg_get_userbyid(n.nspowner)::text, ''),
       c.oid is not null,
       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
from (values ($1::text)) as want(name)
left join pg_catalog.pg_namespace n on n.nspname = want.name
left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = 'schema_version' and c.relkind = 'r'`

// holders lists who has locks that a migrator may be waiting for: its advisory
// lock, and relations of the schema. It runs after the wait, in a new
// transaction of the same connection (there is no second one), so it names
// candidates. pg_locks is per cluster, hence the database.
const holders = `
select l.pid, coalesce(a.usename, '')::text, coalesce(a.application_name, ''), coalesce(a.state, 'state hidden')
from pg_catalog.pg_locks l
left join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.granted and l.pid <> pg_catalog.pg_backend_pid()
  and l.database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
  and (l.locktype = 'advisory' and l.objsubid = 1
         and ((l.classid::bigint << 32) | l.objid::bigint) = $1::bigint
    or l.locktype = 'relation' and l.relation in (
         select c.oid from pg_catalog.pg_class c
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace where n.nspname = $2::text))
group by 1, 2, 3, 4 order by 1`

// columns lists the live columns of the schema's tables. Partitions are left
// out: their rows are counted through the table they belong to, and whether
// there are any is the running system's business, not a migration's.
const columns = `
select c.oid, c.relname::text, a.attnum, a.attname::text
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' -- what is computed is not lost
where n.nspname = $1::text and c.relkind in ('r', 'p') and not c.relispartition
order by c.relname, a.attnum`
