-- Back to parks without bounds. What operators have asked for and nobody has done
-- yet is forgotten, and so is what they have erased the reason of.
drop function @schema@.restart_partition, @schema@.forget_guards;

revoke select on @schema@.quarantine from @consumer@;
grant select (consumer, topic, partition, kafka_offset, digest) on @schema@.quarantine to @consumer@;
revoke update on @schema@.quarantine from @consumer@, @operator@;
revoke update (retry, resolved_at, outcome, error, reason, attempts, updated_at) on @schema@.quarantine from @consumer@;
revoke update (retry, forwarded_at) on @schema@.dead from @consumer@;
revoke update (next_offset, last_id, overflow_offset, overflow_end, updated_at) on @schema@.consumer_offset from @consumer@;
grant update on @schema@.consumer_offset to @consumer@;

drop table @schema@.consumer_topic;
alter table @schema@.consumer_audit drop who;
drop index @schema@.quarantine_retry, @schema@.quarantine_open;
alter table @schema@.quarantine drop size, drop attempts, drop retry, drop resolved_at, drop outcome, drop erased_at, drop updated_at;
drop index @schema@.dead_unforwarded, @schema@.dead_retry;
alter table @schema@.dead drop size, drop retry, drop forwarded_at, drop erased_at;
alter table @schema@.parked drop size, drop erased_at;
alter table @schema@.consumer_offset drop overflow_end, drop truncated_from, drop truncated_to;
drop index @schema@.guard_unstored, @schema@.guard_recheck, @schema@.guard_parked;
alter table @schema@.guard drop parked_rows, drop parked_bytes, drop unstored, drop unstored_epochs, drop recheck;
