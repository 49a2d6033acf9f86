-- Rates: what was started and what ended in each minute of the last day, how long it took, and how much was queued.
--
-- No index has the end times of runs, and none shall: it would cost each run. So workers count the ends that they
-- commit, in their memory, and add their counts to the row of the minute a few times a minute (`add_rates`). A worker
-- that is killed loses its last seconds, and ends without a worker, such as the cancel of a run that never began, are
-- not counted. These rows are for people who look at the system; nothing is decided by them.
--
-- The row of the queue '' has the totals and the durations. Once a minute the first call that comes also counts what
-- is queued and what was started since the last such look, and removes rows that are older than a day. One call at a
-- time does that, under an advisory lock that no call waits for (`pgflow.rates`).

create or replace function pgflow.add_counts_(one int[], other int[])
returns int[]
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg(coalesce(c.n, 0) + coalesce(c.m, 0) order by c.place), '{}')
  from unnest(one, other) with ordinality as c (n, m, place)
$$;
comment on function pgflow.add_counts_(int[], int[]) is 'Adds counts place by place; a missing one is 0';

create or replace function pgflow.sample_rates_(this_minute timestamptz, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  upto constant bigint := coalesce((select r.run_id from pgflow.run r order by r.run_id desc limit 1), 0);
  since bigint;
begin
  select r.upto_run_id into since from pgflow.rate r
  where r.queue = '' and r.upto_run_id is not null order by r.minute desc limit 1;
  insert into pgflow.rate as r (minute, queue, started, queued, oldest_seconds, upto_run_id)
  select this_minute, coalesce(l.queue, ''), coalesce(sum(s.n), 0), coalesce(sum(q.n), 0),
    max(extract(epoch from t - q.oldest)), case when grouping(l.queue) = 1 then upto end
  from pgflow.lane l
  left join (
    select n.lane_id, count(*) as n from pgflow.run n
    where n.run_id > coalesce(since, upto) and n.run_id <= upto and n.generation = 1 group by n.lane_id
  ) s on s.lane_id = l.lane_id
  left join (
    select abs(y.lane_id) as lane_id, count(*) as n, min(y.ready_at) as oldest from pgflow.ready y group by abs(y.lane_id)
  ) q on q.lane_id = l.lane_id
  group by grouping sets ((), (l.queue))
  having grouping(l.queue) = 1 or sum(s.n) > 0 or sum(q.n) > 0
  order by 2
  on conflict (minute, queue) do update
    set started = r.started + excluded.started, queued = excluded.queued, oldest_seconds = excluded.oldest_seconds,
      upto_run_id = excluded.upto_run_id;
  delete from pgflow.rate r where r.minute < this_minute - interval '25 hours';
end
$$;
comment on function pgflow.sample_rates_(timestamptz, timestamptz)
  is 'Counts what was started since the last look and what is queued now, and removes rows of more than a day ago';

create or replace function pgflow.add_rates(ended json default '[]', took int[] default '{}')
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  t constant timestamptz := pgflow.now_();
  this_minute constant timestamptz := date_trunc('minute', t);
begin
  perform set_config('synchronous_commit', 'off', true);
  -- In the order of their queues, as every call does: no two calls wait for each other.
  insert into pgflow.rate as r (minute, queue, completed, failed, cancelled, took)
  select this_minute, coalesce(s.queue, ''), sum(s.completed), sum(s.failed), sum(s.cancelled),
    case when grouping(s.queue) = 1 then took end
  from (
    select l.queue, (e->>1)::int as completed, (e->>2)::int as failed, (e->>3)::int as cancelled
    from json_array_elements(ended) e join pgflow.lane l on l.lane_id = (e->>0)::int
  ) s
  group by grouping sets ((), (s.queue)) having count(*) > 0
  order by 2
  on conflict (minute, queue) do update
    set completed = r.completed + excluded.completed, failed = r.failed + excluded.failed,
      cancelled = r.cancelled + excluded.cancelled, took = pgflow.add_counts_(r.took, excluded.took);
  if pg_try_advisory_xact_lock(pgflow.latch_('rates')) and not exists (
    select from pgflow.rate r where r.minute = this_minute and r.queue = '' and r.upto_run_id is not null
  ) then
    perform pgflow.sample_rates_(this_minute, t);
  end if;
end
$$;
comment on function pgflow.add_rates(json, int[])
  is 'Adds what a worker has ended to the counts of this minute; ended = [[lane_id, completed, failed, cancelled], '
     '...], took = runs of each duration, as in pgflow.rates. Workers call it a few times a minute, whatever they do';
--! grant add_rates to pgflow_worker

comment on column pgflow.rate.minute is 'Beginning of the minute';
comment on column pgflow.rate.upto_run_id
  is 'Newest run at the look of this minute; null = of a queue, or before the first look';
comment on column pgflow.rate.started is 'Runs that were started between two looks';
comment on column pgflow.rate.completed is 'Runs that workers completed';
comment on column pgflow.rate.failed is 'Runs that failed';
comment on column pgflow.rate.cancelled is 'Runs that were cancelled';
comment on column pgflow.rate.queued is 'Runs that could be claimed at the look; null = there was none';
comment on column pgflow.rate.oldest_seconds
  is 'Time for which the oldest of them had waited; null = none was queued';
comment on column pgflow.rate.queue is 'Name of the queue; empty = all of them';
comment on column pgflow.rate.took is 'Ends by duration, as in pgflow.rates; null = of a queue';

drop view if exists pgflow.rates;
create view pgflow.rates as
select r.minute, nullif(r.queue, '') as queue, r.started, r.completed, r.failed, r.cancelled, r.queued,
  r.oldest_seconds, r.took
from pgflow.rate r;
comment on view pgflow.rates
  is 'Counts of runs that were started, and that workers ended, in each minute of the last day: in all and by queue';
--! grant rates to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.rates.minute is 'Beginning of the minute';
comment on column pgflow.rates.queue is 'Name of the queue; null = all of them';
comment on column pgflow.rates.started is 'Runs that were started within the minute before the look';
comment on column pgflow.rates.completed is 'Runs that completed';
comment on column pgflow.rates.failed is 'Runs that failed';
comment on column pgflow.rates.cancelled is 'Runs that were cancelled';
comment on column pgflow.rates.queued is 'Runs that could be claimed at the look; null = there was none';
comment on column pgflow.rates.oldest_seconds is 'Time for which the oldest of them had waited; null = none was queued';
comment on column pgflow.rates.took
  is 'Ends by the time from the start, of all queues: the first count is below 1.28 ms, and each four double '
     'the time; null = not counted';
