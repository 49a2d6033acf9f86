-- Children: runs that another run starts by its code, in the transaction that commits that run's units.
--
-- Called by answer_all_ for all runs of a batch at once. Lanes and keys are taken first, each in one order for the
-- whole batch, so that two batches wait and never deadlock. Then come the runs, in the order in which the code started
-- them: those that are surely new in one statement for all, those whose key was there already one by one.

create or replace function pgflow.take_lanes_(questions jsonb)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.intern_lane_(g.queue, g.workflow, g.version)
  from (
    select distinct c.queue, c.workflow, coalesce(c.version, '') as version
    from pgflow.question_rows_(questions) q cross join lateral pgflow.child_rows_(q.children) c
    order by 1, 2, 3
  ) g
$$;
comment on function pgflow.take_lanes_(jsonb)
  is 'Makes what lanes the children of a batch need in one order, ahead of their runs, so that two batches wait and '
     'never deadlock';

create or replace function pgflow.take_keys_(questions jsonb)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.free_key_(r.tenant, r.run_id, c.key)
  from pgflow.question_rows_(questions) q
  cross join lateral (select n.* from pgflow.run n
    where n.run_id = q.run and n.heritage is not null offset 0) r
  cross join lateral pgflow.child_rows_(q.children) c
  where c.key is not null
  order by r.tenant, c.key;
  -- Numbered in the order in which the code started them.
  insert into pgflow.run_key (tenant, key, chain_id, root)
  select r.tenant, g.key, g.id, pgflow.uuid7_()
  from (
    select q.run as parent, c.key, nextval('pgflow.run_id_seq') as id
    from pgflow.question_rows_(questions) q cross join lateral pgflow.child_rows_(q.children) c
    where c.key is not null
  ) g
  cross join lateral (select n.tenant from pgflow.run n where n.run_id = g.parent offset 0) r
  order by r.tenant, g.key
  on conflict do nothing;
end
$$;
comment on function pgflow.take_keys_(jsonb)
  is 'Takes the keys of all children of a batch in the order of keys, ahead of their runs, so that two batches wait '
     'and never deadlock';

create or replace function pgflow.take_names_(questions jsonb)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.take_lanes_(questions);
  if exists (
    select from pgflow.question_rows_(questions) q cross join lateral pgflow.child_rows_(q.children) c
    where c.key is not null
  ) then
    perform pgflow.take_keys_(questions);
  end if;
end
$$;
comment on function pgflow.take_names_(jsonb)
  is 'Takes the lanes and keys of all children of a batch, ahead of their runs';

create or replace function pgflow.leave_keys_(run bigint, children jsonb)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  delete from pgflow.run_key k
  using pgflow.run r, pgflow.child_rows_(leave_keys_.children) c
  where r.run_id = leave_keys_.run and k.tenant = r.tenant and k.key = c.key
    and not exists (select from pgflow.run x where x.run_id = k.chain_id)
$$;
comment on function pgflow.leave_keys_(bigint, jsonb)
  is 'Gives back keys that this transaction has taken for children that will not be';

create or replace function pgflow.start_known_(
  me bigint, wanted jsonb, t timestamptz, out kind "char", out payload json, out lane_id int
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  parent record;
  c record;
  child record;
begin
  select w.* into c from pgflow.child_rows_(jsonb_build_array(wanted)) w;
  select r.tenant, r.deadline_at, r.root_run_id, r.metadata, r.pool into strict parent
  from pgflow.run r where r.run_id = me;
  select i.* into child
  from pgflow.insert_run_(
    parent.tenant, c.key, c.workflow, c.queue, coalesce(c.version, ''), coalesce(c.priority, 0), c.input, c.run_at,
    coalesce(greatest(t, c.run_at) + c.timeout, parent.deadline_at), c.labels, coalesce(c.metadata, parent.metadata),
    me, c.call, c.close_policy, parent.root_run_id, pool => coalesce(c.pool, parent.pool), budget => c.budget
  ) i;
  if child.clash is null then
    kind := 'k';
    payload := json_build_object('run_id', child.run_id, 'key', child.run_key);
    lane_id := child.lane_id;
  else
    kind := 'K';
    payload := json_build_object('status', 'refused', 'error', json_build_object(
      'type', 'pgflow.errors.KeyConflict', 'mro', json_build_array('pgflow.errors.KeyConflict'),
      'args', json_build_array(child.clash), 'message', child.clash));
  end if;
end
$$;
comment on function pgflow.start_known_(bigint, jsonb, timestamptz)
  is 'Starts one child whose key may name a run already: what is recorded of it, started or refused';

create or replace function pgflow.start_children_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns table (pos int, seq int, units jsonb, lanes int[])
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  began timestamptz := pgflow.now_(); -- a key may have been waited for since the commit read it
  stems uuid[];
  made_at int[];
  made_seqs int[];
  made jsonb[];
  lane_ids int[];
  known record;
  child record;
begin
  stems := pgflow.uuids7_((
    select sum(jsonb_array_length(q.children)) from pgflow.question_rows_(questions) q where q.pos = any(positions)
  )::int);
  -- The numbers are given in the order of the calls; of two children of one key the first is the run.
  with parents as materialized (
    select q.pos, q.children, q.run as me, q.token, seqs[q.pos] as seq,
      r.tenant, r.deadline_at, r.root_run_id, r.metadata, r.pool
    from pgflow.question_rows_(questions) q
    cross join lateral (select n.* from pgflow.run n where n.run_id = q.run offset 0) r
    where q.pos = any(positions)
  ), kids as materialized (
    select p.pos, p.me, p.token, p.seq + c.n as seq, p.tenant, p.root_run_id,
      c.call, c.workflow, c.queue, c.input, c.labels, c.close_policy, c.key, k.chain_id, k.root, c.run_at,
      row_number() over (order by p.pos, c.n) as i, coalesce(c.version, '') as version,
      coalesce(c.priority, 0) as priority,
      coalesce(greatest(t, c.run_at) + c.timeout, p.deadline_at) as deadline_at,
      coalesce(c.metadata, p.metadata) as metadata, coalesce(c.pool, p.pool) as pool, c.budget
    from parents p cross join lateral pgflow.child_rows_(p.children) c
    left join lateral (
      select y.chain_id, y.root from pgflow.run_key y
      where c.key is not null and y.tenant = p.tenant and y.key = c.key
        -- one that this batch has just taken
        and not exists (select from pgflow.run x where x.run_id = y.chain_id offset 0)
      offset 0
    ) k on true
  ), fresh as materialized (
    select f.*, coalesce(f.chain_id, nextval('pgflow.run_id_seq')) as run_id, coalesce(f.root, stems[f.i]) as stem,
      coalesce(f.key, stems[f.i]::text) as run_key, l.lane_id
    from (
      select k.*, row_number() over (partition by k.chain_id order by k.i) as nth from kids k
    ) f
    cross join lateral (
      select n.lane_id from pgflow.lane n
      where n.queue = f.queue and n.workflow = f.workflow and n.version = f.version offset 0
    ) l
    where f.key is null or f.chain_id is not null and f.nth = 1
    order by f.i
  ), named as (
    insert into pgflow.run_key (tenant, key, chain_id, root) select f.tenant, f.run_key, f.run_id, f.stem from fresh f
    where f.key is null
  ), begun as (
    insert into pgflow.run (
      run_id, chain_id, root_run_id, parent_run_id, created_at, run_at, deadline_at, root, generation, lane_id,
      parent_call, priority, close_policy, tenant, key, input, labels, metadata, pool
    )
    select f.run_id, f.run_id, f.root_run_id, f.me, began, f.run_at, f.deadline_at, f.stem, 1, f.lane_id,
      f.call, f.priority, f.close_policy, f.tenant, f.run_key, f.input,
      f.labels, f.metadata, case when f.budget is null then f.pool else pgflow.own_pool_(f.stem) end
    from fresh f
  ), limited as (
    insert into pgflow.deadline (run_id, due_at) select f.run_id, f.deadline_at from fresh f
    where f.deadline_at is not null
  ), budgeted as (
    insert into pgflow.pool (made_at, soft, is_hard, name, pools, tz, limits)
    select began, 0.8, false, pgflow.own_pool_(f.stem), pgflow.own_line_(f.stem, f.pool), 'UTC', f.budget
    from fresh f where f.budget is not null
  ), early as (
    insert into pgflow.parked (run_id, chain_id, parked_at, lane_id, last_seq, priority)
    select f.run_id, f.run_id, began, f.lane_id, 0, f.priority from fresh f where f.run_at > began
  ), timed as (
    insert into pgflow.timer (due_at, run_id, call) select f.run_at, f.run_id, 0 from fresh f where f.run_at > began
  ), placed as (
    insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority)
    select f.run_id, began, f.lane_id, 0, 0, f.priority from fresh f
    where f.run_at is null or f.run_at <= began
  ), noted as (
    insert into pgflow.unit (run_id, seq, call, kind, name, payload, token, at, recorded_at)
    select f.me, f.seq, f.call, 'k', f.workflow, json_build_object('run_id', f.run_id, 'key', f.run_key), f.token,
      t, t from fresh f
  )
  select array_agg(f.pos), array_agg(f.seq), array_agg(f.lane_id),
    array_agg(pgflow.unit_json_(f.seq::int, f.call, 'k', f.workflow,
      json_build_object('run_id', f.run_id, 'key', f.run_key)))
  into made_at, made_seqs, lane_ids, made
  from fresh f;

  for known in
    select q.pos, q.run as me, q.token, seqs[q.pos] + c.n as seq, c.call, c.workflow, c.child as wanted
    from pgflow.question_rows_(questions) q cross join lateral pgflow.child_rows_(q.children) c
    where q.pos = any(positions) and c.key is not null
      and not exists (select from unnest(made_at, made_seqs) as m (p, s) where m.p = q.pos and m.s = seqs[q.pos] + c.n)
    order by q.pos, c.n
  loop
    select s.* into child from pgflow.start_known_(known.me, known.wanted, t) s;
    perform pgflow.append_(known.me, known.seq, known.call, child.kind, known.workflow, child.payload, known.token, t,
      t);
    made_at := made_at || known.pos;
    made_seqs := made_seqs || known.seq;
    made := made || pgflow.unit_json_(known.seq, known.call, child.kind, known.workflow, child.payload);
    lane_ids := lane_ids || child.lane_id;
  end loop;
  return query
    select m.p, max(m.s), jsonb_agg(m.u order by m.s), array_agg(distinct m.l) filter (where m.l is not null)
    from unnest(made_at, made_seqs, made, lane_ids) as m (p, s, u, l) group by m.p;
end
$$;
comment on function pgflow.start_children_(jsonb, int[], int[], timestamptz)
  is 'Starts the children that runs of a batch ask for, each recorded as started or refused: of each position of the '
     'batch the last seq then, its units, and lanes';

create or replace function pgflow.check_children_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'a child is recorded by its parent', format('run %s', c.run_id)
  from pgflow.run c
  where c.parent_run_id is not null and c.generation = 1
    and not exists (select from pgflow.unit u where u.run_id = c.parent_run_id and u.call = c.parent_call
      and u.kind = 'k')
  union all
  select 'a parent hears of its child', format('run %s', c.run_id)
  from pgflow.run c join pgflow.outcome o on o.run_id = c.run_id and o.status <> 'continued'
  where c.parent_run_id is not null
    and not exists (select from pgflow.outcome po where po.run_id = c.parent_run_id)
    and not exists (select from pgflow.signal s where s.kind = 'c' and s.run_id = c.parent_run_id
      and s.call = c.parent_call)
    and not exists (select from pgflow.unit u where u.run_id = c.parent_run_id and u.call = c.parent_call
      and u.kind in ('K', 'x'));
end
$$;
comment on function pgflow.check_children_() is 'Parents know their children, and hear of their ends';
