-- Declarations of an app's code, set by its first process: a web server that starts runs under a pool need not wait
-- for a worker. Workers repeat them when they register.
--
-- A declaration is set only if it differs from the last one, so changes by hand stay. The code of living workers
-- decides on schedules and on payload types of signals. So another process sets them only if there are none, and does
-- not restore a removed schedule.
--
-- The right is a role of its own (pgflow_declarer), which can raise the limits of a budget, but start nothing.

create or replace function pgflow.declare_queues(queues jsonb)
returns text[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  one record;
  was jsonb;
  changed text[] := '{}';
begin
  perform pgflow.check_objects_(queues, 'queues');
  for one in select e->>'queue' as queue, e->'rules' as rules from jsonb_array_elements(queues) e order by 1 loop
    continue when exists (select from pgflow.queue q where q.queue = one.queue and q.declared = one.rules);
    perform pgflow.check_name_(one.queue, 'the name of a queue');
    insert into pgflow.queue (queue) values (one.queue) on conflict do nothing;
    select q.declared into was from pgflow.queue q where q.queue = one.queue for no key update;
    continue when was = one.rules;
    perform pgflow.set_queue(one.queue,
      coalesce((select jsonb_object_agg(k, null) from jsonb_object_keys(was) k), '{}') || one.rules,
      'declared by an app');
    update pgflow.queue q set declared = one.rules where q.queue = one.queue;
    changed := changed || one.queue;
  end loop;
  return changed;
end
$$;
comment on function pgflow.declare_queues(jsonb)
  is 'Sets rules of queues that an app declares, [{queue, rules}, ...], where that differs from its last declaration; '
     'a rule that it no longer names is taken away. Answers which queues have changed';
--! grant declare_queues to pgflow_worker, pgflow_operator, pgflow_declarer

create or replace function pgflow.undeclared(declared jsonb)
returns text[]
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.check_form_(jsonb_typeof(declared), 'object', 'what an app declares'),
    pgflow.check_form_(jsonb_typeof(declared->'codes'), 'array', 'codes');
  perform pgflow.check_objects_(declared->part, part) from unnest(array['pools', 'queues', 'relays', 'schedules']) part;
  return array(
    select format('pool %s', e->>'name') from jsonb_array_elements(declared->'pools') e
    where not exists (select from pgflow.pool p where p.name = e->>'name' and p.declared = e)
    union all
    select format('the rules of queue %s', e->>'queue') from jsonb_array_elements(declared->'queues') e
    where not exists (select from pgflow.queue q where q.queue = e->>'queue' and q.declared = e->'rules')
    union all
    select format('relay %s', e->>'name') from jsonb_array_elements(declared->'relays') e
    where not exists (select from pgflow.relay r where r.name = e->>'name')
    union all
    select format('schedule %s', e->>'name') from jsonb_array_elements(declared->'schedules') e
    where not exists (select from pgflow.schedule s where s.name = e->>'name')
      and not exists (select from pgflow.schedule_change c where c.schedule = e->>'name' and c.what = 'removed')
    union all
    select format('the signals of workflow %s', e.workflow) from pgflow.code_rows_(declared->'codes') e
    where not exists (select from pgflow.code c where c.workflow = e.workflow)
  );
end
$$;
comment on function pgflow.undeclared(jsonb)
  is 'Names in an app''s declarations that are not set yet, in the form that declare_app takes';
--! grant undeclared to pgflow_client, pgflow_worker, pgflow_operator, pgflow_declarer

create or replace function pgflow.declare_app(declared jsonb)
returns text[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  missing constant text[] := pgflow.undeclared(declared);
  one jsonb;
begin
  for one in select e from jsonb_array_elements(declared->'schedules') e order by e->>'name' loop
    -- In turns, as workers declare them.
    perform pg_advisory_xact_lock(pgflow.latch_('schedules'));
    if format('schedule %s', one->>'name') = any(pgflow.undeclared(jsonb_build_object('schedules', jsonb_build_array(one))))
    then
      perform pgflow.declare_(one, null, pgflow.now_());
    end if;
  end loop;
  perform pgflow.declare_queues(coalesce(declared->'queues', '[]')),
    pgflow.declare_pools(coalesce(declared->'pools', '[]'));
  for one in select e from jsonb_array_elements(declared->'relays') e order by e->>'name' loop
    if format('relay %s', one->>'name') = any(missing) then
      perform pgflow.declare_relay(one->>'name', array(select jsonb_array_elements_text(one->'topics')),
        one->>'target', one->>'start');
    end if;
  end loop;
  perform pgflow.put_code_(jsonb_agg(e.code order by e.workflow)) from pgflow.code_rows_(declared->'codes') e
  where format('the signals of workflow %s', e.workflow) = any(missing) having count(*) > 0;
  return missing;
end
$$;
comment on function pgflow.declare_app(jsonb)
  is 'Sets the declarations of an app that are not set yet: {pools, queues, relays, schedules, codes}, each a list '
     'as declare_pools, declare_queues and declare_schedules take it; returns the names';
--! grant declare_app to pgflow_worker, pgflow_operator, pgflow_declarer
