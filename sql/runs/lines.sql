-- Lines: queues whose runs wait by key, and take turns.
--
-- A queue has a line once a rule needs one: a key, a limit or a rate for each key, a rate, first in first out, weights,
-- or priorities that age (`set_queue`). A queue without such rules knows nothing of all this.
--
-- A run in a line is ready, with a row in `line_run`, and its row in `ready` has the number of its lane negated. No
-- worker serves such a lane, so claims of other queues never meet it, and a look for ready runs finds it as any
-- other. Starts line up at once. Whatever comes back - woken, released, reaped, resumed - and children become ready as
-- everywhere, and a claim lines them up first (`line_up_`). So code that makes a run ready needs to know nothing of
-- lines. A run leaves a line by its turn, by a pause, a cancel or a rewind, or with all others when the rules change.
--
-- Claims of such a queue go one after the other, behind the lock of its row. So limits and rates are counted by one at
-- a time, in the order of their commits. Leases are what is counted: a run counts until the commit that takes it out of
-- its lease. Keys take turns from `line_state.cursor`: as many runs as their weight in each round, so that between two
-- turns of a key every other key has had one at most. Runs that have begun stand before those that have not, and no
-- rate holds them back.
--
-- In order (`is_fifo`) a run begins only once all of its key that began before it have ended, however long they wait,
-- sleep or are stuck. `line_turn` knows these. It is cleared of those that are over by later turns of their key. A run
-- whose ancestor has the turn is kept apart (rank -1), and passes while that waits for it: both would wait for ever.
-- Other circles that lines are a part of are found by `pgflow.deadlocks` (`sql/ops/deadlocks.sql`).
--
-- A rate counts runs that begin. Windows are counted in hundredths, and one hundredth more is looked back on than the
-- window has: so no window has too many, and 99 % of the rate is used. A bucket gains its rate, up to its size.

create or replace function pgflow.line_key_(expression text, tenant text, workflow text, labels jsonb, input json)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select case when octet_length(k.key) <= 255 then k.key
    else 'sha256:' || encode(sha256(convert_to(k.key, 'UTF8')), 'hex') end
  from (
    select coalesce(string_agg(coalesce(case
        when e.term = 'tenant' then tenant
        when e.term = 'workflow' then workflow
        when starts_with(e.term, 'labels.') then labels->>substr(e.term, 8)
        else input #>> (string_to_array(e.term, '.'))[2:]
      end, ''), '/' order by e.n), '') as key
    from unnest(string_to_array(replace(expression, ' ', ''), ',')) with ordinality as e (term, n)
  ) k
$$;
comment on function pgflow.line_key_(text, text, text, jsonb, json)
  is 'The key of a run by an expression such as `tenant, input.customer.id`; empty without one, as is what a run lacks';

create or replace function pgflow.is_kin_(parent bigint, queue text, key text)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  with recursive up as (
    select r.chain_id, r.parent_run_id from pgflow.run r where r.run_id = parent
    union all
    select r.chain_id, r.parent_run_id from up u join pgflow.run r on r.run_id = u.parent_run_id
  )
  select exists (
    select from up u join pgflow.line_turn n on n.chain_id = u.chain_id
    where n.queue = is_kin_.queue and n.key = is_kin_.key
  )
$$;
comment on function pgflow.is_kin_(bigint, text, text)
  is 'True if a parent, or an ancestor of it, has a turn of this key';

create or replace function pgflow.may_pass_(id bigint, queue text, key text)
returns boolean
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  with recursive up as (
    select r.run_id, r.chain_id, r.parent_run_id, r.parent_call from pgflow.run r where r.run_id = id
    union all
    select r.run_id, r.chain_id, r.parent_run_id, r.parent_call
    from up u join pgflow.run r on r.run_id = u.parent_run_id
    where exists (
      select from pgflow.wait w join pgflow.parked p on p.run_id = w.run_id
      where w.run_id = u.parent_run_id and u.parent_call = any(w.calls)
    )
  )
  select not exists (
    select from pgflow.line_turn n
    where n.queue = may_pass_.queue and n.key = may_pass_.key and n.chain_id not in (select u.chain_id from up u)
      and (exists (select from pgflow.lease e where e.run_id = n.run_id) or pgflow.is_chain_open_(n.chain_id, n.run_id))
  )
$$;
comment on function pgflow.may_pass_(bigint, text, text)
  is 'True if all that have a turn of this key are ancestors of a run, and wait for it';

create or replace function pgflow.line_up_(ids bigint[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
begin
  with stood as materialized (
    update pgflow.ready r set lane_id = -r.lane_id where r.run_id = any(ids) and r.lane_id + 0 > 0 returning r.*
  ), facts as materialized (
    select s.*, r.generation, r.created_at, r.parent_run_id, r.tenant, r.labels, r.input, l.queue, l.workflow
    from stood s
    cross join lateral (select n.* from pgflow.run n where n.run_id = s.run_id offset 0) r
    cross join lateral (select n.* from pgflow.lane n where n.lane_id = -s.lane_id offset 0) l
  )
  insert into pgflow.line_run (run_id, expires_at, rank, lane_id, suspect, is_fresh, queue, key)
  select f.run_id, case when f.has_begun is null and f.generation = 1
      then f.ready_at + p.expires_seconds * interval '1 second' end, case
      when p.is_fifo then case when f.parent_run_id is not null and pgflow.is_kin_(f.parent_run_id, f.queue, k.key)
        then -1 else 0 end
      when p.ageing_seconds is not null
        then pgflow.micros_(f.created_at) + (f.priority * p.ageing_seconds * 1000000)::bigint
      else f.priority
    end, -f.lane_id, f.suspect, f.has_begun is null and f.generation = 1, f.queue, k.key
  from facts f
  cross join lateral (select n.* from pgflow.line n where n.queue = f.queue offset 0) p
  cross join lateral (
    select pgflow.line_key_(p.key, f.tenant, f.workflow, f.labels, f.input) as key offset 0
  ) k;
end
$$;
comment on function pgflow.line_up_(bigint[])
  is 'Ready -> in the line of their queues, for runs whose ready rows are locked or new';

create or replace function pgflow.line_slot_(at timestamptz, seconds float8)
returns bigint
language sql
immutable
return pgflow.micros_(at) / (seconds * 10000)::bigint;
comment on function pgflow.line_slot_(timestamptz, float8)
  is 'Number of the hundredth of a window in which a time lies';

create or replace function pgflow.line_room_(
  queue text, scope "char", key text, rate int, seconds float8, burst int, t timestamptz
)
returns int
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  -- Slots ahead of the clock are of a clock that has been put back: they count, if it was not by long.
  select case when burst is null then greatest(0, rate - coalesce((
      select sum(s.starts) from pgflow.line_rate s
      where s.queue = line_room_.queue and s.scope = line_room_.scope and s.key = line_room_.key
        and s.slot between pgflow.line_slot_(t, seconds) - 100 and pgflow.line_slot_(t, seconds) + 100
    ), 0))::int
    else coalesce((
      select floor(least(burst, b.tokens + greatest(extract(epoch from t - b.filled_at), 0) * rate / seconds))
      from pgflow.line_bucket b
      where b.queue = line_room_.queue and b.scope = line_room_.scope and b.key = line_room_.key
    ), burst)::int
  end
$$;
comment on function pgflow.line_room_(text, "char", text, int, float8, int, timestamptz)
  is 'Number of runs that a rate lets begin now';

create or replace function pgflow.line_use_(
  queue text, scope "char", keys text[], counts int[], rate int, seconds float8, burst int, t timestamptz
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if burst is null then
    delete from pgflow.line_rate s
    where s.queue = line_use_.queue and s.scope = line_use_.scope and s.key = any(keys)
      and s.slot not between pgflow.line_slot_(t, seconds) - 100 and pgflow.line_slot_(t, seconds) + 100;
    insert into pgflow.line_rate as r (slot, starts, scope, queue, key)
    select pgflow.line_slot_(t, seconds), u.n, line_use_.scope, line_use_.queue, u.k
    from unnest(keys, counts) as u (k, n) where u.n > 0
    on conflict (queue, scope, key, slot) do update set starts = r.starts + excluded.starts;
  else
    insert into pgflow.line_bucket as b (filled_at, tokens, scope, queue, key)
    select t, burst - u.n, line_use_.scope, line_use_.queue, u.k from unnest(keys, counts) as u (k, n) where u.n > 0
    on conflict (queue, scope, key) do update
    set filled_at = greatest(b.filled_at, t),
      tokens = least(burst, b.tokens + greatest(extract(epoch from t - b.filled_at), 0) * rate / seconds)
        - (burst - excluded.tokens);
  end if;
end
$$;
comment on function pgflow.line_use_(text, "char", text[], int[], int, float8, int, timestamptz)
  is 'Counts runs that begin, by key';

create or replace function pgflow.line_opens_(
  queue text, rate int, seconds float8, burst int, t timestamptz
)
returns timestamptz
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select case when burst is null then (
      select timestamptz 'epoch' + (min(s.slot) + 101) * ((seconds * 10000)::bigint * interval '1 microsecond')
      from pgflow.line_rate s
      where s.queue = line_opens_.queue and s.scope = 'q' and s.key = ''
        and s.slot >= pgflow.line_slot_(t, seconds) - 100
    )
    else (
      select b.filled_at + (1 - b.tokens) * seconds / rate * interval '1 second' from pgflow.line_bucket b
      where b.queue = line_opens_.queue and b.scope = 'q' and b.key = ''
    )
  end
$$;
comment on function pgflow.line_opens_(text, int, float8, int, timestamptz)
  is 'Time at which the rate of a queue that is used up lets the next run begin';

create or replace function pgflow.is_chain_open_(chain bigint, claimed bigint)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select case
    when exists (select from pgflow.outcome o where o.run_id = claimed)
      then exists (select from pgflow.outcome o where o.run_id = claimed and o.status = 'continued')
        and pgflow.ended_as_(pgflow.newest_run_(chain)) is null
    else exists (select from pgflow.run r where r.run_id = claimed)
  end
$$;
comment on function pgflow.is_chain_open_(bigint, bigint)
  is 'True if a chain, of which this generation was claimed last, has not ended';

create or replace function pgflow.take_turns_(
  queue text, ids bigint[], worker_id int, tokens bigint[], t timestamptz
)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  rules pgflow.line;
  keys text[];
  runs bigint[];
begin
  select p.* into rules from pgflow.line p where p.queue = take_turns_.queue;
  with stood as (
    delete from pgflow.line_run w where w.run_id = any(ids) returning w.key, w.run_id
  )
  select array_agg(s.key), array_agg(s.run_id) into keys, runs from stood s;
  if rules.max_per_key is not null or rules.is_fifo then
    delete from pgflow.line_turn n
    where n.queue = take_turns_.queue and n.key = any(keys)
      and not exists (select from pgflow.lease e where e.run_id = n.run_id)
      and not (rules.is_fifo and pgflow.is_chain_open_(n.chain_id, n.run_id));
    insert into pgflow.line_turn as n (chain_id, run_id, queue, key)
    select r.chain_id, s.id, take_turns_.queue, s.key
    from unnest(runs, keys) as s (id, key)
    cross join lateral (select x.chain_id from pgflow.run x where x.run_id = s.id offset 0) r
    on conflict (queue, key, chain_id) do update set run_id = excluded.run_id;
  end if;
  with gone as materialized (
    delete from pgflow.ready r where r.run_id = any(ids) returning r.*
  )
  insert into pgflow.lease (run_id, token, claimed_at, worker_id, lane_id, last_seq, attempt, priority, suspect, company)
  select g.id, tokens[g.n], t, take_turns_.worker_id, -r.lane_id, r.last_seq, r.attempt + 1, r.priority, r.suspect,
    r.company
  from unnest(ids) with ordinality as g (id, n) join gone r on r.run_id = g.id;
end
$$;
comment on function pgflow.take_turns_(text, bigint[], int, bigint[], timestamptz)
  is 'In a line -> lease, for runs whose ready rows are locked';

create or replace function pgflow.line_heads_(
  queue text, fresh boolean, key text, lanes int[], in_order boolean, max int, t timestamptz, passing boolean
)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  head pgflow.line_run;
  other pgflow.line_run;
  picked bigint[];
begin
  if passing then
    picked := array(
      select w.run_id from pgflow.line_run w
      where w.queue = line_heads_.queue and w.is_fresh = fresh and w.key = line_heads_.key and w.rank < 0
        and w.lane_id = any(lanes) and w.suspect < 2 and (w.expires_at <= t) is not true
        and pgflow.may_pass_(w.run_id, line_heads_.queue, line_heads_.key)
      order by w.rank, w.run_id limit 1
    );
  elsif in_order then
    -- The first is the only one, whoever may take it.
    select w.* into head from pgflow.line_run w
    where w.queue = line_heads_.queue and w.is_fresh = fresh and w.key = line_heads_.key
    order by w.rank, w.run_id limit 1;
    if head.rank < 0 then
      select w.* into other from pgflow.line_run w
      where w.queue = line_heads_.queue and w.is_fresh = fresh and w.key = line_heads_.key and w.rank >= 0
      order by w.rank, w.run_id limit 1;
      if other.run_id < head.run_id then
        head := other;
      end if;
    end if;
    if head.lane_id = any(lanes) and head.suspect < 2 and (head.expires_at <= t) is not true then
      picked := array[head.run_id];
    end if;
  else
    picked := array(
      select w.run_id from pgflow.line_run w
      where w.queue = line_heads_.queue and w.is_fresh = fresh and w.key = line_heads_.key and w.lane_id = any(lanes)
        and w.suspect < 2 and (w.expires_at <= t) is not true
      order by w.rank, w.run_id limit max
    );
  end if;
  return array(
    select r.run_id from pgflow.ready r where r.run_id = any(picked) and r.lane_id + 0 < 0
    order by r.run_id for update skip locked
  );
end
$$;
comment on function pgflow.line_heads_(text, boolean, text, int[], boolean, int, timestamptz, boolean)
  is 'The first runs of a key, locked, except those that are being paused or cancelled; or the first that may '
     'pass those that have its turn. Its caller says what the planner may do';

create or replace function pgflow.claim_line_(
  queue text, lanes int[], max int, worker_id int, tokens bigint[], may_suspect boolean, t timestamptz
)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off -- which has no order: it would read and sort the whole backlog of a key
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
  rules pgflow.line;
  state pgflow.line_state;
  came bigint[];
  taken bigint[] := '{}';
  turn bigint[];
  fresh boolean := false;
  last_key text;
  next_key text;
  has_wrapped boolean;
  more int;
  walked int := 0;
  keys text[];
  counts int[];
  share int;
  room int;
  open_room int;
  heads bigint[];
  suspect bigint;
  company int;
  is_taken boolean;
  is_held_back boolean := false;
begin
  select p.* into rules from pgflow.line p where p.queue = queue;
  select s.* into state from pgflow.line_state s where s.queue = queue;
  came := array(
    select k.run_id from (
      select r.run_id from unnest(lanes) as l (id)
      cross join lateral (select x.run_id from pgflow.ready x where x.lane_id = l.id limit 1000) r
    ) k
  );
  if came <> '{}' then
    came := array(select r.run_id from pgflow.ready r where r.run_id = any(came) order by r.run_id
      for update skip locked);
    perform pgflow.line_up_(came);
  end if;
  if max <= 0 then
    return taken;
  end if;

  -- A group of suspects: as many as each of them may have in its company.
  while may_suspect and max > 0 loop
    select r.run_id, least(company, r.company) into suspect, company from pgflow.ready r
    where r.lane_id + 0 < 0 and r.run_id = (
      select w.run_id from pgflow.line_run w
      where w.queue = queue and w.suspect > 1 and w.lane_id = any(lanes)
        and (rules.max_per_key is null and not rules.is_fifo or coalesce(rules.max_per_key, 1) > (
          select count(*) from pgflow.line_turn n where n.queue = queue and n.key = w.key
            and exists (select from pgflow.lease e where e.run_id = n.run_id)
        ))
      order by w.suspect, w.rank, w.run_id limit 1
    )
    for update skip locked;
    exit when not found or cardinality(taken) >= company;
    perform pgflow.take_turns_(queue, array[suspect], worker_id, tokens[cardinality(taken) + 1:], t);
    taken := taken || suspect;
    max := max - 1;
  end loop;

  -- First those that have begun, then those that have not, as far as the rate goes.
  loop
    if fresh and rules.rate is not null then
      open_room := pgflow.line_room_(queue, 'q', '', rules.rate, rules.rate_seconds, rules.burst, t);
      is_held_back := open_room < max;
      max := least(max, open_room);
    end if;
    keys := '{}';
    counts := '{}';
    share := 1;
    while max > 0 loop
      last_key := state.cursor;
      has_wrapped := false;
      more := 0;
      turn := '{}';
      while max > 0 and walked < 4000 loop
        if last_key is null then
          select w.key into next_key from pgflow.line_run w where w.queue = queue and w.is_fresh = fresh
          order by w.key limit 1;
        else
          select w.key into next_key from pgflow.line_run w
          where w.queue = queue and w.is_fresh = fresh and w.key > last_key order by w.key limit 1;
        end if;
        if next_key is null and not has_wrapped then
          has_wrapped := true;
          last_key := null;
          continue;
        end if;
        exit when next_key is null or has_wrapped and next_key > state.cursor;
        last_key := next_key;
        walked := walked + 1;

        open_room := share * coalesce((rules.weights->>next_key)::int, 1);
        room := least(max, open_room);
        is_taken := rules.is_fifo and fresh and exists (
          select from pgflow.line_turn n where n.queue = queue and n.key = next_key
            and (exists (select from pgflow.lease e where e.run_id = n.run_id)
              or pgflow.is_chain_open_(n.chain_id, n.run_id)));
        continue when is_taken and not exists (
          select from pgflow.line_run w
          where w.queue = queue and w.is_fresh and w.key = next_key and w.rank < 0);
        if (rules.max_per_key is not null or rules.is_fifo) and (is_taken or not (rules.is_fifo and fresh)) then
          room := least(room, coalesce(rules.max_per_key, 1) - (
            select count(*) from pgflow.line_turn n where n.queue = queue and n.key = next_key
              and exists (select from pgflow.lease e where e.run_id = n.run_id)
          ));
        end if;
        continue when room <= 0;
        if fresh and rules.key_rate is not null then
          room := least(room, pgflow.line_room_(queue, 'k', next_key, rules.key_rate, rules.key_rate_seconds,
            rules.key_burst, t) - coalesce(counts[array_position(keys, next_key)], 0));
          is_held_back := is_held_back or room <= 0;
        end if;
        continue when room <= 0;
        heads := pgflow.line_heads_(queue, fresh, next_key, lanes, rules.is_fifo, room, t, is_taken);
        continue when heads = '{}';
        turn := turn || heads;
        max := max - cardinality(heads);
        if cardinality(heads) = open_room and not rules.is_fifo then
          more := more + open_room / share;
        end if;
        if fresh and rules.key_rate is not null then
          if next_key = any(keys) then
            counts[array_position(keys, next_key)] :=
              counts[array_position(keys, next_key)] + cardinality(heads);
          else
            keys := keys || next_key;
            counts := counts || cardinality(heads);
          end if;
        end if;
      end loop;
      if turn <> '{}' then
        perform pgflow.take_turns_(queue, turn, worker_id, tokens[cardinality(taken) + 1:], t);
        taken := taken || turn;
      end if;
      if fresh and rules.rate is not null and turn <> '{}' then
        -- By a clock that is read behind the leases: no run is seen to begin later than it is counted.
        perform pgflow.line_use_(queue, 'q', array[''], array[cardinality(turn)], rules.rate, rules.rate_seconds,
          rules.burst, pgflow.now_());
      end if;
      if last_key is not null and (max = 0 or walked >= 4000) then
        state.cursor := last_key;
      end if;
      exit when more = 0 or walked >= 4000;
      -- There is room for more rounds: as many at once as there is room for.
      share := greatest(1, max / more);
      walked := 0;
    end loop;
    if keys <> '{}' then
      perform pgflow.line_use_(queue, 'k', keys, counts, rules.key_rate, rules.key_rate_seconds, rules.key_burst,
        pgflow.now_());
    end if;
    exit when fresh;
    fresh := true;
    walked := 0;
  end loop;

  if is_held_back then
    state.opens_at := greatest(t + interval '5 milliseconds', least(
      case when rules.key_rate is not null then t + least(rules.key_rate_seconds / 100, 1) * interval '1 second' end,
      case when rules.rate is not null
        then pgflow.line_opens_(queue, rules.rate, rules.rate_seconds, rules.burst, t) end));
  else
    state.opens_at := null;
  end if;
  update pgflow.line_state s set cursor = state.cursor, opens_at = state.opens_at
  where s.queue = queue and (s.cursor, s.opens_at) is distinct from (state.cursor, state.opens_at);
  return taken;
end
$$;
comment on function pgflow.claim_line_(text, int[], int, int, bigint[], boolean, timestamptz)
  is 'Claims up to max runs of a line, key by key, for a worker that serves these lanes of the queue. The queue is '
     'locked';

create or replace function pgflow.next_turn(queues text[], out seconds float8, out is_limited boolean)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  is_limited := exists (select from pgflow.line p where p.queue = any(queues));
  if is_limited and exists (
    select from pgflow.line p where p.queue = any(queues) and (p.rate is not null or p.key_rate is not null))
  then
    seconds := coalesce((
      select greatest(extract(epoch from min(s.opens_at) - pgflow.now_()), 0)
      from pgflow.line_state s
      where s.queue = any(queues) and exists (select from pgflow.line_run w where w.queue = s.queue)
    ), 3600);
  end if;
  is_limited := is_limited or exists (
    select from pgflow.queue q where q.queue = any(queues) and q.max_running is not null);
end
$$;
comment on function pgflow.next_turn(text[])
  is 'Seconds until a rate lets a run of these queues begin that waits for it; 3600 if none does, null if none '
     'of them has a rate. And whether any of them has a limit, so that the end of a run may let another begin';
--! grant next_turn to pgflow_worker

create or replace function pgflow.leave_line_(queue text, max int)
returns int[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  locked bigint[];
  lanes int[];
begin
  locked := array(
    select r.run_id from pgflow.ready r
    where r.run_id = any(array(select w.run_id from pgflow.line_run w where w.queue = leave_line_.queue limit max))
      and r.lane_id + 0 < 0
    order by r.run_id for update skip locked
  );
  delete from pgflow.line_run w where w.run_id = any(locked);
  with back as (
    update pgflow.ready r set lane_id = -r.lane_id where r.run_id = any(locked) returning r.lane_id
  )
  select array_agg(distinct b.lane_id) into lanes from back b;
  return coalesce(lanes, '{}');
end
$$;
comment on function pgflow.leave_line_(text, int)
  is 'Moves runs from the line of a queue to ready, except those that are locked; returns their lanes';

create or replace function pgflow.expire_lines_(max int, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  due bigint[];
begin
  if not exists (select from pgflow.line) then
    return;
  end if;
  due := array(
    select w.run_id from pgflow.line_run w where w.expires_at <= t and w.expires_at > '-infinity'
    order by w.expires_at limit max
  );
  if due = '{}' then
    return;
  end if;
  -- A claim that read its clock before may be taking one: it has locked it, or is seen to have taken it.
  due := array(
    select r.run_id from pgflow.ready r where r.run_id = any(due) order by r.run_id for update skip locked
  );
  with stale as (
    -- It does not begin any more, and is not cancelled again.
    update pgflow.line_run w set expires_at = '-infinity' where w.run_id = any(due) and w.expires_at <= t
    returning w.run_id
  ), told as (
    insert into pgflow.signal (chain_id, sent_at, kind, name, sent_by, payload)
    select r.chain_id, t, 'x', 'cancel', 'pgflow', json_build_object('why', 'expired', 'reason', 'expired')
    from stale s join pgflow.run r on r.run_id = s.run_id
    returning chain_id
  )
  insert into pgflow.nudge (chain_id) select chain_id from told;
end
$$;
comment on function pgflow.expire_lines_(int, timestamptz)
  is 'Posts a cancel to runs that have stood in a line for too long without beginning';

create or replace function pgflow.tend_lines_(max int, t timestamptz)
returns int[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  rules pgflow.line;
  lanes int[] := '{}';
begin
  if not exists (select from pgflow.line) then
    return lanes;
  end if;
  for rules in select p.* from pgflow.line p order by p.queue loop
    if rules.is_over and exists (select from pgflow.line_run w where w.queue = rules.queue) then
      -- A start that was under way when the queue lost its line.
      lanes := lanes || pgflow.leave_line_(rules.queue, max);
    end if;
    continue when exists (
      select from pgflow.line_state s
      where s.queue = rules.queue and s.tended_at between t - interval '1 minute' and t
    );
    -- Turns are counted by claims: none may be under way.
    perform from pgflow.queue q where q.queue = rules.queue for no key update skip locked;
    continue when not found;
    update pgflow.line_state s set tended_at = t where s.queue = rules.queue;
    delete from pgflow.line_turn n
    where n.queue = rules.queue and not exists (select from pgflow.lease e where e.run_id = n.run_id)
      and not (rules.is_fifo and pgflow.is_chain_open_(n.chain_id, n.run_id));
    delete from pgflow.line_rate s
    where s.queue = rules.queue and s.slot < case s.scope when 'q' then pgflow.line_slot_(t, rules.rate_seconds)
      else pgflow.line_slot_(t, rules.key_rate_seconds) end - 101;
    -- A bucket that is full again needs no row.
    delete from pgflow.line_bucket b
    where b.queue = rules.queue and b.scope = 'k'
      and b.tokens + extract(epoch from t - b.filled_at) * rules.key_rate / rules.key_rate_seconds >= rules.key_burst;
  end loop;
  return lanes;
end
$$;
comment on function pgflow.tend_lines_(int, timestamptz)
  is 'Clears away what lines need no more, and takes runs out of those that are over; answers their lanes';

create or replace function pgflow.check_lines_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'a run in a line is ready, in the negative of its lane', format('run %s', coalesce(w.run_id, r.run_id))
  from pgflow.line_run w
  full join (select n.run_id, n.lane_id from pgflow.ready n where n.lane_id < 0) r on r.run_id = w.run_id
  where w.run_id is null or r.run_id is null or r.lane_id <> -w.lane_id
  union all
  select 'a run whose queue limits keys has had a turn', format('run %s', e.run_id)
  from pgflow.lease e join pgflow.lane l on l.lane_id = e.lane_id join pgflow.line p on p.queue = l.queue
  where (p.max_per_key is not null or p.is_fifo)
    and not exists (select from pgflow.line_turn n where n.queue = l.queue and n.run_id = e.run_id);
end
$$;
comment on function pgflow.check_lines_() is 'Runs in lines, and whose turn it is';
