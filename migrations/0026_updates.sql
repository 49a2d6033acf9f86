-- Updates: what somebody asks a running workflow to do, and the one answer to each. The request is mail, and in the
-- journal once the workflow has taken it; so is what its handler came to. Here is who waits for which answer.

create table pgflow.run_update (
  chain_id bigint not null,
  sent_at timestamptz not null,
  replied_at timestamptz,
  reply_run_id bigint,
  same_as bigint not null,
  reply_seq int,
  update_id text not null check (char_length(update_id) between 1 and 255),
  name text not null check (octet_length(name) between 1 and 255),
  sent_by text,
  status text check (status in ('done', 'failed', 'rejected', 'refused')),
  error json,
  primary key (chain_id, update_id)
) with (fillfactor = 80);
comment on table pgflow.run_update is 'Updates that were sent to runs; kept as long as the history of the run. What was asked and answered is in the mailbox and the journal';
comment on column pgflow.run_update.chain_id is 'The chain that it is for';
comment on column pgflow.run_update.sent_at is 'Time of sending';
comment on column pgflow.run_update.replied_at is 'Time of the answer; null = there is none yet';
comment on column pgflow.run_update.reply_run_id is 'The generation whose journal has the answer; null = none has it';
comment on column pgflow.run_update.same_as is 'Hash of its name and arguments: the same id with others is refused';
comment on column pgflow.run_update.reply_seq is 'Place of the answer in that journal';
comment on column pgflow.run_update.update_id is 'Id of the update, within its run';
comment on column pgflow.run_update.name is 'Name of the handler';
comment on column pgflow.run_update.sent_by is 'Sender: a role, or the name that the caller gave';
comment on column pgflow.run_update.status is 'done, failed: its handler returned or raised; rejected: by its validator; refused: the run ended first; null = no answer yet';
comment on column pgflow.run_update.error is 'Reason for which it was rejected; null = it was not, or the journal has it';

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values
  ('h', 'update_taken', true, 'commit_units: serve() takes an update that its validator has let through'),
  ('b', 'update_replied', false, 'commit_units: what the handler of an update came to');

-- The lists of kinds grow by those above, and by the one of waits and mail for updates, whatever else they hold by now.
-- Not valid: the journal may be large, and what is in it has been checked by a narrower list.
do $$
declare
  units text := (select string_agg(quote_literal(k.kind::text), ', ' order by k.kind::text collate "C") from pgflow.unit_kind k);
  narrow record;
begin
  alter domain pgflow.unit_letter drop constraint unit_letter_check;
  execute format('alter domain pgflow.unit_letter add constraint unit_letter_check check (value in (%s)) not valid', units);
  for narrow in
    select c.conrelid::regclass as name, c.conname, (
      select string_agg(distinct quote_literal(m[1]), ', ')
      from regexp_matches(pg_get_constraintdef(c.oid) || '''u''::"char"', '''(.)''::"char"', 'g') m
    ) as kinds
    from pg_catalog.pg_constraint c
    where c.conrelid in ('pgflow.wait'::regclass, 'pgflow.signal'::regclass)
      and c.conname in ('wait_kind_check', 'signal_kind_check')
  loop
    execute format('alter table %s drop constraint %I', narrow.name, narrow.conname);
    execute format('alter table %s add constraint %I check (kind in (%s))', narrow.name, narrow.conname, narrow.kinds);
  end loop;
end $$;
comment on table pgflow.wait is 'What a parked run waits for: s = a signal of that name; c = the result of a child of one of these calls (one row for all); e = what became of an effect; g = the answer of a gate; l = a lock; u = an update';
comment on column pgflow.signal.kind is 's = signal, c = result of a child, x = cancel, p = pause, r = resume, t = retry, e = what became of an effect, g = the verdict of a gate, l = what became of the wait for a lock, u = an update';
