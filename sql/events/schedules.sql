-- Schedules: runs of a workflow that start by themselves. A slot is a time at which a run is to start. The key of
-- that run is the name of the schedule and the slot, so a slot has one run at most, from any source: a worker, a
-- tick, a backfill.
--
-- Workers and ticks evaluate cron expressions in Python, sessions in pgflow.work() by sql/events/cron.sql, and store the
-- next slots here. The database decides by its clock if one is due. Firing a slot takes it out of the row and starts its
-- run in one transaction, under the lock of the row (SKIP LOCKED: concurrent looks do not wait). So neither a crash nor a
-- second worker can lose a slot or fire it twice, and a clock that goes back finds no slot that was already decided.
--
--   upcoming   slots that are not decided: some that are due, and at least one to come, or they are looked up first
--   after_at   the last of these; Python is asked for those behind it (`refill`), and its answer counts only if neither
--              this time nor the version of the expression has changed since
--   buffered   slots that were due while a run before was open
--
-- Slots are decided in order. A slot that is late by more than a minute was missed, and `catch_up` decides if it
-- still starts a run. `overlap` decides on a slot that is due while an earlier run is open.
--
-- One worker at a time keeps the schedules (`schedule_state`). It looks when a slot is due, and every five seconds.
-- The others look so rarely that all of them together ask once in two seconds, and one takes over when the keeper is
-- gone. This is only an optimisation: several may look at once, as ticks do. While there are no schedules, each asks
-- twice a minute.
--
-- A declared schedule is active as long as the code of a living worker declares it. If none does when a slot is due,
-- it stops firing and is marked (`undeclared_at`), until some code declares it again; missed slots are caught up
-- then. So old and new code may work side by side. If their declarations differ, the youngest one counts: that of the
-- new code, until its last worker is gone. So an old worker that comes back during a deploy reverts nothing
-- (`settle_declarations_`, when workers come and go).

create or replace function pgflow.slot_text_(slot timestamptz)
returns text
language sql
stable strict
set search_path = pg_catalog, pg_temp
as $$
  select to_char(slot at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS')
    || case when date_trunc('second', slot) <> slot then to_char(slot at time zone 'UTC', '.US') else '' end || 'Z'
$$;
comment on function pgflow.slot_text_(timestamptz) is 'A slot as a text, in UTC: 2026-03-29T01:30:00Z';

create or replace function pgflow.slot_due_(name text, slot timestamptz, jitter_seconds float8)
returns timestamptz
language sql
stable strict
set search_path = pg_catalog, pg_temp
as $$
  select slot + interval '1 second' * jitter_seconds
    * (('x' || left(md5(name || ' ' || pgflow.slot_text_(slot)), 8))::bit(32)::bigint / 4294967296.0)
$$;
comment on function pgflow.slot_due_(text, timestamptz, float8)
  is 'Time at which a slot is due: its own and a part of the jitter, which is always the same for one slot';

create or replace function pgflow.is_open_(chain bigint)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (select from pgflow.run r where r.run_id = chain)
    and pgflow.ended_as_(pgflow.newest_run_(chain)) is null
$$;
comment on function pgflow.is_open_(bigint) is 'True if the newest generation of a chain has not ended';

create or replace function pgflow.count_open(chains bigint[])
returns bigint
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select count(*) from unnest(chains) c where pgflow.is_open_(c)
$$;
comment on function pgflow.count_open(bigint[])
  is 'Of the newest runs of a schedule, for the view schedules: number of those that have not ended';
--! grant count_open to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

create or replace function pgflow.note_schedule_(
  name text, what text, why text, said_by text, at timestamptz, detail jsonb default null
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  id bigint;
begin
  insert into pgflow.schedule_change (at, schedule, what, said_by, why, detail)
  values (at, name, what, pgflow.sender_(said_by), pgflow.told_(why, 4096), detail)
  returning change_id into id;
  perform pgflow.note_evidence_('schedule_change', json_build_array(id));
end
$$;
comment on function pgflow.note_schedule_(text, text, text, text, timestamptz, jsonb)
  is 'Records the author and the reason of a change of a schedule';

create or replace function pgflow.known_schedule_(name text)
returns pgflow.schedule
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  found_row pgflow.schedule;
begin
  select s.* into found_row from pgflow.schedule s where s.name = known_schedule_.name for update;
  if found_row.name is null then
    raise exception using errcode = 'PF027', message = format('schedule %s does not exist', quote_nullable(name)),
      hint = '`pgflow schedules` lists those that there are.';
  end if;
  return found_row;
end
$$;
comment on function pgflow.known_schedule_(text) is 'Locks a schedule and answers it; PF027 if there is none';

-- ---------------------------------------------------------------- firing

create or replace function pgflow.start_slot_(s pgflow.schedule, slot timestamptz)
returns table (run_key text, run_id bigint, is_new boolean, lane_id int)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  given text := btrim(s.input::text, ' ' || chr(9) || chr(10) || chr(13));
  own text := json_build_object(coalesce(s.slot_parameter, ''), json_build_object('at', pgflow.slot_text_(slot)))::text;
  input json := s.input;
begin
  if s.slot_parameter is not null then
    -- As text: a detour by jsonb would change numbers and the order of keys.
    if exists (select from json_object_keys(s.input)) then
      own := left(given, -1) || ', ' || substr(own, 2);
    end if;
    input := own;
  end if;
  return query
  select r.run_key, r.run_id, r.is_new, r.lane_id
  from pgflow.start_run(
    workflow => s.workflow, key => s.name || '/' || pgflow.slot_text_(slot), queue => s.queue, priority => s.priority,
    input => pgflow.fill_input_(input, (pgflow.known_code_(s.workflow, '')).defaults), defaults => '{}',
    timeout_seconds => s.timeout_seconds, version => s.run_version, if_taken => 'attach',
    labels => coalesce(s.labels, '{}') || jsonb_build_object('schedule', s.name)
  ) r;
end
$$;
comment on function pgflow.start_slot_(pgflow.schedule, timestamptz)
  is 'Starts the run of a slot, or finds the one that it has';

create or replace function pgflow.later_look_(s pgflow.schedule, t timestamptz)
returns timestamptz
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when s.paused_at is not null or s.undeclared_at is not null then null
    -- The end of a run sends no notification here, so buffered slots look every second.
    when cardinality(s.buffered) > 0 then least(s.due_at, t + interval '1 second')
    when s.due_at is not null then s.due_at
    when s.is_over then null
    else t
  end
$$;
comment on function pgflow.later_look_(pgflow.schedule, timestamptz)
  is 'Time at which a schedule is to be looked at next';

create or replace function pgflow.save_schedule_(s pgflow.schedule, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  s.due_at := pgflow.slot_due_(s.name, s.upcoming[1], s.jitter_seconds);
  update pgflow.schedule c
  set due_at = s.due_at, look_at = pgflow.later_look_(s, t), upcoming = s.upcoming, buffered = s.buffered,
    open_chains = s.open_chains, last_slot_at = s.last_slot_at, last_fired_at = s.last_fired_at,
    last_run_key = s.last_run_key, fired = s.fired, skipped = s.skipped, missed = s.missed, error = s.error,
    error_at = s.error_at, undeclared_at = s.undeclared_at, after_at = s.after_at, is_over = s.is_over,
    paused_at = s.paused_at, paused_by = s.paused_by, why_paused = s.why_paused
  where c.name = s.name;
end
$$;
comment on function pgflow.save_schedule_(pgflow.schedule, timestamptz)
  is 'Writes a schedule that was looked at, with the time of the next look';

create or replace function pgflow.fire_slot_(inout s pgflow.schedule, slot timestamptz, t timestamptz, out lane int)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  most_open constant int := 50;
  run record;
  why text;
  state text;
begin
  begin
    select r.* into run from pgflow.start_slot_(s, slot) r;
  exception when others then
    get stacked diagnostics state = returned_sqlstate, why = message_text;
    -- Errors that a retry may fix are left to it. All others stop this schedule only.
    if state !~ '^(PF|P0|22|23|42)' then
      raise;
    end if;
    s.error := left(format('slot %s: %s', pgflow.slot_text_(slot), why), 4096);
    s.error_at := t;
    s.missed := s.missed + 1;
    return;
  end;
  s.error := null;
  s.error_at := null;
  if not run.is_new and not pgflow.is_open_(run.run_id) then
    return; -- it was backfilled
  end if;
  s.open_chains := (array_remove(s.open_chains, run.run_id) || run.run_id);
  s.open_chains := s.open_chains[greatest(1, cardinality(s.open_chains) - most_open + 1):];
  if run.is_new then
    s.fired := s.fired + 1;
    s.last_fired_at := t;
    s.last_run_key := run.run_key;
    lane := run.lane_id;
  end if;
end
$$;
comment on function pgflow.fire_slot_(pgflow.schedule, timestamptz, timestamptz)
  is 'Starts the run of a slot; what keeps it from starting is kept with the schedule';

create or replace function pgflow.due_slots_(s pgflow.schedule, t timestamptz)
returns timestamptz[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  -- Up to the first that is not due: jitter changes nothing about the order.
  select coalesce(s.upcoming[:min(n) filter (where pgflow.slot_due_(s.name, u, s.jitter_seconds) > t) - 1],
    s.upcoming)
  from unnest(s.upcoming) with ordinality as x (u, n)
$$;
comment on function pgflow.due_slots_(pgflow.schedule, timestamptz) is 'The upcoming slots that are due';

create or replace function pgflow.caught_up_(s pgflow.schedule, due timestamptz[], t timestamptz)
returns timestamptz[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  with judged as (
    select d.u, d.n, cardinality(due) as slots, d.at < t - interval '1 minute' as is_late,
      -- The next one has long been due: a pause has kept this one, and those that it kept must not start all at once.
      coalesce(lead(d.at) over (order by d.n) < t - interval '5 seconds', false) as is_passed
    from (
      select x.u, x.n, pgflow.slot_due_(s.name, x.u, s.jitter_seconds) as at
      from unnest(due) with ordinality as x (u, n)
    ) d
  ), late as (
    select coalesce(bool_or(j.is_late), false) as is_any, count(*) filter (where j.is_late) as slots from judged j
  )
  select coalesce(array_agg(j.u order by j.n), '{}')
  from judged j cross join late
  where case s.catch_up
    when 'skip' then not j.is_late and not j.is_passed
    when 'latest' then not late.is_any or j.n = j.slots
    else not j.is_late or j.n > late.slots - s.max_catch_up
  end
$$;
comment on function pgflow.caught_up_(pgflow.schedule, timestamptz[], timestamptz)
  is 'Those of the due slots that start a run, though some of them are late';

create or replace function pgflow.look_at_schedule_(
  s pgflow.schedule, t timestamptz, out fired int, out lanes int[], out cancelled bigint[], out trouble text
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  most_buffered constant int := 1000;
  due timestamptz[] := pgflow.due_slots_(s, t);
  wanted timestamptz[] := pgflow.caught_up_(s, due, t);
  before constant bigint := s.fired;
  slot timestamptz;
  chain bigint;
  one record;
begin
  lanes := '{}';
  cancelled := '{}';
  s.open_chains := array(
    select c from unnest(s.open_chains) with ordinality as x (c, n) where pgflow.is_open_(c) order by n);
  s.missed := s.missed + cardinality(due) - cardinality(wanted);
  s.upcoming := s.upcoming[cardinality(due) + 1:];
  if cardinality(due) > 0 then
    s.last_slot_at := due[cardinality(due)];
  end if;
  while cardinality(s.buffered) > 0 and cardinality(s.open_chains) = 0 loop
    slot := s.buffered[1];
    s.buffered := s.buffered[2:];
    select f.* into one from pgflow.fire_slot_(s, slot, t) f;
    s := one.s;
    lanes := lanes || one.lane;
  end loop;
  foreach slot in array wanted loop
    if s.overlap = 'allow' or cardinality(s.open_chains) = 0 and cardinality(s.buffered) = 0 then
      select f.* into one from pgflow.fire_slot_(s, slot, t) f;
      s := one.s;
      lanes := lanes || one.lane;
    elsif s.overlap = 'cancel_other' then
      foreach chain in array s.open_chains loop
        if not exists (select from pgflow.signal m where m.chain_id = chain and m.kind = 'x' offset 0) then
          perform pgflow.post_(chain, 'x', 'cancel',
            json_build_object('why', format('schedule %s starts its next run', s.name), 'reason', 'replaced'),
            session_user);
          cancelled := cancelled || chain;
        end if;
      end loop;
      s.skipped := s.skipped + cardinality(s.buffered);
      s.buffered := array[slot];
    elsif cardinality(s.buffered)
      < (case s.overlap when 'buffer_one' then 1 when 'buffer_all' then most_buffered else 0 end)
    then
      s.buffered := s.buffered || slot;
    else
      s.skipped := s.skipped + 1;
    end if;
  end loop;
  perform pgflow.save_schedule_(s, t);
  fired := s.fired - before;
  trouble := case when s.error_at = t then format('schedule %s: %s', s.name, s.error) end;
  lanes := array(select distinct l from unnest(lanes) l where l is not null);
end
$$;
comment on function pgflow.look_at_schedule_(pgflow.schedule, timestamptz)
  is 'Decides the slots of a schedule that are due: starts runs, cancels those before, buffers, or lets them pass';

create or replace function pgflow.is_kept_by_(
  worker_id int, t timestamptz, out is_mine boolean, out wait_seconds float8
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  term constant interval := '10 seconds';
  state pgflow.schedule_state;
begin
  select k.* into state from pgflow.schedule_state k for update skip locked;
  is_mine := state.is_the_only is not null and (state.keeper is null or state.keeper = worker_id
    or coalesce(state.kept_until, '-infinity') <= t or state.kept_until > t + term
    or not exists (select from pgflow.worker w where w.worker_id = state.keeper and not w.stopping));
  if is_mine and (state.keeper is distinct from worker_id or state.kept_until < t + term * 0.6
    or state.kept_until > t + term)
  then
    update pgflow.schedule_state k set keeper = worker_id, kept_until = t + term;
  end if;
  -- All others together ask once in two seconds, however many they are.
  wait_seconds := 2 * greatest(1, (select count(*) from pgflow.worker)) * (0.5 + random());
end
$$;
comment on function pgflow.is_kept_by_(int, timestamptz)
  is 'True if a worker is to look after the schedules, which it says anew each time; else when it asks again';

create or replace function pgflow.settle_fleet_(t timestamptz)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  settled pgflow.schedule_state;
  present bigint := (select hashtextextended(string_agg(w.worker_id::text, ',' order by w.worker_id), 0)
    from pgflow.worker w);
begin
  if not exists (select from pgflow.schedule_state k where k.fleet is distinct from present) then
    return false;
  end if;
  select k.* into settled from pgflow.schedule_state k for update skip locked;
  if settled.is_the_only is null or not pgflow.settle_declarations_(t) then
    return false; -- by whoever is at it, or at the next look
  end if;
  update pgflow.schedule_state k set fleet = present;
  return true;
end
$$;
comment on function pgflow.settle_fleet_(timestamptz)
  is 'Chooses again which declarations count if workers have come or gone; true if it has';

create or replace function pgflow.keep_schedules(worker_id int, max int default 100, at_once boolean default false)
returns table (
  fired int, lanes int[], cancelled bigint[], undeclared text[], troubles text[], refills json, wait_seconds float8
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  longest constant float8 := 5;
  few constant int := 3;
  most_fired constant int := 500; -- a transaction that starts more would be too long for its connection
  t timestamptz := pgflow.now_();
  looked refcursor;
  s pgflow.schedule;
  one record;
  wanted jsonb := '[]';
  coming int;
  seen int := 0;
  next_look timestamptz;
begin
  fired := 0;
  lanes := '{}';
  cancelled := '{}';
  undeclared := '{}';
  troubles := '{}';
  if not exists (select from pgflow.schedule c where c.look_at is not null) then
    wait_seconds := case when not at_once then 30 end;
    refills := '[]';
    return next;
    return;
  end if;
  if not at_once then
    select k.* into one from pgflow.is_kept_by_(worker_id, t) k;
    if not one.is_mine then
      wait_seconds := one.wait_seconds;
      refills := '[]';
      return next;
      return;
    end if;
  end if;
  -- Two statements: one for both would read every schedule at each look.
  if at_once then
    open looked for select c.* from pgflow.schedule c
    where c.look_at <= t or c.look_at is not null and cardinality(c.buffered) > 0
    order by c.look_at limit pgflow.at_most_(max) for update skip locked;
  else
    open looked for select c.* from pgflow.schedule c
    where c.look_at <= t order by c.look_at limit pgflow.at_most_(max) for update skip locked;
  end if;
  loop
    fetch looked into s;
    exit when not found or fired >= most_fired;
    seen := seen + 1;
    coming := cardinality(s.upcoming) - cardinality(pgflow.due_slots_(s, t));
    if s.declared is not null and not exists (
      select from pgflow.schedule_declaration d join pgflow.worker w on w.worker_id = d.worker_id
      where d.schedule = s.name
    ) then
      s.undeclared_at := t;
      perform pgflow.save_schedule_(s, t);
      undeclared := undeclared || s.name;
      continue;
    end if;
    if coming < few and not s.is_over then
      wanted := wanted || jsonb_build_object('name', s.name, 'version', s.version, 'spec', s.spec, 'after', s.after_at,
        'now', t, 'has_none', coming = 0);
    end if;
    -- Late slots are known only when all slots up to now are.
    if coming > 0 or s.is_over then
      select l.* into one from pgflow.look_at_schedule_(s, t) l;
      fired := fired + one.fired;
      lanes := lanes || one.lanes;
      cancelled := cancelled || one.cancelled;
      troubles := array_remove(troubles || one.trouble, null);
    end if;
  end loop;
  close looked;
  lanes := array(select distinct l from unnest(lanes) l);
  refills := wanted;
  -- What was due by then is decided by what counted until now.
  if refills::text = '[]' and fired < most_fired then
    perform pgflow.settle_fleet_(t);
  end if;
  if at_once then
    wait_seconds := extract(epoch from (select min(c.due_at) from pgflow.schedule c where c.look_at is not null) - t);
  else
    next_look := (select min(c.look_at) from pgflow.schedule c);
    wait_seconds := least(longest, extract(epoch from next_look - pgflow.now_()));
    -- One that is due and was not seen is locked, by a person perhaps, who may take his time.
    if seen = 0 and next_look <= t then
      wait_seconds := 1;
    end if;
  end if;
  wait_seconds := greatest(0, wait_seconds);
  return next;
end
$$;
comment on function pgflow.keep_schedules(int, int, boolean)
  is 'Fires what is due, if this worker is the one to do it, or at once; answers how many runs were started, in which '
     'lanes, which chains were cancelled, which schedules no code declares any more, what kept runs from starting, for '
     'which ones slots have to be computed (refill_schedules), and the seconds until the next look, or, at once, until '
     'the next slot (null = there is none)';
--! grant keep_schedules to pgflow_worker

create or replace function pgflow.refill_schedules(slots jsonb)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t timestamptz := pgflow.now_();
  s pgflow.schedule;
  one jsonb;
  new timestamptz[];
  taken int := 0;
begin
  perform pgflow.check_objects_(slots, 'slots');
  for one in select e from jsonb_array_elements(slots) e order by e->>'name' loop
    select c.* into s from pgflow.schedule c
    where c.name = one->>'name' and c.version = (one->>'version')::int and c.after_at = (one->>'after')::timestamptz
    for update skip locked; -- a person's open transaction is not waited for: this is asked for again
    continue when not found;
    taken := taken + 1;
    if one->>'error' is not null then
      -- It is ignored until it is set anew.
      update pgflow.schedule c set error = pgflow.told_(one->>'error', 4096), error_at = t, look_at = null, is_over = true
      where c.name = s.name;
      continue;
    end if;
    new := array(select e::timestamptz from jsonb_array_elements_text(one->'slots') with ordinality as x (e, n)
      where e::timestamptz > s.after_at order by e::timestamptz);
    s.upcoming := s.upcoming || new;
    s.after_at := coalesce(new[cardinality(new)], s.after_at);
    s.is_over := (one->>'is_over')::boolean;
    perform pgflow.save_schedule_(s, t);
  end loop;
  return taken;
end
$$;
comment on function pgflow.refill_schedules(jsonb)
  is 'Takes further slots of schedules, [{name, version, after, slots, is_over, error}, ...], where neither the '
     'expression nor the last slot has changed since they were asked for; answers of how many schedules';
--! grant refill_schedules to pgflow_worker, pgflow_operator

-- ---------------------------------------------------------------- setting

create or replace function pgflow.check_spec_(spec jsonb)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  iso constant text := '^[0-9]{4}-[0-9]{2}-[0-9]{2}';
  unknown text;
begin
  if jsonb_typeof(spec) is distinct from 'object' then
    raise exception using errcode = 'PF003', message = 'the spec of a schedule is an object, for example {"every": 300}';
  end if;
  select string_agg(k, ', ' order by k) into unknown from jsonb_object_keys(spec) k
  where k <> all('{cron,every,offset,tz,not_on,only_on,start_at,end_at}');
  if unknown is not null or octet_length(spec::text) > 65536 then
    raise exception using errcode = 'PF003', message = coalesce('the spec of a schedule has no ' || unknown,
      'the spec of a schedule is longer than 64 KiB'),
      hint = 'It has cron or every, and perhaps offset, tz, not_on, only_on, start_at and end_at.';
  end if;
  if (spec ? 'cron') = (spec ? 'every') then
    raise exception using errcode = 'PF003', message = 'a schedule has either cron or every',
      hint = 'For example {"cron": ["30 2 * * *"], "tz": "Europe/London"}, or {"every": 300}.';
  end if;
  if spec ? 'cron' and (jsonb_typeof(spec->'cron') <> 'array' or jsonb_array_length(spec->'cron') = 0 or exists (
    select from jsonb_array_elements(spec->'cron') e
    where jsonb_typeof(e) <> 'string' or octet_length(e #>> '{}') > 255
      or btrim(e #>> '{}')
        !~* '^(([^[:space:]]+[[:space:]]+){4,5}[^[:space:]]+|@(hourly|daily|midnight|weekly|monthly|yearly|annually))$'
  )) then
    raise exception using errcode = 'PF003',
      message = format('cron must be an array of expressions of five or six fields, not %s', left(spec->>'cron', 255));
  end if;
  begin
    perform (spec->>'every')::float8, (spec->>'offset')::float8 * interval '1 second';
    perform (spec->>k)::timestamptz from unnest('{start_at,end_at}'::text[]) k;
    perform d::date from unnest('{not_on,only_on}'::text[]) k cross join jsonb_array_elements_text(spec->k) d;
  exception when data_exception then
    raise exception using errcode = 'PF003',
      message = format('the spec of a schedule cannot be read: %s', left(sqlerrm, 255));
  end;
  -- What a session would read by its style or zone is another time for another session.
  if exists (
      select from unnest('{start_at,end_at}'::text[]) k where spec->>k !~ (iso || '[T ][0-9:.]+(Z|[+-][0-9:]+)$'))
    or exists (
      select from unnest('{not_on,only_on}'::text[]) k cross join jsonb_array_elements_text(spec->k) d
      where (d !~ (iso || '$')) is not false)
  then
    raise exception using errcode = 'PF003',
      message = 'the spec of a schedule has times as 2030-01-31T09:00:00Z, and days as 2030-01-31';
  end if;
  if spec ? 'every' and (jsonb_typeof(spec->'every') <> 'number' or (spec->>'every')::float8 not between 1 and 3.2e9)
  then
    raise exception using errcode = 'PF003', message = 'every must be a number of seconds, at least 1';
  end if;
  perform pgflow.check_zone_(coalesce(spec->>'tz', 'UTC'));
end
$$;
comment on function pgflow.check_spec_(jsonb)
  is 'Refuses (PF003) what no slots can be made of; the fields of an expression are checked when it is evaluated';

create or replace function pgflow.put_schedule_(
  name text, workflow text, spec jsonb, queue text, input json, slot_parameter text, overlap text, catch_up text,
  max_catch_up int, jitter_seconds float8, priority int, timeout_seconds float8, labels jsonb, run_version text,
  t timestamptz
)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  known pgflow.schedule;
  is_same boolean;
begin
  perform pgflow.check_spec_(spec), pgflow.check_input_(input), pgflow.check_version_(run_version),
    pgflow.check_start_(priority, null, timeout_seconds, labels, null, '', null, t);
  if name is null or char_length(name) not between 1 and 90 then
    raise exception using errcode = 'PF003', message = 'the name of a schedule must be 1 to 90 characters long';
  end if;
  if overlap is null or overlap not in ('skip', 'buffer_one', 'buffer_all', 'cancel_other', 'allow')
    or catch_up is null or catch_up not in ('skip', 'latest', 'all')
    or max_catch_up is null or max_catch_up not between 1 and 1000
    or jitter_seconds is null or jitter_seconds not between 0 and 86400
  then
    raise exception using errcode = 'PF003', message = 'a schedule cannot be kept like that',
      hint = 'overlap is skip, buffer_one, buffer_all, cancel_other or allow; catch_up skip, latest or all; '
        'max_catch_up 1 to 1000; jitter_seconds 0 to 86400.';
  end if;
  perform pgflow.intern_lane_(queue, workflow, run_version);
  insert into pgflow.schedule (name, created_at, changed_at, after_at, look_at, workflow, queue, spec, input,
    slot_parameter, overlap, catch_up, max_catch_up, jitter_seconds, priority, timeout_seconds, labels, run_version)
  values (name, t, t, t, t, workflow, queue, spec, input, slot_parameter, overlap, catch_up, max_catch_up,
    jitter_seconds, priority, timeout_seconds, labels, run_version)
  on conflict do nothing;
  if found then
    return true;
  end if;
  known := pgflow.known_schedule_(name);
  is_same := known.spec = spec;
  update pgflow.schedule c
  set workflow = workflow, queue = queue, spec = spec, input = input, slot_parameter = slot_parameter,
    overlap = overlap, catch_up = catch_up, max_catch_up = max_catch_up, jitter_seconds = jitter_seconds,
    priority = priority, timeout_seconds = timeout_seconds, labels = labels, run_version = run_version
  where c.name = name
    and (c.workflow, c.queue, c.spec, c.input::text, c.slot_parameter, c.overlap, c.catch_up, c.max_catch_up,
      c.jitter_seconds, c.priority, c.timeout_seconds, c.labels, c.run_version)
      is distinct from (workflow, queue, spec, input::text, slot_parameter, overlap, catch_up, max_catch_up,
        jitter_seconds, priority, timeout_seconds, labels, run_version);
  if not found then
    return false;
  end if;
  update pgflow.schedule c set changed_at = t where c.name = name;
  if not is_same then
    -- From now on there are the new slots. Those before that are known are decided as what they are.
    known.upcoming := array(select u from unnest(known.upcoming) u where u <= t order by u);
    update pgflow.schedule c set version = c.version + 1 where c.name = name;
    known.after_at := greatest(t, known.last_slot_at);
    known.is_over := false;
    known.error := null;
    known.error_at := null;
    perform pgflow.save_schedule_(known, t);
    update pgflow.schedule c
    set look_at = case when c.paused_at is null and c.undeclared_at is null then least(t, c.due_at) end
    where c.name = name;
  end if;
  return true;
end
$$;
comment on function pgflow.put_schedule_(
  text, text, jsonb, text, json, text, text, text, int, float8, int, float8, jsonb, text, timestamptz
)
  is 'Makes a schedule or changes it; false if it is like that already';

create or replace function pgflow.set_schedule(
  name text, workflow text, spec jsonb, queue text default 'default', input json default '{}',
  slot_parameter text default null, overlap text default 'skip', catch_up text default 'latest',
  max_catch_up int default 100, jitter_seconds float8 default 0, priority int default 0,
  timeout_seconds float8 default null, labels jsonb default null, why text default null, sent_by text default null
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t timestamptz := pgflow.now_();
begin
  if not pgflow.put_schedule_(name, workflow, spec, queue, input, slot_parameter, overlap, catch_up, max_catch_up,
    jitter_seconds, priority, timeout_seconds, labels, '', t)
  then
    return false;
  end if;
  perform pgflow.note_schedule_(name, 'set', why, sent_by, t,
    jsonb_build_object('workflow', workflow, 'spec', spec, 'overlap', overlap, 'catch_up', catch_up));
  return true;
end
$$;
comment on function pgflow.set_schedule(
  text, text, jsonb, text, json, text, text, text, int, float8, int, float8, jsonb, text, text
)
  is 'Makes a schedule, or sets it anew; false if it is like that already. spec: {"cron": [...]} or {"every": seconds, '
     '"offset": seconds}, and perhaps tz, not_on and only_on (days), start_at and end_at. slot_parameter: parameter of '
     'the workflow that gets {"at": the slot}';
--! grant set_schedule to pgflow_operator

create or replace function pgflow.forget_declarations_(names text[])
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_indexscan = off -- all are read: in the order of an index each row would be a page
as $$
  delete from pgflow.schedule_declaration d
  using (
    select o.schedule, o.worker_id from pgflow.schedule_declaration o
    where (names is null or o.schedule = any(names))
      -- Not to be made a join, in which each declaration asks an index for its worker.
      and (o.worker_id in (select w.worker_id from pgflow.worker w)) is not true
    order by o.schedule, o.worker_id for update skip locked
  ) gone
  where d.schedule = gone.schedule and d.worker_id = gone.worker_id
$$;
comment on function pgflow.forget_declarations_(text[])
  is 'Forgets the declarations of dead workers for these schedules, or for all';

create or replace function pgflow.attach_schedules(worker_id int, names text[])
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  t timestamptz := pgflow.now_();
  woken int;
begin
  perform pgflow.forget_declarations_(names);
  insert into pgflow.schedule_declaration (schedule, worker_id)
  select n, worker_id from unnest(names) n order by n
  on conflict do nothing;
  with found as (
    select c.name from pgflow.schedule c where c.name = any(names) and c.undeclared_at is not null
    order by c.name for update
  )
  update pgflow.schedule c set undeclared_at = null, look_at = case when c.paused_at is null then least(t, c.due_at) end
  from found f where c.name = f.name;
  get diagnostics woken = row_count;
  return woken;
end
$$;
comment on function pgflow.attach_schedules(int, text[])
  is 'A worker says which schedules its code declares; answers how many of them no living worker had declared';
--! grant attach_schedules to pgflow_worker

create or replace function pgflow.declare_(one jsonb, worker_id int, t timestamptz)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  is_changed boolean;
begin
  begin
    is_changed := pgflow.put_schedule_(one->>'name', one->>'workflow', one->'spec', one->>'queue', '{}',
      one->>'slot_parameter', one->>'overlap', one->>'catch_up', (one->>'max_catch_up')::int,
      (one->>'jitter_seconds')::float8, (one->>'priority')::int, (one->>'timeout_seconds')::float8, null,
      one->>'run_version', t);
  exception when data_exception or not_null_violation then
    raise exception using errcode = 'PF003',
      message = format('schedule %s cannot be declared: %s', quote_literal(one->>'name'), sqlerrm);
  end;
  update pgflow.schedule c set declared = one where c.name = one->>'name';
  if is_changed then
    perform pgflow.note_schedule_(one->>'name', 'declared', null,
      case when worker_id is not null then format('worker %s', worker_id) end, t, one);
  end if;
  return is_changed;
end
$$;
comment on function pgflow.declare_(jsonb, int, timestamptz)
  is 'Sets a schedule as code declares it; false if it is like that already';

create or replace function pgflow.newest_declarations_(names text[] default null)
returns table (name text, worker_id int, declared jsonb)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_indexscan = off -- all are read: in the order of an index each row would be a page
as $$
  select distinct on (d.schedule) d.schedule, d.worker_id, d.declared
  from pgflow.schedule_declaration d
  where (d.worker_id in (select w.worker_id from pgflow.worker w)) is true
    and d.declared is not null and (names is null or d.schedule = any(names))
  order by d.schedule, d.declared_at desc, d.worker_id desc
$$;
comment on function pgflow.newest_declarations_(text[])
  is 'The valid declaration of each schedule, or of these: the youngest of those by living workers';

create or replace function pgflow.settle_declarations_(t timestamptz)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  one record;
  is_whole boolean := true;
begin
  perform pgflow.forget_declarations_(null);
  for one in
    -- One that a person has removed comes back with the next worker only.
    select d.name, d.worker_id, d.declared
    from pgflow.newest_declarations_() d join pgflow.schedule c on c.name = d.name
    where c.declared is distinct from d.declared
    order by d.name
  loop
    perform from pgflow.schedule c where c.name = one.name for update skip locked;
    if found then
      perform pgflow.declare_(one.declared, one.worker_id, t);
    else
      is_whole := false; -- a person's open transaction is not waited for
    end if;
  end loop;
  return is_whole;
end
$$;
comment on function pgflow.settle_declarations_(timestamptz)
  is 'Sets schedules as the newest code of a living worker declares them, after workers have come or gone, and forgets '
     'what those that are gone have said; false if one is locked';

create or replace function pgflow.declare_schedules(worker_id int, declared jsonb)
returns text[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  t timestamptz := pgflow.now_();
  names text[];
  one record;
  changed text[] := '{}';
begin
  perform pgflow.check_objects_(declared, 'schedules');
  names := array(select e->>'name' from jsonb_array_elements(declared) e);
  perform pgflow.check_name_(n, 'the name of a schedule', 90) from unnest(names) n;
  -- Declarations take turns, so each sees the earlier ones.
  perform pg_advisory_xact_lock(pgflow.latch_('schedules'));
  insert into pgflow.schedule_declaration as d (declared_at, worker_id, schedule, declared)
  select coalesce((
    select min(o.declared_at) from pgflow.schedule_declaration o join pgflow.worker w on w.worker_id = o.worker_id
    where o.schedule = e->>'name' and o.declared = e
  ), t), worker_id, e->>'name', e
  from jsonb_array_elements(declared) e
  on conflict on constraint schedule_declaration_pkey do update
    set declared_at = excluded.declared_at, declared = excluded.declared;
  for one in select d.* from pgflow.newest_declarations_(names) d order by d.name loop
    -- Changes by hand stay until the declaration in the code changes.
    continue when exists (select from pgflow.schedule c where c.name = one.name and c.declared = one.declared);
    if pgflow.declare_(one.declared, one.worker_id, t) then
      changed := changed || one.name;
    end if;
  end loop;
  -- Last, so that a concurrent choice has ended, and another follows.
  update pgflow.schedule_state k set fleet = null where k.fleet is not null;
  return changed;
end
$$;
comment on function pgflow.declare_schedules(int, jsonb)
  is 'Sets the schedules that the code of a worker declares, [{name, workflow, spec, ...}, ...], where it says '
     'something else of one than code last did, and no newer code is there; answers which have changed';
--! grant declare_schedules to pgflow_worker, pgflow_operator

-- ---------------------------------------------------------------- what people say of them

create or replace function pgflow.read_schedule_spec(name text)
returns jsonb
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  spec jsonb := (select s.spec from pgflow.schedule s where s.name = read_schedule_spec.name);
begin
  if spec is null then
    raise exception using errcode = 'PF027', message = format('schedule %s does not exist', quote_nullable(name)),
      hint = '`pgflow schedules` lists those that there are.';
  end if;
  return spec;
end
$$;
comment on function pgflow.read_schedule_spec(text)
  is 'Spec of a schedule, by which its slots are computed. PF027 if there is none';
--! grant read_schedule_spec to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.remove_schedule(name text, why text default null, sent_by text default null)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  known pgflow.schedule := pgflow.known_schedule_(name);
begin
  delete from pgflow.schedule c where c.name = known.name;
  perform pgflow.note_schedule_(known.name, 'removed', why, sent_by, pgflow.now_());
  return exists (
    select from pgflow.schedule_declaration d join pgflow.worker w on w.worker_id = d.worker_id
    where d.schedule = known.name
  );
end
$$;
comment on function pgflow.remove_schedule(text, text, text)
  is 'Removes a schedule; its runs stay. Answers true if the code of a living worker declares it, so that the next '
     'worker makes it again. PF027 if there is none';
--! grant remove_schedule to pgflow_operator

create or replace function pgflow.pause_schedule(name text, why text default null, sent_by text default null)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  s pgflow.schedule := pgflow.known_schedule_(name);
  t timestamptz := pgflow.now_();
begin
  if s.paused_at is not null then
    return false;
  end if;
  s.paused_at := t;
  s.paused_by := pgflow.sender_(sent_by);
  s.why_paused := pgflow.told_(why, 4096);
  perform pgflow.save_schedule_(s, t);
  perform pgflow.note_schedule_(s.name, 'paused', why, sent_by, t);
  return true;
end
$$;
comment on function pgflow.pause_schedule(text, text, text)
  is 'Has a schedule start nothing until it is resumed; false if it is paused. Slots that pass meanwhile start no run. '
     'PF027 if there is none';
--! grant pause_schedule to pgflow_operator

create or replace function pgflow.resume_schedule(name text, why text default null, sent_by text default null)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  s pgflow.schedule := pgflow.known_schedule_(name);
  t timestamptz := pgflow.now_();
begin
  if s.paused_at is null then
    return false;
  end if;
  s.paused_at := null;
  s.paused_by := null;
  s.why_paused := null;
  -- Slots that have passed meanwhile are none.
  s.upcoming := array(select u from unnest(s.upcoming) u where u > t order by u);
  s.after_at := greatest(s.after_at, t);
  perform pgflow.save_schedule_(s, t);
  perform pgflow.note_schedule_(s.name, 'resumed', why, sent_by, t);
  return true;
end
$$;
comment on function pgflow.resume_schedule(text, text, text)
  is 'Has a paused schedule go on with the slots to come; false if it is not paused. PF027 if there is none';
--! grant resume_schedule to pgflow_operator

create or replace function pgflow.trigger_schedule(
  name text, why text default null, sent_by text default null, slot_at timestamptz default null
)
returns table (run_key text, run_id bigint, is_new boolean, lane_id int)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  s pgflow.schedule := pgflow.known_schedule_(name);
  t timestamptz := pgflow.now_();
  run record;
begin
  select r.* into run from pgflow.start_slot_(s, coalesce(slot_at, t)) r;
  if run.is_new then
    s.open_chains := s.open_chains || run.run_id;
    s.fired := s.fired + 1;
    s.last_fired_at := t;
    s.last_run_key := run.run_key;
    perform pgflow.save_schedule_(s, t);
    perform pgflow.note_schedule_(s.name, 'triggered', why, sent_by, t, jsonb_build_object('key', run.run_key));
  end if;
  return query select run.run_key, run.run_id, run.is_new, run.lane_id;
end
$$;
comment on function pgflow.trigger_schedule(text, text, text, timestamptz)
  is 'Starts a run of a schedule now, paused or not, whatever runs of it are open. slot_at: the slot that it is of, '
     'under which it is started once; the present time if none is given. PF027 if there is no such schedule';
--! grant trigger_schedule to pgflow_operator

create or replace function pgflow.backfill_schedule(
  name text, slots timestamptz[], overlap text default 'buffer_all', why text default null, sent_by text default null
)
returns table (slot_at timestamptz, run_key text, state text, lane_id int)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  most constant int := 1000;
  s pgflow.schedule := pgflow.known_schedule_(name);
  t timestamptz := pgflow.now_();
  run record;
begin
  slots := array(select distinct u from unnest(slots) u where u is not null order by u);
  if overlap is null or overlap not in ('buffer_all', 'allow') then
    raise exception using errcode = 'PF003',
      message = format('overlap of a backfill is buffer_all (one after the other) or allow (all at once), not %s',
        quote_nullable(overlap));
  end if;
  if cardinality(slots) + (case overlap when 'allow' then 0 else cardinality(s.buffered) end) > most then
    raise exception using errcode = 'PF003', message = format('%s slots are more than the %s that a backfill may have',
      cardinality(slots), most), hint = 'Backfill a shorter range, and the next one when its runs have ended.';
  end if;
  if slots[cardinality(slots)] > t then
    raise exception using errcode = 'PF003',
      message = format('slot %s is in the future: it will fire by itself',
        pgflow.slot_text_(slots[cardinality(slots)]));
  end if;
  foreach slot_at in array slots loop
    run_key := s.name || '/' || pgflow.slot_text_(slot_at);
    lane_id := null;
    if exists (select from pgflow.run_key k where k.tenant = '' and k.key = run_key) then
      state := 'there';
    elsif overlap = 'allow' then
      select r.* into run from pgflow.start_slot_(s, slot_at) r;
      state := case when run.is_new then 'started' else 'there' end;
      lane_id := run.lane_id;
      s.fired := s.fired + run.is_new::int;
      s.open_chains := s.open_chains || run.run_id;
    else
      state := 'buffered';
      if slot_at <> all(s.buffered || s.upcoming) then
        s.buffered := s.buffered || slot_at;
      end if;
    end if;
    return next;
  end loop;
  s.buffered := array(select u from unnest(s.buffered) u order by u);
  perform pgflow.save_schedule_(s, t);
  perform pgflow.note_schedule_(s.name, 'backfilled', why, sent_by, t, jsonb_build_object('slots', cardinality(slots),
    'first', slots[1], 'last', slots[cardinality(slots)], 'overlap', overlap));
end
$$;
comment on function pgflow.backfill_schedule(text, timestamptz[], text, text, text)
  is 'Has past slots of a schedule start their runs: one after the other (overlap buffer_all), or all at once (allow). '
     'A slot that has a run gets no second one. Answers what became of each: started, buffered, or there. PF027 if '
     'there is no such schedule';
--! grant backfill_schedule to pgflow_operator

-- ---------------------------------------------------------------- reading

drop view if exists pgflow.schedules;
create view pgflow.schedules as
select s.name, s.workflow, s.queue, s.spec, s.overlap, s.catch_up, s.max_catch_up, s.jitter_seconds,
  case
    when s.paused_at is not null then 'paused'
    when s.undeclared_at is not null then 'undeclared'
    when s.look_at is null and s.error is not null then 'broken'
    when s.look_at is null then 'over'
    else 'active'
  end as state,
  s.due_at, s.upcoming, s.buffered,
  pgflow.count_open(s.open_chains) as open_runs,
  s.last_slot_at, s.last_fired_at, s.last_run_key, s.fired, s.skipped, s.missed, s.error, s.error_at,
  s.paused_at, s.paused_by, s.why_paused, s.undeclared_at, s.declared is not null as is_declared,
  s.created_at, s.changed_at, s.slot_parameter, s.input, s.priority, s.timeout_seconds, s.labels,
  case when s.look_at is null then 0
    else greatest(0, extract(epoch from c.at - s.due_at)::float8) end as late_seconds,
  c.at as read_at
from pgflow.schedule s cross join (select pgflow.read_clock() as at) c;
comment on view pgflow.schedules is 'Schedules, what comes next, and what became of the slots before';
comment on column pgflow.schedules.name is 'Its name, the first part of the keys of its runs';
comment on column pgflow.schedules.workflow is 'Workflow of its runs';
comment on column pgflow.schedules.queue is 'Queue of its runs';
comment on column pgflow.schedules.spec
  is 'Its slots: {cron, every, offset, tz, not_on, only_on, start_at, end_at}';
comment on column pgflow.schedules.overlap is 'Action of a slot while a run before is open';
comment on column pgflow.schedules.catch_up is 'Treatment of slots that are late by more than a minute';
comment on column pgflow.schedules.max_catch_up is 'Most late slots that are caught up at once: the newest';
comment on column pgflow.schedules.jitter_seconds is 'Most seconds by which a slot is late on purpose';
comment on column pgflow.schedules.state
  is 'active, paused, over (no slot is left), broken (it cannot be evaluated), or undeclared: no code of a living '
     'worker declares it any more, so it fires nothing';
comment on column pgflow.schedules.due_at is 'Time at which the next slot is due, its jitter included';
comment on column pgflow.schedules.upcoming is 'The next slots, as far as they are computed';
comment on column pgflow.schedules.buffered is 'Slots that wait for the end of a run before';
comment on column pgflow.schedules.open_runs is 'Number of its newest runs that have not ended';
comment on column pgflow.schedules.last_slot_at is 'The last slot that was decided';
comment on column pgflow.schedules.last_fired_at is 'Time at which it last started a run';
comment on column pgflow.schedules.last_run_key is 'Key of that run';
comment on column pgflow.schedules.fired is 'Number of runs that it has started';
comment on column pgflow.schedules.skipped is 'Number of slots that started nothing because a run before was open';
comment on column pgflow.schedules.missed
  is 'Number of known slots that were late and not caught up, or failed to start';
comment on column pgflow.schedules.error is 'Trouble of its last slot, or the reason for which it is broken';
comment on column pgflow.schedules.error_at is 'Time of that';
comment on column pgflow.schedules.paused_at is 'Time at which it was paused; null = it is not';
comment on column pgflow.schedules.paused_by is 'Author of the pause, with the role of the session in brackets';
comment on column pgflow.schedules.why_paused is 'The reason';
comment on column pgflow.schedules.undeclared_at
  is 'Time of a due slot without a declaration in code; null = declared';
comment on column pgflow.schedules.is_declared is 'True if code declares it; false if it was set by hand';
comment on column pgflow.schedules.created_at is 'Time at which it was set first';
comment on column pgflow.schedules.changed_at is 'Time at which it was set last';
comment on column pgflow.schedules.slot_parameter is 'Parameter of the workflow that gets the slot';
comment on column pgflow.schedules.input is 'Input of its runs, without the slot';
comment on column pgflow.schedules.priority is 'Priority of its runs';
comment on column pgflow.schedules.timeout_seconds is 'A run that is not over by then is cancelled';
comment on column pgflow.schedules.labels is 'Labels of its runs, beside the name of the schedule';
comment on column pgflow.schedules.late_seconds is 'Seconds since the next slot has been due; 0 = it is not due yet';
comment on column pgflow.schedules.read_at is 'The present time on the database''s clock';
--! grant schedules to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

drop view if exists pgflow.schedule_changes;
create view pgflow.schedule_changes as
select c.change_id, c.at, c.schedule, c.what, c.said_by, c.why, c.detail from pgflow.schedule_change c;
comment on view pgflow.schedule_changes is 'Changes of schedules, by whom and why';
comment on column pgflow.schedule_changes.change_id is 'Number of the change';
comment on column pgflow.schedule_changes.at is 'Its time';
comment on column pgflow.schedule_changes.schedule is 'Name of the schedule';
comment on column pgflow.schedule_changes.what is 'set, declared, paused, resumed, triggered, backfilled or removed';
comment on column pgflow.schedule_changes.said_by is 'Author of the change, with the role of the session in brackets';
comment on column pgflow.schedule_changes.why is 'The reason';
comment on column pgflow.schedule_changes.detail
  is 'Its new settings, the run that was started, or the slots that were backfilled';
--! grant schedule_changes to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

create or replace function pgflow.check_schedules_()
returns table (invariant text, detail text)
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select 'a schedule is looked at, or says why not', format('schedule %s', s.name) from pgflow.schedule s
  where s.look_at is null and s.paused_at is null and s.undeclared_at is null and not s.is_over
  union all
  select 'a schedule that is paused or undeclared is not looked at', format('schedule %s', s.name)
  from pgflow.schedule s where s.look_at is not null and (s.paused_at is not null or s.undeclared_at is not null)
  union all
  select 'a slot is decided once', format('schedule %s, slot %s', s.name, u)
  from pgflow.schedule s cross join unnest(s.upcoming) u where u <= s.last_slot_at
  union all
  select 'slots stand in their order', format('schedule %s', s.name)
  from pgflow.schedule s
  where s.upcoming <> array(select distinct u from unnest(s.upcoming) u order by u)
    or s.upcoming[cardinality(s.upcoming)] > s.after_at
  union all
  select 'a schedule is looked at when its first slot is due', format('schedule %s', s.name)
  from pgflow.schedule s where s.look_at > s.due_at
  union all
  select 'there is one row on who keeps the schedules', 'schedule_state'
  where (select count(*) from pgflow.schedule_state) <> 1
$$;
comment on function pgflow.check_schedules_() is 'Slots are decided once, in their order, and no schedule is forgotten';
