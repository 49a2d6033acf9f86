-- Starts that are collected into one run. The input of each is a list; those of one key are joined until there are so
-- many items, or until the first has waited for so long. Then the run begins, with all of them in the order in which
-- their starts were committed.
--
-- As in `sql/runs/debounce.sql` the run that collects is there from the first start on, parked, without a unit, and is
-- changed in place under the lock of its place. So its input is at any moment what it would get if it began: whoever
-- shows, pauses, restarts or exports it needs to know nothing of this. A start that would make it too long takes the
-- key away from it, and it begins at once. One that is ready and waits for a worker still takes items: so runs grow
-- longer, up to the bound, where workers are behind.
--
-- An item is in one run however often its start is sent: the start's number (`start_id`) is a key of that run, too, for
-- a day after its end. A start looks for its number before it takes a place, and again behind the lock.

create or replace function pgflow.check_collect_(
  collect int, max_wait_seconds float8, input json, key text, if_taken text, run_at timestamptz, budget jsonb,
  key_seconds float8, debounce_seconds float8
)
returns int
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  items json;
  length int;
begin
  if key is null then
    raise exception using errcode = 'PF003', message = 'collect needs a key';
  end if;
  if collect not between 1 and 1000 then
    raise exception using errcode = 'PF003',
      message = format('collect must be between 1 and 1000 items, not %s', collect);
  end if;
  if not coalesce(max_wait_seconds > 0 and max_wait_seconds <= 2592000, false) then
    raise exception using errcode = 'PF003',
      message = 'collect needs max_wait_seconds, for which the first item waits at most: more than 0, at most 30 days';
  end if;
  if if_taken <> 'match' or run_at is not null or budget is not null
    or coalesce(key_seconds, debounce_seconds) is not null
  then
    raise exception using errcode = 'PF003',
      message = 'collect says itself when the run begins and what becomes of one that has the key: say no run_at, '
        'if_taken, key_seconds, debounce_seconds or budget beside it';
  end if;
  if pgflow.is_envelope_(input::jsonb) then
    raise exception using errcode = 'PF003',
      message = 'collect joins the inputs of starts, and this one is encoded';
  end if;
  select case when count(*) = 1 then (array_agg(e.value))[1] end into items from json_each(input) e;
  if json_typeof(items) is distinct from 'array' then
    raise exception using errcode = 'PF003',
      message = 'collect joins inputs of one parameter, a list: this input is another';
  end if;
  length := json_array_length(items);
  if length not between 1 and collect then
    raise exception using errcode = 'PF003',
      message = format('a run collects %s items, and this start brings %s', collect, length);
  end if;
  return length;
end
$$;
comment on function pgflow.check_collect_(int, float8, json, text, text, timestamptz, jsonb, float8, float8)
  is 'Refuses (PF003) what cannot be collected; answers how many items a start brings';

create or replace function pgflow.joined_(one json, other json)
returns json
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  -- As text, so that each item stays as its encoder wrote it.
  select format('{%s: [%s, %s]}', to_json(o.key), substr(o.list, 2, length(o.list) - 2),
    substr(n.list, 2, length(n.list) - 2))::json
  from (
    select min(e.key) as key, min(btrim(e.value::text, ' ' || chr(9) || chr(10) || chr(13))) as list
    from json_each(one) e having count(*) = 1 and min(json_typeof(e.value)) = 'array'
  ) o
  join (
    select min(e.key) as key, min(btrim(e.value::text, ' ' || chr(9) || chr(10) || chr(13))) as list
    from json_each(other) e
  ) n on n.key = o.key
  where o.list !~ '^[[][[:space:]]*[]]$'
$$;
comment on function pgflow.joined_(json, json)
  is 'Two inputs of one list as one; null if the first is none, or of another parameter. The second is checked';

create or replace function pgflow.collected_as_(tenant text, start_id uuid)
returns bigint
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select k.chain_id from pgflow.run_key k where k.tenant = collected_as_.tenant and k.key = start_id::text
$$;
comment on function pgflow.collected_as_(text, uuid) is 'The chain that has the items of a start; null = none yet';

create or replace function pgflow.collect_(
  me bigint, workflow text, lane int, input json, start_id uuid, most int
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  place text;
  known record;
  joined json;
  length int;
  fits boolean;
  t timestamptz;
begin
  perform pgflow.refuse_other_(me, workflow, input);
  place := pgflow.lock_unbegun_(me);
  if place is null or exists (select from pgflow.signal s where s.chain_id = me and s.kind = 'x') then
    return false;
  end if;
  -- Behind the lock, and so as the start before has left them.
  select r.lane_id, r.tenant, r.input into known from pgflow.run r where r.run_id = me;
  if pgflow.collected_as_(known.tenant, start_id) is not null then
    return null;
  end if;
  joined := case when known.lane_id = lane then pgflow.joined_(known.input, input) end;
  if joined is null then
    return false;
  end if;
  length := (select json_array_length(e.value) from json_each(joined) e);
  fits := length <= most and octet_length(joined::text) <= 262144;
  if fits then
    update pgflow.run r set input = joined where r.run_id = me;
  end if;
  if place = 'parked' and (length = most or not fits)
    and exists (select from pgflow.timer m where m.run_id = me) -- or it replaces another, which has not ended
  then
    t := pgflow.now_();
    update pgflow.run r set run_at = least(r.run_at, t) where r.run_id = me;
    perform pgflow.wake_parked_(array[me], t);
    perform pgflow.tell_workers_(array[lane], '{}');
  end if;
  return fits;
end
$$;
comment on function pgflow.collect_(bigint, text, int, json, uuid, int)
  is 'Adds the items of a start to a run that collects; false if it takes no more, null if a run has them already. One '
     'that is full, or has no room for them, begins at once. PF002: it is a run of another workflow';
