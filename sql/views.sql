-- What anybody may read with any SQL client. Status comes from the place a run is in, so each place is
-- a branch of its own, without a condition in it that would hide it from the planner: a filter on status
-- reads that place only.

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
  select run_id, status, reason, finished_at, finished_at, null, null, output, error from pgflow.outcome
) p
join pgflow.run r on r.run_id = p.run_id
join pgflow.lane l on l.lane_id = r.lane_id
where p.status <> 'continued';
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
select r.key, f.call, f.name as step,
  case f.ending when 'c' then 'completed' when 'f' then 'failed' when 'X' then 'abandoned' else 'started' end as status,
  f.failed_attempts + case when f.ending in ('c', 'f') then 1 else 0 end as attempts,
  f.started_at, f.ended_at,
  case when f.ordinal ~ '^\d+$' then r.root::text || case when r.generation > 1 then '~' || r.generation else '' end || '/' || f.name || '/' || f.ordinal else f.ordinal end as idempotency_key,
  case f.ending when 'c' then f.payload end as output,
  case f.ending when 'f' then f.payload end as error,
  r.tenant, r.run_id
from pgflow.run r
-- Folded run by run: whoever asks for one run reads that run's units only.
cross join lateral (
  select e.call, min(e.name) as name, max(e.ending) as ending, count(*) filter (where e.kind = 'a') as failed_attempts,
    min(e.started_at) as started_at, max(e.ended_at) as ended_at, min(e.ordinal) as ordinal,
    (array_agg(e.payload) filter (where e.ending is not null))[1] as payload
  from (
    select u.call, u.name, u.kind, case when u.kind <> 'a' then u.kind::text end as ending, null::timestamptz as started_at,
      case when u.kind <> 'a' then u.at end as ended_at, null as ordinal, u.payload
    from pgflow.unit u where u.run_id = r.run_id and u.kind in ('c', 'f', 'X', 'a')
    union all
    select (s->>0)::int, s->>2, 's', null, u.recorded_at, null, s->>3, null
    from pgflow.unit u cross join lateral json_array_elements(u.starts) s
    where u.run_id = r.run_id and u.starts is not null
  ) e
  group by e.call
) f;
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
