-- Forks and new generations that begin in the middle: where the front part of a journal came from.

alter table pgflow.run
  add column origin_run_id bigint,
  add column origin_seq int,
  add column heritage jsonb;

-- Messages that a dropped part of a journal had taken come before all that wait: their numbers run downwards.
create sequence pgflow.put_back_seq increment by -1 maxvalue -1 start with -1;
comment on sequence pgflow.put_back_seq is 'Numbers messages that are put back into a mailbox: below zero, and lower each time';

create table pgflow.carried (
  run_id bigint not null,
  args_hash bigint not null,
  seq int not null,
  call int not null,
  is_done boolean not null,
  what text not null default 'step' check (what in ('step', 'effect', 'child', 'undo')),
  name text not null check (octet_length(name) <= 255),
  key text not null check (octet_length(key) <= 1024),
  payload json,
  request json,
  note jsonb,
  primary key (run_id, seq, call)
);
comment on table pgflow.carried is 'What a dropped part of a journal knew of what it did, for the run that took its place: results that are handed to it where it asks for the same, keys of steps that did not complete, and effects that it must take back first';
