-- What anybody may read with any SQL client. Status comes from the place a run is in, so each place is
-- a branch of its own: a filter on status reads that place only.

drop view if exists pgflow.runs;
create view pgflow.runs as
select r.key, p.status, l.workflow, l.queue, p.reason, r.priority, r.created_at, p.since, r.run_at, r.deadline_at, p.finished_at,
  p.attempt, p.worker_id, r.generation, r.labels, r.input, p.output, p.error, r.tenant, l.version, r.run_id, r.chain_id, r.parent_run_id
from (
  select run_id, 'queued' as status, case when suspect > 0 then format('suspect: %s deaths', suspect) end as reason, ready_at as since,
    null::timestamptz as finished_at, attempt, null::int as worker_id, null::json as output, null::json as error
  from pgflow.ready
  union all
  select run_id, 'running', null, claimed_at, null, attempt, worker_id, null, null from pgflow.lease
  union all
  select k.run_id, 'waiting', (
      select string_agg(w.what, ', ') from (
        select case kind when 's' then 'signal ' || name else 'child' end as what from pgflow.wait where run_id = k.run_id
        union all
        select 'until ' || to_char(min(due_at) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') from pgflow.timer where run_id = k.run_id having min(due_at) is not null
      ) w
    ), k.parked_at, null, null, null, null, null
  from pgflow.parked k
  union all
  select run_id, state, reason, held_at, null, attempt, null, null, to_json(detail) from pgflow.held
  union all
  select run_id, status, reason, finished_at, finished_at, null, null, output, error from pgflow.outcome where status <> 'continued'
) p
join pgflow.run r on r.run_id = p.run_id
join pgflow.lane l on l.lane_id = r.lane_id;
comment on view pgflow.runs is 'Every chain''s newest run: status, why, since when, input, output, labels';

drop view if exists pgflow.timeline;
create view pgflow.timeline as
select r.key, r.generation, u.seq, u.call, k.name as event, u.name, u.at, u.recorded_at, u.due_at, u.payload, u.starts, r.tenant, u.run_id, u.token
from pgflow.unit u
join pgflow.run r on r.run_id = u.run_id
join pgflow.unit_kind k on k.kind = u.kind;
comment on view pgflow.timeline is 'The journal in words: what happened to a run, in order';

drop view if exists pgflow.steps;
create view pgflow.steps as
with started as (
  select u.run_id, (e->>0)::int as call, e->>1 as class, e->>2 as name, e->>3 as ordinal, u.recorded_at as started_at
  from pgflow.unit u cross join lateral json_array_elements(u.starts) e
  where u.starts is not null
), ended as (
  select u.run_id, u.call, u.name, u.kind, u.at, u.payload
  from pgflow.unit u where u.kind in ('c', 'f', 'X')
), tried as (
  select u.run_id, u.call, u.name, count(*) as failed_attempts
  from pgflow.unit u where u.kind = 'a' group by u.run_id, u.call, u.name
)
select r.key, coalesce(e.call, s.call, t.call) as call, coalesce(e.name, s.name, t.name) as step,
  case e.kind when 'c' then 'completed' when 'f' then 'failed' when 'X' then 'abandoned' else 'started' end as status,
  coalesce(t.failed_attempts, 0) + case when e.kind in ('c', 'f') then 1 else 0 end as attempts,
  s.started_at, e.at as ended_at,
  case when s.ordinal ~ '^\d+$' then r.root::text || case when r.generation > 1 then '~' || r.generation else '' end || '/' || s.name || '/' || s.ordinal else s.ordinal end as idempotency_key,
  case e.kind when 'c' then e.payload end as output,
  case e.kind when 'f' then e.payload end as error,
  r.tenant, r.run_id
from pgflow.run r
join (
  ended e
  full join started s on s.run_id = e.run_id and s.call = e.call
  full join tried t on t.run_id = coalesce(e.run_id, s.run_id) and t.call = coalesce(e.call, s.call)
) on r.run_id = coalesce(e.run_id, s.run_id, t.run_id);
comment on view pgflow.steps is 'Each step of each run: how often it was tried, when, under which idempotency key, with what result';

drop view if exists pgflow.queues;
create view pgflow.queues as
select q.queue,
  coalesce(sum(r.n), 0)::bigint as queued, coalesce(sum(e.n), 0)::bigint as running, coalesce(sum(p.n), 0)::bigint as waiting,
  coalesce(sum(h.paused), 0)::bigint as paused, coalesce(sum(h.stuck), 0)::bigint as stuck,
  min(r.oldest) as oldest_queued_at, q.max_running, q.max_deaths, q.paused_at
from pgflow.queue q
left join pgflow.lane l on l.queue = q.queue
left join (select lane_id, count(*) as n, min(ready_at) as oldest from pgflow.ready group by lane_id) r on r.lane_id = l.lane_id
left join (select lane_id, count(*) as n from pgflow.lease group by lane_id) e on e.lane_id = l.lane_id
left join (select lane_id, count(*) as n from pgflow.parked group by lane_id) p on p.lane_id = l.lane_id
left join (
  select lane_id, count(*) filter (where state = 'paused') as paused, count(*) filter (where state = 'stuck') as stuck
  from pgflow.held group by lane_id
) h on h.lane_id = l.lane_id
group by q.queue;
comment on view pgflow.queues is 'How much stands, runs and waits in each queue, and its limits';

drop view if exists pgflow.workers;
create view pgflow.workers as
select w.worker_id, w.host, w.pid, w.queues, w.concurrency,
  (select count(*) from pgflow.lease e where e.worker_id = w.worker_id) as running,
  w.stopping, w.version, w.started_at, w.beat_at, w.beat
from pgflow.worker w;
comment on view pgflow.workers is 'The worker processes that count as alive';
