-- What the database decides about one run, in the transaction that commits its units: which children
-- exist, which message a wait takes, which timer is due - and, where nothing is left to do, the change
-- of its place. Called by commit_units with the lease locked and the units of the flush inserted.
--
-- Of everything that has happened, what happened first comes first: a signal by the time at which it
-- was sent, a timer by the time at which it was due, however late a worker looks. Results of children
-- and due timers are recorded in one go, since nobody else could want them. A signal or a cancel is
-- taken only as the first of its look: what the code does about an earlier event may give up the wait
-- for it, and a message once taken cannot be put back.
--
-- A question is an object:
--   run, token, chain     whose
--   seq                   the last seq after the units of this flush
--   children              [[call, workflow, queue, input, key, priority, run_at_us, timeout_seconds, labels, metadata, close policy], ...]
--   signals               [[call, name], ...]         waits for a signal
--   timers                [[call, seq of its start, "T" or "W"], ...]   sleeps (T) and time-outs of waits (W)
--   retries               [[call, seq of its failed attempt], ...]      reasons to wake, never an answer
--   child_calls           [call, ...]                 calls that wait for a child
--   unwanted              [chain, ...]                children whose calls the code has given up: cancel them
--   cancelled             true once a cancel was delivered: further ones are dropped
--   idle                  true if no body runs and none may start: the run may be paused
--   park                  true: if nothing has happened, park
--   stuck                 the same as hold, for when it would park: nothing but a person can bring it on
--   hold                  [state, reason, code hash, detail]
--   refused               [[name, error, code hash], ...]   of a hold: signals that the code could not take
--   continue              input of the next generation
--   cancel                {why, by} of a cancel that was taken after the code had ended, for the next generation
--   effects               [[call, name, key, hash, risk, request, ordinal or key, ground, seconds, decision, compensates, reads, ...], ...]  see intend_
--   open_effects          [call, ...]                 effects that whoever knows may settle while the run is parked
-- and the answer:
--   refused               [[call, version of the policy, name of a read that is too old], ...]
--   run, units [[seq, call, kind, name, payload, due_at of an effect], ...], place "leased" | "parked" | "held" | "ended", at, pause, wake, lanes

create or replace function pgflow.append_(
  run_id bigint, seq int, call int, kind "char", name text, payload json, token bigint, at timestamptz, t timestamptz
)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into pgflow.unit (run_id, seq, call, kind, name, payload, token, at, recorded_at)
  values (run_id, seq, call, kind, name, payload, token, at, t)
$$;
comment on function pgflow.append_(bigint, int, int, "char", text, json, bigint, timestamptz, timestamptz) is 'Appends one unit that the database decided';

create or replace function pgflow.unit_json_(seq int, call int, kind "char", name text, payload json)
returns jsonb
language sql
stable
return jsonb_build_array(seq, call, kind, name, payload::text);
comment on function pgflow.unit_json_(int, int, "char", text, json) is 'A unit as it travels in an answer, its payload as exact text';

create or replace function pgflow.take_lanes_(questions jsonb)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.intern_lane_(g.queue, g.workflow, g.version)
  from (
    select distinct c->>2 as queue, c->>1 as workflow, coalesce(c->>11, '') as version
    from jsonb_array_elements(questions) q cross join lateral jsonb_array_elements(q->'children') c
    order by 1, 2, 3
  ) g
$$;
comment on function pgflow.take_lanes_(jsonb)
  is 'Makes what lanes the children of a batch need in one order, ahead of their runs, so that two batches wait and never deadlock';

create or replace function pgflow.take_keys_(questions jsonb)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.free_key_(r.tenant, r.run_id, c->>4)
  from jsonb_array_elements(questions) q
  cross join lateral (select n.* from pgflow.run n where n.run_id = (q->'run')::bigint and n.heritage is not null offset 0) r
  cross join lateral jsonb_array_elements(q->'children') c
  where c->>4 is not null
  order by r.tenant, c->>4;
  -- Numbered in the order in which the code started them.
  insert into pgflow.run_key (tenant, key, chain_id, root)
  select r.tenant, g.key, g.id, pgflow.uuid7_()
  from (
    select (q->'run')::bigint as parent, c->>4 as key, nextval('pgflow.run_id_seq') as id
    from jsonb_array_elements(questions) q cross join lateral jsonb_array_elements(q->'children') c
    where c->>4 is not null
  ) g
  cross join lateral (select n.tenant from pgflow.run n where n.run_id = g.parent offset 0) r
  order by r.tenant, g.key
  on conflict do nothing;
end
$$;
comment on function pgflow.take_keys_(jsonb)
  is 'Takes the keys of all children of a batch in the order of keys, ahead of their runs, so that two batches wait and never deadlock';

create or replace function pgflow.leave_keys_(q jsonb)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  delete from pgflow.run_key k
  using pgflow.run r, jsonb_array_elements(q->'children') c
  where r.run_id = (q->'run')::bigint and k.tenant = r.tenant and k.key = c->>4
    and not exists (select from pgflow.run x where x.run_id = k.chain_id)
$$;
comment on function pgflow.leave_keys_(jsonb) is 'Gives back keys that this transaction has taken for children that will not be';

create or replace function pgflow.start_children_(q jsonb, t timestamptz, inout seq int, out units jsonb, out lanes int[])
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  parent record;
  child record;
  c jsonb;
  payload json;
  kind "char";
  me bigint := (q->'run')::bigint;
begin
  units := '[]';
  lanes := '{}';
  select r.tenant, r.deadline_at, r.root_run_id, r.metadata into strict parent from pgflow.run r where r.run_id = me;
  for c in select * from jsonb_array_elements(q->'children') loop
    select i.* into child
    from pgflow.insert_run_(
      parent.tenant, c->>4, c->>1, c->>2, coalesce(c->>11, ''), coalesce((c->>5)::int, 0), (c->>3)::json,
      timestamptz 'epoch' + (c->>6)::bigint * interval '1 microsecond',
      coalesce(greatest(t, timestamptz 'epoch' + (c->>6)::bigint * interval '1 microsecond') + (c->>7)::float8 * interval '1 second', parent.deadline_at),
      nullif(c->8, 'null'), coalesce(nullif(c->9, 'null'), parent.metadata), me, (c->0)::int, (c->>10)::"char", parent.root_run_id
    ) i;
    seq := seq + 1;
    if child.clash is null then
      kind := 'k';
      payload := json_build_object('run_id', child.run_id, 'key', child.run_key);
      lanes := lanes || child.lane_id;
    else
      kind := 'K';
      payload := json_build_object('status', 'refused', 'error', json_build_object(
        'type', 'pgflow.errors.KeyConflict', 'mro', json_build_array('pgflow.errors.KeyConflict'),
        'args', json_build_array(child.clash), 'message', child.clash));
    end if;
    perform pgflow.append_(me, seq, (c->0)::int, kind, c->>1, payload, (q->'token')::bigint, t, t);
    units := units || jsonb_build_array(pgflow.unit_json_(seq, (c->0)::int, kind, c->>1, payload));
  end loop;
end
$$;
comment on function pgflow.start_children_(jsonb, timestamptz, int) is 'Starts the children that a flush asks for, each recorded as started or refused';

create or replace function pgflow.look_(q jsonb, t timestamptz, inout seq int, out units jsonb, out pause boolean)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  me bigint := (q->'run')::bigint;
  chain bigint := (q->'chain')::bigint;
  last_word bigint;
  happening record;
  payload json;
  saga jsonb;
begin
  units := '[]';
  -- Of what people asked for while a worker held the run, the last word counts.
  select coalesce((array_agg(s.kind order by s.signal_id desc))[1] = 'p', false), max(s.signal_id) into pause, last_word
  from pgflow.signal s where s.chain_id = chain and s.kind in ('p', 'r', 't');
  if not pause then
    delete from pgflow.signal s where s.chain_id = chain and s.kind in ('p', 'r', 't') and s.signal_id <= last_word;
  end if;
  for happening in
    select h.* from (
      select s.kind, 0 as call, s.name, s.sent_at as at, s.signal_id, s.payload, s.sent_by, false as is_refused
      from pgflow.signal s where s.chain_id = chain and s.kind = 'x'
      union all
      select 'S', (w->0)::int, w->>1, s.sent_at, s.signal_id, s.payload, s.sent_by, s.refusal is not null
      from jsonb_array_elements(q->'signals') w
      cross join lateral (
        select * from pgflow.signal m
        where m.chain_id = chain and m.kind = 's' and m.name = w->>1
        order by m.signal_id limit 1
      ) s
      union all
      select 'K', s.call, s.name, s.sent_at, s.signal_id, s.payload, s.sent_by, false
      from pgflow.signal s
      where q ? 'child_calls' and s.chain_id = chain and s.kind = 'c' and s.run_id = me
        and s.call = any(array(select e::int from jsonb_array_elements(q->'child_calls') e))
      union all
      select (w->>2)::"char", (w->0)::int, u.name, u.due_at, null, null, null, false
      from jsonb_array_elements(q->'timers') w
      join pgflow.unit u on u.run_id = me and u.seq = (w->1)::int
      where u.due_at <= t
    ) h
    order by h.is_refused, h.at, h.call, h.signal_id -- what the code could not take before stands in nobody's way
  loop
    if happening.kind in ('x', 'S') then
      exit when units <> '[]';
      delete from pgflow.signal s
      where s.chain_id = chain and s.kind = case when happening.kind = 'S' then 's' else 'x' end::"char"
        and s.name = happening.name and s.signal_id = happening.signal_id;
      continue when happening.kind = 'x' and (q->'cancelled')::boolean;
    elsif happening.kind = 'K' then
      delete from pgflow.signal s
      where s.chain_id = chain and s.kind = 'c' and s.name = happening.name and s.signal_id = happening.signal_id;
    end if;
    payload := case happening.kind
      when 'x' then json_build_object('why', happening.payload->'why', 'by', happening.sent_by)
      when 'S' then coalesce(happening.payload, 'null')
      when 'K' then happening.payload
    end;
    if happening.kind = 'K' then
      select l.workflow into happening.name
      from pgflow.run r join pgflow.lane l on l.lane_id = r.lane_id where r.run_id = (payload->>'run_id')::bigint;
      saga := case when payload->>'status' = 'completed' and payload->'saga' is null then pgflow.child_saga_(me, (payload->>'run_id')::bigint) end;
      if saga is not null then
        perform pgflow.hand_on_debts_((payload->>'run_id')::bigint, null, null, 'its parent has its result', t);
        payload := json_build_object('status', payload->'status', 'reason', payload->'reason', 'output', payload->'output', 'error', payload->'error',
          'run_id', payload->'run_id', 'saga', saga);
      end if;
    end if;
    seq := seq + 1;
    perform pgflow.append_(me, seq, happening.call, happening.kind, happening.name, payload, (q->'token')::bigint, t, t);
    units := units || jsonb_build_array(pgflow.unit_json_(seq, happening.call, happening.kind, happening.name, payload));
    exit when happening.kind in ('x', 'S');
  end loop;
end
$$;
comment on function pgflow.look_(jsonb, timestamptz, int) is 'Takes what has happened to a run, in the order in which it happened, and records it';

create or replace function pgflow.park_(q jsonb, seq int, t timestamptz)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  me bigint := (q->'run')::bigint;
  chain bigint := (q->'chain')::bigint;
begin
  with gone as (
    delete from pgflow.lease e where e.run_id = me returning *
  )
  insert into pgflow.parked (run_id, chain_id, token, parked_at, lane_id, last_seq, priority)
  select g.run_id, chain, g.token, t, g.lane_id, park_.seq, g.priority from gone g;
  insert into pgflow.wait (run_id, call, kind, name)
  select me, (w->0)::int, 's', w->>1 from jsonb_array_elements(q->'signals') w;
  if jsonb_array_length(coalesce(q->'child_calls', '[]')) > 0 then
    insert into pgflow.wait (run_id, call, kind, name, calls)
    values (me, (q->'child_calls'->0)::int, 'c', 'child', array(select e::int from jsonb_array_elements(q->'child_calls') e));
  end if;
  insert into pgflow.wait (run_id, call, kind, name)
  select me, e::int, 'e', 'effect' from jsonb_array_elements(q->'open_effects') e;
  insert into pgflow.timer (due_at, run_id, call)
  select u.due_at, me, (w->0)::int
  from jsonb_array_elements(coalesce(q->'timers', '[]') || coalesce(q->'retries', '[]')) w
  join pgflow.unit u on u.run_id = me and u.seq = (w->1)::int;
  return exists (select from pgflow.wait w where w.run_id = me);
end
$$;
comment on function pgflow.park_(jsonb, int, timestamptz) is 'Lease -> parked, with the reasons to wake; true if a message that crossed it should be looked for at once';

create or replace function pgflow.hold_(q jsonb, seq int, t timestamptz)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from pgflow.lease where run_id = (q->'run')::bigint returning *
  )
  insert into pgflow.held (run_id, token, held_at, lane_id, last_seq, attempt, priority, has_begun, state, reason, code_hash, held_by, detail)
  select run_id, token, t, lane_id, seq, attempt, priority, true, q->'hold'->>0, q->'hold'->>1, q->'hold'->>2, q->'hold'->>4, nullif(q->'hold'->3, 'null')
  from gone
$$;
comment on function pgflow.hold_(jsonb, int, timestamptz) is 'Lease -> held';

create or replace function pgflow.pause_(q jsonb, t timestamptz, inout seq int)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  request record;
begin
  -- What is asked after the last pause is left to the wake that its nudge brings.
  for request in
    with gone as (
      delete from pgflow.signal s
      where s.chain_id = (q->'chain')::bigint and s.kind in ('p', 'r', 't')
        and s.signal_id <= (select max(p.signal_id) from pgflow.signal p where p.chain_id = s.chain_id and p.kind = 'p')
      returning s.*
    )
    select * from gone order by signal_id
  loop
    seq := seq + 1;
    perform pgflow.append_((q->'run')::bigint, seq, 0, 'o', request.name, json_build_object('why', request.payload->'why', 'by', request.sent_by), (q->'token')::bigint, t, t);
    continue when request.kind <> 'p';
    q := q || jsonb_build_object('hold', jsonb_build_array('paused', coalesce(left(request.payload->>'why', 255), 'paused'), null, null, request.sent_by));
  end loop;
  perform pgflow.hold_(q, seq, t);
end
$$;
comment on function pgflow.pause_(jsonb, timestamptz, int) is 'Takes the requests to pause, records who asked and why, and holds the run';

create or replace function pgflow.continue_(q jsonb, seq int, t timestamptz)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  me bigint := (q->'run')::bigint;
  next_id bigint := nextval('pgflow.run_id_seq');
  next_generation int;
  lane int;
begin
  perform pgflow.append_(me, seq + 1, 0, 'n', null, json_build_object('run_id', next_id), (q->'token')::bigint, t, t);
  insert into pgflow.run (
    run_id, chain_id, root_run_id, parent_run_id, created_at, deadline_at, root, generation, lane_id, parent_call,
    priority, close_policy, tenant, key, input, labels, metadata
  )
  select next_id, chain_id, case when parent_run_id is null then next_id else root_run_id end, parent_run_id, t, deadline_at, root,
    generation + 1, lane_id, parent_call, priority, close_policy, tenant, key, (q->>'continue')::json, labels, metadata
  from pgflow.run where run_id = me
  returning lane_id, generation into lane, next_generation;
  if q ? 'saga' or q ? 'of_children' then
    perform pgflow.hand_on_saga_(me, (q->'chain')::bigint, next_generation - 1, coalesce(q->'saga', '[]'), q->'of_children');
  end if;
  if q ? 'cancel' then
    perform pgflow.post_((q->'chain')::bigint, 'x', 'cancel', json_build_object('why', q->'cancel'->'why'), q->'cancel'->>'by');
  end if;
  insert into pgflow.deadline (run_id, due_at) select next_id, deadline_at from pgflow.run where run_id = me and deadline_at is not null;
  insert into pgflow.outcome (run_id, token, finished_at, status) values (me, (q->'token')::bigint, t, 'continued');
  with gone as (
    delete from pgflow.lease where run_id = me returning *
  )
  -- What has something to take back is never ended without its code.
  insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority, has_begun)
  select next_id, t, lane_id, 0, 0, priority, case when pgflow.carried_saga_((q->'chain')::bigint, next_generation) is not null then true end from gone;
  return lane;
end
$$;
comment on function pgflow.continue_(jsonb, int, timestamptz) is 'Ends a run as the next generation of its chain, which is ready at once; answers the lane';

create or replace function pgflow.settle_(q jsonb, t timestamptz)
returns jsonb
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  seq int := (q->'seq')::int;
  units jsonb := '[]';
  more jsonb;
  wants_pause boolean := false;
  place text := 'leased';
  lanes int[] := '{}';
  to_wake bigint[] := '{}';
  refused jsonb := '[]';
  words jsonb := '[]';
  me bigint := (q->'run')::bigint;
  chain bigint := (q->'chain')::bigint;
begin
  if exists (select from pgflow.signal s where s.chain_id = chain and s.kind = 'x' and s.name = 'force') then
    perform pgflow.end_by_force_(me, chain, seq, (q->'token')::bigint, t);
    delete from pgflow.lease where run_id = me;
    if q ? 'children' then
      perform pgflow.leave_keys_(q);
    end if;
    return jsonb_build_object('run', me, 'units', units, 'place', 'ended', 'at', pgflow.micros_(t), 'wake', to_jsonb(pgflow.wind_up_(array[me], t)));
  end if;

  if q ? 'unwanted' then
    perform pgflow.post_(c.id::bigint, 'x', 'cancel', json_build_object('why', 'the parent gave up waiting for it'), 'pgflow')
    from jsonb_array_elements_text(q->'unwanted') c (id);
    to_wake := array(select c.id::bigint from jsonb_array_elements_text(q->'unwanted') c (id));
  end if;
  if q ? 'children' then
    select s.seq, s.units, s.lanes into seq, units, lanes from pgflow.start_children_(q, t, seq) s;
  end if;
  -- What somebody has said of an effect comes before it could be tried again, and before the run could be held for want of it.
  if not (q ? 'continue' or q ? 'hold') and exists (
    select from pgflow.signal s where s.chain_id = chain and s.kind = 'e' and s.run_id = me
  ) then
    select w.seq, w.units into seq, words from pgflow.take_words_(me, chain, (q->'token')::bigint, t, false, seq) w;
    units := units || words;
  end if;
  if q ? 'effects' then
    select i.seq, i.units, i.refused into seq, more, refused from pgflow.intend_(q, t, seq) i;
    units := units || more;
  end if;
  if q ? 'hold' then
    perform pgflow.hold_(case when q ? 'refused' then pgflow.note_refused_(q) else q end, seq, t);
    to_wake := to_wake || pgflow.nudge_asked_(array[chain]);
    place := 'held';
  elsif q ? 'continue' then
    lanes := lanes || pgflow.continue_(q, seq, t);
    to_wake := to_wake || pgflow.wind_up_(array[me], t) || pgflow.nudge_asked_(array[chain]);
    place := 'ended';
  else
    select l.seq, l.units, l.pause into seq, more, wants_pause from pgflow.look_(q, t, seq) l;
    units := units || more;
    more := words || more;
    if more = '[]' and wants_pause and (q->'idle')::boolean then
      select p.seq into seq from pgflow.pause_(q, t, seq) p;
      to_wake := to_wake || pgflow.nudge_asked_(array[chain]);
      place := 'held';
    elsif more = '[]' and not wants_pause and (q->'park')::boolean and q ? 'stuck' then
      perform pgflow.hold_(q || jsonb_build_object('hold', q->'stuck'), seq, t);
      to_wake := to_wake || pgflow.nudge_asked_(array[chain]);
      place := 'held';
    elsif more = '[]' and not wants_pause and (q->'park')::boolean then
      if pgflow.park_(q, seq, t) then
        to_wake := to_wake || chain;
      end if;
      place := 'parked';
    end if;
  end if;
  return jsonb_build_object('run', me, 'units', units, 'place', place, 'at', pgflow.micros_(t), 'pause', wants_pause,
    'refused', nullif(refused, '[]'), 'wake', to_jsonb(to_wake), 'lanes', to_jsonb(lanes));
end
$$;
comment on function pgflow.settle_(jsonb, timestamptz) is 'Answers one run''s questions and changes its place, within commit_units';
