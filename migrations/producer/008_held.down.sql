-- A row with a verdict would be published as the event that was given up.
do $$ begin
  if exists (select 1 from @schema@.outbox where verdict is not null) then
    raise exception 'events in the outbox were skipped or retired, and would be published again without their verdict'
      using hint = 'Wait until retention has dropped them; or, where nothing is to be published any more: delete from @schema_name@.outbox where verdict is not null';
  end if;
end $$;
drop function @schema@.relay_republished, @schema@.relay_topic_accept, @schema@.relay_topic_judge, @schema@.relay_topic_retire, @schema@.relay_topic_pin,
  @schema@.relay_held_settle, @schema@.relay_held_auto, @schema@.relay_held_skip, @schema@.relay_held_retry, @schema@._relay_audit;
drop table @schema@.relay_audit, @schema@.relay_topic;
alter table @schema@.relay_held drop column state, drop column asked, drop column asked_by, drop column asked_at, drop column why, drop column skip_to;
alter table @schema@.outbox drop constraint outbox_verdict;
alter table @schema@.outbox drop column verdict, drop column skip_from, drop column skip_to, drop column verdict_at;
