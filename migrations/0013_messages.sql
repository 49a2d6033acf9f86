-- What became of messages: which the code refused, and which somebody took out of a mailbox.

alter table pgflow.signal add column refusal jsonb;
comment on column pgflow.signal.refusal is 'Why the code could not take it, {error, code_hash}: the run was held for a person; null = nobody has tried, or it has been mended';

alter table pgflow.undelivered
  add column reason text not null default 'ended' check (reason in ('ended', 'dropped', 'replaced')),
  add column replaced_in bigint,
  add column moved_by text check (char_length(moved_by) <= 255),
  add column why text check (char_length(why) <= 4096);
comment on table pgflow.undelivered is 'Messages that no run took: it had ended, or somebody took them out of its mailbox';
comment on column pgflow.undelivered.reason is 'ended = the run had ended; dropped, replaced = somebody took it out of the mailbox';
comment on column pgflow.undelivered.replaced_in is 'The number that it had, which is that of the message in its place now';
comment on column pgflow.undelivered.moved_by is 'Who took it out of the mailbox; null = the run had ended';
comment on column pgflow.undelivered.why is 'The reason that was given';
