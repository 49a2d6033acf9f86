-- Removal of expired keys and of history.
--
-- History is removed by families: a run with all its generations and all its descendants, and only if all of them
-- have ended. It is removed in batches, so that the space is free for new runs long before a vacuum has much to do;
-- and a partition of the journal without runs is dropped as a table, which leaves nothing to vacuum at all. Finished
-- runs have no writers, so no run is locked. A message that is just being posted to such a run is removed by the last
-- call.
--
-- `sweep_keys` and `drop_history` exclude each other (an advisory lock, `pgflow.retention`). A start under a key that
-- is being freed finds the old run, as if it had come first. A start that replaces frees a key too, and takes it at
-- once.

create or replace function pgflow.sweep_keys(max int default 1000, wait boolean default true)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  class record;
  anywhere bigint;
  freed int;
  swept int := 0;
  looked_at int := greatest(max, 1000);
  t timestamptz;
begin
  if wait then
    perform pg_advisory_xact_lock(pgflow.latch_('retention'));
  elsif not pg_try_advisory_xact_lock(pgflow.latch_('retention')) then
    return 0;
  end if;
  perform set_config('synchronous_commit', 'off', true);
  t := pgflow.now_();
  for class in
    with recursive kept as (
      (select k.retention_seconds as seconds from pgflow.run_key k where k.retention_seconds is not null
        order by k.retention_seconds limit 1)
      union all
      select (
        select k.retention_seconds from pgflow.run_key k where k.retention_seconds > kept.seconds
        order by k.retention_seconds limit 1
      ) from kept where kept.seconds is not null
    )
    select c.seconds,
      (select k.chain_id from pgflow.run_key k where k.retention_seconds = c.seconds order by k.chain_id
        limit 1) as oldest,
      (select k.chain_id from pgflow.run_key k where k.retention_seconds = c.seconds order by k.chain_id desc
        limit 1) as newest
    from kept c where c.seconds is not null
  loop
    exit when swept >= max;
    -- From the oldest on, and from anywhere: many that are open for long would hide those behind them for as long.
    anywhere := class.oldest + (random() * (class.newest - class.oldest))::bigint;
    with gone as (
      delete from pgflow.run_key k where k.ctid = any(array(
        select c.ctid from (
          (select h.ctid, h.chain_id from pgflow.run_key h where h.retention_seconds = class.seconds order by h.chain_id
            limit looked_at)
          union
          (
            select h.ctid, h.chain_id from pgflow.run_key h
            where h.retention_seconds = class.seconds and h.chain_id >= anywhere order by h.chain_id limit looked_at
          )
        ) c
        cross join lateral (select o.finished_at from pgflow.outcome o
          where o.run_id = pgflow.newest_run_(c.chain_id) offset 0) o
        where o.finished_at + class.seconds * interval '1 second' <= t
        limit max - swept
      )) returning 1
    )
    select count(*) into freed from gone;
    swept := swept + freed;
  end loop;
  perform pgflow.drop_blobs_();
  return swept;
end
$$;
comment on function pgflow.sweep_keys(int, boolean)
  is 'Frees keys of finished chains whose retention is over, of each retention at most as many as it looks at: the '
     'oldest, and some from anywhere; answers how many. Workers call it once a minute, and do not wait for others who '
     'remove history';
--! grant sweep_keys to pgflow_worker, pgflow_operator

create or replace function pgflow.first_run_since_(at timestamptz)
returns bigint
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  low bigint := (select min(r.run_id) - 1 from pgflow.run r);
  high bigint := (select max(r.run_id) + 1 from pgflow.run r);
  step bigint := (high - low) / 8 + 1;
  probed record;
begin
  -- From the newest run down, so a clock that was ahead for a while hides no older run that came after.
  while high - low > 1 loop
    select r.run_id, r.created_at into probed
    from pgflow.run r where r.run_id >= greatest(high - step, low + 1) and r.run_id < high order by r.run_id limit 1;
    if probed.created_at < at then
      low := probed.run_id;
      step := (high - low) / 8 + 1;
    else
      high := greatest(high - step, low + 1);
    end if;
  end loop;
  return high;
end
$$;
comment on function pgflow.first_run_since_(timestamptz)
  is 'The first run that was made at this time or later, found by some probes: numbers of runs grow with time, but for '
     'starts that went on at the same time';

create or replace function pgflow.ended_roots_(
  ended_before timestamptz, after bigint, max int, tenants text[] default null
)
returns table (root bigint, newest bigint)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  -- A run ends after it was made. So none is read that is too young, and starts at the same time differ by less.
  upto constant bigint := pgflow.first_run_since_(ended_before + interval '1 minute');
begin
  return query
  select o.run_id, case when o.status = 'continued' then pgflow.newest_run_(o.run_id) else o.run_id end
  from pgflow.outcome o
  cross join lateral (
    select from pgflow.run r where r.run_id = o.run_id and r.parent_run_id is null and r.generation = 1
      and (tenants is null or r.tenant = any(tenants))
    offset 0
  ) r
  where o.run_id > after and o.run_id < upto and o.finished_at < ended_before
  order by o.run_id limit max;
end
$$;
comment on function pgflow.ended_roots_(timestamptz, bigint, int, text[])
  is 'Heads of families that ended before a time, so many behind a run, of these tenants or of all; and the newest '
     'generation of each';

create or replace function pgflow.families_(roots bigint[])
returns table (root bigint, run_id bigint)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  -- Not in the language SQL, here and below: that would be planned anew for each batch.
  return query
  with recursive member as (
    select r as root, r as run_id from unnest(roots) r
    union
    select m.root, n.run_id
    from member m
    cross join lateral (
      select c.run_id from pgflow.run c where c.parent_run_id = m.run_id
      union all
      select c.run_id from pgflow.run c where c.chain_id = m.run_id and c.generation > 1
    ) n
  )
  select m.root, m.run_id from member m;
end
$$;
comment on function pgflow.families_(bigint[])
  is 'Runs with all that they continued as and all that they started, and so on';

create or replace function pgflow.removable_(
  roots bigint[], ended_before timestamptz[], t timestamptz, keys_count boolean default true
)
returns bigint[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return array(
    select m.run_id
    from (
      select f.run_id, bool_or(
        o.finished_at is null or o.finished_at >= g.before
          or keys_count and o.finished_at + k.retention_seconds * interval '1 second' > t
        or exists (select from pgflow.owed w where w.run_id = f.run_id)
        or exists (select from pgflow.legal_hold h where h.chain_id = r.chain_id)
      ) over (partition by f.root) as stays
      from pgflow.families_(roots) f
      join unnest(roots, ended_before) as g (root, before) on g.root = f.root
      join pgflow.run r on r.run_id = f.run_id
      left join pgflow.outcome o on o.run_id = f.run_id
      left join pgflow.run_key k on k.tenant = r.tenant and k.key = r.key and k.chain_id = r.chain_id
    ) m
    where m.stays is not true
  );
end
$$;
comment on function pgflow.removable_(bigint[], timestamptz[], timestamptz, boolean)
  is 'Runs of the families of these roots that all ended before the time of the root, that owe nothing, that no legal '
     'hold keeps, and whose keys need not be kept, if that counts';

create or replace function pgflow.remove_runs_(gone bigint[], ended_before timestamptz, why text, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  own_pools text[];
  removal bigint;
begin
  if gone = '{}' then
    return;
  end if;
  delete from pgflow.run_key k using pgflow.run r
  where r.run_id = any(gone) and k.tenant = r.tenant and k.key = r.key and k.chain_id = r.chain_id;
  -- Numbers of starts that it has collected.
  delete from pgflow.run_key k where k.retention_seconds = 86400 and k.chain_id = any(gone);
  delete from pgflow.batch where batch_id = any(gone);
  delete from pgflow.batch_member where batch_id = any(gone);
  delete from pgflow.batch_failure where batch_id = any(gone);
  delete from pgflow.undelivered where chain_id = any(gone);
  delete from pgflow.sent_key where chain_id = any(gone);
  delete from pgflow.run_update where chain_id = any(gone);
  delete from pgflow.update_asker where chain_id = any(gone);
  delete from pgflow.confirmation where chain_id = any(gone);
  delete from pgflow.carried where run_id = any(gone);
  delete from pgflow.saga_effect where chain_id = any(gone);
  with unnamed as (
    delete from pgflow.blob_use where run_id = any(gone) returning blob_id
  )
  update pgflow.blob b set is_loose = true where b.blob_id in (select n.blob_id from unnamed n);
  perform set_config('pgflow.rewrites', 'on', true);
  delete from pgflow.unit where run_id = any(gone);
  perform set_config('pgflow.rewrites', 'off', true);
  delete from pgflow.relabelled where run_id = any(gone);
  delete from pgflow.gate_answer where run_id = any(gone);
  delete from pgflow.imported where run_id = any(gone);
  delete from pgflow.outcome where run_id = any(gone);
  own_pools := array(select distinct r.pool from pgflow.run r
    where r.run_id = any(gone) and starts_with(r.pool, 'run/'));
  perform pgflow.forget_charges_(gone);
  delete from pgflow.run where run_id = any(gone);
  perform pgflow.drop_own_pools_(own_pools);
  perform pgflow.drop_seals_(gone, t);
  insert into pgflow.dropped_history (dropped_at, ended_before, runs, dropped_by, why)
  values (t, ended_before, cardinality(gone), session_user, why)
  returning dropped_history_id into removal;
  perform pgflow.note_evidence_('dropped_history', json_build_array(removal));
end
$$;
comment on function pgflow.remove_runs_(bigint[], timestamptz, text, timestamptz)
  is 'Removes runs that have ended, with all that is known of them, and records how many; the caller holds the latch';

create or replace function pgflow.remove_leftovers_(ended_before timestamptz)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  gone bigint[];
begin
  -- What is sent to a run that has ended has a nudge, so no other mail is looked at.
  with stray as (
    delete from pgflow.nudge n where not exists (select from pgflow.run r where r.run_id = n.chain_id offset 0)
    returning n.chain_id
  )
  select array_agg(s.chain_id) into gone from stray s;
  delete from pgflow.signal s where s.chain_id = any(gone);
  perform pgflow.drop_old_code_(ended_before);
  return pgflow.drop_empty_partitions_();
end
$$;
comment on function pgflow.remove_leftovers_(timestamptz)
  is 'Removes mail and code of no run, and partitions of the journal without runs; answers the number of these';

create or replace function pgflow.drop_history(ended_before timestamptz, max int default 1000, after bigint default 0)
returns table (runs int, partitions int, last_root bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  roots bigint[];
  gone bigint[];
  t timestamptz := pgflow.now_();
begin
  if ended_before is null or ended_before > t then
    raise exception using errcode = 'PF003', message = 'ended_before must be a time that has passed';
  end if;
  -- One at a time: two that delete the same rows in different orders would deadlock.
  perform pg_advisory_xact_lock(pgflow.latch_('retention'));
  perform set_config('synchronous_commit', 'off', true);
  roots := array(
    select h.root from pgflow.ended_roots_(ended_before, after, pgflow.at_most_(max), pgflow.own_tenants()) h
  );
  last_root := roots[cardinality(roots)];
  gone := pgflow.removable_(roots, array_fill(ended_before, array[cardinality(roots)]), t);
  runs := cardinality(gone);
  perform pgflow.remove_runs_(gone, ended_before, null, t);
  partitions := case when last_root is null then pgflow.remove_leftovers_(ended_before) else 0 end;
  perform pgflow.drop_blobs_();
  return next;
end
$$;
comment on function pgflow.drop_history(timestamptz, int, bigint)
  is 'Removes families of runs that ended before a time, up to so many from a root on; answers the last root it looked '
     'at, null once there are none. A session that acts for tenants removes theirs only';
--! grant drop_history to pgflow_operator

comment on column pgflow.dropped_history.dropped_history_id is 'Number of the removal';
comment on column pgflow.dropped_history.dropped_at is 'Time of removal';
comment on column pgflow.dropped_history.ended_before is 'The runs had ended before this time';
comment on column pgflow.dropped_history.runs is 'Number of runs removed';
comment on column pgflow.dropped_history.dropped_by is 'Name of the session that removed them';
comment on column pgflow.dropped_history.why
  is 'Name of the rule of retention that it went by, or the reason why a subject was forgotten; null = none was given';
