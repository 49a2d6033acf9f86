-- The outbox: `publish` writes an event in the caller's transaction, so it exists if that commits. Relays deliver it
-- (sql/events/relays.sql).
--
-- Readers must not page by "greater than the last number": a slow transaction commits after a later one, and its
-- events would be skipped. Nor by the number of the transaction: two writers of one key that wait for each other draw
-- numbers in the order in which they write, whatever their transaction numbers. So events are read by their own
-- numbers, up to a horizon below which none can appear any more. For that, the transaction of `publish` has a number
-- before it draws one for the event. A reader reads the newest number of an event and takes a transaction number
-- after that. Later transactions draw greater numbers, so once all transactions before it have ended, that number of
-- an event is a horizon.
--
-- Events are in partitions by their numbers, like the journal. Old partitions are dropped as tables; old rows of the
-- newest one are deleted.

create or replace function pgflow.add_event_partitions(ahead int default 3, width bigint default 1000000)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  newest bigint;
begin
  perform pg_advisory_xact_lock(pgflow.latch_('add_event_partitions'));
  select case when is_called then last_value else 0 end into newest from pgflow.event_id_seq;
  return (select count(*) from pgflow.add_partitions_('event', newest, ahead, width, 'topic, event_id'));
end
$$;
comment on function pgflow.add_event_partitions(int, bigint)
  is 'Makes partitions of the outbox until so many are ahead of the newest event; answers how many it made';
--! grant add_event_partitions to pgflow_worker

select pgflow.add_event_partitions();

create or replace function pgflow.publish(
  topic text, payload json default 'null', key text default null, run_id bigint default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  number bigint;
begin
  perform pgflow.check_name_(topic, 'a topic'), pgflow.check_json_(payload, 'the payload of an event');
  if key is not null then
    perform pgflow.check_name_(key, 'the key of an event');
  end if;
  -- In this order: relays rest on it.
  perform pg_current_xact_id();
  number := nextval('pgflow.event_id_seq');
  insert into pgflow.event (event_id, xid, at, run_id, topic, key, payload)
  values (number, pg_current_xact_id(), pgflow.now_(), run_id, topic, key, coalesce(payload, 'null'));
  return number;
end
$$;
comment on function pgflow.publish(text, json, text, bigint)
  is 'Publishes an event in the caller''s transaction; answers its number. Relays bring it on after the commit, events '
     'of one key in their order. PF003 for a topic, key or payload that none can have';
--! grant publish to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.newest_event_()
returns bigint
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select case when s.is_called then s.last_value else 0 end from pgflow.event_id_seq s
$$;
comment on function pgflow.newest_event_() is 'The greatest number that an event has drawn, committed or not';

create or replace function pgflow.horizon_(
  newest bigint, me xid8, oldest xid8, inout horizon bigint, inout seen_id bigint, inout seen_xid xid8
)
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  -- Numbers of transactions begin anew in a database that was restored from a dump.
  if oldest >= me or seen_xid > me then
    seen_xid := null;
    seen_id := null;
  end if;
  if oldest >= me then
    horizon := greatest(horizon, newest);
    return;
  end if;
  if seen_xid <= oldest then
    horizon := greatest(horizon, seen_id);
    seen_xid := null;
  end if;
  if seen_xid is null then
    seen_xid := case when newest > horizon then me end;
    seen_id := case when newest > horizon then newest end;
  end if;
end
$$;
comment on function pgflow.horizon_(bigint, xid8, xid8, bigint, bigint, xid8)
  is 'A horizon, and the one that comes next, brought on. The newest number must have been read before the reader had '
     'the number of its transaction, and that before the oldest one that is open';

-- ---------------------------------------------------------------- removal

create or replace function pgflow.is_wanted_(lower bigint, upper bigint)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pgflow.relay r cross join unnest(r.topics) as w (topic)
    cross join lateral (
      select from pgflow.event e
      where e.topic = w.topic and e.event_id >= greatest(r.event_id + 1, lower) and e.event_id < upper
      order by e.event_id limit 1
    ) e
  ) or exists (
    select from pgflow.event_wait w
    cross join lateral (select case when w.is_current then greatest(w.event_id, (select c.event_id
      from pgflow.event_cursor c)) else w.event_id end as event_id) p
    cross join lateral (
      select from pgflow.event e
      where e.topic = w.topic and e.event_id >= greatest(p.event_id + 1, lower) and e.event_id < upper
      order by e.event_id limit 1
    ) e
  )
$$;
comment on function pgflow.is_wanted_(bigint, bigint)
  is 'True if some relay has not taken all of its events among these numbers, or they were not compared with what a '
     'run waits for';

create or replace function pgflow.drop_events(
  older_than interval, max int default 10000, out events bigint, out partitions int
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  newest bigint;
  before timestamptz;
  part record;
  gone bigint;
begin
  if older_than is null or older_than < interval '0' then
    raise exception using errcode = 'PF003', message = 'older_than must be an interval that is not negative';
  end if;
  perform pg_advisory_xact_lock(pgflow.latch_('drop_events'));
  before := pgflow.now_() - least(older_than, interval '1000 years');
  select case when s.is_called then s.last_value else 0 end into newest from pgflow.event_id_seq s;
  events := 0;
  partitions := 0;
  -- Others wait for us only briefly: a partition that cannot be locked is dropped next time.
  perform set_config('lock_timeout', '100ms', true);
  for part in
    select c.relname, b.lower, b.upper
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    cross join lateral regexp_match(pg_get_expr(c.relpartbound, c.oid),
      'FROM [(]''([0-9]+)''[)] TO [(]''([0-9]+)''[)]') m
    cross join lateral (select m[1]::bigint as lower, m[2]::bigint as upper) b
    where i.inhparent = 'pgflow.event'::regclass and b.lower <= newest
    order by b.lower
  loop
    -- A number may be drawn and not be committed yet: the partition before the newest event's goes by rows.
    if part.upper + (part.upper - part.lower) <= newest then
      continue when pgflow.is_wanted_(part.lower, part.upper) or exists (
        select from pgflow.event e where e.event_id >= part.lower and e.event_id < part.upper and e.at >= before);
      begin
        execute format('lock table pgflow.%I in access exclusive mode', part.relname);
        -- Look again, now that no transaction can still commit an event into it.
        continue when pgflow.is_wanted_(part.lower, part.upper);
        execute format('drop table pgflow.%I', part.relname);
        partitions := partitions + 1;
      exception when lock_not_available then
        return;
      end;
    else
      with old as (
        select e.event_id from pgflow.event e
        where e.event_id >= part.lower and e.event_id < part.upper and e.at < before and not exists (
          select from pgflow.relay r where e.topic = any(r.topics) and e.event_id > r.event_id
        ) and not exists (
          select from pgflow.event_wait w where w.topic = e.topic and e.event_id > w.event_id
            and (not w.is_current or e.event_id > (select c.event_id from pgflow.event_cursor c))
        )
        order by e.event_id limit pgflow.at_most_(max) - events
      ), went as (
        delete from pgflow.event e
        where e.event_id = any(array(select o.event_id from old o))
          and e.event_id >= part.lower and e.event_id < part.upper
        returning 1
      )
      select count(*) into gone from went;
      events := events + gone;
    end if;
  end loop;
end
$$;
comment on function pgflow.drop_events(interval, int)
  is 'Removes events that are older, that every relay has taken and no run waits for: whole partitions '
     'as tables, and at most so many rows of the newest ones; answers how many of each';
--! grant drop_events to pgflow_operator

-- ---------------------------------------------------------------- reading

drop view if exists pgflow.events;
create view pgflow.events as
select e.event_id, e.at, e.topic, e.key, e.payload, e.run_id from pgflow.event e;
comment on view pgflow.events is 'Events that were published and are still kept';
--! grant events to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.events.event_id is 'The number of the event';
comment on column pgflow.events.at is 'Time of publishing';
comment on column pgflow.events.topic is 'Topic, to which relays listen';
comment on column pgflow.events.key is 'Events of one key come in their order; null = any order will do';
comment on column pgflow.events.payload is 'Content, as the encoder wrote it';
comment on column pgflow.events.run_id is 'Number of the run that published it; null = no run';
