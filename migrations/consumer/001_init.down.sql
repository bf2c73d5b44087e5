-- The schema itself and the roles stay: the producer's part may live in it, and
-- other databases of the cluster may use the roles.
drop table @schema@.consumer_audit, @schema@.quarantine, @schema@.dead, @schema@.parked, @schema@.consumer_offset, @schema@.consumer_stream, @schema@.guard;
