-- Messages as people see them: what waits in the mailbox of a run, what the run's code could not take, and what no run
-- took.
--
-- A message whose payload does not fit the type that the code waits for is not consumed: the run is held as stuck,
-- reason `signal`, and the message stays where it was, with the error in `refusal`. If it had been recorded already,
-- the next unit of the journal gives it back (`signal_returned`), before all others of its name, and a replay passes
-- over both. All of that is found out where the message is handed to the code. The hold waits until nothing else of the
-- run can go on, and a message that is marked so is looked at after all others.
--
-- These verbs mend it: drop the message, replace its payload, or requeue it behind the others of its name. They take
-- the place of the run while they look, so no worker takes the message meanwhile, and refuse while a worker holds the
-- run. A run that is stuck for want of it goes on, with a unit that says who did what and why. What is taken out of a
-- mailbox is kept in `undelivered`, beside what came for runs that had ended, and can be requeued from there: to its
-- run once that is open again, or to another.
--
-- Locks: those of a rewind, the chain and then the place of its newest run.

create or replace function pgflow.put_signals_back_(returned jsonb)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  -- By the time at which it was taken; before the time-out of the wait that it had ended, and before all that wait.
  insert into pgflow.signal (signal_id, chain_id, sent_at, kind, name, payload, refusal)
  overriding system value
  select nextval('pgflow.put_back_seq'), r.chain_id,
    least(u.at, (select min(w.due_at) from pgflow.unit w
      where w.run_id = u.run_id and w.call = u.call and w.kind = 't')),
    's', u.name, u.payload, jsonb_build_object('error', left(r.error, 4096))
  from pgflow.returned_rows_(returned) r
  join pgflow.unit u on u.run_id = r.run_id and u.seq = r.seq and u.kind = 'S'
$$;
comment on function pgflow.put_signals_back_(jsonb)
  is 'Puts messages back into their mailboxes that were recorded and that the code could not take';

create or replace function pgflow.note_refused_(chain bigint, refused jsonb, why jsonb)
returns jsonb
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  misfit record;
  message bigint;
  detail jsonb := (select r.detail from pgflow.reason_rows_(jsonb_build_array(why)) r);
begin
  for misfit in select r.* from pgflow.refused_rows_(refused) r loop
    select min(s.signal_id) into message from pgflow.signal s
    where s.chain_id = chain and s.kind = 's' and s.name = misfit.name;
    update pgflow.signal s
    set refusal = jsonb_build_object('error', left(misfit.error, 4096), 'code_hash', misfit.code_hash)
    where s.chain_id = chain and s.kind = 's' and s.name = misfit.name and s.signal_id = message;
    if detail->>'signal' = misfit.name then
      detail := jsonb_set(detail, '{message_id}', to_jsonb(message));
    end if;
  end loop;
  return detail;
end
$$;
comment on function pgflow.note_refused_(bigint, jsonb, jsonb)
  is 'Marks the messages that a run could not take; answers the detail of its hold with the number of the one it names';

create or replace function pgflow.seize_message_(
  chain bigint, message bigint, shown text, out me bigint, out place json, out name text, out waits boolean
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform pgflow.lock_chain_(chain);
  me := pgflow.newest_run_(chain);
  if exists (select from pgflow.lease e where e.run_id = me) then
    raise exception using errcode = 'PF006',
      message = format('run %s is running, and may be taking the message', shown),
      hint = 'Pause it first; a run that is stuck for want of the message does not run.';
  end if;
  select z.was into place from pgflow.seize_(me, shown, 'try') z;
  select s.name, true into name, waits from pgflow.signal s
  where s.chain_id = chain and s.kind = 's' and s.signal_id = message for update;
  if name is null then
    select d.name, false into name, waits from pgflow.undelivered d
    where d.chain_id = chain and d.kind = 's' and d.signal_id = message for update;
  end if;
  if name is null then
    raise exception using errcode = 'PF001',
      message = format('run %s has no message %s', shown, coalesce(message::text, '?')),
      hint = 'It was taken, or never sent: the views messages and undelivered_messages list what there is.';
  end if;
end
$$;
comment on function pgflow.seize_message_(bigint, bigint, text)
  is 'Locks the place of a run, unless a worker holds it (PF006), and a message that waits for it or was put aside '
     '(else PF001)';

create or replace function pgflow.mended_(
  me bigint, chain bigint, place json, verb text, message bigint, name text, why text, said_by text, out lane_id int
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  stuck pgflow.held;
  t timestamptz := pgflow.now_();
begin
  if place->>'status' <> 'stuck' or place->>'reason' <> 'signal'
     or exists (select from pgflow.signal s where s.chain_id = chain and s.kind = 's' and s.refusal is not null) then
    return;
  end if;
  delete from pgflow.held h where h.run_id = me returning h.* into strict stuck;
  perform pgflow.append_(me, stuck.last_seq + 1, 0, 'o', verb,
    json_build_object('why', pgflow.told_(why, 4096), 'by', said_by, 'message', message, 'signal', name), 0, t, t);
  insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority, has_begun)
  values (me, t, stuck.lane_id, stuck.last_seq + 1, 0, stuck.priority, stuck.has_begun);
  lane_id := stuck.lane_id;
  perform pgflow.nudge_asked_(array[chain]);
  perform pgflow.tell_workers_(array[lane_id], '{}');
end
$$;
comment on function pgflow.mended_(bigint, bigint, json, text, bigint, text, text, text)
  is 'Lets a run go on that was stuck for want of a message, once no message is left that it could not take; answers '
     'its lane';

create or replace function pgflow.take_out_(
  chain bigint, message bigint, why_moved text, number bigint, said_by text, why text
)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into pgflow.undelivered (signal_id, chain_id, sent_at, moved_at, kind, name, sent_by, payload, reason,
    replaced_in, moved_by, why)
  select coalesce(number, s.signal_id), s.chain_id, s.sent_at, pgflow.now_(), s.kind, s.name, s.sent_by,
    s.payload, why_moved,
    case when number is not null then s.signal_id end, left(said_by, 255), pgflow.told_(why, 4096)
  from pgflow.signal s where s.chain_id = chain and s.kind = 's' and s.signal_id = message
$$;
comment on function pgflow.take_out_(bigint, bigint, text, bigint, text, text)
  is 'Keeps a copy of a message that is taken out of a mailbox, under another number if that one stays in use';

create or replace function pgflow.drop_message(
  key text, message bigint, why text default 'dropped', tenant text default '', sent_by text default null,
  out chain_id bigint, out lane_id int, out message_id bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  found_ record;
  said_by text := pgflow.sender_(sent_by);
begin
  chain_id := pgflow.chain_of_(tenant, key);
  message_id := message;
  select * into found_ from pgflow.seize_message_(chain_id, message, quote_literal(key)) m;
  if not found_.waits then
    update pgflow.undelivered d set reason = 'dropped', moved_by = left(said_by, 255),
      why = left(drop_message.why, 4096)
    where d.chain_id = drop_message.chain_id and d.kind = 's' and d.signal_id = message and d.reason = 'ended';
    if not found then
      raise exception using errcode = 'PF006',
        message = format('message %s of run %s no longer waits: it was taken out', message, quote_literal(key)),
        hint = 'Requeue it if a run should take it after all; pgflow.drop_history removes it with its run.';
    end if;
    return;
  end if;
  perform pgflow.take_out_(chain_id, message, 'dropped', null, said_by, why);
  delete from pgflow.signal s where s.chain_id = drop_message.chain_id and s.kind = 's' and s.signal_id = message;
  lane_id := pgflow.mended_(found_.me, chain_id, found_.place, 'drop_message', message, found_.name, why, said_by);
end
$$;
comment on function pgflow.drop_message(text, bigint, text, text, text)
  is 'Takes a message out of the mailbox of a run and puts it aside, or marks one that was put aside as '
     'dealt with; a run that was stuck for want of it goes on. PF001 if there is no such message, PF006 while the '
     'run is running';
--! grant drop_message to pgflow_operator

create or replace function pgflow.replace_message(
  key text, message bigint, payload json, why text default 'replaced', tenant text default '',
  sent_by text default null,
  out chain_id bigint, out lane_id int, out message_id bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  found_ record;
  said_by text := pgflow.sender_(sent_by);
begin
  perform pgflow.check_json_(payload, 'the payload of a signal');
  chain_id := pgflow.chain_of_(tenant, key);
  message_id := message;
  select * into found_ from pgflow.seize_message_(chain_id, message, quote_literal(key)) m;
  if not found_.waits then
    raise exception using errcode = 'PF006',
      message = format('message %s of run %s waits no more: it was put aside', message, quote_literal(key)),
      hint = 'Requeue it, or send another.';
  end if;
  perform pgflow.check_payload_(found_.me, key, found_.name, replace_message.payload);
  perform pgflow.take_out_(chain_id, message, 'replaced', nextval('pgflow.put_back_seq'), said_by, why);
  update pgflow.signal s set payload = coalesce(replace_message.payload, 'null'), refusal = null,
    sent_by = left(said_by, 255)
  where s.chain_id = replace_message.chain_id and s.kind = 's' and s.signal_id = message;
  lane_id := pgflow.mended_(found_.me, chain_id, found_.place, 'replace_message', message, found_.name, why, said_by);
end
$$;
comment on function pgflow.replace_message(text, bigint, json, text, text, text)
  is 'Gives a message in the mailbox of a run another payload, in its place; a run that was stuck for want of it goes '
     'on. PF001 if there is no such message, PF003 if the workflow declares the signal and takes no such payload, '
     'PF006 while the run is running';
--! grant replace_message to pgflow_operator

create or replace function pgflow.requeue_message(
  key text, message bigint, to_key text default null, why text default 'requeued', tenant text default '',
  sent_by text default null,
  out chain_id bigint, out lane_id int, out message_id bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  chain bigint := pgflow.chain_of_(tenant, key);
  found_ record;
  moved record;
  ended text;
  said_by text := pgflow.sender_(sent_by);
begin
  chain_id := case when to_key is null then chain else pgflow.chain_of_(tenant, to_key) end;
  select * into found_ from pgflow.seize_message_(chain, message, quote_literal(key)) m;
  ended := pgflow.ended_as_(pgflow.newest_run_(chain_id));
  if ended is not null then
    raise exception using errcode = 'PF006',
      message = format('run %s is %s: it takes no more messages', quote_literal(coalesce(to_key, key)), ended),
      hint = 'Rewind or restart it, and it has them again; or say which run is to have the message.';
  end if;
  if found_.waits then
    delete from pgflow.signal s where s.chain_id = chain and s.kind = 's' and s.signal_id = message
    returning s.payload, s.sent_by into moved;
  else
    delete from pgflow.undelivered d where d.chain_id = chain and d.kind = 's' and d.signal_id = message
    returning d.payload, d.sent_by into moved;
  end if;
  perform pgflow.check_payload_(pgflow.newest_run_(chain_id), coalesce(to_key, key), found_.name, moved.payload);
  message_id := pgflow.post_(chain_id, 's', found_.name, moved.payload, coalesce(moved.sent_by, said_by));
  lane_id := pgflow.mended_(found_.me, chain, found_.place, 'requeue_message', message, found_.name, why, said_by);
  if chain_id <> chain then
    lane_id := null; -- whose lane was told; the other run is to be woken
  end if;
end
$$;
comment on function pgflow.requeue_message(text, bigint, text, text, text, text)
  is 'Sends a message again, behind the others of its name: to its run, or to another; a run that was stuck for want '
     'of it goes on. Answers the chain that has it now, for wake(). PF001 if there is no such message, PF006 while its '
     'run is running, or if the run that is to have it has ended';
--! grant requeue_message to pgflow_operator

drop view if exists pgflow.messages;
create view pgflow.messages as
select r.key, s.signal_id as message, s.name::text as signal, s.payload::json as payload, s.sent_at, s.sent_by,
  s.refusal->>'error' as refused, r.tenant, s.chain_id
from pgflow.signal s join pgflow.run r on r.run_id = s.chain_id
where s.kind = 's';
comment on view pgflow.messages is 'Signals in the mailboxes of runs: sent, and not taken yet';
--! grant messages to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.messages.key is 'Key of the run';
comment on column pgflow.messages.message
  is 'The number of the message: what drop_message, replace_message and requeue_message take';
comment on column pgflow.messages.signal is 'Name of the signal';
comment on column pgflow.messages.payload is 'Its payload';
comment on column pgflow.messages.sent_at is 'Time of sending';
comment on column pgflow.messages.sent_by
  is 'Sender: the name that was given, with the role of the session in brackets';
comment on column pgflow.messages.refused
  is 'Reason why the code of the run could not take it, so that the run is stuck; null = nothing is wrong with it';
comment on column pgflow.messages.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.messages.chain_id is 'Number of the first run of the chain';

drop view if exists pgflow.undelivered_messages;
create view pgflow.undelivered_messages as
select r.key, d.signal_id as message, d.name::text as signal, d.payload::json as payload, d.reason,
  (
    select o.status from pgflow.run n join pgflow.outcome o on o.run_id = n.run_id and o.status <> 'continued'
    where n.run_id = d.chain_id or n.chain_id = d.chain_id and n.generation > 1
    limit 1
  ) as ended_as,
  d.sent_at, d.sent_by, d.moved_at, d.moved_by, d.why, d.replaced_in, r.tenant, d.chain_id
from pgflow.undelivered d join pgflow.run r on r.run_id = d.chain_id
where d.kind = 's';
comment on view pgflow.undelivered_messages
  is 'Signals that no run took: the run had ended, or they were taken out of its mailbox';
--! grant undelivered_messages to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.undelivered_messages.key is 'Key of the run';
comment on column pgflow.undelivered_messages.message is 'The number of the message: what requeue_message takes';
comment on column pgflow.undelivered_messages.signal is 'Name of the signal';
comment on column pgflow.undelivered_messages.payload is 'Its payload';
comment on column pgflow.undelivered_messages.reason
  is 'ended: the run had ended; dropped or replaced: it was taken out of the mailbox';
comment on column pgflow.undelivered_messages.ended_as is 'Status of the run that has ended; null = it is open';
comment on column pgflow.undelivered_messages.sent_at is 'Time of sending';
comment on column pgflow.undelivered_messages.sent_by
  is 'Sender: the name that was given, with the role of the session in brackets';
comment on column pgflow.undelivered_messages.moved_at is 'Time at which it was put aside';
comment on column pgflow.undelivered_messages.moved_by
  is 'Author of the order that took it out of the mailbox, with the role of the session in brackets; null = the run had ended';
comment on column pgflow.undelivered_messages.why
  is 'The reason that was given; or why the code of the run could not take it';
comment on column pgflow.undelivered_messages.replaced_in
  is 'The number of the message that has its place now; null = none has';
comment on column pgflow.undelivered_messages.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.undelivered_messages.chain_id is 'Number of the first run of the chain';

comment on column pgflow.undelivered.signal_id is 'The number that the message had in the mailbox';
comment on column pgflow.undelivered.chain_id is 'The chain that it was for';
comment on column pgflow.undelivered.run_id is 'Result of a child: the generation of the parent that started it';
comment on column pgflow.undelivered.sent_at is 'Time of sending';
comment on column pgflow.undelivered.moved_at is 'Time at which it was put aside';
comment on column pgflow.undelivered.call is 'Result of a child: number of the parent''s call that started it';
comment on column pgflow.undelivered.kind
  is 'As in the mailbox: s = signal, c = result of a child, x = cancel, p = pause, r = resume, t = retry, e = what '
     'became of an effect, u = an update';
comment on column pgflow.undelivered.name is 'Name of the signal, or of what was asked';
comment on column pgflow.undelivered.sent_by
  is 'Sender: the name that was given, with the role of the session in brackets';
comment on column pgflow.undelivered.payload is 'Content of the message';
