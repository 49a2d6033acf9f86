-- Lanes and queues. A lane is a number for (queue, workflow, version), made when it is first named;
-- a queue is a row of policy. Names are data: nothing here ever becomes an identifier.

create or replace function pgflow.intern_lane_(
  queue text, workflow text, version text, is_start boolean default false
)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  found_id int;
begin
  select lane_id into found_id from pgflow.lane
  where queue = intern_lane_.queue and workflow = intern_lane_.workflow and version = intern_lane_.version;
  if found_id is not null then
    return found_id;
  end if;
  perform pgflow.check_name_(intern_lane_.queue, 'the name of a queue');
  perform pgflow.check_name_(intern_lane_.workflow, 'the name of a workflow');
  if is_start then
    perform pgflow.bound_names_(intern_lane_.workflow);
  end if;
  insert into pgflow.queue (queue) values (intern_lane_.queue) on conflict do nothing;
  insert into pgflow.lane (queue, workflow, version)
  values (intern_lane_.queue, intern_lane_.workflow, intern_lane_.version)
  on conflict do nothing returning lane_id into found_id;
  if found_id is null then
    select lane_id into strict found_id from pgflow.lane
    where queue = intern_lane_.queue and workflow = intern_lane_.workflow and version = intern_lane_.version;
  end if;
  return found_id;
end
$$;
comment on function pgflow.intern_lane_(text, text, text, boolean)
  is 'The lane of (queue, workflow, version), made if it is new; for a start, refused (PF003) if names that no worker '
     'knows are too many';

create or replace function pgflow.bound_names_(workflow text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  most constant int := 10000;
begin
  if not exists (select from pgflow.code c where c.workflow = workflow)
    and exists (
      select from pgflow.lane l where not exists (select from pgflow.code c where c.workflow = l.workflow)
      offset most - 1 limit 1
    )
  then
    raise exception using errcode = 'PF003',
      message = format('no worker has ever had a workflow %s, and there are %s such lanes already',
        quote_literal(workflow), most),
      hint = 'Start a worker that has the workflow first. Do not put values into names of workflows.';
  end if;
end
$$;
comment on function pgflow.bound_names_(text)
  is 'Refuses (PF003) a new name that no worker has ever had, where too many are there: they are kept for ever';

create or replace function pgflow.serve_lanes(queues text[], workflows text[], versions text[] default '{}')
returns table (lane_id int, queue text, workflow text, version text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  -- Lanes of a version that nothing is pinned to are not made ahead: each more lane costs every claim a look.
  perform pgflow.intern_lane_(g.queue, g.workflow, g.version)
  from (
    select q as queue, w.workflow, v.version
    from unnest(queues) q cross join unnest(workflows, versions) as w (workflow, version)
    cross join lateral (
      select '' as version
      union
      select c.version from pgflow.code c where c.workflow = w.workflow and c.version = w.version and c.is_pinned
    ) v
    order by q, w.workflow, v.version
  ) g;
  return query
    select l.lane_id, l.queue, l.workflow, l.version
    from pgflow.lane l join unnest(workflows, versions) as w (workflow, version) on w.workflow = l.workflow
    where l.queue = any(queues) and l.version in ('', w.version)
    order by l.lane_id;
end
$$;
comment on function pgflow.serve_lanes(text[], text[], text[])
  is 'The lanes that a worker of these queues and workflows serves: those of runs that any version may work on, and of '
     'runs pinned to its own';
--! grant serve_lanes to pgflow_worker

create or replace function pgflow.refuse_unknown_(workflow text, version text, queue text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  if not exists (select from pgflow.code c where c.workflow = workflow) then
    raise exception using errcode = 'PF003',
      message = format('no worker has ever had a workflow %s, and queue %s takes known ones only',
        quote_literal(workflow), quote_literal(queue)),
      hint = 'Correct the name, or start a worker that has the workflow first.';
  end if;
  if version <> '' and not exists (select from pgflow.code c where c.workflow = workflow and c.version = version) then
    raise exception using errcode = 'PF003',
      message = format('no worker has ever had version %s of workflow %s, and queue %s takes known ones only',
        quote_literal(version), quote_literal(workflow), quote_literal(queue)),
      hint = 'Correct the version, or start a worker that has it first.';
  end if;
end
$$;
comment on function pgflow.refuse_unknown_(text, text, text)
  is 'Refuses (PF003) a start of a workflow or version that no worker has ever had';

create or replace function pgflow.judge_queue_(q pgflow.queue, workflow text, version text)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if q.is_closed then
    raise exception using errcode = 'PF006',
      message = format('queue %s is closed: it takes no new runs', quote_literal(q.queue)),
      hint = 'What is in it goes on. `pgflow queues set ' || q.queue || ' --open` opens it.';
  end if;
  if q.refuses_unknown then
    perform pgflow.refuse_unknown_(workflow, version, q.queue);
  end if;
  return q.is_lined;
end
$$;
comment on function pgflow.judge_queue_(pgflow.queue, text, text)
  is 'Refuses (PF003, PF006) a start that a queue does not take; true if its runs stand in a line';

create or replace function pgflow.require_known(queue text, required boolean default true)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform pgflow.check_name_(require_known.queue, 'the name of a queue');
  insert into pgflow.queue (queue, refuses_unknown) values (require_known.queue, coalesce(required, true))
  on conflict (queue) do update set refuses_unknown = excluded.refuses_unknown;
  perform pgflow.note_queue_(require_known.queue, 'set', jsonb_build_object('require_known', coalesce(required, true)),
    null, null, pgflow.now_());
end
$$;
comment on function pgflow.require_known(text, boolean)
  is 'Has a queue refuse (PF003) starts of workflows, and of versions of them, that no worker has ever had; false '
     'takes them again. Children are not refused';
--! grant require_known to pgflow_operator

create or replace function pgflow.pause_queue(queue text, why text default null, sent_by text default null)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform pgflow.check_name_(pause_queue.queue, 'the name of a queue');
  insert into pgflow.queue (queue, paused_at) values (pause_queue.queue, pgflow.now_())
  on conflict (queue) do update set paused_at = coalesce(pgflow.queue.paused_at, excluded.paused_at);
  perform pgflow.note_queue_(pause_queue.queue, 'paused', '{}', pause_queue.why, pause_queue.sent_by, pgflow.now_());
end
$$;
comment on function pgflow.pause_queue(text, text, text)
  is 'Stops claims from a queue; what runs goes on; who says so, and why, is kept with it';
--! grant pause_queue to pgflow_operator

create or replace function pgflow.resume_queue(queue text, why text default null, sent_by text default null)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  update pgflow.queue set paused_at = null where queue = resume_queue.queue and paused_at is not null;
  if found then
    perform pgflow.note_queue_(resume_queue.queue, 'resumed', '{}', resume_queue.why, resume_queue.sent_by,
      pgflow.now_());
  end if;
end
$$;
comment on function pgflow.resume_queue(text, text, text)
  is 'Lets claims from a paused queue go on; who says so, and why, is kept with it';
--! grant resume_queue to pgflow_operator

comment on column pgflow.queue.queue is 'Name of the queue';
comment on column pgflow.queue.declared is 'Rules that the code of an app declared last; null = it declares none';
comment on column pgflow.queue.paused_at is 'Time since which nothing is claimed from it; null = not paused';

comment on column pgflow.lane.lane_id is 'The number of the lane';
comment on column pgflow.lane.queue is 'Queue that runs of this lane stand in';
comment on column pgflow.lane.workflow is 'Workflow that they run';
comment on column pgflow.lane.version is 'Version of the code that they need; empty = any';
comment on column pgflow.lane.paused_at is 'Time since which nothing is claimed from this lane; null = not paused';
