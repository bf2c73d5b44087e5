drop function @schema@.history_restamp;
