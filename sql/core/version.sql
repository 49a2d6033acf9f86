-- Versions: the code that open runs may depend on, and the workers that have it.
--
-- A run costs nothing for this: no row, column or index of a run says which code began it. Workers say, when
-- they come, which versions of which workflows they have and which patches are written in them (`code`,
-- `worker_code`, `code_patch`), and `code.last_at` says when the last of them went. A run that no version is
-- pinned to may have been worked on by every code that was served between its first unit and now, and by no
-- other. So what the views say errs on one side only: they may call a version or an old side needed that no
-- run has taken, never the other way round.
--
-- Locks: rows of `code` come last, after leases, in the order of (workflow, version, code_hash).

create or replace function pgflow.is_alias_(old_name text, name text)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (select from pgflow.code c where c.workflow = old_name and c.alias_of = name)
$$;
comment on function pgflow.is_alias_(text, text)
  is 'True if a worker has registered this name as an earlier one of the workflow';

create or replace function pgflow.put_code_(codes jsonb)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  t timestamptz := pgflow.now_();
begin
  with given as (
    select e.* from pgflow.code_rows_(codes) e
  )
  insert into pgflow.code as c (first_at, last_at, is_pinned, workflow, version, code_hash, alias_of, defaults,
    parameters)
  select t, t, g.is_pinned, g.workflow, g.version, g.code_hash, g.alias_of, g.defaults, g.parameters from given g
  order by g.workflow, g.version, g.code_hash
  on conflict (workflow, version, code_hash) do update
  set last_at = greatest(c.last_at, excluded.last_at), is_pinned = excluded.is_pinned, alias_of = excluded.alias_of,
    defaults = excluded.defaults, parameters = excluded.parameters;
  insert into pgflow.code_patch (code_id, is_deprecated, patch)
  select c.code_id, p.value::boolean, p.key
  from pgflow.code_rows_(codes) e
  join pgflow.code c on c.workflow = e.workflow and c.version = e.version and c.code_hash = e.code_hash
  cross join lateral jsonb_each_text(e.patches) p
  order by c.code_id, p.key
  on conflict do nothing;
  insert into pgflow.code_signal (code_id, signal, shape)
  select c.code_id, p.key, p.value
  from pgflow.code_rows_(codes) e
  join pgflow.code c on c.workflow = e.workflow and c.version = e.version and c.code_hash = e.code_hash
  cross join lateral jsonb_each(coalesce(e.signals, '{}')) p
  order by p.key, c.code_id
  on conflict do nothing;
exception when data_exception or not_null_violation then
  raise exception using errcode = 'PF003', message = format('the code cannot be stored: %s', sqlerrm);
end
$$;
comment on function pgflow.put_code_(jsonb) is 'Makes rows of code known, as register_code takes them';

create or replace function pgflow.register_code(worker_id int, codes jsonb)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.put_code_(codes);
  insert into pgflow.worker_code (worker_id, code_id)
  select register_code.worker_id, c.code_id
  from pgflow.code_rows_(codes) e join pgflow.code c on c.workflow = e.workflow and c.version = e.version
    and c.code_hash = e.code_hash
  on conflict do nothing;
end
$$;
comment on function pgflow.register_code(int, jsonb)
  is 'A worker says what code it has: [[workflow, version, hash, whether it is pinned, name now if that one is old, '
     '{patch: whether it is deprecated}, {signal: shape of its payloads}, text of {parameter: default}], ...]';
--! grant register_code to pgflow_worker

create or replace function pgflow.fill_input_(input json, defaults json)
returns json
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  missing text;
begin
  if defaults is null or json_typeof(input) <> 'object' or pgflow.is_envelope_(input::jsonb) then
    return input;
  end if;
  select string_agg(to_json(d.key)::text || ':' || d.value::text, ',') into missing
  from json_each(defaults) d where not input::jsonb ? d.key;
  -- As text, since jsonb writes some numbers in another way.
  return case when missing is null then input
    when input::jsonb = '{}' then ('{' || missing || '}')::json
    else (regexp_replace(input::text, e'\\}\\s*$', '') || ',' || missing || '}')::json end;
end
$$;
comment on function pgflow.fill_input_(json, json) is 'An input with the defaults of what it leaves out';

create or replace function pgflow.known_code_(
  workflow text, version text, out defaults json, out shapes jsonb[], out code_ids int[]
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  select (array_agg(k.defaults order by k.last_at desc, k.code_id desc))[1],
    array_agg(k.parameters order by k.last_at, k.code_id) filter (where k.is_in_force),
    array_agg(k.code_id) filter (where k.is_in_force)
  into known_code_.defaults, known_code_.shapes, known_code_.code_ids
  from (
    select c.*, c.is_asked and (c.is_alive or not bool_or(c.is_asked and c.is_alive) over ()
      and row_number() over (partition by c.is_asked order by c.last_at desc, c.code_id desc) = 1) as is_in_force
    from (
      select c.code_id, c.last_at, c.defaults, c.parameters, known_code_.version in ('', c.version) as is_asked,
        exists (select from pgflow.worker_code w where w.code_id = c.code_id) as is_alive
      from pgflow.code c where c.workflow = known_code_.workflow
    ) c
  ) k;
end
$$;
comment on function pgflow.known_code_(text, text)
  is 'Reads the recorded code of a workflow once: the defaults of its parameters in the code that was served last; the '
     'shapes of the parameters, and the numbers, of the code in force, which living workers have, or else was served '
     'last. No version = any; nulls = none is known';

create or replace function pgflow.check_inputs_(workflow text, shapes jsonb[], inputs text[])
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  input jsonb;
  shape jsonb;
  why text;
begin
  foreach input in array coalesce(inputs, '{}') loop -- an empty batch has none
    continue when pgflow.is_envelope_(input); -- what is encoded was checked by its sender
    foreach shape in array shapes loop
      why := pgflow.misfit_(shape, input);
      exit when why is null;
    end loop;
    if why is not null then
      raise exception using errcode = 'PF003',
        message = format('workflow %s does not take this input: parameter %s. Nothing was started', workflow, why),
        hint = format('It takes %s. If newer code takes this, start a worker that has it first.', coalesce((
          select string_agg(format(case when (f->2)::boolean then '%s' else '[%s]' end, f->0->>0), ', ' order by n)
          from jsonb_array_elements(shape->'fields') with ordinality as x (f, n)), 'no parameters'));
    end if;
  end loop;
end
$$;
comment on function pgflow.check_inputs_(text, jsonb[], text[])
  is 'Refuses (PF003) an input that lacks a parameter, or has one too many, for all code of a workflow that is in force';

create or replace function pgflow.leave_code_(worker_id int, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  ids int[];
begin
  ids := array(select w.code_id from pgflow.worker_code w where w.worker_id = worker_id);
  perform from pgflow.code c where c.code_id = any(ids) order by c.workflow, c.version, c.code_hash for no key update;
  update pgflow.code c set last_at = greatest(c.last_at, t) where c.code_id = any(ids);
  delete from pgflow.worker_code w where w.worker_id = worker_id;
end
$$;
comment on function pgflow.leave_code_(int, timestamptz) is 'A worker is gone: what code it had was served until now';

create or replace function pgflow.drop_old_code_(before timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  oldest timestamptz;
begin
  -- Starts at the same time take their numbers in any order, within less than a minute.
  select r.created_at - interval '1 minute' into oldest
  from pgflow.run r where r.run_id = (
    select least(
      (select min(p.run_id) from pgflow.ready p), (select min(p.run_id) from pgflow.lease p),
      (select min(p.run_id) from pgflow.parked p), (select min(p.run_id) from pgflow.held p)
    )
  );
  with gone as (
    delete from pgflow.code c
    where c.last_at < least(before, coalesce(oldest, before))
      and not exists (select from pgflow.worker_code w where w.code_id = c.code_id)
    returning c.code_id
  ), patches as (
    delete from pgflow.code_patch p using gone g where p.code_id = g.code_id
  )
  delete from pgflow.code_signal s using gone g where s.code_id = g.code_id;
end
$$;
comment on function pgflow.drop_old_code_(timestamptz)
  is 'Forgets code that was last served before a time and before every run that is open';

drop view if exists pgflow.versions;
create view pgflow.versions as
with open_run as materialized (
  -- Code first worked on a run at its first unit.
  select p.run_id, l.workflow, l.version, coalesce(u.recorded_at, p.claimed_at) as begun_at,
    u.run_id is not null as has_history
  from (
    select run_id, abs(lane_id) as lane_id, null::timestamptz as claimed_at from pgflow.ready
    union all select run_id, lane_id, claimed_at from pgflow.lease
    union all select run_id, lane_id, null from pgflow.parked
    union all select run_id, lane_id, null from pgflow.held
  ) p
  join pgflow.lane l on l.lane_id = p.lane_id
  left join pgflow.unit u on u.run_id = p.run_id and u.seq = 1
), code as (
  select c.workflow, c.version, bool_or(c.is_pinned) as pinned, min(c.first_at) as first_at, max(c.last_at) as last_at,
    count(distinct w.worker_id) as workers
  from pgflow.code c
  left join (
    select x.code_id, x.worker_id from pgflow.worker_code x join pgflow.worker k on k.worker_id = x.worker_id
  ) w on w.code_id = c.code_id
  group by c.workflow, c.version
), pinned as (
  select o.workflow, o.version, count(*) as runs from open_run o where o.version <> '' group by o.workflow, o.version
)
select coalesce(c.workflow, p.workflow) as workflow, coalesce(c.version, p.version) as version,
  coalesce(c.pinned, true) as pinned,
  coalesce(p.runs, 0) as pinned_runs, b.runs as begun_runs, coalesce(c.workers, 0) as workers, c.first_at,
  case when c.workers = 0 then c.last_at end as last_at, coalesce(p.runs, 0) + b.runs = 0 as safe_to_remove
from code c
full join pinned p on p.workflow = c.workflow and p.version = c.version
cross join lateral (
  select count(*) as runs from open_run o
  where o.workflow = c.workflow and o.version = ''
    and (c.workers > 0 and o.begun_at is not null or o.begun_at <= c.last_at)
) b;
comment on view pgflow.versions
  is 'Each version of each workflow: which open runs may depend on it, who serves it, and whether it may go';
--! grant versions to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.versions.workflow is 'Name of the workflow, an old name included';
comment on column pgflow.versions.version is 'The version it was given, or the hash of its code';
comment on column pgflow.versions.pinned is 'True if its runs stay with it';
comment on column pgflow.versions.pinned_runs
  is 'Open runs that are pinned to it: only workers that have it claim them';
comment on column pgflow.versions.begun_runs
  is 'Other open runs that code may have worked on while this version was served: the code must still fit them';
comment on column pgflow.versions.workers is 'Live workers that have it';
comment on column pgflow.versions.first_at is 'Time at which the first worker came that had it; null = none ever did';
comment on column pgflow.versions.last_at
  is 'Time at which the last worker that had it went; null = one is there, or none ever was';
comment on column pgflow.versions.safe_to_remove is 'True if no open run can depend on it';

drop view if exists pgflow.patches;
create view pgflow.patches as
with open_run as materialized (
  -- Code first worked on a run at its first unit.
  select p.run_id, l.workflow, l.version, coalesce(u.recorded_at, p.claimed_at) as begun_at,
    u.run_id is not null as has_history
  from (
    select run_id, abs(lane_id) as lane_id, null::timestamptz as claimed_at from pgflow.ready
    union all select run_id, lane_id, claimed_at from pgflow.lease
    union all select run_id, lane_id, null from pgflow.parked
    union all select run_id, lane_id, null from pgflow.held
  ) p
  join pgflow.lane l on l.lane_id = p.lane_id
  left join pgflow.unit u on u.run_id = p.run_id and u.seq = 1
), live as (
  select distinct x.code_id from pgflow.worker_code x join pgflow.worker k on k.worker_id = x.worker_id
), marked as (
  select o.workflow, u.name as patch, o.run_id, bool_or(u.call > 0) as needs_call
  from open_run o join pgflow.unit u on u.run_id = o.run_id and u.kind = 'p'
  where o.has_history
  group by o.workflow, u.name, o.run_id
), known as (
  select c.workflow, p.patch from pgflow.code_patch p join pgflow.code c on c.code_id = p.code_id
  join live v on v.code_id = c.code_id
  union
  select m.workflow, m.patch from marked m
), counted as (
  select k.workflow, k.patch,
    (select count(*) from marked m where m.workflow = k.workflow and m.patch = k.patch) as new_side,
    (select count(*) from marked m where m.workflow = k.workflow and m.patch = k.patch and m.needs_call) as marked,
    (
      select count(*) from open_run o
      where o.workflow = k.workflow and o.has_history
        and not exists (select from marked m where m.run_id = o.run_id and m.patch = k.patch)
        and (
          exists (
            select from pgflow.code c left join live v on v.code_id = c.code_id
            where c.workflow = k.workflow and o.version in ('', c.version)
              and (v.code_id is not null or c.last_at >= o.begun_at)
              and not exists (select from pgflow.code_patch p where p.code_id = c.code_id and p.patch = k.patch)
          )
          or o.begun_at < all (select c.first_at from pgflow.code c where c.workflow = k.workflow)
        )
    ) as old_side
  from known k
)
select n.workflow, n.patch, n.new_side, n.old_side, n.marked,
  (
    select count(distinct x.worker_id)
    from pgflow.worker_code x join live v on v.code_id = x.code_id join pgflow.code c on c.code_id = x.code_id
    join pgflow.code_patch p on p.code_id = c.code_id
    where c.workflow = n.workflow and p.patch = n.patch
  ) as workers,
  coalesce((
    select bool_and(p.is_deprecated)
    from live v join pgflow.code c on c.code_id = v.code_id join pgflow.code_patch p on p.code_id = c.code_id
    where c.workflow = n.workflow and p.patch = n.patch
  ), false) as deprecated,
  n.old_side = 0 as safe_to_deprecate, n.old_side = 0 and n.marked = 0 as safe_to_remove
from counted n;
comment on view pgflow.patches
  is 'Each patch that a live worker''s code or an open run knows: who took which side, and whether it may go';
--! grant patches to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.patches.workflow is 'Name of the workflow';
comment on column pgflow.patches.patch is 'Name of the change';
comment on column pgflow.patches.new_side is 'Open runs that took the new side';
comment on column pgflow.patches.old_side
  is 'Open runs that may have passed before the change, and so take the old side';
comment on column pgflow.patches.marked
  is 'Open runs whose journal holds the marker of patched(): the code must call patched() or deprecate_patch() for '
     'them';
comment on column pgflow.patches.workers is 'Live workers whose code names it';
comment on column pgflow.patches.deprecated is 'True if that code only deprecates it';
comment on column pgflow.patches.safe_to_deprecate
  is 'True if no open run can take the old side: the branch may go, and patched() become deprecate_patch()';
comment on column pgflow.patches.safe_to_remove is 'True if the call may go too';

comment on column pgflow.code.code_id is 'The number of this code';
comment on column pgflow.code.first_at is 'Time at which the first worker came that had it';
comment on column pgflow.code.last_at
  is 'Time at which a worker that had it last came or went; while one is there it does not count';
comment on column pgflow.code.is_pinned is 'True if runs that are started with this code stay with its version';
comment on column pgflow.code.workflow is 'Name of the workflow';
comment on column pgflow.code.version is 'Its version: the one that it was given, or the hash of the code';
comment on column pgflow.code.code_hash is 'Hash of the module that it is written in';
comment on column pgflow.code.parameters is 'Names that its input may have, as a shape; null = not declared';
comment on column pgflow.code.defaults
  is 'Values of the parameters that a start leaves out; null = there are none, or the app has a codec';
comment on column pgflow.code.alias_of
  is 'The name that the workflow has in this code, where the name here is an old one; null = it is its name';

comment on column pgflow.worker_code.worker_id is 'The worker';
comment on column pgflow.worker_code.code_id is 'The code that it has';

comment on column pgflow.code_patch.code_id is 'The code';
comment on column pgflow.code_patch.is_deprecated is 'True if only deprecate_patch() names it';
comment on column pgflow.code_patch.patch is 'Name of the change';
