-- min-library: 1
--
-- The consumer's part: what a service remembers of the streams it has applied,
-- and what it could not apply. It lives in the service's own database, since
-- every row here changes in the transaction of the effect that it speaks of.
--
-- Stream, key and consumer are compared byte by byte (collate "C"): the order
-- in which guards are locked must be the same for everyone, whatever the
-- database's collation.
--
-- Records are stored whole. Headers are an array of name, value, name, value …
-- as bytes, because a hostile record's header names need not be text; its time
-- is the number that Kafka has, because it need not be a date.

-- One row for each stream that a consumer has seen. Its lock is what makes two
-- members on one partition end in the same state as one.
-- Keyed by the stream and not by the topic: a copy that is published again, or
-- mirrored, into another topic is the same event.
create table @schema@.guard (
  consumer      text collate "C" not null check (octet_length(consumer) between 1 and 200),
  stream        text collate "C" not null check (octet_length(stream) between 1 and 249),
  key           text collate "C" not null check (octet_length(key) between 1 and 1024),
  epoch         bigint not null default 0 check (epoch >= 0),  -- 0: the row is there to be locked, nothing is known yet
  token         bigint check (token > 0),                      -- of the last applied event of this epoch
  seq           bigint not null default 0 check (seq >= 0),    -- all of 1..seq of this epoch is decided
  missed        int8multirange not null default '{}',          -- seqs of this epoch that are never to be applied
  end_seq       bigint,                                        -- of this epoch's end record
  start_epoch   bigint,                                        -- where the consumer joined the stream
  start_seq     bigint,
  settled       boolean not null default false,                -- something was decided
  waiting_epoch bigint,                                        -- lowest later epoch of which a record waits
  blocked       text check (blocked in ('gap', 'life', 'failing', 'conflict')),
  blocked_since timestamptz,
  updated_at    timestamptz not null default clock_timestamp(),
  primary key (consumer, stream, key),
  check (waiting_epoch > epoch),
  check ((blocked is null) = (blocked_since is null))
) with (fillfactor = 50);   -- every event updates a row: room for the next version on the same page
create index guard_blocked on @schema@.guard (consumer, stream, key) where blocked is not null;
comment on table @schema@.guard is 'What a consumer remembers of each stream (stream, key): the position that it has reached, and what it will never apply.';

-- What holds for all keys of a stream. policy and start are what its guards were
-- written under; forgotten is the highest epoch of which guards were removed.
create table @schema@.consumer_stream (
  consumer   text collate "C" not null check (octet_length(consumer) between 1 and 200),
  stream     text collate "C" not null check (octet_length(stream) between 1 and 249),
  policy     text   not null check (policy in ('strict', 'state')),
  start      text   not null check (start in ('first-seen', 'origin')),
  forgotten  bigint not null default 0 check (forgotten >= 0),
  created_at timestamptz not null default clock_timestamp(),
  primary key (consumer, stream)
);
comment on table @schema@.consumer_stream is 'Policy and start of each stream, and up to which epoch its guards were forgotten.';

-- Keyed by the topic: offsets are of a partition's log, whatever streams are in it.
create table @schema@.consumer_offset (
  consumer        text collate "C" not null check (octet_length(consumer) between 1 and 200),
  topic           text collate "C" not null,
  partition       integer not null check (partition >= 0),
  next_offset     bigint  not null check (next_offset >= 0),
  last_id         uuid,          -- the event at next_offset - 1: shows that a topic was created anew
  overflow_offset bigint,        -- lowest offset of which the record did not fit into the park
  truncated_at    timestamptz,   -- part of the log went unread, and nobody has accepted that yet
  updated_at      timestamptz not null default clock_timestamp(),
  primary key (consumer, topic, partition)
);
create index consumer_offset_truncated on @schema@.consumer_offset (consumer) where truncated_at is not null;
create index consumer_offset_overflow on @schema@.consumer_offset (consumer) where overflow_offset is not null;
comment on table @schema@.consumer_offset is 'The offset to read next, per partition. Correctness rests on the guards, not on it.';

-- Strict streams: records that wait, for what is missing before them or for an
-- operator. Keyed by the position, so that copies of a record wait once; the
-- kind is in the key because a skip marker has the seq of the last event it
-- gives up, and both may wait.
create table @schema@.parked (
  consumer     text collate "C" not null,
  stream       text collate "C" not null,
  key          text collate "C" not null,
  epoch        bigint not null,
  seq          bigint not null,
  kind         text collate "C" not null check (kind in ('data', 'skip', 'end')),
  from_seq     bigint  not null,     -- first seq it covers: seq, but on a skip marker
  topic        text    not null,
  partition    integer not null,
  kafka_offset bigint  not null,
  event_id     uuid    not null,
  headers      bytea[] not null,
  kafka_key    bytea,
  value        bytea,                -- null is a tombstone
  timestamp_ms bigint  not null,
  reason       text    not null check (reason in ('gap', 'life', 'failing', 'conflict')),
  error        text,                 -- the handler's last
  attempts     integer not null default 0,
  parked_at    timestamptz not null default clock_timestamp(),
  updated_at   timestamptz not null default clock_timestamp(),
  primary key (consumer, stream, key, epoch, seq, kind)
);
-- The order in which they are resumed: a skip marker before the events that it
-- gives up.
create index parked_order on @schema@.parked (consumer, stream, key, epoch, from_seq, kind desc, seq);
comment on table @schema@.parked is 'Records of strict streams that wait for what is missing before them, or for an operator.';

-- State streams: events that their handler refused for good. The guard did not
-- move for them, so a later try is decided like the first one. Keyed by the
-- position: every copy of an event is the same dead letter, and a discarded one
-- stays, so that no copy is ever applied.
create table @schema@.dead (
  consumer     text collate "C" not null,
  stream       text collate "C" not null,
  key          text collate "C" not null,
  epoch        bigint not null,
  seq          bigint not null,
  kind         text collate "C" not null check (kind = 'data'),
  topic        text    not null,
  partition    integer not null,
  kafka_offset bigint  not null,
  event_id     uuid    not null,
  headers      bytea[] not null,
  kafka_key    bytea,
  value        bytea,
  timestamp_ms bigint  not null,
  error        text    not null,
  attempts     integer not null default 1,
  died_at      timestamptz not null default clock_timestamp(),
  updated_at   timestamptz not null default clock_timestamp(),
  discarded_at timestamptz,
  primary key (consumer, stream, key, epoch, seq, kind)
);
comment on table @schema@.dead is 'Events of state streams that their handler refused for good.';

-- Records that can't be placed in a stream, or are not believed. Keyed by where
-- they lie, since that is all that is known of some of them; the digest keeps
-- apart what lay at the same offset of a topic that was created anew.
create table @schema@.quarantine (
  id             bigint generated always as identity primary key,
  consumer       text collate "C" not null,
  topic          text collate "C" not null,
  partition      integer not null,
  kafka_offset   bigint  not null,
  digest         bytea   not null,    -- SHA-256 of key, value and headers
  reason         text    not null check (reason in ('malformed', 'absurd', 'before_memory', 'before_origin', 'conflict')),
  error          text    not null,
  stream         text collate "C",    -- these five where the record could be read
  key            text collate "C",
  epoch          bigint,
  seq            bigint,
  kind           text,
  headers        bytea[] not null,
  kafka_key      bytea,
  value          bytea,
  timestamp_ms   bigint  not null,
  quarantined_at timestamptz not null default clock_timestamp(),
  unique (consumer, topic, partition, kafka_offset, digest)
);
comment on table @schema@.quarantine is 'Records that could not be placed in a stream, or were not believed.';

-- What operators did. Rows are only ever added.
create table @schema@.consumer_audit (
  id          bigint generated always as identity primary key,
  at          timestamptz not null default clock_timestamp(),
  actor       text not null default session_user,
  consumer    text not null,
  action      text not null,
  stream      text collate "C",
  key         text collate "C",
  epoch       bigint,
  from_seq    bigint,
  to_seq      bigint,
  topic       text,
  partition   integer,
  from_offset bigint,
  to_offset   bigint,
  reason      text not null,
  detail      jsonb not null default '{}'
);
create index consumer_audit_key on @schema@.consumer_audit (consumer, stream, key);
comment on table @schema@.consumer_audit is 'What operators did to guards, parked records, dead letters and partitions, and why.';

-- Rights. A consumer can remove no guard, forget no life, and neither discard a
-- dead letter nor write the audit.
revoke all on @schema@.guard, @schema@.consumer_stream, @schema@.consumer_offset, @schema@.parked, @schema@.dead, @schema@.quarantine, @schema@.consumer_audit from public;
grant usage on schema @schema@ to @consumer@, @operator@, @monitor@;

grant select, insert, update on @schema@.guard to @consumer@;
grant select on @schema@.consumer_stream to @consumer@;
grant insert (consumer, stream, policy, start) on @schema@.consumer_stream to @consumer@;
grant select, insert, update on @schema@.consumer_offset to @consumer@;
grant select, insert, update, delete on @schema@.parked to @consumer@;
grant select, delete on @schema@.dead to @consumer@;
grant insert (consumer, stream, key, epoch, seq, kind, topic, partition, kafka_offset, event_id, headers, kafka_key, value, timestamp_ms, error) on @schema@.dead to @consumer@;
grant update (error, attempts, updated_at) on @schema@.dead to @consumer@;
grant insert (consumer, topic, partition, kafka_offset, digest, reason, error, stream, key, epoch, seq, kind, headers, kafka_key, value, timestamp_ms) on @schema@.quarantine to @consumer@;
grant select (consumer, topic, partition, kafka_offset, digest) on @schema@.quarantine to @consumer@;   -- on conflict reads them
grant select on @schema@.consumer_audit to @consumer@;

grant select on @schema@.guard, @schema@.consumer_stream, @schema@.consumer_offset, @schema@.parked, @schema@.dead, @schema@.quarantine, @schema@.consumer_audit to @operator@;
grant insert, update, delete on @schema@.guard to @operator@;
grant update (forgotten) on @schema@.consumer_stream to @operator@;
grant update on @schema@.consumer_offset to @operator@;
grant insert, update, delete on @schema@.parked, @schema@.dead to @operator@;
grant delete on @schema@.quarantine to @operator@;
grant insert (consumer, action, stream, key, epoch, from_seq, to_seq, topic, partition, from_offset, to_offset, reason, detail) on @schema@.consumer_audit to @operator@;   -- neither its time nor its actor

grant select on @schema@.guard, @schema@.consumer_stream, @schema@.consumer_offset, @schema@.consumer_audit to @monitor@;
-- Everything of a record but what it says; a handler's error may quote it.
grant select (consumer, stream, key, epoch, seq, kind, from_seq, topic, partition, kafka_offset, event_id, timestamp_ms, reason, attempts, parked_at, updated_at) on @schema@.parked to @monitor@;
grant select (consumer, stream, key, epoch, seq, kind, topic, partition, kafka_offset, event_id, timestamp_ms, attempts, died_at, updated_at, discarded_at) on @schema@.dead to @monitor@;
grant select (id, consumer, topic, partition, kafka_offset, digest, reason, stream, key, epoch, seq, kind, timestamp_ms, quarantined_at) on @schema@.quarantine to @monitor@;
