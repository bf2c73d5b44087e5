-- The schema itself and the roles stay: the consumer's part may live in it, and
-- other databases of the cluster may use the roles.
drop table @schema@.relay_fork, @schema@.relay_held, @schema@.relay_checkpoint, @schema@.outbox, @schema@.head, @schema@.receipt, @schema@.turn, @schema@.lease;
drop function @schema@.relay_checkpoint, @schema@.append, @schema@.set_result, @schema@.enter, @schema@._refuse, @schema@.advance,
  @schema@.relay_release, @schema@.release, @schema@.relay_renew, @schema@.renew, @schema@.relay_acquire, @schema@.acquire,
  @schema@._release, @schema@._renew, @schema@._acquire, @schema@._advance_locked, @schema@._lock_fence, @schema@._check_key,
  @schema@.history_confirm, @schema@.history_bump, @schema@._same_history, @schema@._identity, @schema@._shard, @schema@._now_us;
drop table @schema@.fence, @schema@.history;
drop function @schema@._fence_monotone;
drop sequence @schema@.outbox_pos;
