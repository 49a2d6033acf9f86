-- Updates: requests to a running workflow, each with exactly one answer. A sender inserts mail of kind `u`,
-- and a row by which he knows his own: the same id is one update, however often it is sent.
--
-- A worker is shown updates, and takes none by that: its code says whether it lets one through (`offer_updates_`). One
-- that it rejects leaves nothing in the journal. Of one that it takes, the message is deleted by the commit that has
-- its unit (`h`), and the answer is written by the commit that has the unit of it (`b`): see settle_updates_. While a
-- worker holds the run, nobody else takes its mail, and a worker that dies before that commit leaves it in place.
--
-- Who asks for the answer of a run that has ended is told that it is refused, and that is written down by whoever is
-- the first to ask: then a later rewind, which has the run take its mail again, leaves it out. So an end costs nothing
-- that nobody asks for.
--
-- A run that asks another one waits for a signal (`update_asker`). The commit that writes the answer sends it; so does
-- the one that puts the mail of a run aside that has ended without an answer, and whoever asks again for one that is
-- there.

create or replace function pgflow.tell_askers_(chains bigint[], update_ids text[], t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  told bigint[];
begin
  with waiting as (
    delete from pgflow.update_asker w using unnest(chains, update_ids) as g (c, i)
    where w.chain_id = g.c and w.update_id = g.i
    returning w.*
  ), sent as (
    insert into pgflow.signal (chain_id, sent_at, kind, name, sent_by, payload)
    select w.reply_to, t, 's', w.reply_as, 'pgflow',
      json_build_object('status', u.status, 'value', s.value, 'error', coalesce(u.error, s.error))
    from waiting w
    join pgflow.run_update u on u.chain_id = w.chain_id and u.update_id = w.update_id
    left join pgflow.unit a on a.run_id = u.reply_run_id and a.seq = u.reply_seq
    left join lateral pgflow.said_of_update(a.payload) s on true
    where exists (select from pgflow.run r where r.run_id = w.reply_to offset 0)
    returning chain_id
  )
  select coalesce(array_agg(distinct s.chain_id), '{}') into told from sent s;
  insert into pgflow.nudge (chain_id) select c from unnest(told) c;
  return told;
end
$$;
comment on function pgflow.tell_askers_(bigint[], text[], timestamptz)
  is 'Sends the answers of updates to the runs that wait for them; answers the chains of these, to be woken';

create or replace function pgflow.refuse_updates_(chains bigint[], t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  asked bigint[];
  update_ids text[];
begin
  select array_agg(w.chain_id), array_agg(w.update_id) into asked, update_ids
  from pgflow.update_asker w where w.chain_id = any(chains);
  if asked is null then
    return '{}';
  end if;
  update pgflow.run_update u set status = 'refused', replied_at = t
  from unnest(asked, update_ids) as g (c, i)
  where u.chain_id = g.c and u.update_id = g.i and u.status is null;
  return pgflow.tell_askers_(asked, update_ids, t);
end
$$;
comment on function pgflow.refuse_updates_(bigint[], timestamptz)
  is 'Refuses what other runs have asked of chains that ended without an answer; answers the chains of these, to be '
     'woken';

create or replace function pgflow.send_update(
  key text, name text, payload json default '{}', inout update_id text default null, tenant text default '',
  sent_by text default null, reply_to text default null, reply_as text default null,
  out chain_id bigint, out is_new boolean
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  wanted bigint;
  found_as bigint;
  asker bigint;
  t timestamptz;
begin
  perform pgflow.check_name_(name, 'the name of an update'), pgflow.check_json_(payload, 'the arguments of an update');
  update_id := coalesce(update_id, gen_random_uuid()::text);
  if char_length(update_id) not between 1 and 255 then
    raise exception using errcode = 'PF003',
      message = format('the id of an update must be 1 to 255 characters long, not %s', char_length(update_id));
  end if;
  if json_typeof(payload) is distinct from 'object' then
    raise exception using errcode = 'PF003',
      message = 'the arguments of an update must be an object of parameter names';
  end if;
  chain_id := pgflow.chain_of_(tenant, key);
  if reply_to is not null then
    reply_as := coalesce(reply_as, update_id);
    perform pgflow.check_name_(reply_as, 'the name of the signal with the answer');
    asker := pgflow.chain_of_(tenant, reply_to);
  end if;
  wanted := hashtextextended(jsonb_build_array(name, pgflow.as_compared_(payload))::text, 0);
  t := pgflow.now_();
  -- Sending again never waits, not even for a worker that is answering.
  select u.same_as into found_as from pgflow.run_update u where u.chain_id = chain_id and u.update_id = update_id;
  is_new := false;
  while found_as is null loop
    insert into pgflow.run_update (chain_id, sent_at, same_as, update_id, name, sent_by)
    values (chain_id, t, wanted, update_id, name, pgflow.sender_(sent_by))
    on conflict do nothing;
    is_new := found;
    exit when is_new;
    select u.same_as into found_as from pgflow.run_update u where u.chain_id = chain_id and u.update_id = update_id;
  end loop;
  if found_as <> wanted then
    raise exception using errcode = 'PF002',
      message = format('update id %s was used for another update of this run', quote_literal(update_id)),
      hint = 'Use another id for another update.';
  end if;
  if is_new then
    perform pgflow.post_(chain_id, 'u', name, json_build_object('id', update_id, 'args', payload),
      pgflow.sender_(sent_by));
  end if;
  if asker is not null then
    -- Behind the commit of an answer, which would not see who asks.
    perform from pgflow.run_update u where u.chain_id = chain_id and u.update_id = update_id for no key update;
    insert into pgflow.update_asker (chain_id, reply_to, update_id, reply_as)
    values (chain_id, asker, update_id, reply_as) on conflict do nothing;
    perform pgflow.tell_askers_(array[chain_id], array[update_id], t) from pgflow.run_update u
    where u.chain_id = chain_id and u.update_id = update_id and u.status is not null;
  end if;
end
$$;
comment on function pgflow.send_update(text, text, json, text, text, text, text, text)
  is 'Asks a run for an update in the caller''s transaction, its arguments by their names; answers its id, under which '
     'update_reply() says what became of it, and the chain, for wake(). The same id to the same run is one update, for '
     'as long as the history of the run; PF002 if it was another. reply_to is the key of a run that gets the answer, an '
     'object with status, value and error as of update_reply(), as a signal. reply_as is the name of this signal; the '
     'id if not given. PF001 if no run has the key';
--! grant send_update to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.said_of_update(payload json, out value json, out error json)
language sql
immutable
security definer
set search_path = pg_catalog, pg_temp
as $$
  -- What was redacted is the one or the other.
  select
    case when not r.is_redacted then payload->'value' when payload->>'status' = 'done' then payload end,
    case when not r.is_redacted then payload->'error' when payload->>'status' = 'failed' then payload end
  from (select pgflow.is_redacted_(payload::text)) as r (is_redacted)
$$;
comment on function pgflow.said_of_update(json)
  is 'Of the unit of an answer, for the view updates: its value or error';
--! grant said_of_update to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

create or replace function pgflow.update_reply(
  key text, update_id text, tenant text default '', out status text, out value json, out error json
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  chain bigint := pgflow.chain_of_(tenant, key);
  told pgflow.run_update;
begin
  select u.* into told from pgflow.run_update u where u.chain_id = chain and u.update_id = update_id;
  if not found then
    raise exception using errcode = 'PF001',
      message = format('no update of run %s has the id %s', quote_literal(key), quote_nullable(update_id));
  end if;
  if told.status is null then
    -- Not of a run that is just being rewound, which goes on to take its mail.
    perform from pgflow.outcome o where o.run_id = pgflow.newest_run_(chain) and o.status <> 'continued'
    for key share skip locked;
    if found then
      update pgflow.run_update u set status = 'refused', replied_at = pgflow.now_()
      where u.chain_id = chain and u.update_id = update_id and u.status is null;
      select u.* into told from pgflow.run_update u where u.chain_id = chain and u.update_id = update_id;
      if not found then
        raise exception using errcode = 'PF001',
          message = format('the history of run %s was removed meanwhile', quote_literal(key));
      end if;
    end if;
  end if;
  status := coalesce(told.status, 'waiting');
  error := told.error;
  if told.reply_seq is not null then
    select s.value, s.error into value, error
    from pgflow.unit u cross join lateral pgflow.said_of_update(u.payload) s
    where u.run_id = told.reply_run_id and u.seq = told.reply_seq;
  end if;
end
$$;
comment on function pgflow.update_reply(text, text, text)
  is 'State of an update: waiting; done, with the value of its handler; failed, with the error that this raised; '
     'rejected, with that of its validator; refused, since the run ended before it was answered. PF001 if the run has '
     'none of this id';
--! grant update_reply to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.query(key text, name text, tenant text default '')
returns json
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  answer json;
begin
  select e.value into answer
  from pgflow.unit u cross join lateral json_each(u.payload) e
  where u.run_id = pgflow.newest_run_(pgflow.chain_of_(tenant, key)) and u.kind = 'v' and e.key = name
  order by u.seq desc limit 1;
  if not found then
    raise exception using errcode = 'PF003',
      message = format('run %s has published nothing under the name %s', quote_literal(key), quote_nullable(name)),
      hint = 'set_state() publishes; pgflow.run_state() has all that is published.';
  end if;
  return answer;
end
$$;
comment on function pgflow.query(text, text, text)
  is 'Value that a run last published under a name by set_state(); the run is not woken. PF003 if there is none';
--! grant query to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

-- ---------------------------------------------------------------- for workers

create or replace function pgflow.offer_updates_(questions jsonb, positions int[])
returns table (pos int, offers jsonb)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  -- Its sender learned that the run had ended; then the run was rewound.
  delete from pgflow.signal s where s.ctid = any(array(
    select m.ctid from pgflow.question_rows_(questions) q
    cross join lateral (
      select s.ctid, s.payload from pgflow.signal s where s.chain_id = q.chain and s.kind = 'u' offset 0
    ) m
    join pgflow.run_update u on u.chain_id = q.chain and u.update_id = m.payload->>'id'
    where q.pos = any(positions) and q.updates is not null and u.status in ('refused', 'rejected')
  ));
  return query
  select q.pos, o.offers
  from pgflow.question_rows_(questions) q
  cross join lateral (
    select jsonb_agg(jsonb_build_array(k.signal_id, k.name, k.payload::text, k.is_again) order by k.nth) as offers
    from (
      select m.*, u.status is not null as is_again,
        sum(octet_length(m.payload::text)) over (order by m.signal_id) - octet_length(m.payload::text) as before,
        row_number() over (order by m.signal_id) as nth
      from (
        select s.signal_id, s.name, s.payload from pgflow.signal s
        where s.chain_id = q.chain and s.kind = 'u' order by s.signal_id limit 64
      ) m
      join pgflow.run_update u on u.chain_id = q.chain and u.update_id = m.payload->>'id'
    ) k
    where k.before < 262144
    having count(*) > 0
  ) o
  where q.pos = any(positions) and q.updates is not null;
end
$$;
comment on function pgflow.offer_updates_(jsonb, int[])
  is 'Updates that wait in the mailboxes of runs whose code would take one, the oldest first, as [[message, name, '
     'payload, true if it was taken before a rewind], ...]';

create or replace function pgflow.settle_updates_(told jsonb, t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  taken int;
  gone int;
  chains bigint[];
  update_ids text[];
begin
  taken := (select count(*) from pgflow.reply_rows_(told) r where r.message is not null and r.status is null);
  with deleted as (
    delete from pgflow.signal s where s.ctid = any(array(
      select m.ctid from pgflow.reply_rows_(told) r
      cross join lateral (
        select s.ctid from pgflow.signal s
        where s.chain_id = r.chain_id and s.kind = 'u' and s.signal_id = r.message offset 0
      ) m
    )) returning s.signal_id
  )
  select count(*) into gone
  from deleted d join pgflow.reply_rows_(told) r on r.message = d.signal_id and r.status is null;
  -- Only the holder of a run takes its mail: one that is gone was taken, and would be taken twice. A rejection has no
  -- unit that would tell whether it was committed, so it may be said again.
  if gone <> taken then
    raise exception using errcode = 'PF006',
      message = format('%s of %s updates are no longer in their mailboxes', taken - gone, taken);
  end if;
  -- The first answer counts, also where a rewind runs the handler again; a fork answers no update.
  with replied as (
    update pgflow.run_update u
    set status = r.status, replied_at = t, reply_run_id = case when r.seq is not null then r.run_id end,
      reply_seq = r.seq, error = r.error
    from pgflow.reply_rows_(told) r
    where r.status is not null and u.chain_id = r.chain_id and u.update_id = r.update_id and u.status is null
    returning u.chain_id, u.update_id
  )
  select array_agg(p.chain_id), array_agg(p.update_id) into chains, update_ids from replied p;
  return case when chains is null then '{}' else pgflow.tell_askers_(chains, update_ids, t) end;
end
$$;
comment on function pgflow.settle_updates_(jsonb, timestamptz)
  is 'Takes updates out of the mailboxes and writes down their answers, with the units of a batch that say so; refuses '
     '(PF006) to take one that is not there. Answers the chains of runs that asked for one, to be woken';

drop view if exists pgflow.updates;
create view pgflow.updates as
select r.key, u.update_id, u.name as update, coalesce(u.status, 'waiting') as status, u.sent_at, u.sent_by,
  u.replied_at, s.value, coalesce(u.error, s.error) as error, r.tenant, u.chain_id
from pgflow.run_update u
join pgflow.run r on r.run_id = u.chain_id
left join pgflow.unit a on a.run_id = u.reply_run_id and a.seq = u.reply_seq
left join lateral pgflow.said_of_update(a.payload) s on true;
comment on view pgflow.updates is 'Updates that were sent to runs, with their answers';
--! grant updates to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.updates.key is 'Key of the run';
comment on column pgflow.updates.update_id is 'Id of the update';
comment on column pgflow.updates.update is 'Name of its handler';
comment on column pgflow.updates.status
  is 'waiting; done, failed: its handler returned or raised; rejected: by its validator; refused: the run ended first, '
     'and the sender has asked';
comment on column pgflow.updates.sent_at is 'Time of sending';
comment on column pgflow.updates.sent_by is 'Sender: the name that was given, with the role of the session in brackets';
comment on column pgflow.updates.replied_at is 'Time of the answer; null = there is none';
comment on column pgflow.updates.value is 'Value that the handler returned';
comment on column pgflow.updates.error is 'The error that the handler or the validator raised';
comment on column pgflow.updates.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.updates.chain_id is 'Number of the first run of the chain';

create or replace function pgflow.check_updates_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  with said as (
    select r.chain_id, r.run_id, u.seq, u.kind, u.payload->>'id' as update_id
    from pgflow.unit u join pgflow.run r on r.run_id = u.run_id join pgflow.run f on f.run_id = r.chain_id
    -- What a fork has from another chain was sent to that.
    where u.kind in ('h', 'b') and u.seq > coalesce(f.origin_seq, 0)
      and not exists (select from pgflow.imported i where i.run_id = u.run_id)
  )
  select 'an update that its handler has answered has a unit that says so',
    format('update %s of chain %s', u.update_id, u.chain_id)
  from pgflow.run_update u
  where u.status in ('done', 'failed') and not exists (
    select from said s where s.run_id = u.reply_run_id and s.seq = u.reply_seq and s.kind = 'b'
      and s.update_id = u.update_id
  )
  union all
  select 'who sent an update has its answer', format('unit %s of run %s', s.seq, s.run_id)
  from said s join pgflow.run_update u on u.chain_id = s.chain_id and u.update_id = s.update_id
  where s.kind = 'b' and u.status is null
  union all
  select 'an update has one answer in a journal', format('update %s of run %s', s.update_id, s.run_id)
  from said s where s.kind = 'b' group by s.run_id, s.update_id having count(*) > 1
  union all
  select 'an update is taken once in a journal', format('update %s of run %s', s.update_id, s.run_id)
  from said s where s.kind = 'h' group by s.run_id, s.update_id having count(*) > 1
  union all
  select 'no update is lost', format('update %s of chain %s', u.update_id, u.chain_id)
  from pgflow.run_update u
  where u.status is null
    and not exists (select from said s where s.chain_id = u.chain_id and s.update_id = u.update_id and s.kind = 'h')
    and not exists (select from pgflow.signal m where m.chain_id = u.chain_id and m.kind = 'u'
      and m.payload->>'id' = u.update_id)
    and not exists (select from pgflow.undelivered m where m.chain_id = u.chain_id and m.kind = 'u'
      and m.payload->>'id' = u.update_id)
    and not exists (select from pgflow.imported i where i.run_id = u.chain_id)
  union all
  select 'a run waits only for answers that are not there', format('update %s of chain %s', w.update_id, w.chain_id)
  from pgflow.update_asker w
  where not exists (select from pgflow.run_update u where u.chain_id = w.chain_id and u.update_id = w.update_id
    and u.status is null)
  union all
  select 'an update in a mailbox is of somebody', format('message %s to chain %s', m.signal_id, m.chain_id)
  from pgflow.signal m
  where m.kind = 'u' and not exists (
    select from pgflow.run_update u where u.chain_id = m.chain_id and u.update_id = m.payload->>'id'
  );
end
$$;
comment on function pgflow.check_updates_()
  is 'Each update waits, was taken, or is answered, once; and the journal says so';
