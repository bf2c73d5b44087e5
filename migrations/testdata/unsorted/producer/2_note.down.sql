alter table @schema@.fence drop column note;
