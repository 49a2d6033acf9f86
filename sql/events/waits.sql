-- Waits for events: a run waits for an event of a topic whose payload contains a given object.
--
-- A wait begins in the commit of the flush that first names it (`await_events_`), as a row. It sees only events that
-- were not committed in the snapshot of that moment, or, on request, those with greater numbers than a given one.
-- Publishing does not look at waits. A sweep compares each event with them once: it has a cursor, which moves up to a
-- horizon like those of relays (sql/events/outbox.sql).
--
-- A wait and the sweep cannot see each other while both are in progress. So a new wait starts at the last known
-- cursor, and is not current: the sweep first brings it up to its own cursor, by itself. From then on it is found by
-- the topic and one constant of its match, whose path and hash the row has: with ten thousand runs that wait for an
-- order each, an event costs one index lookup.
--
-- A matching event is posted to the run as a message, whose name contains the waiting call, and the row goes with
-- that commit. From there on it is a signal: it wakes, is taken, recorded and repeated as one. The sweep never waits
-- for a locked row: its cursor stays before such an event, and the other events are delivered.
--
-- Waits in a question:
--   events     [[call, name, topic, match, key, after], ...]   all that the code waits for; those that it does not name
--              any more are forgotten

create or replace function pgflow.slot_of_(match jsonb, out path text[], out value bigint)
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  with recursive part as (
    select '{}'::text[] as path, match as value
    union all
    select p.path || m.key, m.value
    from part p
    cross join lateral jsonb_each(case when jsonb_typeof(p.value) = 'object' then p.value else '{}' end) m
  )
  select coalesce(f.path, '{}'), coalesce(f.value, 0)
  from (select) one
  left join (
    select p.path, jsonb_hash_extended(p.value, 0) as value from part p
    where p.path <> '{}' and jsonb_typeof(p.value) not in ('object', 'array') order by p.path limit 1
  ) f on true
$$;
comment on function pgflow.slot_of_(jsonb)
  is 'The first constant of a match: its path, and its hash. An empty path and 0 if there is none';

create or replace function pgflow.forget_events_(chains bigint[])
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  delete from pgflow.event_wait w where w.chain_id = any(chains)
$$;
comment on function pgflow.forget_events_(bigint[]) is 'The runs of these chains wait for no events any more';

create or replace function pgflow.await_events_(questions jsonb, positions int[], units jsonb[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  -- Read after the snapshot: whatever is committed in that has no greater number.
  seen pg_snapshot := pg_current_snapshot();
  newest bigint := pgflow.newest_event_();
begin
  with asked as materialized (
    select q.pos, q.chain, q.events
    from pgflow.question_rows_(questions) q where q.pos = any(positions) and q.events is not null
  ), wanted as materialized (
    select a.chain, e.name, e.topic, e.match, e.key, e.after
    from asked a cross join lateral pgflow.event_rows_(a.events) e
    where not exists (select from pgflow.answered_rows_(units[a.pos]) u where u.call = e.call)
  ), forgotten as (
    delete from pgflow.event_wait o where o.chain_id = any(array(select a.chain from asked a))
      and o.chain_id || ' ' || o.name <> all(array(select n.chain || ' ' || n.name from wanted n))
  )
  insert into pgflow.event_wait (chain_id, event_id, value, seen_id, is_current, name, topic, key, path, match, seen)
  select n.chain,
    coalesce(n.after, greatest((select c.event_id from pgflow.event_cursor c),
      (select max(r.horizon) from pgflow.relay r))),
    s.value, case when n.after is null then newest end, false, n.name, n.topic, n.key, s.path, n.match,
    case when n.after is null then seen end
  from wanted n cross join lateral pgflow.slot_of_(n.match) s
  where not exists (select from pgflow.event_wait w where w.chain_id = n.chain and w.name = n.name offset 0)
    and not exists (select from pgflow.signal m where m.chain_id = n.chain and m.kind = 's' and m.name = n.name
      offset 0);
end
$$;
comment on function pgflow.await_events_(jsonb, int[], jsonb[])
  is 'Lets runs of a batch wait for the events that their questions name, and for no others';

create or replace function pgflow.fits_(e pgflow.event, w pgflow.event_wait)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select e.event_id > w.event_id and (w.key is null or w.key = e.key)
    and (w.seen is null or e.event_id > w.seen_id or not pg_visible_in_snapshot(e.xid, w.seen))
    and (w.match is null or e.payload::jsonb @> w.match)
$$;
comment on function pgflow.fits_(pgflow.event, pgflow.event_wait) is 'True if a run that waits waits for this event';

create or replace function pgflow.post_events_(addresses tid[], chains bigint[], names text[], ids bigint[])
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  with gone as (
    delete from pgflow.event_wait w where w.ctid = any(addresses)
  ), posted as (
    insert into pgflow.signal (chain_id, kind, name, sent_at, sent_by, payload)
    select g.chain, 's', g.name, e.at, 'pgflow', json_build_object('id', e.event_id, 'topic', e.topic, 'key', e.key,
      'payload', e.payload, 'at', e.at)
    from unnest(chains, names, ids) as g (chain, name, id)
    cross join lateral (select o.* from pgflow.event o where o.event_id = g.id offset 0) e
    order by g.chain, g.id
    returning chain_id
  )
  insert into pgflow.nudge (chain_id) select p.chain_id from posted p
$$;
comment on function pgflow.post_events_(tid[], bigint[], text[], bigint[])
  is 'Puts events into the mailboxes of runs, which do not wait for them any more then';

create or replace function pgflow.match_events_(max int)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  newest bigint;
  me xid8;
  c pgflow.event_cursor;
  upper_id bigint;
  number bigint;
  addresses tid[];
  chains bigint[];
  names text[];
  ids bigint[];
  free tid[];
  is_full boolean;
begin
  if not exists (select from pgflow.event_wait) then
    return false;
  end if;
  newest := pgflow.newest_event_();
  select * into c from pgflow.event_cursor;
  if c.event_id >= newest and not exists (select from pgflow.event_wait w where not w.is_current)
     or pg_current_xact_id_if_assigned() is not null then
    return false;
  end if;
  me := pg_current_xact_id();
  select * into c from pgflow.event_cursor for update skip locked;
  if not found then
    return false;
  end if;
  select h.horizon, h.seen_id, h.seen_xid into c.horizon, c.seen_id, c.seen_xid
  from pgflow.horizon_(newest, me, pg_snapshot_xmin(pg_current_snapshot()), c.horizon, c.seen_id, c.seen_xid) h;

  -- How far this look goes: later statements see all up to the horizon.
  with recursive listened (topic) as (
    (select w.topic from pgflow.event_wait w where w.is_current order by w.topic limit 1)
    union all
    select (select w.topic from pgflow.event_wait w where w.is_current and w.topic > l.topic order by w.topic limit 1)
    from listened l where l.topic is not null
  )
  select count(*), max(x.event_id) into number, upper_id
  from (
    select e.event_id from listened l
    cross join lateral (
      select o.event_id from pgflow.event o
      where o.topic = l.topic and o.event_id > c.event_id and o.event_id <= c.horizon order by o.event_id limit max
    ) e
    order by e.event_id limit max
  ) x;
  is_full := number = max;
  if not is_full then
    upper_id := greatest(c.horizon, c.event_id);
  end if;

  if number > 0 then
    with recursive slot as (
      (select w.topic, w.path from pgflow.event_wait w where w.is_current order by w.topic, w.path limit 1)
      union all
      select n.topic, n.path from slot s
      cross join lateral (
        select w.topic, w.path from pgflow.event_wait w
        where w.is_current and (w.topic, w.path) > (s.topic, s.path) order by w.topic, w.path limit 1
      ) n
    ), fitting as (
      select distinct on (w.chain_id, w.name) w.address, w.chain_id, w.name, (e.e).event_id
      from slot s
      cross join lateral (
        select o as e,
          case when s.path = '{}' then 0 else jsonb_hash_extended(o.payload::jsonb #> s.path, 0) end as value
        from pgflow.event o where o.topic = s.topic and o.event_id > c.event_id and o.event_id <= upper_id offset 0
      ) e
      cross join lateral (
        select o as w, o.ctid as address, o.chain_id, o.name from pgflow.event_wait o
        where o.is_current and o.topic = s.topic and o.path = s.path and o.value = e.value offset 0
      ) w
      where pgflow.fits_(e.e, w.w)
      order by w.chain_id, w.name, (e.e).event_id
    )
    select array_agg(f.address order by f.event_id), array_agg(f.chain_id order by f.event_id),
      array_agg(f.name order by f.event_id), array_agg(f.event_id order by f.event_id)
    into addresses, chains, names, ids
    from (select * from fitting o order by o.event_id limit max) f;
  end if;
  if cardinality(ids) = max then
    -- Of the last one's runs some may be left.
    upper_id := ids[max] - 1;
    is_full := true;
  end if;
  if ids is not null then
    free := array(
      select w.ctid from pgflow.event_wait w where w.ctid = any(addresses) for update skip locked
    );
    select least(upper_id, min(g.id) filter (where not g.is_free) - 1), is_full or not bool_and(g.is_free),
      array_agg(g.chain) filter (where g.is_free), array_agg(g.name) filter (where g.is_free),
      array_agg(g.id) filter (where g.is_free)
    into upper_id, is_full, chains, names, ids
    from (
      select o.*, o.address = any(free) as is_free
      from unnest(addresses, chains, names, ids) as o (address, chain, name, id)
    ) g;
    perform pgflow.post_events_(free, chains, names, ids);
  end if;
  c.event_id := upper_id;
  update pgflow.event_cursor o set event_id = c.event_id, horizon = c.horizon, seen_id = c.seen_id,
    seen_xid = c.seen_xid
  where (o.event_id, o.horizon, o.seen_id, o.seen_xid)
    is distinct from (c.event_id, c.horizon, c.seen_id, c.seen_xid);

  -- Those that are not current: each is brought on a part of its way, up to the cursor.
  with picked as materialized (
    select w, w.ctid as address from pgflow.event_wait w
    where not w.is_current order by w.event_id limit max for update skip locked
  ), looked as materialized (
    select p.address, (p.w).chain_id, (p.w).name, f.*, f.number < a.each as is_current
    from picked p
    cross join (select greatest(100, 20000 / greatest(count(*), 1)) as each from picked) a
    cross join lateral (
      select count(*) as number, max(x.event_id) as last, min(x.event_id) filter (where x.fits) as found
      from (
        select e.event_id, pgflow.fits_(e, p.w) as fits from pgflow.event e
        where e.topic = (p.w).topic and e.event_id > (p.w).event_id and e.event_id <= c.event_id
        order by e.event_id limit a.each
      ) x
    ) f
  ), brought as (
    update pgflow.event_wait w set event_id = coalesce(l.last, w.event_id), is_current = l.is_current
    from looked l where l.found is null and w.ctid = l.address
    returning w.is_current
  )
  select array_agg(l.address), array_agg(l.chain_id), array_agg(l.name), array_agg(l.found),
    is_full or count(*) = max or exists (select from looked o where not o.is_current)
  into addresses, chains, names, ids, is_full
  from looked l where l.found is not null;
  if ids is not null then
    perform pgflow.post_events_(addresses, chains, names, ids);
  end if;
  return is_full;
end
$$;
comment on function pgflow.match_events_(int)
  is 'Compares the next events with what runs wait for, and posts those that fit; true if there is more to do at once';

create or replace function pgflow.check_event_waits_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'only open runs wait for events', format('chain %s', w.chain_id)
  from pgflow.event_wait w
  where pgflow.ended_as_(pgflow.newest_run_(w.chain_id)) is not null
    or not exists (select from pgflow.run r where r.run_id = w.chain_id)
  union all
  select 'events are compared no further than what is over', format('up to %s of %s', c.event_id, c.horizon)
  from pgflow.event_cursor c where c.event_id > c.horizon or c.horizon > pgflow.newest_event_();
end
$$;
comment on function pgflow.check_event_waits_() is 'Waits for events are of open runs, and no event was passed over';
