-- Workers: their liveness, and the recovery of their work. The only sign of life is a counter that moves. No process
-- clock declares a worker late: another worker watches the counter by its own observations and, when it has not moved
-- for the whole timeout, asks for the death here, where the counter is compared once more under a lock.
--
-- Batches of runs that continue or end share an advisory lock of their worker (`pgflow.worker` and its number),
-- without waiting. `reap_worker` takes it exclusively, and takes no run if it does not get it at once; it locks
-- leases with SKIP LOCKED. `release_runs` takes it exclusively too, and waits for it and for the leases.
--
-- Which of a dead worker's runs has killed it? Those that have recorded something since their claim are out of it. The
-- others are suspects, and a death is counted for each (`suspect`). A first death is mostly that of a machine, so they
-- go on at once like all others. From the second on they go in groups: a worker has one at a time, and of the group in
-- which a worker dies none has more than half as many with it next time (`company`). So a run that kills is alone
-- after a logarithm of deaths, while other groups go on. Only a run that was alone among its like is ever stuck:
-- `max_deaths` counts deaths, and the last of them must be its own. A worker takes the next group once the bodies of
-- one have returned, or have lived on for long (`pgflow/_worker/runs.py`).

create or replace function pgflow.register_worker(
  host text, pid int, queues text[], concurrency int, version text, stamp text default null
)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  id int;
  t timestamptz := pgflow.now_();
begin
  if pgflow.own_tenants() is not null then
    raise exception using errcode = 'PF021', message = 'a worker acts for every tenant, and this session for one',
      hint = 'Start it without --tenant and without the setting pgflow.tenant.';
  end if;
  -- Of all sequences these two: the others are only looked at where one of them is behind.
  if (select max(r.run_id) from pgflow.run r) > coalesce(pg_sequence_last_value('pgflow.run_id_seq'), 0)
    or greatest((select c.horizon from pgflow.event_cursor c), (select max(r.horizon) from pgflow.relay r))
      > coalesce(pg_sequence_last_value('pgflow.event_id_seq'), 0)
  then
    raise exception using errcode = 'PF006',
      message = 'sequences are behind the rows, which came here without them',
      hint = (select string_agg(n.detail, ' ') from pgflow.check_numbers_() n);
  end if;
  insert into pgflow.worker (host, pid, queues, concurrency, version, started_at, beat_at, stamp)
  values (left(host, 255), pid, queues, concurrency, version, t, t, left(stamp, 255))
  returning worker_id into id;
  return id;
end
$$;
comment on function pgflow.register_worker(text, int, text[], int, text, text)
  is 'A worker process announces itself, and the stamp of the schema that its code is made for; answers its number';
--! grant register_worker to pgflow_worker

create or replace function pgflow.wal_(out timeline int, out flushed bigint, out recovered_to bigint, out waits boolean)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  flushed := pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0');
  timeline := ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::int;
  recovered_to := pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0');
  waits := current_setting('synchronous_standby_names') <> '';
exception when feature_not_supported or insufficient_privilege or object_not_in_prerequisite_state
  or undefined_function then
  null; -- a service that is not quite Postgres: its workers live without
end
$$;
comment on function pgflow.wal_()
  is 'Timeline and position of the server''s log, how far it had replayed another''s when it was promoted, and whether '
     'commits wait for a standby';

create or replace function pgflow.beat(worker_id int, stopping boolean default false)
returns table (alive boolean, mail bigint[], timeline int, flushed bigint, recovered_to bigint, waits boolean)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  perform set_config('synchronous_commit', 'off', true);
  update pgflow.worker w set beat = w.beat + 1, beat_at = pgflow.now_(), stopping = beat.stopping
  where w.worker_id = worker_id;
  alive := found;
  mail := array(
    select e.run_id from pgflow.lease e join pgflow.run r on r.run_id = e.run_id
    where e.worker_id = worker_id
      and exists (select from pgflow.signal s where s.chain_id = r.chain_id and s.kind in ('x', 'p', 'e') offset 0)
  );
  select w.timeline, w.flushed, w.recovered_to, w.waits into timeline, flushed, recovered_to, waits
  from pgflow.wal_() w;
  return next;
end
$$;
comment on function pgflow.beat(int, boolean)
  is 'Sign of life; returns whether the worker still counts as alive, its runs to cancel or pause, and the position '
     'of the log';
--! grant beat to pgflow_worker

create or replace function pgflow.count_lost_threads(worker_id int, lost int)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  perform set_config('synchronous_commit', 'off', true);
  update pgflow.worker w set lost_threads = lost where w.worker_id = worker_id;
end
$$;
comment on function pgflow.count_lost_threads(int, int)
  is 'Records the number of a worker''s threads whose bodies outlive their steps';
--! grant count_lost_threads to pgflow_worker

create or replace function pgflow.observe_workers()
returns table (worker_id int, beat bigint)
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select w.worker_id, w.beat from pgflow.worker w
  union all
  select e.worker_id, -1::bigint from (select distinct l.worker_id from pgflow.lease l) e
  where not exists (select from pgflow.worker w where w.worker_id = e.worker_id)
$$;
comment on function pgflow.observe_workers()
  is 'The beats of all workers; -1 for one that is gone and still has leases';
--! grant observe_workers to pgflow_worker

create or replace function pgflow.reap_worker(worker_id int, beat bigint)
returns table (reclaimed int, stuck bigint[], lanes int[])
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  current_beat bigint;
  ids bigint[];
  t timestamptz;
begin
  reclaimed := 0;
  stuck := '{}';
  lanes := '{}';
  select w.beat into current_beat from pgflow.worker w where w.worker_id = worker_id for update;
  if coalesce(current_beat, -1) is distinct from beat then
    return next;
    return;
  end if;
  -- A session that works in SQL lives as long as it shares this lock: it cannot beat inside a step.
  if exists (select from pgflow.worker w where w.worker_id = worker_id and w.version = 'sql')
    and not pg_try_advisory_xact_lock(pgflow.latch_('worker ' || worker_id))
  then
    return next;
    return;
  end if;
  delete from pgflow.worker w where w.worker_id = worker_id;
  -- A worker that froze between its fence and its COMMIT still locks a lease, and waiting for it here would freeze
  -- too. It stays behind as a lease without a worker, and is taken once its session has timed out. So do all of them
  -- while a batch of this worker is being committed.
  if pg_try_advisory_xact_lock(pgflow.latch_('worker ' || worker_id)) then
    select array_agg(k.run_id) into ids from (
      select e.run_id from pgflow.lease e where e.worker_id = worker_id order by e.run_id for update skip locked
    ) k;
  end if;
  t := pgflow.now_();
  with gone as (
    delete from pgflow.lease e where e.run_id = any(ids) returning e.*
  ), seen as (
    select g.*, n.newest, n.newest = g.last_seq and not exists (
      select from pgflow.step_beat b where b.run_id = g.run_id and b.details is not null and b.beat_at >= g.claimed_at
    ) as is_suspect, q.max_deaths
    from gone g
    cross join lateral (select coalesce(max(u.seq), 0) as newest from pgflow.unit u where u.run_id = g.run_id) n
    join pgflow.lane l on l.lane_id = g.lane_id
    join pgflow.queue q on q.queue = l.queue
  ), counted as (
    select s.*, count(*) filter (where s.is_suspect) over () as of_first,
      count(*) filter (where s.is_suspect and s.suspect > 0) over () as of_second,
      count(*) filter (where s.is_suspect and s.suspect > 1) over () as of_later
    from seen s
  ), judged as (
    select c.*, case when c.is_suspect then least(c.suspect + 1, 32767) else 0 end as deaths,
      case when c.is_suspect and c.suspect > 0
        then (least(nullif(c.company, 0), c.of_second, 32766) + 1) / 2 else 0 end as half,
      c.is_suspect and case c.suspect when 0 then c.of_first when 1 then c.of_second else c.of_later end = 1 as is_alone
    from counted c
  ), back as (
    insert into pgflow.ready as r (run_id, ready_at, lane_id, last_seq, attempt, priority, suspect, company, has_begun)
    select j.run_id, t, j.lane_id, j.newest, case when j.deaths = 0 then 0 else j.attempt end, j.priority,
      j.deaths, j.half, true
    from judged j where j.deaths < j.max_deaths or not j.is_alone order by j.run_id
    returning r.lane_id
  ), kept as (
    insert into pgflow.held as h (run_id, held_at, lane_id, last_seq, attempt, priority, has_begun, state, reason,
      held_by, detail)
    select j.run_id, t, j.lane_id, j.newest, j.attempt, j.priority, true, 'stuck', 'poison', 'pgflow',
      jsonb_build_object('deaths', j.deaths,
        'message', format('%s workers died holding this run and it recorded nothing: if it kills them, mend that; '
          'if its step only takes long, pgflow retry gives it as many deaths again', j.deaths))
    from judged j where j.deaths >= j.max_deaths and j.is_alone order by j.run_id
    returning h.run_id
  )
  select (select count(*) from back), coalesce((select array_agg(k.run_id) from kept k), '{}'),
    coalesce((select array_agg(distinct b.lane_id) from back b), '{}')
  into reclaimed, stuck, lanes;
  perform pgflow.nudge_asked_(array(select r.chain_id from pgflow.run r where r.run_id = any(ids)));
  perform pgflow.leave_code_(worker_id, t);
  return next;
end
$$;
comment on function pgflow.reap_worker(int, bigint)
  is 'Declares a worker dead if its beat is still the one observed, and gives its runs away; those it died on too '
     'often are stuck';
--! grant reap_worker to pgflow_worker

create or replace function pgflow.begin_tick(queues text)
returns boolean
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select pg_try_advisory_xact_lock(pgflow.latch_('tick ' || begin_tick.queues))
$$;
comment on function pgflow.begin_tick(text)
  is 'Keeps other exclusive ticks from these queues until the end of the transaction; false if one is at work on them';
--! grant begin_tick to pgflow_worker

create or replace function pgflow.leave_worker(worker_id int)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  delete from pgflow.worker w where w.worker_id = worker_id
    and not exists (select from pgflow.lease e where e.worker_id = worker_id);
  if found then
    perform pgflow.leave_code_(worker_id, pgflow.now_());
  end if;
end
$$;
comment on function pgflow.leave_worker(int) is 'A worker that holds nothing any more takes its leave';
--! grant leave_worker to pgflow_worker

create or replace function pgflow.free_stuck_(run_ids bigint[])
returns int
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from pgflow.held h where h.run_id = any(run_ids) returning h.*
  ), freed as (
    insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority, has_begun)
    select g.run_id, pgflow.now_(), g.lane_id, g.last_seq, 0, g.priority, true from gone g order by g.run_id
    returning 1
  )
  select count(*)::int from freed
$$;
comment on function pgflow.free_stuck_(bigint[])
  is 'Lets stuck runs, which are locked, be tried again; answers how many';

create or replace function pgflow.release_outdated(worker_id int)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  -- Newer code may try runs that older code could not replay, never the other way round: a run that fits neither
  -- stops.
  return pgflow.free_stuck_(array(
    select k.run_id from pgflow.held k
    join pgflow.lane l on l.lane_id = k.lane_id
    join pgflow.code held_by on held_by.workflow = l.workflow and held_by.code_hash = k.code_hash
    join pgflow.code mine on mine.workflow = l.workflow and mine.code_hash <> k.code_hash
      and mine.first_at > held_by.first_at
    join pgflow.worker_code w on w.code_id = mine.code_id and w.worker_id = release_outdated.worker_id
    where k.state = 'stuck' and k.reason in ('nondeterminism', 'definition', 'signal')
      and l.version in ('', mine.version)
    order by k.run_id for update of k skip locked
  ));
end
$$;
comment on function pgflow.release_outdated(int)
  is 'A worker lets runs be tried again that older code could not replay, while both are about; answers how many';
--! grant release_outdated to pgflow_worker

create or replace function pgflow.release_stuck(workflows text[], code_hashes text[])
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return pgflow.free_stuck_(array(
    select k.run_id from pgflow.held k
    join pgflow.lane l on l.lane_id = k.lane_id
    join unnest(workflows, code_hashes) as c (workflow, code_hash) on c.workflow = l.workflow
    where k.state = 'stuck' and k.reason in ('nondeterminism', 'definition', 'signal')
      and k.code_hash is distinct from c.code_hash
    order by k.run_id for update of k skip locked
  ));
end
$$;
comment on function pgflow.release_stuck(text[], text[])
  is 'A worker with other code than the one that could not replay a run lets it be tried again; answers how many';
--! grant release_stuck to pgflow_worker

comment on column pgflow.worker.worker_id is 'The number of the worker, never used again';
comment on column pgflow.worker.pid is 'Number of its process on its host';
comment on column pgflow.worker.beat is 'Counts up while it lives; others watch whether it moves';
comment on column pgflow.worker.beat_at is 'Time at which it last counted up, for people: nothing is decided by it';
comment on column pgflow.worker.started_at is 'Time at which it announced itself';
comment on column pgflow.worker.concurrency is 'Most runs that it holds at once';
comment on column pgflow.worker.stopping is 'True once it takes no further runs';
comment on column pgflow.worker.host is 'Name of the machine it runs on';
comment on column pgflow.worker.version is 'Version of pgflow-engine that it runs, its schema and a digest of its files';
comment on column pgflow.worker.queues is 'Queues that it serves';
