-- Starting runs. A key names one chain for good: the same key with the same workflow and input is the
-- same run, with anything else a conflict, and the first run is unharmed either way. Everything is
-- plain inserts in the caller's transaction, at any isolation level: the run exists if that commits.
--
-- Whoever starts a run may say what is to be done where the key is taken (`if_taken`):
--
--   match     the same run if workflow and input are the same, else a conflict;
--   reject    a conflict, whatever the other run is;
--   attach    that run, whatever its input is;
--   replace   that run is cancelled and loses the key to a new one, which begins once it has ended.
--
-- What replaces is a chain of its own. The mail of a chain goes to its newest generation, and the run that is being
-- cancelled needs its cancel, and may need more, until its code has cleaned up. So the new run is parked meanwhile,
-- with a row in `replacement` that every poll looks at (`begin_replacements_`). A start that rejects or replaces brings
-- a number of its own (`start_id`), so that it knows its own run when it is sent again because its answer was lost.
--
-- A key counts for good, unless the start says for how long (`key_seconds`): while its run is open, and that long after
-- it was started. One that counts no longer is freed by the start that meets it. So zero has one open run of a key at
-- a time, and more is a window in which what comes twice is one run. What a start says is of no other: nothing is kept.
-- `sql/runs/debounce.sql` has starts of which the last counts, `sql/runs/collect.sql` those that become one run.
--
-- Inputs are compared as the workflow gets them: a parameter that was left out counts as its default, where the
-- caller says what the defaults are. Inputs that a codec has encoded are compared by their keyed hashes
-- (`sql/core/envelopes.sql`); one that is encoded differs from one that is not.

create or replace function pgflow.same_input_(one json, other json, defaults json)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when pgflow.is_envelope_(one::jsonb) or pgflow.is_envelope_(other::jsonb)
      then pgflow.as_compared_(one) = pgflow.as_compared_(other)
    else coalesce(defaults::jsonb, '{}') || one::jsonb = coalesce(defaults::jsonb, '{}') || other::jsonb
  end
$$;
comment on function pgflow.same_input_(json, json, json)
  is 'True if two inputs are the same once the defaults stand for what they leave out';

create or replace function pgflow.conflict_(
  key text, chain bigint, workflow text, input json, defaults json, is_other_parent boolean
)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  -- Names of parameters and never their values, which may be nobody's business who has guessed a key.
  select format('key %s already names a run of %s, which is %s and has %s', quote_literal(key), l.workflow,
    pgflow.status_(pgflow.newest_run_(chain)),
    coalesce(nullif(concat_ws(' and ',
      case when l.workflow <> conflict_.workflow then 'another workflow' end,
      case when pgflow.same_input_(r.input, conflict_.input, defaults) then null
      when pgflow.is_envelope_(r.input::jsonb) or pgflow.is_envelope_(conflict_.input::jsonb)
        then 'another input (encoded)'
      else 'another input (' || (
        select string_agg(d.name, ', ' order by d.name) from (
          select k as name from (
            select jsonb_object_keys(r.input::jsonb) as k union select jsonb_object_keys(conflict_.input::jsonb)
          ) u
          where (coalesce(defaults::jsonb, '{}') || r.input::jsonb)->k is distinct from (
            coalesce(defaults::jsonb, '{}') || conflict_.input::jsonb)->k
          limit 20
        ) d
      ) || ')' end,
      case when is_other_parent then 'another parent' end
    ), ''), 'the same input'))
  from pgflow.run r join pgflow.lane l on l.lane_id = r.lane_id where r.run_id = chain
$$;
comment on function pgflow.conflict_(text, bigint, text, json, json, boolean)
  is 'Reason why a start cannot have a key: the run that has it, its status, and the differences';

create or replace function pgflow.insert_run_(
  tenant text, key text, workflow text, queue text, version text, priority int, input json,
  run_at timestamptz, deadline_at timestamptz, labels jsonb, metadata jsonb,
  parent_run_id bigint, parent_call int, close_policy "char", root_run_id bigint, defaults json default null,
  start_id uuid default null, pool text default null, budget jsonb default null,
  out run_id bigint, out run_key text, out is_new boolean, out lane_id int, out clash text
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  stem uuid := pgflow.uuid7_();
  known record;
  t timestamptz;
begin
  lane_id := pgflow.intern_lane_(insert_run_.queue, insert_run_.workflow, insert_run_.version, true);
  run_key := coalesce(insert_run_.key, stem::text);
  loop
    if insert_run_.key is null or insert_run_.parent_run_id is null then
      -- A key that is known takes no number: starts that are sent again and again would use up partitions of the
      -- journal.
      -- A serializable transaction does not look: what it has read, others start beside it.
      insert into pgflow.run_key (tenant, key, chain_id, root)
      select insert_run_.tenant, run_key, nextval('pgflow.run_id_seq'), stem
      where current_setting('transaction_isolation') = 'serializable'
        or not exists (select from pgflow.run_key k where k.tenant = insert_run_.tenant and k.key = run_key)
      on conflict do nothing returning chain_id into run_id;
      exit when run_id is not null;
    end if;

    select k.chain_id, k.root, l.workflow, r.input, r.parent_run_id, r.parent_call into known
    from pgflow.run_key k left join pgflow.run r on r.run_id = k.chain_id
    left join pgflow.lane l on l.lane_id = r.lane_id
    where k.tenant = insert_run_.tenant and k.key = run_key;
    -- A key that was taken a moment ago may have been swept since.
    if known.chain_id is null and insert_run_.parent_run_id is not null then
      -- Those of children are taken ahead, in their order: one that is taken now, behind others, could deadlock.
      raise serialization_failure
        using message = format('key %s was freed while it was taken: send the batch again', quote_literal(run_key));
    end if;
    continue when known.chain_id is null;
    run_id := known.chain_id;
    if known.workflow is null then
      -- Only this transaction can see a key without a run: it has taken the key ahead.
      stem := known.root;
      exit;
    end if;
    if known.workflow <> insert_run_.workflow and not pgflow.is_alias_(known.workflow, insert_run_.workflow)
       or known.input::jsonb <> insert_run_.input::jsonb
       and not pgflow.same_input_(known.input, insert_run_.input, insert_run_.defaults)
       or (known.parent_run_id, known.parent_call) is distinct from (insert_run_.parent_run_id, insert_run_.parent_call)
         then
      clash := pgflow.conflict_(run_key, run_id, insert_run_.workflow, insert_run_.input, insert_run_.defaults,
        (known.parent_run_id, known.parent_call) is distinct from (insert_run_.parent_run_id, insert_run_.parent_call));
    end if;
    is_new := false;
    return;
  end loop;

  is_new := true;
  t := pgflow.now_();
  insert into pgflow.run (
    run_id, chain_id, root_run_id, parent_run_id, created_at, run_at, deadline_at, root, generation, lane_id,
    parent_call, priority, close_policy, tenant, key, input, labels, metadata, start_id, pool
  ) values (
    run_id, run_id, coalesce(insert_run_.root_run_id, run_id), insert_run_.parent_run_id, t, insert_run_.run_at,
    insert_run_.deadline_at, stem, 1, lane_id, insert_run_.parent_call, insert_run_.priority, insert_run_.close_policy,
    insert_run_.tenant, run_key, insert_run_.input, insert_run_.labels, insert_run_.metadata, insert_run_.start_id,
    case when insert_run_.budget is null then insert_run_.pool else pgflow.own_pool_(stem) end
  );
  if insert_run_.budget is not null then
    perform pgflow.make_own_pools_(array[stem], insert_run_.pool, insert_run_.budget, t);
  end if;
  if insert_run_.deadline_at is not null then
    insert into pgflow.deadline (run_id, due_at) values (run_id, insert_run_.deadline_at);
  end if;
  if insert_run_.run_at > t then
    insert into pgflow.parked (run_id, chain_id, parked_at, lane_id, last_seq, priority)
    values (run_id, run_id, t, lane_id, 0, insert_run_.priority);
    insert into pgflow.timer (due_at, run_id, call) values (insert_run_.run_at, run_id, 0);
  else
    insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority)
    values (run_id, t, lane_id, 0, 0, insert_run_.priority);
  end if;
end
$$;
comment on function pgflow.insert_run_(text, text, text, text, text, int, json, timestamptz, timestamptz, jsonb, jsonb,
  bigint, int, "char", bigint, json, uuid, text, jsonb)
  is 'Inserts one run with its key and place, or finds the run that the key already names; clash says how that one '
     'differs';

create or replace function pgflow.check_object_(value jsonb, what text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.check_form_(jsonb_typeof(value), 'object', what);
  if octet_length(value::text) > 16384 then
    raise exception using errcode = 'PF003',
      message = format('%s are %s bytes long; the limit is 16 KiB', what, octet_length(value::text));
  end if;
end
$$;
comment on function pgflow.check_object_(jsonb, text) is 'Refuses (PF003) labels or metadata that no run can have';

create or replace function pgflow.check_version_(version text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if version is null or octet_length(version) > 255 then
    raise exception using errcode = 'PF003', message = 'a version must be at most 255 bytes long; empty = any';
  end if;
end
$$;
comment on function pgflow.check_version_(text) is 'Refuses (PF003) a version that no lane can have';

create or replace function pgflow.check_key_(key text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if key is not null and char_length(key) not between 1 and 128 then
    raise exception using errcode = 'PF003',
      message = format('a key must be 1 to 128 characters long, not %s', char_length(key));
  end if;
end
$$;
comment on function pgflow.check_key_(text)
  is 'Refuses (PF003) a key that is empty or too long; null is a key to be made up';

create or replace function pgflow.check_input_(input json)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.check_json_(input, 'the input');
  if json_typeof(input) is distinct from 'object' then
    raise exception using errcode = 'PF003', message = 'the input must be an object of parameter names',
      hint = 'For example: {"order_id": 7}';
  end if;
end
$$;
comment on function pgflow.check_input_(json) is 'Refuses (PF003) an input that no run can have';

create or replace function pgflow.check_start_(
  priority int, run_at timestamptz, timeout_seconds float8, labels jsonb, metadata jsonb, tenant text,
  key_retention_seconds int, t timestamptz
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if priority is null or priority not between -32768 and 32767 then
    raise exception using errcode = 'PF003',
      message = 'priority must be between -32768 and 32767; lower numbers go first';
  end if;
  if not isfinite(run_at) or run_at < '0001-01-01 00:00:00+00' or run_at >= '10000-01-01 00:00:00+00' then
    raise exception using errcode = 'PF003', message = 'run_at must be a time between the years 1 and 9999';
  end if;
  if timeout_seconds is not null and not (timeout_seconds > 0 and timeout_seconds <= 3.2e9) then
    raise exception using errcode = 'PF003',
      message = 'timeout_seconds must be more than 0 and at most a hundred years';
  end if;
  if greatest(run_at, t) + timeout_seconds * interval '1 second' >= '10000-01-01 00:00:00+00' then
    raise exception using errcode = 'PF003',
      message = 'run_at and timeout_seconds put the deadline after the year 9999';
  end if;
  if labels is not null then
    perform pgflow.check_object_(labels, 'labels');
    if exists (select from jsonb_each(labels) where jsonb_typeof(value) <> 'string') then
      raise exception using errcode = 'PF003', message = 'labels must be an object of strings';
    end if;
  end if;
  if metadata is not null then
    perform pgflow.check_object_(metadata, 'metadata');
  end if;
  perform pgflow.check_tenant_(tenant);
  if key_retention_seconds < 0 then
    raise exception using errcode = 'PF003',
      message = 'key_retention_seconds must not be negative; null keeps the key as long as the history';
  end if;
end
$$;
comment on function pgflow.check_start_(int, timestamptz, float8, jsonb, jsonb, text, int, timestamptz)
  is 'Refuses (PF003) options of a start that no run can have';

create or replace function pgflow.check_if_taken_(
  if_taken text, run_at timestamptz, key text, defaults json
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if if_taken is null or if_taken not in ('match', 'reject', 'attach', 'replace') then
    raise exception using errcode = 'PF003',
      message = format('if_taken must be match, reject, attach or replace, not %s', quote_nullable(if_taken));
  end if;
  if if_taken = 'replace' and run_at is not null then
    raise exception using errcode = 'PF003',
      message = 'a run that may replace another cannot have a run_at: it begins once the other has ended';
  end if;
  if if_taken <> 'match' and key is null then
    raise exception using errcode = 'PF003',
      message = format('if_taken => %s needs a key', quote_literal(if_taken));
  end if;
  if defaults is not null and json_typeof(defaults) <> 'object' then
    raise exception using errcode = 'PF003', message = 'defaults must be an object of parameter names';
  end if;
end
$$;
comment on function pgflow.check_if_taken_(text, timestamptz, text, json)
  is 'Refuses (PF003) options that need a key, or that exclude if_taken';

create or replace function pgflow.is_own_(chain bigint, start_id uuid)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce((select r.start_id = is_own_.start_id from pgflow.run r where r.run_id = chain), false)
$$;
comment on function pgflow.is_own_(bigint, uuid)
  is 'True if a chain was started by the very start that asks: its answer was lost, and it is sent again';

create or replace function pgflow.check_times_(
  key_seconds float8, debounce_seconds float8, max_wait_seconds float8, if_taken text, key text, run_at timestamptz,
  budget jsonb
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if key is null then
    raise exception using errcode = 'PF003',
      message = 'key_seconds and debounce_seconds need a key';
  end if;
  if not (key_seconds between 0 and 3.2e9) then
    raise exception using errcode = 'PF003', message = 'key_seconds must be between 0 and a hundred years';
  end if;
  if not (debounce_seconds > 0 and debounce_seconds <= 2592000) then
    raise exception using errcode = 'PF003', message = 'debounce_seconds must be more than 0 and at most 30 days';
  end if;
  if not coalesce(max_wait_seconds is null or max_wait_seconds between debounce_seconds and 31536000, false) then
    raise exception using errcode = 'PF003',
      message = 'max_wait_seconds is of a debounce: at least as long, and at most a year';
  end if;
  if debounce_seconds is not null and (if_taken <> 'match' or key_seconds is not null or run_at is not null
      or budget is not null) then
    raise exception using errcode = 'PF003',
      message = 'debounce_seconds says itself when the run begins and what becomes of one that has the key: say no '
        'run_at, if_taken, key_seconds or budget beside it';
  end if;
end
$$;
comment on function pgflow.check_times_(float8, float8, float8, text, text, timestamptz, jsonb)
  is 'Refuses (PF003) combinations of times that a key cannot have';

create or replace function pgflow.key_counts_(chain bigint, key_seconds float8)
returns boolean
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce((
    select r.created_at + key_seconds * interval '1 second' > pgflow.now_() from pgflow.run r where r.run_id = chain
  ), true) or pgflow.ended_as_(pgflow.newest_run_(chain)) is null
$$;
comment on function pgflow.key_counts_(bigint, float8)
  is 'True if a chain is open, or was started less than so many seconds ago: then it still has its key';

create or replace function pgflow.free_keys_(tenant text, keys text[], key_seconds float8, start_id uuid)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  delete from pgflow.run_key k
  where k.tenant = free_keys_.tenant and k.key = any(array(
    select o.key from pgflow.run_key o
    where o.tenant = free_keys_.tenant and o.key = any(keys) and not pgflow.is_own_(o.chain_id, start_id)
      and not pgflow.key_counts_(o.chain_id, key_seconds)
    order by o.key for update
  )) and not pgflow.is_own_(k.chain_id, start_id) and not pgflow.key_counts_(k.chain_id, key_seconds)
$$;
comment on function pgflow.free_keys_(text, text[], float8, uuid)
  is 'Frees those of these keys that count no longer, in the order of keys';

create or replace function pgflow.await_end_of_(me bigint, old_chain bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  old_run bigint := pgflow.newest_run_(old_chain);
begin
  if pgflow.ended_as_(old_run) is not null then
    return;
  end if;
  perform pgflow.post_(old_chain, 'x', 'cancel', json_build_object('why', 'replaced', 'reason', 'replaced'),
    session_user);
  -- One that has not begun itself is ended at once, and what it waits for may still be cleaning up.
  insert into pgflow.replacement (run_id, waits_for)
  select me, r.waits_for from pgflow.replacement r where r.run_id = old_run
  union select me, old_chain;
  with gone as (
    delete from pgflow.ready r where r.run_id = me returning r.*
  )
  insert into pgflow.parked (run_id, chain_id, parked_at, lane_id, last_seq, priority)
  select g.run_id, g.run_id, g.ready_at, g.lane_id, 0, g.priority from gone g;
end
$$;
comment on function pgflow.await_end_of_(bigint, bigint)
  is 'Cancels a run that has been replaced, if it is open, and parks the new one until it has ended';

create or replace function pgflow.awaits_end_(run_id bigint)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pgflow.replacement p
    where p.run_id = awaits_end_.run_id and exists (select from pgflow.run r where r.run_id = p.waits_for)
      and pgflow.ended_as_(pgflow.newest_run_(p.waits_for)) is null
  ) or exists (select from pgflow.batch b where b.batch_id = awaits_end_.run_id and b.begun_at is null)
$$;
comment on function pgflow.awaits_end_(bigint)
  is 'True if a run must not begin yet: it replaces another, or has a batch, that has not ended';

create or replace function pgflow.begin_replacements_(max int, t timestamptz)
returns int[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  locked bigint[];
  woken int[];
begin
  if not exists (select from pgflow.replacement) then
    return '{}';
  end if;
  -- Locked first: whoever is just cancelling or pausing the run decides, and the next poll looks again.
  locked := array(
    select k.run_id from (
      select p.run_id from pgflow.parked p
      where p.run_id = any(array(select distinct r.run_id from pgflow.replacement r order by r.run_id limit max))
        and not pgflow.awaits_end_(p.run_id)
      order by p.run_id for update skip locked
    ) k
  );
  select array_agg(w.lane_id) into woken from pgflow.wake_parked_(locked, t) w;
  delete from pgflow.replacement r
  where r.run_id = any(locked)
    or not exists (select from pgflow.parked p where p.run_id = r.run_id)
    and not exists (select from pgflow.held h where h.run_id = r.run_id);
  return coalesce(woken, '{}');
end
$$;
comment on function pgflow.begin_replacements_(int, timestamptz)
  is 'Parked -> ready for runs whose predecessors under their key have ended';

create or replace function pgflow.start_run(
  workflow text, input anycompatible default '{}'::json, key text default null, queue text default 'default',
  priority int default 0, run_at timestamptz default null, timeout_seconds float8 default null,
  labels jsonb default null, metadata jsonb default null, tenant text default '',
  key_retention_seconds int default null, version text default '',
  if_taken text default 'match', defaults json default null, start_id uuid default null,
  pool text default null, budget jsonb default null,
  key_seconds float8 default null, debounce_seconds float8 default null, max_wait_seconds float8 default null,
  collect int default null,
  out run_key text, out run_id bigint, out is_new boolean, out lane_id int, out replaced bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  body json;
  run record;
  checked record;
  known record;
  is_free boolean;
  own_chain bigint;
  t timestamptz := pgflow.now_();
begin
  tenant := pgflow.own_tenant_(tenant);
  -- Only of a type whose text is the server's own: another's cast would run as the owner of this function.
  if pg_typeof(input) not in ('json'::regtype, 'jsonb'::regtype, 'text'::regtype, 'varchar'::regtype) then
    raise exception using errcode = 'PF003',
      message = format('the input must be json, jsonb or text, not %s', pg_typeof(input));
  end if;
  body := input::text;
  -- Most starts have a key and a short input. Checks that cannot refuse them are not begun: each costs a start more to
  -- begin than an insert.
  if coalesce(tenant = '' and version = '' and if_taken = 'match' and priority between -32768 and 32767
    and num_nonnulls(run_at, timeout_seconds, labels, metadata, key_retention_seconds) = 0
    and coalesce(defaults::text, '{}') = '{}', false) is false
  then
    perform pgflow.check_start_(priority, run_at, timeout_seconds, labels, metadata, tenant, key_retention_seconds, t),
      pgflow.check_version_(version), pgflow.check_if_taken_(if_taken, run_at, key, defaults);
  end if;
  if char_length(key) not between 1 and 128 then
    perform pgflow.check_key_(key);
  end if;
  if pgflow.is_short_object_(body::text) is not true then
    perform pgflow.check_input_(body);
  end if;
  select case when exists (
      select from pgflow.flow_right r where r.workflow = start_run.workflow and r.privilege = 'start'
    ) then pgflow.refuse_start_(workflow) end,
    (select pgflow.judge_queue_(q, workflow, version) from pgflow.queue q
      where q.queue = start_run.queue and (q.refuses_unknown or q.is_lined or q.is_closed)) as is_lined
  into checked;
  if defaults is null and collect is null then
    known := pgflow.known_code_(workflow, version);
    if known.defaults is not null then
      body := pgflow.fill_input_(body, known.defaults);
    end if;
    if known.shapes is not null then
      perform pgflow.check_inputs_(workflow, known.shapes, array[body::text]);
    end if;
  end if;
  if pool is not null or budget is not null then
    perform pgflow.check_pool_(pool, budget);
  end if;
  if collect is not null then
    if pgflow.check_collect_(collect, max_wait_seconds, body, key, if_taken, run_at, budget, key_seconds,
      debounce_seconds) < collect
    then
      run_at := t + max_wait_seconds * interval '1 second';
    end if;
  elsif coalesce(key_seconds, debounce_seconds, max_wait_seconds) is not null then
    perform pgflow.check_times_(key_seconds, debounce_seconds, max_wait_seconds, if_taken, key, run_at, budget);
    run_at := coalesce(run_at, t + debounce_seconds * interval '1 second');
  end if;
  loop
    if collect is not null and start_id is not null then
      own_chain := pgflow.collected_as_(tenant, start_id);
      if own_chain is not null then
        select r.run_id, r.key as run_key, false as is_new, r.lane_id, null as clash into run
        from pgflow.run r where r.run_id = own_chain;
        exit;
      end if;
    end if;
    run := pgflow.insert_run_(
      tenant, key, workflow, queue, version, priority, body, run_at,
      greatest(run_at, t) + timeout_seconds * interval '1 second', labels, metadata, null, null, null, null,
      defaults, start_id, pool, budget
    );
    exit when run.is_new or if_taken = 'match' and coalesce(key_seconds, debounce_seconds, collect) is null;
    if pgflow.is_own_(run.run_id, start_id) then
      run.clash := null;
      exit;
    end if;
    if debounce_seconds is not null then
      is_free := not pgflow.debounce_(run.run_id, workflow, run.lane_id, body, labels, metadata, priority, start_id,
        debounce_seconds, max_wait_seconds, timeout_seconds, checked.is_lined);
      if not is_free then
        run.clash := null;
        exit;
      end if;
    elsif collect is not null then
      is_free := not pgflow.collect_(run.run_id, workflow, run.lane_id, body, start_id, collect);
      continue when is_free is null; -- sent twice at once: the other has come first
      if not is_free then
        run.clash := null;
        exit;
      end if;
    else
      is_free := key_seconds is not null and not pgflow.key_counts_(run.run_id, key_seconds);
    end if;
    if not is_free and if_taken <> 'replace' then
      run.clash := case if_taken when 'match' then run.clash
        when 'reject' then coalesce(run.clash,
          pgflow.conflict_(run.run_key, run.run_id, workflow, body, defaults, false)) end;
      exit;
    end if;
    -- Another may have taken it since: then it is that run which is looked at next.
    delete from pgflow.run_key k where k.tenant = start_run.tenant and k.key = start_run.key
      and k.chain_id = run.run_id;
    if found and not is_free then
      replaced := run.run_id;
    end if;
  end loop;
  if collect is not null and start_id is not null and pgflow.collected_as_(tenant, start_id) is null then
    -- For a day after its end (`sweep_keys`), or as long as its history.
    insert into pgflow.run_key (tenant, key, chain_id, root, retention_seconds)
    select r.tenant, start_run.start_id::text, r.run_id, r.root, 86400 from pgflow.run r where r.run_id = run.run_id;
  end if;
  if run.is_new and replaced is not null then
    perform pgflow.await_end_of_(run.run_id, replaced);
  end if;
  if checked.is_lined and run.is_new then
    perform pgflow.line_up_(array[run.run_id]);
  end if;
  run_id := run.run_id;
  run_key := run.run_key;
  is_new := run.is_new;
  lane_id := run.lane_id;
  if run.clash is not null then
    raise exception using errcode = 'PF002', message = run.clash,
      hint = 'Use another key, or read the result of the first run.';
  end if;
  if is_new and key_retention_seconds is not null then
    update pgflow.run_key k set retention_seconds = key_retention_seconds
    where k.tenant = start_run.tenant and k.key = run_key;
  end if;
end
$$;
comment on function pgflow.start_run(text, anycompatible, text, text, int, timestamptz, float8, jsonb, jsonb, text, int,
  text, text, json, uuid, text, jsonb, float8, float8, float8, int)
  is 'Starts a run in the caller''s transaction, or finds the one that the key already names (PF002 if that one '
     'differs); with a version it waits for workers that have it. input: json, jsonb, or the text of one. '
     'if_taken: match, reject (PF002 for any run), attach (that run, whatever its input) or replace (cancels that '
     'run, answers its chain for wake(), and begins once it has ended). defaults: what the workflow takes for '
     'parameters that are left out. start_id: a UUID by which a start that is sent again knows its own run. pool: '
     'the pool that it draws on (PF026 if there is none), as its children do; budget: limits by unit of a pool of '
     'its own, which draws on that one. key_seconds: the key counts while its run is open, and so long after its '
     'start; 0 = while it is open, null = for good. debounce_seconds: the run begins so long after the last start '
     'with its key, which alone counts, and at most max_wait_seconds after the first. A run of the key that has '
     'begun is left alone, and loses the key. collect: the input is a list, and the run gets those of all starts '
     'with its key, up to so many items; it begins once it has them, or max_wait_seconds after the first start';
--! grant start_run to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.check_batch_(runs jsonb)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  suspects jsonb;
  one record;
begin
  if jsonb_typeof(runs) is distinct from 'array' then
    raise exception using errcode = 'PF003', message = 'runs must be an array of [key or null, input as text]';
  end if;
  -- Nearly all inputs are short and pass one cast: only what does not is looked at one by one.
  begin
    suspects := (
      select jsonb_agg(r.wanted) from pgflow.new_run_rows_(runs) r
      where r.input is null or octet_length(r.input) > 4299
        or octet_length(r.input) > 200 and length(r.input) - length(translate(r.input, '[{', '')) > 200
        or jsonb_typeof(r.input::jsonb) <> 'object'
        or r.key is not null and char_length(r.key) not between 1 and 128
    );
  exception when data_exception or program_limit_exceeded then
    suspects := runs;
  end;
  for one in select r.key, r.input from pgflow.new_run_rows_(suspects) r loop
    perform pgflow.check_key_(one.key);
    begin
      perform pgflow.check_input_(one.input::json);
    exception when invalid_text_representation or program_limit_exceeded then
      raise exception using errcode = 'PF003', message = 'the input of a run is not JSON: ' || sqlerrm;
    end;
  end loop;
end
$$;
comment on function pgflow.check_batch_(jsonb) is 'Refuses (PF003) a batch with a key or an input that no run can have';

create or replace function pgflow.keys_as_uuids_(runs jsonb)
returns uuid[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  uuids uuid[];
begin
  uuids := array(select r.key::uuid from pgflow.new_run_rows_(runs) r order by r.n);
  if array_position(uuids, null) is not null then
    raise exception using errcode = 'PF003',
      message = 'keys_are_new is for keys that the caller has made up, and one is null';
  end if;
  return uuids;
exception when invalid_text_representation then
  raise exception using errcode = 'PF003',
    message = 'keys_are_new is for UUIDs that the caller has made up as keys: ' || sqlerrm;
end
$$;
comment on function pgflow.keys_as_uuids_(jsonb) is 'The keys of a batch as UUIDs; refuses (PF003) what is none';

create or replace function pgflow.take_runs_(
  tenant text, keys text[], are_new boolean, ids bigint[], stems uuid[], inputs text[], lane int, priority int,
  run_at timestamptz, due timestamptz, labels jsonb, metadata jsonb, start_id uuid default null,
  pool text default null, budget jsonb default null
)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  t timestamptz;
  taken_ids bigint[];
begin
  if are_new then
    insert into pgflow.run_key (tenant, key, chain_id, root)
    select tenant, g.k, g.i, g.s from unnest(keys, ids, stems) as g (k, i, s);
    taken_ids := ids;
  else
    -- Keys are taken in their own order, so that two batches with common keys wait and never deadlock.
    with taken as (
      insert into pgflow.run_key (tenant, key, chain_id, root)
      select tenant, g.k, g.i, g.s from unnest(keys, ids, stems) as g (k, i, s) where g.i is not null order by g.k
      on conflict do nothing returning chain_id
    )
    select array_agg(chain_id) into taken_ids from taken;
  end if;

  t := pgflow.now_();
  insert into pgflow.run (run_id, chain_id, root_run_id, created_at, run_at, deadline_at, root, generation, lane_id,
    priority, tenant, key, input, labels, metadata, start_id, pool)
  select g.i, g.i, g.i, t, run_at, due, g.s, 1, lane, priority, tenant, g.k, g.p::json, labels, metadata, start_id,
    case when budget is null then pool else pgflow.own_pool_(g.s) end
  from unnest(keys, ids, stems, inputs) as g (k, i, s, p)
  where cardinality(taken_ids) = cardinality(ids) or g.i = any(taken_ids);
  if budget is not null then
    perform pgflow.make_own_pools_(
      array(select g.s from unnest(ids, stems) as g (i, s) where g.i = any(taken_ids)), pool, budget, t);
  end if;
  if run_at > t then
    insert into pgflow.parked (run_id, chain_id, parked_at, lane_id, last_seq, priority)
    select i, i, t, lane, 0, priority from unnest(taken_ids) i;
    insert into pgflow.timer (due_at, run_id, call) select run_at, i, 0 from unnest(taken_ids) i;
  else
    insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority)
    select i, t, lane, 0, 0, priority from unnest(taken_ids) i order by i;
  end if;
  if due is not null then
    insert into pgflow.deadline (run_id, due_at) select i, due from unnest(taken_ids) i;
  end if;
  if cardinality(taken_ids) = cardinality(ids) then
    return ids;
  end if;
  return array(
    select rk.chain_id
    from unnest(keys) with ordinality as g (k, n)
    left join lateral (
      select k.chain_id from pgflow.run_key k where k.tenant = take_runs_.tenant and k.key = g.k offset 0
    ) rk on true
    order by g.n
  );
end
$$;
comment on function pgflow.take_runs_(text, text[], boolean, bigint[], uuid[], text[], int, int, timestamptz,
  timestamptz, jsonb, jsonb, uuid, text, jsonb)
  is 'Inserts the runs whose keys are free, in the order of keys (new ones: all of them); answers whose each key is, '
     'null for one that was freed meanwhile';

create or replace function pgflow.start_runs(
  workflow text, runs jsonb, queue text default 'default', priority int default 0,
  run_at timestamptz default null, timeout_seconds float8 default null,
  labels jsonb default null, metadata jsonb default null, tenant text default '', version text default '',
  keys_are_new boolean default false,
  if_taken text default 'match', defaults json default null, start_id uuid default null,
  pool text default null, budget jsonb default null, key_seconds float8 default null
)
returns table (run_key text, run_id bigint, is_new boolean, lane_id int)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan -- else a small batch is planned anew for each call
as $$
#variable_conflict use_variable
declare
  lane int;
  t timestamptz := pgflow.now_();
  due timestamptz;
  keys text[];
  are_new boolean;
  inputs text[];
  ids bigint[];
  stems uuid[];
  chain_ids bigint[];
  clash text;
  checked record;
  known record;
begin
  tenant := pgflow.own_tenant_(tenant);
  select pgflow.check_start_(priority, run_at, timeout_seconds, labels, metadata, tenant, null, t),
    pgflow.check_batch_(runs),
    pgflow.check_version_(version), pgflow.check_if_taken_(if_taken, run_at, '', defaults),
    case when exists (select from pgflow.flow_right r where r.workflow = start_runs.workflow and r.privilege = 'start')
      then pgflow.refuse_start_(workflow) end,
    (select pgflow.judge_queue_(q, workflow, version) from pgflow.queue q
      where q.queue = start_runs.queue and (q.refuses_unknown or q.is_lined or q.is_closed)) as is_lined
  into checked;
  if pool is not null or budget is not null then
    perform pgflow.check_pool_(pool, budget);
  end if;
  if key_seconds is not null then
    perform pgflow.check_times_(key_seconds, null, null, if_taken, '', run_at, budget);
  end if;
  if if_taken = 'replace' then
    raise exception using errcode = 'PF003', message = 'a batch cannot replace runs: start them one by one';
  end if;
  lane := pgflow.intern_lane_(queue, workflow, version, true);
  if keys_are_new then
    stems := pgflow.keys_as_uuids_(runs);
  else
    stems := pgflow.uuids7_(jsonb_array_length(runs));
  end if;
  select array_agg(coalesce(g.key, stems[g.n]::text) order by g.n), keys_are_new or bool_and(g.key is null),
    array_agg(g.input order by g.n)
  into keys, are_new, inputs
  from pgflow.new_run_rows_(runs) g;
  if defaults is null then
    known := pgflow.known_code_(workflow, version);
    if known.defaults is not null then
      inputs := array(select pgflow.fill_input_(i::json, known.defaults)::text
        from unnest(inputs) with ordinality as x (i, n) order by n);
    end if;
    if known.shapes is not null then
      perform pgflow.check_inputs_(workflow, known.shapes, inputs);
    end if;
  end if;
  due := greatest(run_at, t) + timeout_seconds * interval '1 second';

  if are_new then
    ids := array(select nextval('pgflow.run_id_seq') from generate_series(1, cardinality(keys)));
    chain_ids := pgflow.take_runs_(tenant, keys, are_new, ids, stems, inputs, lane, priority, run_at, due, labels,
      metadata, start_id, pool, budget);
  end if;
  while chain_ids is null loop
    begin
      if key_seconds is not null then
        perform pgflow.free_keys_(tenant, keys, key_seconds, start_id);
      end if;
      -- A key that is known takes no number; see insert_run_.
      ids := array(
        select case when current_setting('transaction_isolation') = 'serializable' or not exists (select
          from pgflow.run_key k where k.tenant = start_runs.tenant and k.key = g.k offset 0)
            then nextval('pgflow.run_id_seq') end
        from unnest(keys) with ordinality as g (k, n) order by g.n
      );
      chain_ids := pgflow.take_runs_(tenant, keys, are_new, ids, stems, inputs, lane, priority, run_at, due, labels,
        metadata, start_id, pool, budget);
      if array_position(chain_ids, null) is not null then
        -- A key that was taken a moment ago has been swept since. Taken now, behind others, it could deadlock: all are
        -- given back first.
        raise serialization_failure using message = 'a key was freed while it was taken';
      end if;
    exception when serialization_failure then
      if current_setting('transaction_isolation') <> 'read committed' then
        raise;
      end if;
      chain_ids := null;
    end;
  end loop;
  if checked.is_lined then
    perform pgflow.line_up_(array(select g.i from unnest(ids, chain_ids) as g (i, c) where g.i = g.c));
  end if;
  if chain_ids = ids then
    return query select g.k, g.i, true, lane from unnest(keys, ids) as g (k, i);
    return;
  end if;

  if if_taken <> 'attach' then
    select pgflow.conflict_(g.k, g.c, workflow, g.p::json, defaults, r.parent_run_id is not null) into clash
    from unnest(keys, ids, inputs, chain_ids) as g (k, i, p, c)
    cross join lateral (select n.* from pgflow.run n where n.run_id = g.c offset 0) r
    where g.c is distinct from g.i and case if_taken when 'reject' then r.start_id is distinct from start_runs.start_id
      or start_runs.start_id is null
      else (r.lane_id <> lane and (
          select l.workflow <> workflow and not pgflow.is_alias_(l.workflow, workflow) from pgflow.lane l
          where l.lane_id = r.lane_id
        )
        or r.input::jsonb <> g.p::jsonb and not pgflow.same_input_(r.input, g.p::json, defaults)
        or r.parent_run_id is not null)
      end
    limit 1;
  end if;
  if clash is not null then
    raise exception using errcode = 'PF002', message = clash,
      hint = 'Nothing of this batch was started. Use another key, or read the result of the first run.';
  end if;
  return query select g.k, g.c, g.c is not distinct from g.i, lane from unnest(keys, ids, chain_ids) as g (k, i, c);
end
$$;
comment on function pgflow.start_runs(text, jsonb, text, int, timestamptz, float8, jsonb, jsonb, text, text, boolean,
  text, json, uuid, text, jsonb, float8)
  is 'Starts many runs of one workflow, all or none: runs is [[key or null, input as text], ...]; answers in that '
     'order. keys_are_new: they are UUIDs made up for this call, so none is looked for; sent again, because the answer '
     'was lost, the same batch says false. if_taken, defaults, start_id, pool, budget and key_seconds are as of '
     'start_run; a batch cannot replace';
--! grant start_runs to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.check_starts_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'a key names a chain', format('key %s', k.key)
  from pgflow.run_key k where not exists (select from pgflow.run r where r.run_id = k.chain_id)
  union all
  select 'a deadline is not forgotten', format('run %s', r.run_id)
  from pgflow.run r
  where r.deadline_at > pgflow.now_()
    and not exists (select from pgflow.deadline d where d.run_id = r.run_id)
    and not exists (select from pgflow.outcome o where o.run_id = r.run_id)
  union all
  select 'deadlines are of open runs', format('run %s', d.run_id)
  -- One that is due may be in the hands of a sweep; if that fails, the next removes it.
  from pgflow.deadline d where d.due_at > pgflow.now_() and exists (select from pgflow.outcome o
    where o.run_id = d.run_id);
end
$$;
comment on function pgflow.check_starts_() is 'Keys and deadlines have their runs';

comment on column pgflow.run_key.chain_id is 'The chain that the key names';
comment on column pgflow.run_key.tenant is 'Tenant of the key; empty where there is only one';
comment on column pgflow.run_key.key is 'The key, unique for each tenant';

comment on column pgflow.run.run_id is 'The number of the run';
comment on column pgflow.run.chain_id is 'Number of the first run of the chain: the same for all generations';
comment on column pgflow.run.parent_run_id is 'The run that started this one as its child; null = none';
comment on column pgflow.run.created_at is 'Time of the start';
comment on column pgflow.run.run_at is 'Time at which it may begin, if that is later than its start';
comment on column pgflow.run.deadline_at is 'Time at which it is cancelled if it has not ended; null = never';
comment on column pgflow.run.root is 'UUIDv7 of the chain: the stem of its idempotency keys';
comment on column pgflow.run.generation
  is '1, and one more each time the run continues as new, is rewound or restarted';
comment on column pgflow.run.lane_id is 'Its queue, workflow and version';
comment on column pgflow.run.parent_call is 'Number of the parent''s call that started it; null = no parent';
comment on column pgflow.run.priority is 'Lower numbers are claimed first, within their lane';
comment on column pgflow.run.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.run.key is 'The key it was started with, or one made up for it';
comment on column pgflow.run.input is 'Arguments of the workflow, an object of parameter names';
comment on column pgflow.run.labels is 'Strings by name, to find runs by; null = none';
comment on column pgflow.run.metadata is 'Data that the run carries along and hands on to its children; null = none';
comment on column pgflow.run.origin_run_id is 'The run whose journal this one begins with; null = it began empty';
comment on column pgflow.run.origin_seq is 'Number of units it has from there: those with a seq up to this one';
comment on column pgflow.run.heritage
  is 'Other inheritance from there: the stems of keys and of random numbers, the beginning of its time, the tries that '
     'steps have; and the request that made it';

comment on column pgflow.deadline.run_id is 'The open run';
comment on column pgflow.deadline.due_at is 'Time at which it is cancelled if it has not ended';
