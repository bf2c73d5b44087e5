-- Commits of several keys have transactions of their own again.
drop function @schema@.enter_group, @schema@.append_group;
alter function @schema@.enter_many reset plan_cache_mode;
alter function @schema@.append reset plan_cache_mode;
