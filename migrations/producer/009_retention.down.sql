drop function @schema@.relay_set_pause;
drop table @schema@.relay_pause;
drop function @schema@.outbox_delete, @schema@.outbox_drop, @schema@.outbox_rotate, @schema@.outbox_partitions, @schema@._outbox_kept, @schema@._outbox_parts;
drop view @schema@._relay_seen, @schema@._relay_cursor;
