-- Starts of which the last counts. The first start under a key makes a run that begins a while later. Each further one
-- puts that off and gives the run its own input, as long as it has not begun. All of them answer the same run.
--
-- A run that has not been claimed is its row in `run`, a place and no unit. It is changed in place, under the lock of
-- its place: a claim, a wake and a cancel skip or wait for the same row. Seals begin with the first unit, and hash the
-- start as it is then. Once a run has a unit - it has been claimed, or paused - it is left as it is. The key goes to a
-- new run, and what has begun goes on beside it.
--
-- This is the one start that waits for a place: for another of the same key, until that commits.

create or replace function pgflow.lock_unbegun_(me bigint)
returns text
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  -- It may go from one place to the other while it is looked for.
  for n in 1..3 loop
    perform from pgflow.parked p where p.run_id = me and p.token is null and p.last_seq = 0 for update;
    if found then
      return 'parked';
    end if;
    perform from pgflow.ready r where r.run_id = me and r.has_begun is null and r.last_seq = 0 and r.attempt = 0
      for update;
    if found then
      return 'ready';
    end if;
  end loop;
  return null;
end
$$;
comment on function pgflow.lock_unbegun_(bigint)
  is 'Locks the place of a run that has not been claimed or paused, and returns which it is; null if it has begun';

create or replace function pgflow.refuse_other_(me bigint, workflow text, input json)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  known record;
begin
  select r.key, r.parent_run_id, l.workflow into known
  from pgflow.run r join pgflow.lane l on l.lane_id = r.lane_id where r.run_id = me;
  if known.workflow <> workflow and not pgflow.is_alias_(known.workflow, workflow) or known.parent_run_id is not null
  then
    raise exception using errcode = 'PF002',
      message = pgflow.conflict_(known.key, me, workflow, input, null, known.parent_run_id is not null),
      hint = 'Use another key, or read the result of the first run.';
  end if;
end
$$;
comment on function pgflow.refuse_other_(bigint, text, json)
  is 'Refuses (PF002) to change a run for a start of another workflow';

create or replace function pgflow.debounce_(
  me bigint, workflow text, lane int, input json, labels jsonb, metadata jsonb, priority int, start_id uuid,
  debounce_seconds float8, max_wait_seconds float8, timeout_seconds float8, is_lined boolean
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  place text;
  created_at timestamptz := (select r.created_at from pgflow.run r where r.run_id = me);
  t timestamptz;
  begins timestamptz;
  due timestamptz;
begin
  perform pgflow.refuse_other_(me, workflow, input);
  place := pgflow.lock_unbegun_(me);
  if place is null or exists (select from pgflow.signal s where s.chain_id = me and s.kind = 'x') then
    return false;
  end if;

  t := pgflow.now_();
  begins := least(t + debounce_seconds * interval '1 second',
    created_at + max_wait_seconds * interval '1 second');
  due := greatest(begins, t) + timeout_seconds * interval '1 second';
  update pgflow.run r
  set input = input, labels = labels, metadata = metadata, priority = priority, lane_id = lane, start_id = start_id,
    run_at = begins, deadline_at = due
  where r.run_id = me;
  delete from pgflow.deadline d where d.run_id = me;
  if due is not null then
    insert into pgflow.deadline (run_id, due_at) values (me, due);
  end if;

  if place = 'ready' then
    -- Its key in a line may be another now: it is added anew, at the same place by its number.
    delete from pgflow.line_run w where w.run_id = me;
    update pgflow.ready r set lane_id = lane, priority = priority where r.run_id = me;
    if is_lined then
      perform pgflow.line_up_(array[me]);
    end if;
  else
    update pgflow.parked p set lane_id = lane, priority = priority where p.run_id = me;
    update pgflow.timer m set due_at = begins where m.run_id = me and m.call = 0;
  end if;
  return true;
end
$$;
comment on function pgflow.debounce_(bigint, text, int, json, jsonb, jsonb, int, uuid, float8, float8, float8, boolean)
  is 'Gives a run that has not begun the input and options of a later start, and puts it off; false if it has begun or '
     'is being cancelled. PF002: it is a run of another workflow';
