-- Entities: state under a name and a key, changed by one update at a time.
--
-- The code of an update is Python; this file makes it atomic. `open_entity` locks the row of the entity and returns
-- its state, the code decides, and `update_entity` writes the new state with a row of the history that has the
-- verdict. All of it is one transaction: that of a run's step, which the fence of the run ends, or one of the
-- application. Reads take no lock. The row is like one of the application's own: it is locked before any row of the
-- engine.
--
-- From SQL, an update is mail: `post_update` inserts it, and a worker whose code has the entity takes the oldest
-- update of an entity, makes it, and removes it in the same transaction. The history has its outcome.

create or replace function pgflow.open_entity(
  name text, key text, expect bigint default null, update text default null, idempotency_key text default null,
  idle_timeout_ms int default 0, out version bigint, out state text, out at_us bigint, out verdict text
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  found_row record;
  made text;
begin
  perform pgflow.check_name_(name, 'the name of an entity'), pgflow.check_name_(key, 'the key of an entity');
  if idle_timeout_ms > 0 and current_setting('idle_in_transaction_session_timeout') = '0' then
    perform set_config('idle_in_transaction_session_timeout', idle_timeout_ms::text, true);
  end if;
  select e.version, e.state into found_row from pgflow.entity e where e.name = name and e.key = key for no key update;
  if not found then
    insert into pgflow.entity (version, updated_at, name, key) values (0, pgflow.now_(), name, key)
    on conflict do nothing;
    select e.version, e.state into strict found_row from pgflow.entity e
    where e.name = name and e.key = key for no key update;
  end if;
  version := found_row.version;
  state := found_row.state::text;
  at_us := pgflow.micros_(pgflow.now_());
  if idempotency_key is not null then
    select h.verdict::text, h.update into verdict, made from pgflow.entity_history h
    where h.name = name and h.key = key and h.idempotency_key = idempotency_key;
    if found and made <> update then
      raise exception using errcode = 'PF003',
        message = format('the idempotency key %s of entity %s %s is of update %s, not of %s',
          quote_literal(idempotency_key), quote_literal(name), quote_literal(key), quote_literal(made),
          quote_literal(update)),
        hint = 'Give each update a key of its own.';
    elsif found then
      return;
    end if;
  end if;
  if expect <> version then
    raise exception using errcode = 'PF024',
      message = format('entity %s %s has version %s, not %s', quote_literal(name), quote_literal(key), version, expect),
      hint = 'Read it again, and decide on what it is now.';
  end if;
end
$$;
comment on function pgflow.open_entity(text, text, bigint, text, text, int)
  is 'Locks an entity until the end of the transaction: its version and state, null for its first one, the time, and '
     'the verdict of the update that was made under this idempotency key. PF024 if it has another version than '
     'expected; PF003 if the key is of another update. With an idle timeout, a caller that is frozen is cut off';
--! grant open_entity to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.update_entity(
  name text, key text, from_version bigint, update text, args json, verdict json, state json default null,
  run_id bigint default null, call int default null, idempotency_key text default null, said_by text default null,
  mail_id bigint default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  after bigint;
  who text;
  t timestamptz;
begin
  if (run_id is not null or mail_id is not null)
    and not has_function_privilege(pgflow.caller_(), 'pgflow.take_update(text[], bigint[])', 'execute') then
    raise exception using errcode = 'PF021',
      message = format('role %s may update entities, and not for a run or the mailbox', quote_ident(pgflow.caller_())),
      hint = 'What runs and the mailbox ask for is made by workers: it is for pgflow_worker.';
  end if;
  perform pgflow.check_json_(args, 'the arguments of an update'),
    pgflow.check_json_(verdict, 'the verdict of an update'), pgflow.check_json_(state, 'the state of an entity');
  t := pgflow.now_();
  if state is not null then
    update pgflow.entity e set version = e.version + 1, state = state, updated_at = t
    where e.name = name and e.key = key and e.version = from_version returning e.version into after;
  else
    select e.version into after from pgflow.entity e
    where e.name = name and e.key = key and e.version = from_version for no key update;
  end if;
  if after is null then
    raise exception using errcode = 'PF024',
      message = format('entity %s %s does not have version %s any more', quote_literal(name), quote_literal(key),
        from_version),
      hint = 'Open it in the same transaction.';
  end if;
  -- The record has the run or the sender of the mail, so no other name is kept.
  delete from pgflow.entity_mail m where m.mail_id = mail_id returning m.sent_by into who;
  who := coalesce(who, (select left(r.key, 255) from pgflow.run r where r.run_id = run_id), pgflow.sender_(said_by));
  insert into pgflow.entity_history (version, at, run_id, mail_id, call, name, key, update, said_by, idempotency_key,
    args, verdict, state)
  values (after, t, run_id, mail_id, call, name, key, update, who, idempotency_key, args, verdict, state);
  return after;
end
$$;
comment on function pgflow.update_entity(text, text, bigint, text, json, json, json, bigint, int, text, text, bigint)
  is 'Writes what an update has made of an entity that open_entity has locked, and a row of its history; a state of '
     'null leaves it as it is. Answers the version then. PF021 if a run or mail is named by a role that is no '
     'worker''s';
--! grant update_entity to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.read_entity(
  name text, key text, out version bigint, out state text, out updated_us bigint
)
returns setof record
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select e.version, e.state::text, pgflow.micros_(e.updated_at) from pgflow.entity e
  where e.name = read_entity.name and e.key = read_entity.key
$$;
comment on function pgflow.read_entity(text, text)
  is 'State of an entity without a lock; no row if it was never opened';
--! grant read_entity to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

-- ---------------------------------------------------------------- the mailbox

create or replace function pgflow.post_update(
  name text, key text, update text, args json default '{}', expect bigint default null, sent_by text default null,
  idempotency_key text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  message bigint;
begin
  perform pgflow.check_name_(name, 'the name of an entity'), pgflow.check_name_(key, 'the key of an entity'),
    pgflow.check_name_(update, 'the name of an update'), pgflow.check_json_(args, 'the arguments of an update');
  if json_typeof(args) is distinct from 'object' then
    raise exception using errcode = 'PF003',
      message = 'the arguments of an update must be an object of parameter names';
  end if;
  if idempotency_key is not null then
    perform pgflow.check_name_(idempotency_key, 'the idempotency key of an update');
  end if;
  insert into pgflow.entity_mail (sent_at, expect, name, key, update, sent_by, idempotency_key, args)
  values (pgflow.now_(), expect, name, key, update, pgflow.sender_(sent_by), idempotency_key, args)
  returning entity_mail.mail_id into message;
  return message;
end
$$;
comment on function pgflow.post_update(text, text, text, json, bigint, text, text)
  is 'Asks for an update of an entity in the caller''s transaction; a worker makes it after the commit. Answers its '
     'number, under which update_verdict says what became of it. However often it is sent under one idempotency key, '
     'it is made once, and each number has that verdict';
--! grant post_update to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.update_verdict(mail_id bigint, out state text, out verdict json, out error json)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  select case when h.error is null then 'done' else 'refused' end, h.verdict, h.error into state, verdict, error
  from pgflow.entity_history h where h.mail_id = mail_id;
  if not found then
    if not exists (select from pgflow.entity_mail m where m.mail_id = mail_id) then
      raise exception using errcode = 'PF001', message = format('no update of an entity has the number %s', mail_id);
    end if;
    state := 'waiting';
  end if;
end
$$;
comment on function pgflow.update_verdict(bigint)
  is 'State of an update that was asked for by post_update: waiting; done, with its verdict; or refused, with the '
     'error. PF001 if there is none of this number';
--! grant update_verdict to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.take_update(names text[], passed_over bigint[] default '{}')
returns table (
  mail_id bigint, name text, key text, update text, args text, expect bigint, sent_by text, idempotency_key text
)
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  -- A long lock on the entity delays the mail of others no longer than this.
  select set_config('lock_timeout', '1000', true);
  -- The oldest update of an entity comes first: while another worker makes it, the others wait.
  select m.mail_id, m.name, m.key, m.update, m.args::text, m.expect, m.sent_by, m.idempotency_key
  from pgflow.entity_mail m
  where m.name = any(names) and m.mail_id <> all(passed_over) and not exists (
    select from pgflow.entity_mail o where o.name = m.name and o.key = m.key and o.mail_id < m.mail_id
  )
  order by m.mail_id limit 1 for update skip locked
$$;
comment on function pgflow.take_update(text[], bigint[])
  is 'Takes the oldest update of an entity whose code is at hand, save those passed over, to be made in this '
     'transaction';
--! grant take_update to pgflow_worker

create or replace function pgflow.has_updates(names text[])
returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select exists (select from pgflow.entity_mail m where m.name = any(names))
$$;
comment on function pgflow.has_updates(text[]) is 'True if an update of entities of these names was requested by SQL';
--! grant has_updates to pgflow_worker

create or replace function pgflow.refuse_update(mail_id bigint, error json)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  with gone as (
    delete from pgflow.entity_mail m where m.mail_id = mail_id returning m.*
  )
  insert into pgflow.entity_history (version, at, mail_id, name, key, update, said_by, args, error)
  select coalesce((select e.version from pgflow.entity e where e.name = g.name and e.key = g.key), 0), pgflow.now_(),
    g.mail_id, g.name, g.key, g.update, g.sent_by, g.args, error
  from gone g;
end
$$;
comment on function pgflow.refuse_update(bigint, json)
  is 'Records that an update by the mailbox was refused: it raised, or the entity had another version';
--! grant refuse_update to pgflow_worker

-- ---------------------------------------------------------------- reading

drop view if exists pgflow.entities;
create view pgflow.entities as
select e.name, e.key, e.version, e.state, e.updated_at from pgflow.entity e;
comment on view pgflow.entities is 'Entities and their state';
--! grant entities to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.entities.name is 'Name of the kind of entity';
comment on column pgflow.entities.key is 'Key of this one';
comment on column pgflow.entities.version is 'Number of changes so far';
comment on column pgflow.entities.state is 'Its state; null = its first, which only the code knows';
comment on column pgflow.entities.updated_at is 'Time of the last change';

drop view if exists pgflow.entity_updates;
create view pgflow.entity_updates as
select h.name, h.key, h.history_id, h.version, h.at, h.update, h.said_by, h.args, h.verdict, h.error, h.state,
  h.run_id, h.call
from pgflow.entity_history h;
comment on view pgflow.entity_updates
  is 'Every update of an entity, with its verdict: what was done to it, by whom and when';
--! grant entity_updates to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.entity_updates.name is 'Name of the kind of entity';
comment on column pgflow.entity_updates.key is 'Key of the entity';
comment on column pgflow.entity_updates.history_id
  is 'Numbers the updates of an entity in the order in which they were made';
comment on column pgflow.entity_updates.version is 'Version of the entity after it';
comment on column pgflow.entity_updates.at is 'Time of the update';
comment on column pgflow.entity_updates.update is 'Name of the update';
comment on column pgflow.entity_updates.said_by
  is 'Author of the update: key of a run, or a name, with the role of the session in brackets';
comment on column pgflow.entity_updates.args is 'Its arguments by their names';
comment on column pgflow.entity_updates.verdict is 'Value that it returned; null = it was refused';
comment on column pgflow.entity_updates.error is 'Reason for which it was refused; null = it was not';
comment on column pgflow.entity_updates.state is 'The state after it; null = it changed nothing';
comment on column pgflow.entity_updates.run_id is 'Number of the run that made the update; null = no run';
comment on column pgflow.entity_updates.call is 'Number of the call of that run';

create or replace function pgflow.check_entities_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'the history of an entity leads to its state', format('entity %s %s', e.name, e.key)
  from pgflow.entity e
  left join (
    select h.name, h.key, count(*) filter (where h.state is not null) as changes,
      (array_agg(h.state::text order by h.history_id desc) filter (where h.state is not null))[1] as state
    from pgflow.entity_history h group by h.name, h.key
  ) h on h.name = e.name and h.key = e.key
  where e.version <> coalesce(h.changes, 0) or e.state::text is distinct from h.state
  union all
  select 'an update that a run has made is in the history of the entity', format('unit %s of run %s', u.seq, u.run_id)
  from pgflow.unit u join pgflow.run r on r.run_id = u.run_id
  where u.kind = 'H' and u.seq > coalesce(r.origin_seq, 0)
    and not exists (select from pgflow.imported i where i.run_id = u.run_id)
    and not exists (select from pgflow.entity_history h where h.run_id = u.run_id and h.call = u.call)
  union all
  select 'an update in the history of an entity is in that of its run', format('call %s of run %s', h.call, h.run_id)
  from pgflow.entity_history h join pgflow.run r on r.run_id = h.run_id
  where not exists (select from pgflow.unit u where u.run_id = h.run_id and u.call = h.call and u.kind = 'H');
end
$$;
comment on function pgflow.check_entities_()
  is 'The history of each entity leads to its state, and agrees with the runs';
