-- Recorded runs as a worker would have claimed them, to be replayed against the code at hand. Reads only.

drop function if exists pgflow.recorded_runs;
create function pgflow.recorded_runs(after_run bigint default 0, max int default 100)
returns table (
  run_id bigint, token bigint, chain_id bigint, lane_id int, generation int, attempt int, suspect int, last_seq int,
  key text, root text, input text, units text, has_mail boolean, created_us bigint, now_us bigint, extra jsonb,
  workflow text, status text, output text
)
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select r.run_id, 0::bigint, r.chain_id, r.lane_id, r.generation, 1, 0,
    coalesce((select max(u.seq) from pgflow.unit u where u.run_id = r.run_id), 0),
    r.key, r.root::text, r.input::text, pgflow.journal_(r.run_id, 0, 262144), false,
    pgflow.micros_(greatest(r.created_at, r.run_at)), pgflow.micros_(coalesce(o.finished_at, pgflow.now_())),
    jsonb_build_object('saga', pgflow.carried_saga_(r.chain_id, r.generation), 'heritage', pgflow.heritage_(r.run_id, r.heritage), 'labels', r.labels, 'metadata', r.metadata,
      'parent_run_id', coalesce(r.parent_run_id, (i.origin->'parent'->>'run_id')::bigint),
      'deadline_us', pgflow.micros_(r.deadline_at), 'tenant', r.tenant),
    l.workflow, coalesce(i.status, pgflow.status_(r.run_id)), o.output::text
  from pgflow.run r
  join pgflow.lane l on l.lane_id = r.lane_id
  left join pgflow.outcome o on o.run_id = r.run_id
  left join pgflow.imported i on i.run_id = r.run_id
  where r.run_id > after_run
  order by r.run_id limit max
$$;
comment on function pgflow.recorded_runs(bigint, int) is 'Runs with their journals, in order, for a replay that changes nothing';

drop function if exists pgflow.idle_state;
create function pgflow.idle_state()
returns table (idle boolean, next_due_at timestamptz, due_timers bigint)
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  with clock as materialized (select pgflow.now_() as at),
  due as materialized (
    select (select count(*) from pgflow.timer t where t.due_at <= (select at from clock))
      + (select count(*) from pgflow.deadline d where d.due_at <= (select at from clock)) as timers
  )
  select due.timers = 0
    and not exists (
      -- Lane by lane, so that a long queue that is paused is not read to its end.
      select from pgflow.lane l join pgflow.queue q on q.queue = l.queue
      cross join lateral (select from pgflow.ready r where r.lane_id = l.lane_id limit 1) r
      where l.paused_at is null and q.paused_at is null
    )
    and not exists (select from pgflow.lease)
    and not exists (select from pgflow.nudge),
    (select min(d.due_at) from (
      select min(t.due_at) as due_at from pgflow.timer t union all select min(x.due_at) from pgflow.deadline x
    ) d),
    due.timers
  from due
$$;
comment on function pgflow.idle_state() is 'Whether nothing is ready, leased, nudged or due; when the next timer is; and how many are due';
