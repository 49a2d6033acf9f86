-- Messages to a run. A sender only inserts: it takes no lock and reads no place, so sending is safe in
-- any transaction at any isolation level, and a sender never waits for the run. The nudge row beside
-- the message makes the next `wake` look at the run; the message is addressed to the chain, so that
-- it reaches whichever generation is the newest when it is taken.
--
-- Who sends a signal in a transaction of its own may do what the wake after it would do: `deliver_signal` makes
-- a run ready that is parked for it, if it can lock the run's place without waiting. The message and the place
-- become visible at once, so no nudge is needed: whoever holds the run next finds the message.

create or replace function pgflow.chain_of_(tenant text, key text)
returns bigint
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  chain bigint;
begin
  tenant := pgflow.own_tenant_(tenant);
  -- A caller whose other arguments have another collation (session_user has "C") would hand that on, and no index fits
  -- it.
  select chain_id into chain from pgflow.run_key
  where tenant = chain_of_.tenant collate "default" and key = chain_of_.key collate "default";
  if chain is null then
    raise exception using errcode = 'PF001', message = format('no run has the key %s', quote_nullable(chain_of_.key)),
      hint = 'It was never started, its start was rolled back, or its history has been removed.';
  end if;
  return chain;
end
$$;
comment on function pgflow.chain_of_(text, text) is 'The chain that a key names, or PF001';

create or replace function pgflow.newest_run_(chain bigint)
returns bigint
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select run_id from pgflow.run where chain_id = chain and generation > 1 order by generation desc limit 1), chain)
$$;
comment on function pgflow.newest_run_(bigint) is 'The newest generation of a chain';

create or replace function pgflow.post_(chain bigint, kind "char", name text, payload json, sent_by text)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  message bigint;
begin
  insert into pgflow.signal (chain_id, kind, name, sent_at, sent_by, payload)
  values (chain, kind, name, pgflow.now_(), left(sent_by, 255), payload)
  returning signal_id into message;
  insert into pgflow.nudge (chain_id) values (chain);
  return message;
end
$$;
comment on function pgflow.post_(bigint, "char", text, json, text)
  is 'Puts a message into the mailbox of a chain; answers its number';

create or replace function pgflow.ended_as_(run_id bigint)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return (select o.status from pgflow.outcome o where o.run_id = ended_as_.run_id and o.status <> 'continued');
end
$$;
comment on function pgflow.ended_as_(bigint)
  is 'Status of a run that has ended and so takes no mail; null while it is open';

create or replace function pgflow.nudge_asked_(chains bigint[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  asked bigint[] := array(
    select g.c from unnest(chains) as g (c)
    -- Mailbox by mailbox: an EXISTS could be turned into a join that reads everybody's mail.
    cross join lateral (
      select from pgflow.signal s
      where s.chain_id = g.c and s.kind in ('x', 'p', 'r', 't', 'e')
        and (s.kind <> 'x' or s.name = 'force' or s.has_had_its_try is not true)
      limit 1
    ) m
  );
begin
  insert into pgflow.nudge (chain_id) select c from unnest(asked) c;
  return asked;
end
$$;
comment on function pgflow.nudge_asked_(bigint[])
  is 'Nudges those of the runs taken from their leases that have mail, except for a cancel that has been tried';

create or replace function pgflow.is_first_(
  chain bigint, key text, name text, payload json, out is_first boolean, out message_id bigint, out ended_as text
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  wanted bigint := hashtextextended(jsonb_build_array(name, pgflow.as_compared_(coalesce(payload, 'null')))::text, 0);
  found_as bigint;
begin
  if char_length(key) not between 1 and 255 then
    raise exception using errcode = 'PF003',
      message = format('an idempotency key must be 1 to 255 characters long, not %s', char_length(key));
  end if;
  loop
    insert into pgflow.sent_key (chain_id, key, same_as) values (chain, key, wanted) on conflict do nothing;
    is_first := found;
    exit when is_first;
    select k.message_id, k.same_as into message_id, found_as from pgflow.sent_key k
    where k.chain_id = chain and k.key = key;
    exit when found;
  end loop;
  if found_as <> wanted then
    raise exception using errcode = 'PF002',
      message = format('idempotency key %s was used for another message to this run', quote_literal(key)),
      hint = 'Use another key for another message.';
  end if;
  if not is_first then
    ended_as := (select pgflow.ended_as_(pgflow.newest_run_(chain)) from pgflow.undelivered u
      where u.signal_id = message_id);
  end if;
end
$$;
comment on function pgflow.is_first_(bigint, text, text, json)
  is 'True if a message is sent to a chain for the first time under an idempotency key; else which one was, and how '
     'the run ended if it did not take that';

create or replace function pgflow.keep_key_(chain bigint, key text, message bigint)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  update pgflow.sent_key k set message_id = message where k.chain_id = chain and k.key = keep_key_.key
$$;
comment on function pgflow.keep_key_(bigint, text, bigint)
  is 'Remembers which message was sent under an idempotency key';

create or replace function pgflow.post_signal(
  key text, name text, payload json default 'null', tenant text default '', sent_by text default null,
  idempotency_key text default null,
  out chain_id bigint, out message_id bigint, out ended_as text, out is_new boolean
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  perform pgflow.check_name_(name, 'the name of a signal');
  perform pgflow.check_json_(payload, 'the payload of a signal');
  chain_id := pgflow.chain_of_(tenant, key);
  is_new := true;
  if idempotency_key is not null then
    select f.is_first, f.message_id, f.ended_as into is_new, message_id, ended_as
    from pgflow.is_first_(chain_id, idempotency_key, name, payload) f;
    if not is_new then
      return;
    end if;
  end if;
  perform pgflow.check_payload_(pgflow.newest_run_(chain_id), key, name, payload);
  message_id := pgflow.post_(chain_id, 's', name, coalesce(payload, 'null'), pgflow.sender_(sent_by));
  if idempotency_key is not null then
    perform pgflow.keep_key_(chain_id, idempotency_key, message_id);
  end if;
  ended_as := pgflow.ended_as_(pgflow.newest_run_(chain_id));
end
$$;
comment on function pgflow.post_signal(text, text, json, text, text, text)
  is 'Sends a signal to a run in the caller''s transaction; answers the chain, for wake(), the number of the message, '
     'and the status of a run that has ended: pgflow.undelivered_messages keeps its message. '
     'The same idempotency_key to the same run is one message, for as long as the history of the run: sent again, it '
     'answers that one, and is_new = false; PF002 if it was another. PF003 if the workflow declares the signal and '
     'takes no such payload. PF001 if no run has the key';
--! grant post_signal to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.send_signal(
  key text, name text, payload json default 'null', tenant text default '', sent_by text default null,
  idempotency_key text default null
)
returns bigint
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select p.chain_id from pgflow.post_signal(key, name, payload, tenant, sent_by, idempotency_key) p
$$;
comment on function pgflow.send_signal(text, text, json, text, text, text)
  is 'Sends a signal to a run in the caller''s transaction; answers the chain, for wake(). post_signal says what '
     'became of it too, and what an idempotency_key is. PF001 if no run has the key';
--! grant send_signal to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.deliver_signal(
  key text, name text, payload json default 'null', tenant text default '', sent_by text default null,
  tell boolean default true,
  idempotency_key text default null,
  out chain_id bigint, out lane_id int, out message_id bigint, out ended_as text, out is_new boolean
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  newest bigint;
  me bigint;
  t timestamptz;
begin
  perform pgflow.check_name_(name, 'the name of a signal'), pgflow.check_json_(payload, 'the payload of a signal');
  chain_id := pgflow.chain_of_(tenant, key);
  is_new := true;
  if idempotency_key is not null then
    select p.message_id, p.ended_as, p.is_new into message_id, ended_as, is_new
    from pgflow.post_signal(key, name, payload, tenant, sent_by, idempotency_key) p;
    return;
  end if;
  newest := pgflow.newest_run_(chain_id);
  perform pgflow.check_payload_(newest, key, name, payload);
  payload := coalesce(payload, 'null');
  -- A later statement must see what the locked row waits for now: not so in one snapshot for all.
  if current_setting('transaction_isolation') = 'read committed' then
    select p.run_id into me from pgflow.parked p where p.run_id = newest for update skip locked;
  end if;
  if me is null or not exists (select from pgflow.wait w where w.run_id = me and w.kind = 's'
    and w.name = name offset 0) then
    message_id := pgflow.post_(chain_id, 's', name, payload, pgflow.sender_(sent_by));
    ended_as := pgflow.ended_as_(newest);
    return;
  end if;
  t := pgflow.now_();
  insert into pgflow.signal (chain_id, kind, name, sent_at, sent_by, payload)
  values (chain_id, 's', name, t, pgflow.sender_(sent_by), payload)
  returning signal_id into message_id;
  select w.lane_id into lane_id from pgflow.wake_parked_(array[me], t) w;
  if tell then
    perform pgflow.tell_workers_(array[lane_id], '{}');
  end if;
end
$$;
comment on function pgflow.deliver_signal(text, text, json, text, text, boolean, text)
  is 'Sends a signal and, if the run is parked waiting for it, makes the run ready in the same transaction. Returns '
     '(chain, lane); lane is null if nothing was made ready: call wake(chain) then. Notifies the lane''s workers '
     'unless tell is false. Also returns the number of the message and the status of a run that has ended, as '
     'post_signal does. PF003 if the workflow declares the signal and takes no such payload. PF001 if no run '
     'has the key';
--! grant deliver_signal to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.check_mail_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  with place as (
    select p.run_id, p.place, p.last_seq, p.lane_id from pgflow.places_() p
  ), chain_head as (
    select chain_id, max(run_id) as run_id, max(generation) as generation, count(*) as runs from pgflow.run
    group by chain_id
  )
  select 'no request of a person is lost', format('chain %s', s.chain_id)
  from pgflow.signal s
  where s.kind in ('x', 'p', 'r', 't', 'e')
    and not exists (select from pgflow.nudge n where n.chain_id = s.chain_id)
    and exists (
      select from pgflow.run r join place p on p.run_id = r.run_id
      where (r.run_id = s.chain_id or r.chain_id = s.chain_id and r.generation > 1) and (
          -- A cancel that has brought a run on, which got stuck again before it could take it, rests until the run goes
          -- on.
          p.place = 'parked' and (s.kind <> 'e' or s.run_id = p.run_id or s.payload->>'obligation' is not null)
          or p.place = 'held' and s.has_had_its_try is not true
          and (s.kind <> 'e' or exists (select from pgflow.held h where h.run_id = p.run_id and h.state = 'stuck'
            and h.reason = 'effect'))
        )
    )
  union all
  select 'mail of the finished is put aside', format('message %s to chain %s', s.signal_id, s.chain_id)
  from pgflow.signal s join chain_head h on h.chain_id = s.chain_id join pgflow.outcome o on o.run_id = h.run_id
  where not exists (select from pgflow.nudge n where n.chain_id = s.chain_id)
  union all
  select 'mail belongs to a chain', format('message %s to chain %s', s.signal_id, s.chain_id)
  from pgflow.signal s where not exists (select from pgflow.run r where r.run_id = s.chain_id)
    and not exists (select from pgflow.nudge n where n.chain_id = s.chain_id);
end
$$;
comment on function pgflow.check_mail_()
  is 'Mail belongs to a chain, and something will look at it: a lease, a nudge or a timer';

comment on column pgflow.signal.signal_id is 'The number of the message: messages are taken in this order';
comment on column pgflow.signal.chain_id is 'The chain that it is for';
comment on column pgflow.signal.sent_at is 'Time of sending';
comment on column pgflow.signal.call
  is 'Result of a child: number of the parent''s call that started it; word of an effect: its call';
comment on column pgflow.signal.name is 'Name of the signal, or of what is asked';
comment on column pgflow.signal.sent_by is 'Sender: the name that was given, with the role of the session in brackets';
comment on column pgflow.signal.payload is 'Content of the message';
