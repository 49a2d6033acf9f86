-- Relays: each delivers the events of some topics to one target, at least once and, for each key, in the order of
-- their numbers. sql/events/outbox.sql defines how far one may read.
--
-- A worker leases a relay, takes a batch, delivers it, and settles it behind the fence: the cursor passes delivered
-- events, a failed one becomes a delivery of its own that is due later, and later events of its key wait behind it.
-- So a failing event blocks its key and nothing else. An event that fails too often is dead, and its key continues. A
-- worker that dies, or is frozen beyond its lease, has settled nothing: another one delivers the batch again, under
-- the same numbers.
--
-- When a target fails repeatedly without a success, its circuit opens: the relay takes nothing for a while, and then
-- one event as a probe. So an outage uses up no attempts.
--
-- If a delivery is work in this database - a start, a notification, a handler's own writes - the same transaction
-- settles it, and it happens exactly once.

create or replace function pgflow.find_relay_(name text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform from pgflow.relay r where r.name = find_relay_.name for update;
  if not found then
    raise exception using errcode = 'PF028', message = format('relay %s does not exist', quote_nullable(name)),
      hint = 'pgflow.relays has those that there are.';
  end if;
end
$$;
comment on function pgflow.find_relay_(text) is 'Locks a relay, or PF028';

create or replace function pgflow.declare_relay(
  name text, topics text[], target text default '', start text default 'oldest'
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  topic text;
  is_new boolean;
  listened text[] := array(select distinct t from unnest(topics) t order by t);
begin
  perform pgflow.check_name_(name, 'the name of a relay', 100);
  if cardinality(listened) = 0 then
    raise exception using errcode = 'PF003', message = format('relay %s listens to no topic', quote_literal(name));
  end if;
  foreach topic in array listened loop
    perform pgflow.check_name_(topic, 'a topic');
  end loop;
  if start is null or start not in ('oldest', 'newest') then
    raise exception using errcode = 'PF003',
      message = format('a relay starts with the oldest or the newest event, not %s', quote_nullable(start));
  end if;
  insert into pgflow.relay (event_id, declared_at, name, target, topics)
  values (case when start = 'newest' then pgflow.newest_event_() else 0 end, pgflow.now_(), name, left(target, 255),
    listened)
  on conflict do nothing;
  is_new := found;
  update pgflow.relay r set topics = listened, target = left(declare_relay.target, 255)
  where not is_new and r.name = name
    and (r.topics, r.target) is distinct from (listened, left(declare_relay.target, 255));
  if is_new or found then
    perform pgflow.note_relay_(name, 'declared', jsonb_build_object('topics', listened, 'target', target), null, null);
  end if;
  return is_new;
end
$$;
comment on function pgflow.declare_relay(text, text[], text, text)
  is 'Creates a relay, or sets the topics of an existing one; returns true if it is new. A new one begins with the '
     'oldest kept event, or after the newest';
--! grant declare_relay to pgflow_worker, pgflow_operator

create or replace function pgflow.relay_news(names text[], token bigint, out news text[], out wait_seconds float8)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t timestamptz := pgflow.now_();
begin
  select array_agg(r.name) filter (where w.at <= t), extract(epoch from min(w.at) filter (where w.at > t) - t)
  into news, wait_seconds
  from pgflow.relay r
  cross join lateral (
    select least(
      (select t where exists (
        select from unnest(r.topics) as o (topic) cross join lateral (select from pgflow.event e
          where e.topic = o.topic and e.event_id > r.event_id order by e.event_id limit 1) e)),
      (select min(d.due_at) from pgflow.delivery d where d.relay = r.name and not d.is_dead)
    ) as at
  ) found
  cross join lateral (select greatest(found.at, r.open_until,
    case when r.token <> relay_news.token then r.leased_until end) as at where found.at is not null) w
  where r.name = any(names) and r.paused_at is null;
  news := coalesce(news, '{}');
end
$$;
comment on function pgflow.relay_news(text[], bigint)
  is 'Of these relays those that have something to deliver, and when the next of the others has; locks nothing';
--! grant relay_news to pgflow_worker

create or replace function pgflow.take_events(
  name text, token bigint, lease_seconds float8 default 30, max int default 100, threshold int default 5,
  out state text, out wait_seconds float8, out events json
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  newest bigint := pgflow.newest_event_();
  me xid8;
  oldest xid8;
  r pgflow.relay;
  t timestamptz;
begin
  if pg_current_xact_id_if_assigned() is not null then
    raise exception using errcode = 'PF006', message = 'take_events must be the first to write in its transaction',
      hint = 'It compares the number of its transaction with what it has read before.';
  end if;
  me := pg_current_xact_id();
  oldest := pg_snapshot_xmin(pg_current_snapshot());
  select * into r from pgflow.relay o where o.name = name for update skip locked;
  t := pgflow.now_();
  if not found then
    state := 'busy';
    wait_seconds := 0.5;
    return;
  end if;
  if r.token <> token and r.leased_until > t then
    state := 'leased';
    wait_seconds := extract(epoch from r.leased_until - t);
    return;
  elsif r.paused_at is not null then
    state := 'paused';
    return;
  elsif r.open_until > t then
    state := 'open';
    wait_seconds := extract(epoch from r.open_until - t);
    return;
  end if;
  select h.horizon, h.seen_id, h.seen_xid into r.horizon, r.seen_id, r.seen_xid
  from pgflow.horizon_(newest, me, oldest, r.horizon, r.seen_id, r.seen_xid) h;
  update pgflow.relay o set token = take_events.token, leased_until = t + lease_seconds * interval '1 second',
    horizon = r.horizon, seen_id = r.seen_id, seen_xid = r.seen_xid
  where o.name = name;
  if r.failures >= threshold then
    max := 1;
  end if;

  -- A later statement, whose snapshot sees all up to the horizon.
  with due as (
    select d.event_id, d.topic, d.key, d.payload, d.at, d.run_id, d.attempts, false as is_fresh, false as is_behind
    from pgflow.delivery d
    where d.relay = name and not d.is_dead and d.due_at <= t and not exists (
      select from pgflow.delivery o
      where o.relay = name and o.key = d.key and o.event_id < d.event_id and not o.is_dead and o.due_at > t
    )
    order by d.event_id limit max
  ), fresh as (
    select e.event_id, e.topic, e.key, e.payload, e.at, e.run_id, 0, true, e.key is not null and exists (
      select from pgflow.delivery o where o.relay = name and o.key = e.key and not o.is_dead)
    from unnest(r.topics) as w (topic)
    cross join lateral (
      select e.* from pgflow.event e
      where e.topic = w.topic and e.event_id > r.event_id and e.event_id <= r.horizon
      order by e.event_id limit max
    ) e
    order by e.event_id limit greatest(0, max - (select count(*) from due))
  ), both_ as (
    select b.*, sum(octet_length(b.payload::text)) over (order by b.is_fresh, b.event_id) as bytes
    from (select * from due union all select * from fresh) b
  )
  select json_agg(json_build_array(b.event_id, b.topic, b.key, b.payload::text, pgflow.micros_(b.at), b.run_id,
    b.attempts, b.is_fresh, b.is_behind) order by b.is_fresh, b.event_id)
  into events
  from both_ b where b.bytes <= 4194304 or b.bytes = octet_length(b.payload::text);
  state := case when events is not null then 'taken' when r.horizon < newest then 'behind' else 'idle' end;
  -- An earlier transaction may still publish.
  wait_seconds := case when state = 'behind' then 0.02 end;
end
$$;
comment on function pgflow.take_events(text, bigint, float8, int, int)
  is 'Leases a relay and answers the next events that it delivers, those of each key in their order, as arrays of '
     'number, topic, key, payload, time in microseconds, run, attempts, is it fresh, does it stand behind another. Or '
     'the state, and when to ask again: leased by another, busy, paused, circuit open, behind a slow transaction, idle';
--! grant take_events to pgflow_worker

create or replace function pgflow.hold_relay(name text, token bigint, lease_seconds float8)
returns boolean
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  with held as (
    update pgflow.relay r set leased_until = pgflow.now_() + lease_seconds * interval '1 second'
    where r.name = hold_relay.name and r.token = hold_relay.token returning 1
  )
  select exists (select from held)
$$;
comment on function pgflow.hold_relay(text, bigint, float8)
  is 'Prolongs the lease of a relay; false if another has it';
--! grant hold_relay to pgflow_worker

create or replace function pgflow.release_relay(name text, token bigint)
returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  update pgflow.relay r set token = null, leased_until = null
  where r.name = release_relay.name and r.token = release_relay.token
$$;
comment on function pgflow.release_relay(text, bigint) is 'Gives the lease of a relay back';
--! grant release_relay to pgflow_worker

create or replace function pgflow.settle_events(
  name text, token bigint, upto bigint, results json, lease_seconds float8 default 30, threshold int default 5,
  cooldown_seconds float8 default 30
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  r pgflow.relay;
  t timestamptz;
  went bigint[];
  failed int;
  last_error text;
begin
  select * into r from pgflow.relay o where o.name = name and o.token = token for update;
  if not found then
    return false;
  end if;
  t := pgflow.now_();
  went := array(select x.event_id from pgflow.delivery_rows_(results) x where x.outcome = 'ok');
  select count(*), (array_agg(x.error))[count(*)] into failed, last_error
  from pgflow.delivery_rows_(results) x where x.outcome in ('failed', 'dead');
  delete from pgflow.delivery d where d.relay = name and d.event_id = any(went);
  if cardinality(went) < json_array_length(results) then
    update pgflow.delivery d set attempts = d.attempts + (x.outcome <> 'behind')::int, is_dead = x.outcome = 'dead',
      due_at = case when x.outcome = 'behind' then d.due_at else t + coalesce(x.delay, '0') end,
      error = coalesce(left(x.error, 4096), d.error)
    from pgflow.delivery_rows_(results) x
    where x.outcome <> 'ok' and d.relay = name and d.event_id = x.event_id;
    insert into pgflow.delivery (event_id, run_id, at, due_at, attempts, is_dead, relay, topic, key, error, payload)
    select e.event_id, e.run_id, e.at, t + coalesce(x.delay, '0'),
      (x.outcome <> 'behind')::int, x.outcome = 'dead', name, e.topic, e.key, left(x.error, 4096), e.payload
    from pgflow.delivery_rows_(results) x
    join pgflow.event e on e.event_id = x.event_id
    where x.outcome <> 'ok' and e.event_id > r.event_id and e.event_id <= upto
    on conflict do nothing;
  end if;
  r.failures := case when cardinality(went) > 0 then 0 else r.failures end + failed;
  update pgflow.relay o set
    event_id = greatest(o.event_id, upto), delivered = o.delivered + cardinality(went), failures = r.failures,
    error = case when failed > 0 then left(last_error, 4096) when cardinality(went) = 0 then o.error end,
    leased_until = t + lease_seconds * interval '1 second',
    -- Twice as long after each further failure, up to ten minutes.
    open_until = case when failed > 0 and r.failures >= threshold then
      t + least(600, cooldown_seconds * 2 ^ least(r.failures - threshold, 20)) * interval '1 second' end
  where o.name = name;
  return true;
end
$$;
comment on function pgflow.settle_events(text, bigint, bigint, json, float8, int, float8)
  is 'Says what became of events that were taken, as arrays of number, ok, failed, dead or behind, error, and seconds '
     'until the next try; the cursor passes those up to the number given. False, and nothing is written, if another '
     'has the relay by now';
--! grant settle_events to pgflow_worker

-- ---------------------------------------------------------------- what operators say
--
-- Each order is kept with who gave it and why, as a document of a collection that only these functions write.

create or replace function pgflow.note_relay_(name text, what text, said jsonb, why text, sent_by text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  place text[];
begin
  insert into pgflow.document (created_at, updated_at, collection, path, value)
  select t.now, t.now, 'pgflow.relays',
    array[left(name, 255), to_char(t.now at time zone 'UTC', 'YYYYMMDDHH24MISSUS'), gen_random_uuid()::text],
    json_build_object(
      'what', what, 'said', said, 'why', pgflow.told_(why, 4096), 'by', pgflow.sender_(sent_by)
    )
  from (select pgflow.now_() as now) t
  returning path into place;
  perform pgflow.note_evidence_('relay_change', array_to_json(place));
end
$$;
comment on function pgflow.note_relay_(text, text, jsonb, text, text)
  is 'Records the author and the reason of a command to a relay';

create or replace function pgflow.replay_relay(
  name text, from_event bigint, why text default null, sent_by text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  perform pgflow.find_relay_(name);
  if from_event is null or from_event < 1 then
    raise exception using errcode = 'PF003', message = 'an event has a number from 1 on';
  end if;
  -- A worker that is delivering has lost its lease, and settles nothing.
  update pgflow.relay r set event_id = from_event - 1, token = null, leased_until = null where r.name = name;
  perform pgflow.note_relay_(name, 'replayed', jsonb_build_object('from_event', from_event), why, sent_by);
  return (
    select count(*) from pgflow.relay r join pgflow.event e on e.topic = any(r.topics) and e.event_id >= from_event
    where r.name = name
  );
end
$$;
comment on function pgflow.replay_relay(text, bigint, text, text)
  is 'Has a relay go on from this event, backwards or forwards: events that it has delivered come again, under their '
     'numbers. Answers how many there are. PF028 if there is no such relay';
--! grant replay_relay to pgflow_operator

create or replace function pgflow.redeliver_events(
  name text, event bigint default null, why text default null, sent_by text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  count bigint;
begin
  perform pgflow.find_relay_(name);
  update pgflow.delivery d set is_dead = false, attempts = 0, due_at = pgflow.now_()
  where d.relay = name and d.is_dead and (event is null or d.event_id = event);
  get diagnostics count = row_count;
  if count > 0 then
    perform pgflow.note_relay_(
      name, 'redelivered', jsonb_strip_nulls(jsonb_build_object('event', event, 'events', count)), why, sent_by
    );
  end if;
  return count;
end
$$;
comment on function pgflow.redeliver_events(text, bigint, text, text)
  is 'Retries the dead events of a relay, or one of them; returns their number. PF028 if the relay does not exist';
--! grant redeliver_events to pgflow_operator

create or replace function pgflow.pause_relay(name text, why text default null, sent_by text default null)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.find_relay_(name);
  update pgflow.relay r set paused_at = coalesce(r.paused_at, pgflow.now_()) where r.name = pause_relay.name;
  perform pgflow.note_relay_(name, 'paused', '{}', why, sent_by);
end
$$;
comment on function pgflow.pause_relay(text, text, text)
  is 'Pauses a relay: it takes no events until resume_relay. PF028 if the relay does not exist';
--! grant pause_relay to pgflow_operator

create or replace function pgflow.resume_relay(name text, why text default null, sent_by text default null)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.find_relay_(name);
  update pgflow.relay r set paused_at = null, open_until = null, failures = 0 where r.name = resume_relay.name;
  perform pgflow.note_relay_(name, 'resumed', '{}', why, sent_by);
end
$$;
comment on function pgflow.resume_relay(text, text, text)
  is 'Resumes a relay that is paused, or whose circuit is open. PF028 if the relay does not exist';
--! grant resume_relay to pgflow_operator

create or replace function pgflow.drop_relay(name text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.find_relay_(name);
  delete from pgflow.delivery d where d.relay = drop_relay.name;
  delete from pgflow.relay r where r.name = drop_relay.name;
  perform pgflow.note_relay_(name, 'dropped', '{}', null, null);
end
$$;
comment on function pgflow.drop_relay(text)
  is 'Removes a relay, its cursor and its deliveries. PF028 if the relay does not exist';
--! grant drop_relay to pgflow_operator

-- ---------------------------------------------------------------- reading

drop view if exists pgflow.relays;
create view pgflow.relays as
select r.name,
  case when r.paused_at is not null then 'paused' when r.open_until > n.t then 'open'
    when r.leased_until > n.t then 'working' else 'idle' end as state,
  r.topics, r.target, r.event_id, r.horizon, lag.events as lag, lag.oldest_at, d.retrying, d.dead, r.delivered,
  r.failures, r.error, r.open_until, r.paused_at, r.declared_at
from pgflow.relay r
cross join (select clock_timestamp() as t) n
cross join lateral (
  select count(*) as events, min(e.at) as oldest_at from (
    select e.at from unnest(r.topics) as w (topic)
    cross join lateral (select e.at from pgflow.event e where e.topic = w.topic and e.event_id > r.event_id
      order by e.event_id limit 10000) e
    limit 10000
  ) e
) lag
cross join lateral (
  select count(*) filter (where not d.is_dead) as retrying, count(*) filter (where d.is_dead) as dead
  from pgflow.delivery d where d.relay = r.name
) d;
comment on view pgflow.relays is 'Relays: the progress of each, and its obstacles';
--! grant relays to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.relays.name is 'Its name';
comment on column pgflow.relays.state
  is 'working, idle (no worker has it, or it has nothing to do), paused, or open: its target has failed too often';
comment on column pgflow.relays.topics is 'Topics that it listens to';
comment on column pgflow.relays.target is 'Target of its events, in words';
comment on column pgflow.relays.event_id is 'Its cursor: every event up to this number was delivered, or is a delivery';
comment on column pgflow.relays.horizon is 'No event up to this number can appear any more; slow transactions hold it';
comment on column pgflow.relays.lag is 'Events that it has yet to take; 10000 = so many or more';
comment on column pgflow.relays.oldest_at is 'Time of the oldest of them; null = there is none';
comment on column pgflow.relays.retrying is 'Events that wait for another try, or behind one that does';
comment on column pgflow.relays.dead is 'Events that are not retried until redeliver_events';
comment on column pgflow.relays.delivered is 'Number of events that it has delivered';
comment on column pgflow.relays.failures is 'Deliveries that failed since one last succeeded';
comment on column pgflow.relays.error is 'The last failure; null = none since the last success';
comment on column pgflow.relays.open_until is 'The circuit is open until then';
comment on column pgflow.relays.paused_at is 'Time at which an operator has paused it';
comment on column pgflow.relays.declared_at is 'Time at which it was declared first';

drop view if exists pgflow.relay_changes;
create view pgflow.relay_changes as
select d.created_at as changed_at, d.path[1] as relay, d.value->>'what' as what, (d.value->'said')::jsonb as said,
  d.value->>'why' as why, d.value->>'by' as changed_by
from pgflow.document d where d.collection = 'pgflow.relays';
comment on view pgflow.relay_changes
  is 'Orders to relays, from their declaration to their removal: who, when and why';
--! grant relay_changes to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.relay_changes.changed_at is 'Time of the command';
comment on column pgflow.relay_changes.relay is 'Name of the relay';
comment on column pgflow.relay_changes.what is 'declared, paused, resumed, replayed, redelivered or dropped';
comment on column pgflow.relay_changes.said
  is 'The event from which it goes on; or the one that is tried again, and how many; or topics and target';
comment on column pgflow.relay_changes.why is 'The reason given; null = none';
comment on column pgflow.relay_changes.changed_by
  is 'Author of the command, with the role of the session in brackets';

drop view if exists pgflow.deliveries;
create view pgflow.deliveries as
select d.relay, d.event_id, case when d.is_dead then 'dead' else 'waiting' end as state, d.topic, d.key, d.attempts,
  d.due_at, d.error, d.at, d.payload, d.run_id
from pgflow.delivery d;
comment on view pgflow.deliveries is 'Events that a relay could not deliver at once: they wait for a try, or are dead';
--! grant deliveries to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.deliveries.relay is 'Name of the relay';
comment on column pgflow.deliveries.event_id is 'The number of the event';
comment on column pgflow.deliveries.state is 'waiting for the next attempt, or dead until redeliver_events';
comment on column pgflow.deliveries.topic is 'Topic of the event';
comment on column pgflow.deliveries.key is 'Key of the event';
comment on column pgflow.deliveries.attempts
  is 'Number of attempts so far; 0 = it waits behind another event of its key';
comment on column pgflow.deliveries.due_at is 'Time of the next try; of a dead one, when it died';
comment on column pgflow.deliveries.error is 'Failure of the last try';
comment on column pgflow.deliveries.at is 'Time of publishing';
comment on column pgflow.deliveries.payload is 'Content, as the encoder wrote it';
comment on column pgflow.deliveries.run_id is 'Number of the run that published it; null = no run';

create or replace function pgflow.check_relays_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'a relay goes no further than what is over', format('relay %s at %s of %s', r.name, r.event_id, r.horizon)
  from pgflow.relay r where r.horizon > pgflow.newest_event_()
  union all
  select 'a delivery is of a relay that has passed its event', format('event %s of relay %s', d.event_id, d.relay)
  from pgflow.delivery d
  where not exists (select from pgflow.relay r where r.name = d.relay)
    or d.event_id > pgflow.newest_event_();
end
$$;
comment on function pgflow.check_relays_() is 'Cursors and deliveries are of events that there were';
