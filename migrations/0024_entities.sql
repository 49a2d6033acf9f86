-- Entities: state under a name and a key that any run and any transaction may change, one change after the other.
--
-- The row is updated within its page, since no index has what changes. What was changed, by whom and with what verdict is
-- a row of the history, which only grows.

create table pgflow.entity (
  version bigint not null check (version >= 0),
  updated_at timestamptz not null,
  name text not null check (octet_length(name) between 1 and 255),
  key text not null check (octet_length(key) between 1 and 255),
  state json check (octet_length(state::text) <= 1048576),
  primary key (name, key)
) with (fillfactor = 50);
comment on table pgflow.entity is 'State of entities, by name and key';
comment on column pgflow.entity.version is 'Number of changes so far; 0 = it has its first state still';
comment on column pgflow.entity.updated_at is 'Time of the last change';
comment on column pgflow.entity.name is 'Name of the kind of entity';
comment on column pgflow.entity.key is 'Key of this one';
comment on column pgflow.entity.state is 'Its state, as the encoder wrote it; null = its first, which only the code knows';

create table pgflow.entity_history (
  history_id bigint generated always as identity primary key,
  version bigint not null,
  at timestamptz not null,
  run_id bigint,
  mail_id bigint,
  call int,
  name text not null,
  key text not null,
  update text not null check (octet_length(update) between 1 and 255),
  said_by text not null,
  idempotency_key text check (octet_length(idempotency_key) between 1 and 255),
  args json not null check (octet_length(args::text) <= 1048576),
  verdict json check (octet_length(verdict::text) <= 1048576),
  error json check (octet_length(error::text) <= 65536),
  state json check (octet_length(state::text) <= 1048576),
  check ((run_id is null) = (call is null)),
  check ((verdict is null) = (error is not null))
);
comment on table pgflow.entity_history is 'Every update of an entity, with its verdict; append only';
comment on column pgflow.entity_history.history_id is 'Numbers the updates in the order in which they were made, of each entity';
comment on column pgflow.entity_history.version is 'Version of the entity after it';
comment on column pgflow.entity_history.at is 'Time of the update';
comment on column pgflow.entity_history.run_id is 'The run whose update it is; null = of somebody else';
comment on column pgflow.entity_history.mail_id is 'The number of the update, if it came by the mailbox';
comment on column pgflow.entity_history.call is 'Number of the call of that run';
comment on column pgflow.entity_history.name is 'Name of the kind of entity';
comment on column pgflow.entity_history.key is 'Key of the entity';
comment on column pgflow.entity_history.update is 'Name of the update';
comment on column pgflow.entity_history.said_by is 'Key of the run, or the role or name of whoever made it';
comment on column pgflow.entity_history.idempotency_key is 'Under which it is made once; null = none was given';
comment on column pgflow.entity_history.args is 'Its arguments by their names';
comment on column pgflow.entity_history.verdict is 'Value that the update returned; null = it was refused';
comment on column pgflow.entity_history.error is 'Reason for which an update by the mailbox was refused; null = it was not';
comment on column pgflow.entity_history.state is 'The state after it; null = it changed nothing';
-- squawk-ignore require-concurrent-index-creation
create index entity_history_key_idx on pgflow.entity_history (name, key, history_id);
-- squawk-ignore require-concurrent-index-creation
create unique index entity_history_call_key on pgflow.entity_history (run_id, call) where run_id is not null;
-- squawk-ignore require-concurrent-index-creation
create unique index entity_history_once_key on pgflow.entity_history (name, key, idempotency_key)
  where idempotency_key is not null;
-- squawk-ignore require-concurrent-index-creation
create unique index entity_history_mail_key on pgflow.entity_history (mail_id) where mail_id is not null;

create table pgflow.entity_mail (
  mail_id bigint generated always as identity primary key,
  sent_at timestamptz not null,
  expect bigint,
  name text not null check (octet_length(name) between 1 and 255),
  key text not null check (octet_length(key) between 1 and 255),
  update text not null check (octet_length(update) between 1 and 255),
  sent_by text not null,
  idempotency_key text check (octet_length(idempotency_key) between 1 and 255),
  args json not null check (octet_length(args::text) <= 1048576)
);
comment on table pgflow.entity_mail is 'Updates that were asked for from SQL; a worker whose code has the entity makes them, of each entity in their order';
comment on column pgflow.entity_mail.mail_id is 'The number of the update: they are made in this order';
comment on column pgflow.entity_mail.sent_at is 'Time of sending';
comment on column pgflow.entity_mail.expect is 'Version that the entity must have; null = any';
comment on column pgflow.entity_mail.name is 'Name of the kind of entity';
comment on column pgflow.entity_mail.key is 'Key of the entity';
comment on column pgflow.entity_mail.update is 'Name of the update';
comment on column pgflow.entity_mail.sent_by is 'Sender: a role, or the name that the caller gave';
comment on column pgflow.entity_mail.idempotency_key is 'Under which it is made once; null = none was given';
comment on column pgflow.entity_mail.args is 'Its arguments by their names';
-- squawk-ignore require-concurrent-index-creation
create index entity_mail_key_idx on pgflow.entity_mail (name, key, mail_id);

alter table pgflow.entity set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.entity_mail set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values
  ('H', 'entity_updated', true, 'fence_step: an update of an entity, with its verdict');

-- The list of kinds grows by that, whatever else it holds by now.
-- Not valid: the journal may be large, and what is in it has been checked by a narrower list.
do $$
begin
  alter domain pgflow.unit_letter drop constraint unit_letter_check;
  execute format('alter domain pgflow.unit_letter add constraint unit_letter_check check (value in (%s)) not valid',
    (select string_agg(quote_literal(k.kind::text), ', ' order by k.kind::text collate "C") from pgflow.unit_kind k));
end $$;
