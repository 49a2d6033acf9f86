-- Views for any SQL client. Status comes from the place a run is in, so each place is
-- a branch of its own, without a condition in it that would hide it from the planner: a filter on status
-- reads that place only.

-- A function, so that no plan of a view counts this for each run that there may be: by the sum a server with LLVM
-- takes the first look at an empty database for dear enough to compile it.
create or replace function pgflow.why_unclaimed(lane_id int, out code text, out why text)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select c.code, case c.code
    when 'queue_paused' then format('queue %s is paused', l.queue)
    when 'no_worker' then case
      when exists (select from pgflow.flow f where f.workflow = l.workflow and f.is_current)
        then format('no worker or pgflow.work() serves queue %s', l.queue)
      else format('no worker serves queue %s', l.queue) end
    when 'no_workflow' then format('no worker of queue %s has workflow %s', l.queue, l.workflow)
    when 'no_version' then format('no worker of queue %s has version %s of workflow %s', l.queue, l.version, l.workflow)
  end
  from pgflow.lane l
  cross join lateral (
    select count(*) as workers, count(*) filter (where c.has_it) as with_workflow,
      count(*) filter (where c.has_version) as with_version
    from pgflow.worker w
    cross join lateral (
      select count(*) > 0 as has_it, coalesce(bool_or(k.version = l.version), false) as has_version
      from pgflow.worker_code x join pgflow.code k on k.code_id = x.code_id
      where x.worker_id = w.worker_id and k.workflow = l.workflow
    ) c
    where l.queue = any(w.queues) and not w.stopping
  ) s
  cross join lateral (
    select case
      when l.paused_at is not null
        or exists (select from pgflow.queue q where q.queue = l.queue and q.paused_at is not null) then 'queue_paused'
      when s.workers = 0 then 'no_worker'
      when s.with_workflow = 0 then 'no_workflow'
      when l.version <> '' and s.with_version = 0 then 'no_version'
    end as code
  ) c
  where l.lane_id = why_unclaimed.lane_id
$$;
comment on function pgflow.why_unclaimed(int)
  is 'Reason why no worker takes queued runs of a lane, in words and as a code; null = one does';
--! grant why_unclaimed to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

drop view if exists pgflow.runs;
drop view if exists pgflow.lanes;
drop view if exists pgflow.lane_reasons;
create view pgflow.lane_reasons as
select l.lane_id, l.queue, l.workflow, l.version, w.why, w.code as why_code
from pgflow.lane l
left join lateral pgflow.why_unclaimed(l.lane_id) w on true;
comment on view pgflow.lane_reasons
  is 'Lanes, each with the reason why no worker takes its runs, but without the number of queued runs, which costs '
     'more to read';
--! grant lane_reasons to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.lane_reasons.lane_id is 'Number of the lane';
comment on column pgflow.lane_reasons.queue is 'Name of the queue';
comment on column pgflow.lane_reasons.workflow is 'Name of the workflow';
comment on column pgflow.lane_reasons.version is 'Version of the code that its runs need; empty = any';
comment on column pgflow.lane_reasons.why is 'Reason why no worker takes queued runs; null = one does';
comment on column pgflow.lane_reasons.why_code
  is 'That reason as a code: queue_paused, no_worker, no_workflow or no_version';

create view pgflow.lanes as
select l.queue, l.workflow, l.version, coalesce(r.queued, 0) as queued, r.oldest_queued_at, l.why, l.lane_id, l.why_code
from pgflow.lane_reasons l
-- read once for all: asked for each lane, the planner may come to read for each of them all that is ready
left join (
  select abs(e.lane_id) as lane_id, count(*) as queued, min(e.ready_at) as oldest_queued_at from pgflow.ready e
  group by abs(e.lane_id)
) r on r.lane_id = l.lane_id;
comment on view pgflow.lanes
  is 'Each workflow, and each version of one that runs are pinned to, of each queue: how much is queued, and why '
     'no worker takes it';
--! grant lanes to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.lanes.queue is 'Name of the queue';
comment on column pgflow.lanes.workflow is 'Name of the workflow';
comment on column pgflow.lanes.version is 'Version of the code that its runs need; empty = any';
comment on column pgflow.lanes.queued is 'Runs that may be claimed';
comment on column pgflow.lanes.oldest_queued_at
  is 'Time since which the oldest of them may be claimed; null = none is queued';
comment on column pgflow.lanes.why
  is 'Reason why no worker takes queued runs: the queue is paused, or none serves it, has the workflow or that '
     'version; null = one does';
comment on column pgflow.lanes.lane_id is 'Number of the lane';
comment on column pgflow.lanes.why_code is 'That reason as a code: queue_paused, no_worker, no_workflow or no_version';

create view pgflow.runs as
select r.key, p.status, l.workflow, l.queue,
  case when p.status = 'queued' then coalesce(p.reason, (pgflow.why_unclaimed(r.lane_id)).why)
    else p.reason end as reason, r.priority, r.created_at, p.since, r.run_at, r.deadline_at, p.finished_at,
  p.attempt, p.worker_id, r.generation, r.labels::jsonb, r.input::json, p.output, p.error, r.tenant, l.version,
  r.run_id, r.chain_id, r.parent_run_id,
  o.key as origin_key, o.generation as origin_generation, r.origin_seq,
  r.origin_run_id,
  case when p.status = 'queued' then coalesce(p.code, (pgflow.why_unclaimed(r.lane_id)).code) else p.code end
    as reason_code,
  p.detail as reason_detail
from (
  select run_id, 'queued' as status, case when suspect > 1 then format('suspect: %s deaths', suspect) end as reason,
    ready_at as since,
    null::timestamptz as finished_at, attempt, null::int as worker_id, null::json as output, null::json as error,
    case when suspect > 1 then 'suspect' end as code,
      case when suspect > 1 then json_build_object('deaths', suspect) end as detail
  from pgflow.ready
  union all
  select run_id, 'running', null, claimed_at, null, attempt, worker_id, null, null, null, null from pgflow.lease
  union all
  select k.run_id, 'waiting', (
      select string_agg(w.what, ', ') from (
        select distinct case kind when 's' then 'signal ' || name when 'g' then 'gate ' || name when 'e' then coalesce((
              select o.kind || ' ' || o.name from pgflow.owed o where o.run_id = k.run_id and o.call = wait.call limit 1
            ), 'what it owes')
            when 'l' then 'lock ' || name when 'u' then 'update' else 'child'
          end as what
        from pgflow.wait where run_id = k.run_id
        union all
        select 'until ' || to_char(min(due_at) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
        -- grouped, the first is not looked for among the timers of all
        from pgflow.timer where run_id = k.run_id group by run_id
        union all
        select 'until the run that it replaces has ended'
        where exists (select from pgflow.replacement where run_id = k.run_id)
        union all
        select 'until the runs of its batch have ended'
        where exists (select from pgflow.batch b where b.batch_id = k.run_id and b.begun_at is null)
      ) w
    ), k.parked_at, null, null, null, null, null, (
      select case min(case w.kind when 'g' then 0 when 's' then 1 when 'e' then 2 when 'l' then 3 when 'u' then 5
        else 4 end)
        when 0 then 'gate'
        when 1 then 'signal'
        when 2 then case when exists (select from pgflow.owed o where o.run_id = k.run_id and o.kind = 'effect')
          then 'effect' else 'owes' end
        when 3 then 'lock'
        when 4 then 'child'
        when 5 then 'update'
        else case
          when exists (select from pgflow.timer t where t.run_id = k.run_id) then 'timer'
          when exists (select from pgflow.replacement p where p.run_id = k.run_id) then 'replacement'
          when exists (select from pgflow.batch b where b.batch_id = k.run_id and b.begun_at is null) then 'batch'
        end
      end
      from pgflow.wait w where w.run_id = k.run_id
    ), (
      select json_strip_nulls(json_build_object(
        'signals', json_agg(distinct w.name) filter (where w.kind = 's'),
        'gates', json_agg(distinct g.gate) filter (where w.kind = 'g'),
        'children', nullif(count(*) filter (where w.kind = 'c'), 0),
        'locks', json_agg(distinct w.name) filter (where w.kind = 'l'),
        'effects', nullif(count(*) filter (where w.kind = 'e' and not exists (select from pgflow.owed o
          where o.run_id = w.run_id and o.call = w.call and o.kind = 'obligation')), 0),
        'obligations', nullif(count(*) filter (where w.kind = 'e' and exists (select from pgflow.owed o
          where o.run_id = w.run_id and o.call = w.call and o.kind = 'obligation')), 0),
        'until', (select min(t.due_at) from pgflow.timer t where t.run_id = k.run_id group by t.run_id)
      ))
      from pgflow.wait w left join pgflow.gate g on w.kind = 'g' and g.run_id = w.run_id and g.call = w.call
      where w.run_id = k.run_id
    )
  from pgflow.parked k
  union all
  select run_id, state, reason, held_at, null, attempt, null, null, to_json(detail), case state when 'paused'
    then 'paused' else reason end,
    case state when 'paused' then json_build_object('by', held_by) else to_json(detail) end
  from pgflow.held
  union all
  select o.run_id, o.status, o.reason, o.finished_at, o.finished_at, null, null, o.output::json, o.error::json,
    case when o.status = 'cancelled' then coalesce(
      (
        select coalesce(u.payload->>'reason', 'asked') from pgflow.unit u
        where u.run_id = o.run_id and u.call = 0 and (u.kind = 'x' or u.kind = 'o' and u.name = 'cancel')
        order by u.seq desc limit 1
      ),
      case when exists (select from pgflow.imported m where m.run_id = o.run_id and m.status <> 'cancelled')
        then 'imported' else 'itself' end
    ) end,
    case when o.status = 'cancelled' then (
      select json_strip_nulls(json_build_object('by', u.payload->'by', 'force', u.payload->'force')) from pgflow.unit u
      where u.run_id = o.run_id and u.call = 0 and (u.kind = 'x' or u.kind = 'o' and u.name = 'cancel')
      order by u.seq desc limit 1
    ) end
  from pgflow.outcome o
) p
join pgflow.run r on r.run_id = p.run_id
join pgflow.lane l on l.lane_id = r.lane_id
left join pgflow.run o on o.run_id = r.origin_run_id
where p.status <> 'continued';
comment on view pgflow.runs is 'Every chain''s newest run: status, why, since when, input, output, labels';
--! grant runs to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.runs.key is 'The key it was started with, or one made up for it';
comment on column pgflow.runs.status is 'queued, running, waiting, paused, stuck, completed, failed or cancelled';
comment on column pgflow.runs.workflow is 'Name of the workflow';
comment on column pgflow.runs.queue is 'Name of its queue';
comment on column pgflow.runs.reason
  is 'Reason of its status: the wait, the lack of a worker, the words of a pause or cancel, or the trouble; null = '
     'nothing to say';
comment on column pgflow.runs.reason_code
  is 'Code of that reason: queue_paused, no_worker, no_workflow, no_version or suspect of a queued run; gate, signal, '
     'effect, owes (obligations only), child, timer, replacement or batch of a waiting one; paused; the trouble of a '
     'stuck one; asked, deadline, expired, purged, replaced, parent_ended, parent_gave_up, parent_rewound, itself or '
     'imported of a cancelled one; null = nothing to say';
comment on column pgflow.runs.reason_detail
  is 'Detail of that reason: gates, signals, children, effects, obligations and until of the waits; deaths of a '
     'suspect run; by of a pause or cancel, and force; the facts of the trouble';
comment on column pgflow.runs.priority is 'Lower numbers are claimed first, among runs of one workflow and queue';
comment on column pgflow.runs.created_at is 'Time of the start';
comment on column pgflow.runs.since is 'Time since which it has this status';
comment on column pgflow.runs.run_at is 'Time at which it may begin, if that is later than its start';
comment on column pgflow.runs.deadline_at is 'Time at which it is cancelled if it has not ended; null = never';
comment on column pgflow.runs.finished_at is 'Time of the end; null = it has not ended';
comment on column pgflow.runs.attempt
  is 'Claims since the run last made progress; null where it is waiting or has ended';
comment on column pgflow.runs.worker_id is 'The worker that holds it; null = none does';
comment on column pgflow.runs.generation
  is '1, and one more each time the run continued as new, was rewound or restarted';
comment on column pgflow.runs.labels is 'Strings by name, to find runs by; null = none';
comment on column pgflow.runs.input is 'Arguments of the workflow, an object of parameter names';
comment on column pgflow.runs.output is 'Value that the workflow returned; null until it has completed';
comment on column pgflow.runs.error is 'The exception that it raised, or what is known of why it is stuck';
comment on column pgflow.runs.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.runs.version is 'Version of the code that it needs; empty = any';
comment on column pgflow.runs.run_id is 'The number of this generation';
comment on column pgflow.runs.chain_id is 'Number of the first run of the chain: the same for all generations';
comment on column pgflow.runs.parent_run_id is 'The run that started this one as its child; null = none';
comment on column pgflow.runs.origin_key
  is 'Key of the run whose journal this one begins with, of a fork another key; null = it began empty, or that history '
     'is gone';
comment on column pgflow.runs.origin_generation is 'Generation of that run';
comment on column pgflow.runs.origin_seq is 'Number of units it has from there; null = it began empty';
comment on column pgflow.runs.origin_run_id is 'The number of that generation';

drop view if exists pgflow.traces;
create view pgflow.traces as
select r.run_id, r.tenant, r.root::text as root,
  substring(r.metadata::jsonb->>'traceparent' from '^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-') as trace_id
from pgflow.run r;
comment on view pgflow.traces is 'Traces of runs, by which their spans and logs are found elsewhere';
--! grant traces to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.traces.run_id is 'The number of the run';
comment on column pgflow.traces.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.traces.root
  is 'UUID of its chain, of which pgflow makes a trace where it was started without one';
comment on column pgflow.traces.trace_id
  is 'Id of the trace with which it was started; null = it was started without one';

drop view if exists pgflow.timeline;
create view pgflow.timeline as
select r.key, r.generation, u.seq, u.call::int as call, case when u.kind = 'e' and u.payload is null
  then 'stream_closed' else k.name end as event, u.name::text as name, u.at, u.recorded_at, u.due_at,
  u.payload::json as payload, u.starts, r.tenant, u.run_id, u.token,
  u.seq <= coalesce(r.origin_seq, 0) as is_inherited
from pgflow.unit u
join pgflow.run r on r.run_id = u.run_id
join pgflow.unit_kind k on k.kind = u.kind;
comment on view pgflow.timeline is 'The journal in words: what happened to a run, in order';
--! grant timeline to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.timeline.key is 'Key of the run';
comment on column pgflow.timeline.generation is 'Generation of the run in which it happened';
comment on column pgflow.timeline.seq is 'Its place in the journal of that generation, from 1 without a gap';
comment on column pgflow.timeline.call
  is 'Number of the call that it is about, in the order in which the code made them; 0 = the run itself';
comment on column pgflow.timeline.event is 'Kind of event: one of the kinds of units, or stream_closed';
comment on column pgflow.timeline.name
  is 'Of the step, signal, workflow or stream that it is about; null where there is none';
comment on column pgflow.timeline.at is 'Time of the event, as now() showed it to the workflow';
comment on column pgflow.timeline.recorded_at is 'Time at which the commit wrote it';
comment on column pgflow.timeline.due_at
  is 'Time at which the timer that it started, or the next attempt, is due; null = none';
comment on column pgflow.timeline.payload is 'Its result, error, message or value';
comment on column pgflow.timeline.starts
  is 'Bodies of steps that this commit allowed to start: [[call, class, name, ordinal or key, hash of arguments], ...]';
comment on column pgflow.timeline.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.timeline.run_id is 'The number of that generation';
comment on column pgflow.timeline.token
  is 'Token of the lease that wrote it; 0 where no worker held the run, or where it is another run''s';
comment on column pgflow.timeline.is_inherited is 'True if it happened to the run whose journal this one begins with';

drop view if exists pgflow.repeated_steps;
drop view if exists pgflow.steps;
create view pgflow.steps as
select r.key, f.call, f.name as step,
  case when f.ending in ('c', 'H') then 'completed' when f.ending = 'f' then 'failed'
    when f.ending = 'X' then 'abandoned' else 'started' end as status,
  f.failed_attempts + f.renewals + case when f.ending in ('c', 'H', 'f') then 1 else 0 end
    -- Begun under a lease that recorded no end of it: what a kill cut off may have acted.
    + case when f.begun_by is null or coalesce(f.begun_by = any(f.ended_by), false) then 0 else 1 end as attempts,
  f.started_at, f.ended_at,
  case when f.ordinal ~ '^[0-9]+$' then coalesce(
    (select e->>1 from jsonb_array_elements(r.heritage->'keys') with ordinality as x (e, n)
      where coalesce(f.started_seq, f.ended_seq, f.failed_seq) <= (e->>0)::int order by n limit 1),
    r.root::text || case when r.generation > 1 then '~' || r.generation else '' end
  ) || '/' || f.name || '/' || f.ordinal
  -- The result of a transaction was handed on from another run: the key is the one that its body had there.
  when f.ordinal ~ '^[0-9]+:[0-9]+$' then (
    select coalesce(
      (select e->>1 from jsonb_array_elements(o.heritage->'keys') with ordinality as x (e, n)
        where u.seq <= (e->>0)::int order by n limit 1),
      o.root::text || case when o.generation > 1 then '~' || o.generation else '' end
    ) || '/' || u.name || '/' || u.key
    from pgflow.unit u join pgflow.run o on o.run_id = u.run_id
    where u.run_id = split_part(f.ordinal, ':', 1)::bigint and u.call = split_part(f.ordinal, ':', 2)::int
      and u.kind in ('c', 'H'))
  else f.ordinal end as idempotency_key,
  case when f.ending in ('c', 'H') then (select u.payload::json from pgflow.unit u
    where u.run_id = r.run_id and u.seq = f.payload_seq) end as output,
  case f.ending when 'f' then (select u.payload::json from pgflow.unit u
    where u.run_id = r.run_id and u.seq = f.payload_seq) end as error,
  r.tenant, r.run_id, coalesce(f.ended_seq, f.started_seq) <= coalesce(r.origin_seq, 0) as is_inherited
from pgflow.run r
-- Folded run by run, without a sort, and payloads are read only on demand: a query for one run reads that run's units
-- only, and a page in the order of run_id stops at its end.
cross join lateral (
  select e.call, min(e.name) as name, max(e.ending) as ending, count(*) filter (where e.kind = 'a') as failed_attempts,
    min(e.started_at) as started_at, max(e.ended_at) as ended_at,
    coalesce(min(e.ordinal) filter (where e.kind = 's'), min(e.ordinal)) as ordinal,
    min(e.seq) filter (where e.kind = 's') as started_seq, min(e.seq) filter (where e.ending is not null) as ended_seq,
    min(e.seq) filter (where e.kind = 'a') as failed_seq,
    max(e.seq) filter (where e.ending is not null or e.kind = 'r') as payload_seq,
    min(e.token) filter (where e.kind = 's') as begun_by,
    array_agg(e.token) filter (where e.kind in ('c', 'H', 'f', 'a')) as ended_by,
    count(*) filter (where e.kind = 'r') as renewals
  from (
    select u.seq, u.token, u.call::int as call, u.name::text as name, u.kind::"char" as kind,
      case when u.kind not in ('a', 'i', 'r') then u.kind::text end as ending, null::timestamptz as started_at,
      case when u.kind <> 'a' then u.at end as ended_at,
      case when u.kind in ('c', 'H', 'f', 'a') then u.key::text end as ordinal
    from pgflow.unit u where u.run_id = r.run_id and u.kind in ('c', 'H', 'f', 'X', 'a', 'i', 'r')
    union all
    select u.seq, u.token, (s->>0)::int, s->>2, 's', null, u.recorded_at, null,
      case when s->>1 = 's' or s->>3 like '%:%' then s->>3 end
    from pgflow.unit u cross join lateral jsonb_array_elements(u.starts::jsonb) s
    where u.run_id = r.run_id and u.starts is not null and s->>1 <> 'e'
  ) e
  -- An effect that the code gave up has units like a step's: it is in pgflow.effects.
  group by e.call
  having not bool_or(e.kind = 'i')
) f;
comment on view pgflow.steps
  is 'Each step of each run: how often it was tried, when, under which idempotency key, with what result. Page through '
     'many runs by run_id';
--! grant steps to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.steps.key is 'Key of the run';
comment on column pgflow.steps.call is 'Number of the call, in the order in which the code made them';
comment on column pgflow.steps.step is 'Name of the step';
comment on column pgflow.steps.status is 'started, completed, failed or abandoned';
comment on column pgflow.steps.attempts
  is 'Number of times that its body was begun, as far as is recorded: it ended, or the worker that began it was lost; '
     'more than 1 = it may have acted more than once';
comment on column pgflow.steps.started_at
  is 'Time at which its body was first allowed to start; null where no leave is needed, as for a read';
comment on column pgflow.steps.ended_at
  is 'Time at which it returned, failed for the last time or was given up; null = it has not';
comment on column pgflow.steps.idempotency_key
  is 'Answer of idempotency_key() in its body: the same in every attempt; null for a read';
comment on column pgflow.steps.output
  is 'Value that it returned, of those made anew the newest; null unless it completed';
comment on column pgflow.steps.error is 'The exception that it raised for the last time; null unless it failed';
comment on column pgflow.steps.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.steps.run_id is 'The number of that generation';
comment on column pgflow.steps.is_inherited is 'True if it is a step of the run whose journal this one begins with';

-- Most runs have been worked on under one lease and have recorded no failed attempt, so none of their steps was begun
-- twice: that is found without a look at what their units allowed to start.
create view pgflow.repeated_steps as
select s.key, s.call, s.step, s.status, s.attempts, s.started_at, s.ended_at, s.idempotency_key, s.output, s.error,
  s.tenant, s.run_id, s.is_inherited
from (
  select u.run_id from pgflow.unit u group by u.run_id
  having min(u.token) <> max(u.token) or bool_or(u.kind in ('a', 'r'))
) c
join pgflow.steps s on s.run_id = c.run_id
where s.attempts > 1;
comment on view pgflow.repeated_steps
  is 'The steps that were begun more than once, of all runs: pgflow.steps where attempts > 1, found several times as '
     'fast';
--! grant repeated_steps to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.repeated_steps.key is 'Key of the run';
comment on column pgflow.repeated_steps.call is 'Number of the call, in the order in which the code made them';
comment on column pgflow.repeated_steps.step is 'Name of the step';
comment on column pgflow.repeated_steps.status is 'started, completed, failed or abandoned';
comment on column pgflow.repeated_steps.attempts
  is 'Number of times that its body was begun, as far as is recorded: it ended, or the worker that began it was lost; '
     'more than 1 = it may have acted more than once';
comment on column pgflow.repeated_steps.started_at
  is 'Time at which its body was first allowed to start; null where no leave is needed, as for a read';
comment on column pgflow.repeated_steps.ended_at
  is 'Time at which it returned, failed for the last time or was given up; null = it has not';
comment on column pgflow.repeated_steps.idempotency_key
  is 'Answer of idempotency_key() in its body: the same in every attempt; null for a read';
comment on column pgflow.repeated_steps.output
  is 'Value that it returned, of those made anew the newest; null unless it completed';
comment on column pgflow.repeated_steps.error
  is 'The exception that it raised for the last time; null unless it failed';
comment on column pgflow.repeated_steps.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.repeated_steps.run_id is 'The number of that generation';
comment on column pgflow.repeated_steps.is_inherited
  is 'True if it is a step of the run whose journal this one begins with';

drop view if exists pgflow.queues;
drop view if exists pgflow.queue_rules;
create view pgflow.queue_rules as
select q.queue,
  jsonb_strip_nulls(jsonb_build_object(
    'concurrency', q.max_running, 'per_worker', q.max_per_worker, 'per_key', f.max_per_key, 'key', f.key,
    'fifo', nullif(f.is_fifo, false), 'rate', f.rate_said, 'burst', f.burst, 'key_rate', f.key_rate_said,
    'key_burst', f.key_burst, 'ageing_seconds', f.ageing_seconds, 'weights', f.weights,
    'expires_seconds', f.expires_seconds, 'closed', q.is_closed, 'max_deaths', nullif(q.max_deaths, 5))) as rules
from pgflow.queue q left join pgflow.line f on f.queue = q.queue and not f.is_over;
comment on view pgflow.queue_rules is 'Rules of queues, as set_queue takes them';
--! grant queue_rules to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.queue_rules.queue is 'Name of the queue';
comment on column pgflow.queue_rules.rules is 'Its rules';

create view pgflow.queues as
select q.queue,
  coalesce(sum(r.n), 0)::bigint as queued, coalesce(sum(e.n), 0)::bigint as running,
  coalesce(sum(p.n), 0)::bigint as waiting,
  coalesce(sum(h.paused), 0)::bigint as paused, coalesce(sum(h.stuck), 0)::bigint as stuck,
  min(r.oldest) as oldest_queued_at, q.max_running, q.max_deaths, q.paused_at, q.refuses_unknown,
  (select u.rules from pgflow.queue_rules u where u.queue = q.queue) as rules
from pgflow.queue q
left join pgflow.lane l on l.queue = q.queue
left join (select abs(lane_id) as lane_id, count(*) as n, min(ready_at) as oldest from pgflow.ready
  group by abs(lane_id)) r on r.lane_id = l.lane_id
left join (select lane_id, count(*) as n from pgflow.lease group by lane_id) e on e.lane_id = l.lane_id
left join (select lane_id, count(*) as n from pgflow.parked group by lane_id) p on p.lane_id = l.lane_id
left join (
  select lane_id, count(*) filter (where state = 'paused') as paused, count(*) filter (where state = 'stuck') as stuck
  from pgflow.held group by lane_id
) h on h.lane_id = l.lane_id
group by q.queue;
comment on view pgflow.queues is 'Runs that stand, run and wait in each queue, and its limits';
--! grant queues to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.queues.queue is 'Name of the queue';
comment on column pgflow.queues.queued is 'Runs that may be claimed';
comment on column pgflow.queues.running is 'Runs that a worker holds';
comment on column pgflow.queues.waiting is 'Runs that wait for a signal, a child, a timer or their time to start';
comment on column pgflow.queues.paused is 'Paused runs';
comment on column pgflow.queues.stuck is 'Runs that need a person';
comment on column pgflow.queues.oldest_queued_at
  is 'Time since which the oldest of the queued runs may be claimed; null = none is queued';
comment on column pgflow.queues.max_running is 'Most runs that may be held at once over all workers; null = no limit';
comment on column pgflow.queues.max_deaths
  is 'After so many workers died holding a run that recorded nothing, it is stuck';
comment on column pgflow.queues.refuses_unknown
  is 'True if starts of workflows that no worker has ever had are refused';
comment on column pgflow.queues.rules is 'Its rules, as set_queue takes them';
comment on column pgflow.queues.paused_at is 'Time since which nothing is claimed from the queue; null = not paused';

drop view if exists pgflow.workers;
create view pgflow.workers as
select w.worker_id, w.host, w.pid, w.queues, w.concurrency,
  coalesce(e.n, 0) as running,
  w.stopping, w.version, w.started_at, w.beat_at, w.beat,
  w.stamp is distinct from obj_description('pgflow'::regnamespace, 'pg_namespace') as is_outdated,
  w.lost_threads
from pgflow.worker w
left join (select worker_id, count(*) as n from pgflow.lease group by worker_id) e on e.worker_id = w.worker_id;
comment on view pgflow.workers is 'The worker processes that count as alive';
--! grant workers to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.workers.worker_id is 'The number of the worker';
comment on column pgflow.workers.host is 'Name of the machine it runs on';
comment on column pgflow.workers.pid is 'Number of its process there';
comment on column pgflow.workers.queues is 'Queues that it serves';
comment on column pgflow.workers.concurrency is 'Most runs that it holds at once';
comment on column pgflow.workers.running is 'Number of runs that it holds now';
comment on column pgflow.workers.stopping is 'True once it takes no further runs';
comment on column pgflow.workers.version is 'Version of pgflow-engine that it runs, its schema and a digest of its files';
comment on column pgflow.workers.started_at is 'Time at which it announced itself';
comment on column pgflow.workers.beat_at is 'Time of its last sign of life';
comment on column pgflow.workers.beat is 'Counts up while it lives; others watch whether it moves';
comment on column pgflow.workers.lost_threads
  is 'Threads whose step bodies still run after the worker stopped waiting for them';
comment on column pgflow.workers.is_outdated
  is 'True if the schema has been upgraded past the code of the worker: it goes on, until you start the new version in '
     'its place';
