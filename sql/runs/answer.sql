-- Decisions of the database on runs, in the transaction that commits their units: which children exist, which message
-- a wait takes, which timer is due - and, where nothing is left to do, the change of their place. Called by
-- commit_units with the leases locked and the units of the flushes inserted, once for all runs of a batch that ask
-- something: what most of them need is one statement for all of them, what few need goes run by run, in the order of
-- the batch.
--
-- Of everything that has happened to a run, what happened first comes first: a signal by the time at which it
-- was sent, a timer by the time at which it was due, however late a worker looks. Results of children
-- and due timers are recorded in one go, since nobody else could want them. A signal, a verdict or a cancel is
-- taken only as the first of its look: what the code does about an earlier event may give up the wait
-- for it, and a message once taken cannot be put back.
--
-- Which runs have mail is looked for once, and what comes later is found by the wake of its sender: the leases are
-- locked.
--
-- A question is a `Question` of pgflow/_model/protocol.py, and its answer an `Answer`. Each kind of thing that a
-- question asks for is a function of its own, which takes the positions of the questions that it is about and returns
-- what it has done, by position. answer_all_ calls them in their order and keeps the score.

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
comment on function pgflow.append_(bigint, int, int, "char", text, json, bigint, timestamptz, timestamptz)
  is 'Appends one unit that the database decided';

create or replace function pgflow.unit_json_(seq int, call int, kind "char", name text, payload json)
returns jsonb
language sql
stable
return jsonb_build_array(seq, call, kind, name, payload::text);
comment on function pgflow.unit_json_(int, int, "char", text, json)
  is 'A unit as it travels in an answer, its payload as exact text';

create or replace function pgflow.hear_(questions jsonb, mailed int[])
returns int[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  pausing int[];
  heard bigint[];
  last_words bigint[];
begin
  -- Of what people asked for while a worker held the run, the last word counts.
  select array_agg(w.pos) filter (where w.is_pause), array_agg(w.chain) filter (where not w.is_pause),
    array_agg(w.last_word) filter (where not w.is_pause)
  into pausing, heard, last_words
  from (
    select m.pos, m.chain, max(s.signal_id) as last_word,
      (array_agg(s.kind order by s.signal_id desc))[1] = 'p' as is_pause
    from (
      select q.pos, q.chain from pgflow.question_rows_(questions) q where q.pos = any(mailed)
    ) m
    cross join lateral (select o.kind, o.signal_id from pgflow.signal o
      where o.chain_id = m.chain and o.kind in ('p', 'r', 't') offset 0) s
    group by m.pos, m.chain
  ) w;
  if heard is not null then
    delete from pgflow.signal s where s.ctid = any(array(
      select o.ctid from unnest(heard, last_words) as w (chain, last_word)
      cross join lateral (
        select m.ctid from pgflow.signal m
        where m.chain_id = w.chain and m.kind in ('p', 'r', 't') and m.signal_id <= w.last_word offset 0
      ) o
    ));
  end if;
  -- One that was cancelled before hears of no further cancel.
  if questions @? '$[*] ? (@.cancelled == true)' then
    delete from pgflow.signal s where s.ctid = any(array(
      select o.ctid from pgflow.question_rows_(questions) q
      cross join lateral (select m.ctid from pgflow.signal m
        where m.chain_id = q.chain and m.kind = 'x' offset 0) o
      where q.pos = any(mailed) and q.cancelled
    ));
  end if;
  return coalesce(pausing, '{}');
end
$$;
comment on function pgflow.hear_(jsonb, int[])
  is 'Runs of a batch with mail that people want to pause; what was asked before they wanted it to go on is dropped';

create or replace function pgflow.calls_of_(calls jsonb)
returns int4multirange
language sql
immutable
return case jsonb_typeof(calls)
  when 'string' then (calls #>> '{}')::int4multirange
  when 'array' then (select range_agg(int4range(e::int, e::int, '[]')) from jsonb_array_elements(calls) e)
end;
comment on function pgflow.calls_of_(jsonb)
  is 'Numbers of calls as a worker names them: ranges as text, or [call, ...]';

create or replace function pgflow.look_all_(questions jsonb, positions int[], seqs int[], has_mail int[], t timestamptz)
returns table (pos int, seq int, units jsonb)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
-- whose bitmap marks no entry as dead: of a mailbox of thousands it would read all that were ever there, each time
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  at_positions int[];
  last_seqs int[];
  found_units jsonb[];
  child_sagas bigint[];
  messages int;
  gone int;
  child bigint;
begin
  with asked as materialized (
    select q.pos, q.run as me, q.chain, q.token, q.pos = any(has_mail) as has_mail, q.cancelled, q.signals,
      q.child_calls, q.gates, q.locks, q.timers
    from pgflow.question_rows_(questions) q
    where q.pos = any(positions) and (q.timers is not null or q.pos = any(has_mail))
  ), happened as (
    select a.pos, a.me, a.token, h.*,
      -- what the code could not take before stands in nobody's way
      row_number() over (partition by a.pos order by h.is_refused, h.at, h.call, h.signal_id) as nth
    from asked a
    cross join lateral (
      select s.kind, 0 as call, s.name, s.sent_at as at, s.signal_id, s.payload, s.sent_by, false as is_refused,
        s.ctid as address
      from pgflow.signal s
      where a.has_mail and not coalesce(a.cancelled, false) and s.chain_id = a.chain and s.kind = 'x'
      union all
      select 'S', w.call, w.name, s.sent_at, s.signal_id, s.payload, s.sent_by, s.refusal is not null, s.address
      from pgflow.signal_rows_(a.signals) w
      cross join lateral (
        select m.*, m.ctid as address from pgflow.signal m
        where a.has_mail and m.chain_id = a.chain and m.kind = 's' and m.name = w.name
        order by m.signal_id limit 1
      ) s
      union all
      select 'K', s.call, s.name, s.sent_at, s.signal_id, s.payload, s.sent_by, false, s.address
      from (select pgflow.calls_of_(a.child_calls) as calls
        where a.has_mail and a.child_calls is not null offset 0) w
      cross join lateral (
        select m.*, m.ctid as address from pgflow.signal m where m.chain_id = a.chain and m.kind = 'c' offset 0
      ) s
      where s.run_id = a.me and s.call <@ w.calls
      union all
      select 'G', s.call, s.name, s.sent_at, s.signal_id, s.payload, s.sent_by, false, s.address
      from (select a.gates where a.has_mail and a.gates is not null offset 0) w
      cross join lateral (
        select m.*, m.ctid as address from pgflow.signal m where m.chain_id = a.chain and m.kind = 'g' offset 0
      ) s
      where s.run_id = a.me and w.gates @> jsonb_build_array(jsonb_build_array(s.call))
      union all
      select (case when s.payload->'fence' is not null then 'L' when s.payload->'refused' is not null then 'u'
        else 'W' end)::"char", s.call, s.name, s.sent_at, s.signal_id, s.payload, null, false, s.address
      from pgflow.lock_rows_(a.locks) w
      cross join lateral (
        select m.*, m.ctid as address from pgflow.signal m
        where a.has_mail and m.chain_id = a.chain and m.kind = 'l' and m.name = w.key offset 0
      ) s
      where s.run_id = a.me and s.call = w.call
      union all
      select w.kind, w.call, u.name, u.due_at, null, null, null, false, null
      from pgflow.timer_rows_(a.timers) w
      cross join lateral (select n.name, n.due_at from pgflow.unit n
        where n.run_id = a.me and n.seq = w.seq offset 0) u
      where u.due_at <= t
    ) h
  ), chosen as (
    -- A signal, a verdict or a cancel is taken only as the first of its look.
    select h.*, case when h.kind = 'K' then (h.payload->>'run_id')::bigint end as child
    from (
      select g.*, min(g.nth) filter (where g.kind in ('x', 'S', 'G')) over (partition by g.pos) as first_single
      from happened g
    ) h
    where case when h.kind in ('x', 'S', 'G') then h.nth = 1 else h.nth < coalesce(h.first_single, h.nth + 1) end
  ), taken as materialized (
    select c.pos, c.me, c.token, (seqs[c.pos] + c.nth)::int as seq, c.call, c.kind,
      case when c.kind = 'K' then k.workflow else c.name end as name,
      case
        when c.kind = 'x' and c.payload->'reason' is not null
          then json_build_object('why', c.payload->'why', 'by', c.sent_by, 'reason', c.payload->'reason')
        when c.kind = 'x' then json_build_object('why', c.payload->'why', 'by', c.sent_by)
        when c.kind = 'S' then coalesce(c.payload, 'null')
        when k.saga is not null then json_build_object('status', c.payload->'status', 'reason', c.payload->'reason',
          'output', c.payload->'output',
          'error', c.payload->'error', 'run_id', c.payload->'run_id', 'saga', k.saga)
        else c.payload
      end as payload, c.address, case when k.saga is not null then c.child end as saga_of
    from chosen c
    left join lateral (
      select l.workflow, case
        when c.payload->>'status' = 'completed' and c.payload->'saga' is null
          and pgflow.leaves_effects_(c.child, r.chain_id) then pgflow.child_saga_(c.me, c.child)
      end as saga
      from pgflow.run r join pgflow.lane l on l.lane_id = r.lane_id where c.kind = 'K' and r.run_id = c.child
      offset 0
    ) k on true
  ), gone as (
    delete from pgflow.signal s where s.ctid = any(array(select m.address from taken m where m.address is not null))
    returning s.signal_id
  ), noted as (
    insert into pgflow.unit (run_id, seq, call, kind, name, payload, token, at, recorded_at)
    select n.me, n.seq, n.call, n.kind, n.name, n.payload, n.token, t, t from taken n
  )
  select array_agg(g.pos), array_agg(g.seq), array_agg(g.units), (select array_agg(s.saga_of) from taken s
    where s.saga_of is not null),
    (select count(m.address) from taken m), (select count(*) from gone)
  into at_positions, last_seqs, found_units, child_sagas, messages, gone
  from (
    select n.pos, max(n.seq) as seq, jsonb_agg(pgflow.unit_json_(n.seq, n.call, n.kind, n.name, n.payload)
      order by n.seq) as units
    from taken n group by n.pos
  ) g;
  -- Only the holder of a run takes its mail: a message that is gone was taken, and would be taken twice.
  if gone <> messages then
    raise exception using errcode = 'PF006',
      message = format('%s of %s messages are no longer in their mailboxes', messages - gone, messages);
  end if;
  foreach child in array coalesce(child_sagas, '{}') loop
    perform pgflow.hand_on_debts_(child, null, null, 'its parent has its result', t);
  end loop;
  return query select f.p, f.s, f.u from unnest(at_positions, last_seqs, found_units) as f (p, s, u);
end
$$;
comment on function pgflow.look_all_(jsonb, int[], int[], int[], timestamptz)
  is 'Takes what has happened to runs of a batch, of each in the order in which it happened, and records it: of each '
     'position with news the last seq then, and its units';

create or replace function pgflow.park_all_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  ids bigint[];
  chains bigint[];
  last_seqs int[];
begin
  select array_agg(q.run order by q.pos), array_agg(q.chain order by q.pos), array_agg(seqs[q.pos] order by q.pos)
  into ids, chains, last_seqs
  from pgflow.question_rows_(questions) q where q.pos = any(positions);
  insert into pgflow.parked (run_id, chain_id, token, parked_at, lane_id, last_seq, priority)
  select a.me, a.chain, e.token, t, e.lane_id, a.seq, e.priority
  from unnest(ids, chains, last_seqs) as a (me, chain, seq)
  cross join lateral (select l.* from pgflow.lease l where l.run_id = a.me offset 0) e;
  delete from pgflow.lease e where e.run_id = any(ids);
  insert into pgflow.wait (run_id, call, kind, name, calls)
  select q.run, w.*
  from pgflow.question_rows_(questions) q
  cross join lateral (
    select s.call, 's'::"char", s.name, null::int[] from pgflow.signal_rows_(q.signals) s
    union all
    select lower(c.calls), 'c', 'child', array(select n from unnest(c.calls) r
      cross join lateral generate_series(lower(r), upper(r) - 1) n)
    from (select pgflow.calls_of_(q.child_calls) as calls offset 0) c where not isempty(c.calls)
    union all
    select e::int, 'e', 'effect', null from jsonb_array_elements(q.open_effects) e
    union all
    select k.call, 'l', k.key, null from pgflow.lock_rows_(q.locks) k
    union all
    select u.call, 'u', 'update', null from pgflow.call_rows_(q.updates) u
  ) w
  where q.pos = any(positions);
  insert into pgflow.timer (due_at, run_id, call)
  select u.due_at, q.run, w.call
  from pgflow.question_rows_(questions) q
  cross join lateral pgflow.timer_rows_(coalesce(q.timers, '[]') || coalesce(q.retries, '[]')) w
  cross join lateral (select n.due_at from pgflow.unit n where n.run_id = q.run and n.seq = w.seq offset 0) u
  where q.pos = any(positions);
  if questions @? '$[*].gates' then
    perform pgflow.park_gates_(questions, positions, t);
  end if;
  return array(
    select q.chain from pgflow.question_rows_(questions) q
    where q.pos = any(positions) and (
      q.question ?| array['signals', 'child_calls', 'open_effects', 'gates', 'updates'] or q.locks <> '[]'
    )
    order by q.pos
  );
end
$$;
comment on function pgflow.park_all_(jsonb, int[], int[], timestamptz)
  is 'Lease -> parked, for runs of a batch, with their reasons to wake; answers the chains for which a message that '
     'crossed it should be looked for at once';

create or replace function pgflow.hold_(run bigint, seq int, t timestamptz, why jsonb, noted jsonb default null)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from pgflow.lease where run_id = hold_.run returning *
  )
  insert into pgflow.held (run_id, token, held_at, lane_id, last_seq, attempt, priority, has_begun, state, reason,
    code_hash, held_by, detail)
  select g.run_id, g.token, t, g.lane_id, hold_.seq, g.attempt, g.priority, true, r.state, r.reason, r.code_hash,
    r.held_by, coalesce(noted, r.detail)
  from gone g cross join pgflow.reason_rows_(jsonb_build_array(why)) r
$$;
comment on function pgflow.hold_(bigint, int, timestamptz, jsonb, jsonb)
  is 'Lease -> held, for a reason as a question has it, perhaps with another detail';

create or replace function pgflow.pause_(run bigint, chain bigint, token bigint, seq int, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  request record;
  why jsonb;
begin
  -- What is asked after the last pause is left to the wake that its nudge brings.
  for request in
    with gone as (
      delete from pgflow.signal s
      where s.chain_id = chain and s.kind in ('p', 'r', 't')
        and s.signal_id <= (select max(p.signal_id) from pgflow.signal p where p.chain_id = s.chain_id and p.kind = 'p')
      returning s.*
    )
    select * from gone order by signal_id
  loop
    seq := seq + 1;
    perform pgflow.append_(run, seq, 0, 'o', request.name,
      json_build_object('why', request.payload->'why', 'by', request.sent_by), token, t, t);
    continue when request.kind <> 'p';
    why := jsonb_build_array('paused', coalesce(left(request.payload->>'why', 255), 'paused'), null, null,
      request.sent_by);
  end loop;
  perform pgflow.hold_(run, seq, t, why);
end
$$;
comment on function pgflow.pause_(bigint, bigint, bigint, int, timestamptz)
  is 'Takes the requests to pause, records who asked and why, and holds the run';

create or replace function pgflow.continue_(question jsonb, seq int, t timestamptz)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  q record;
  me bigint;
  next_id bigint := nextval('pgflow.run_id_seq');
  next_generation int;
  lane int;
  begins_at int := 0;
begin
  select r.* into q from pgflow.question_rows_(jsonb_build_array(question)) r;
  me := q.run;
  if q.owes then
    begins_at := pgflow.adopt_obligations_(me, 0, next_id, q.token, false, t, 0);
    seq := (select max(u.seq) from pgflow.unit u where u.run_id = me);
  end if;
  perform pgflow.append_(me, seq + 1, 0, 'n', null, json_build_object('run_id', next_id), q.token, t, t);
  insert into pgflow.run (
    run_id, chain_id, root_run_id, parent_run_id, created_at, deadline_at, root, generation, lane_id, parent_call,
    priority, close_policy, tenant, key, input, labels, metadata, pool
  )
  select next_id, chain_id, case when parent_run_id is null then next_id else root_run_id end, parent_run_id, t,
    deadline_at, root,
    generation + 1, lane_id, parent_call, priority, close_policy, tenant, key, q.continue::json, labels, metadata,
    pool
  from pgflow.run where run_id = me
  returning lane_id, generation into lane, next_generation;
  if q.saga is not null or q.of_children is not null then
    perform pgflow.hand_on_saga_(me, q.chain, next_generation - 1, coalesce(q.saga, '[]'), q.of_children);
  end if;
  if q.locks is not null then
    perform pgflow.carry_locks_(me, next_id, t);
  end if;
  if q.cancel is not null then
    perform pgflow.post_(q.chain, 'x', 'cancel',
      json_strip_nulls(json_build_object('why', q.cancel->'why', 'reason', q.cancel->'reason')), q.cancel->>'by');
  end if;
  insert into pgflow.deadline (run_id, due_at) select next_id, deadline_at from pgflow.run
  where run_id = me and deadline_at is not null;
  insert into pgflow.outcome (run_id, token, finished_at, status) values (me, q.token, t, 'continued');
  with gone as (
    delete from pgflow.lease where run_id = me returning *
  )
  -- What has something to take back is never ended without its code.
  insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority, has_begun)
  select next_id, t, lane_id, begins_at, 0, priority,
    case when pgflow.carried_saga_(q.chain, next_generation) is not null then true end from gone;
  return lane;
end
$$;
comment on function pgflow.continue_(jsonb, int, timestamptz)
  is 'Ends a run as the next generation of its chain, which is ready at once; answers the lane';

create or replace function pgflow.end_forced_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns table (pos int, to_wake bigint[])
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  one record;
begin
  for one in
    select q.pos as at, q.run, q.chain, q.token, q.children
    from pgflow.question_rows_(questions) q
    where q.pos = any(positions) and exists (select from pgflow.signal s
      where s.chain_id = q.chain and s.kind = 'x' and s.name = 'force' offset 0)
    order by q.pos
  loop
    perform pgflow.end_by_force_(one.run, one.chain, seqs[one.at], one.token, t);
    delete from pgflow.lease where run_id = one.run;
    if one.children is not null then
      perform pgflow.leave_keys_(one.run, one.children);
    end if;
    pos := one.at;
    to_wake := pgflow.wind_up_(array[one.run], t);
    perform pgflow.return_reservations_(array[one.run]);
    return next;
  end loop;
end
$$;
comment on function pgflow.end_forced_(jsonb, int[], int[], timestamptz)
  is 'Ends the runs of a batch that a cancel by force waits for: their positions, and the chains to wake';

create or replace function pgflow.cancel_unwanted_(questions jsonb, positions int[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  unwanted bigint[] := array(
    select c::bigint from pgflow.question_rows_(questions) q cross join lateral jsonb_array_elements(q.unwanted) c
    where q.pos = any(positions) order by q.pos
  );
  chain bigint;
begin
  foreach chain in array unwanted loop
    perform pgflow.post_(chain, 'x', 'cancel', json_build_object('why', 'the parent gave up waiting for it',
      'reason', 'parent_gave_up'), 'pgflow');
  end loop;
  return unwanted;
end
$$;
comment on function pgflow.cancel_unwanted_(jsonb, int[])
  is 'Cancels the children that runs of a batch have given up; answers their chains';

create or replace function pgflow.take_verdicts_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns table (pos int, seq int, units jsonb)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  one record;
begin
  for one in
    select q.pos as at, q.run, q.chain, q.token
    from pgflow.question_rows_(questions) q
    where q.pos = any(positions) and exists (select from pgflow.signal s where s.chain_id = q.chain and s.kind = 'e'
      and (s.run_id = q.run or s.payload->>'obligation' is not null) offset 0)
    order by q.pos
  loop
    pos := one.at;
    select w.seq, w.units into seq, units
    from pgflow.take_words_(one.run, one.chain, one.token, t, false, seqs[one.at]) w;
    return next;
  end loop;
end
$$;
comment on function pgflow.take_verdicts_(jsonb, int[], int[], timestamptz)
  is 'Takes the verdicts on effects and obligations of runs of a batch: of each position the last seq then, and its '
     'units';

create or replace function pgflow.intend_all_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns table (pos int, seq int, units jsonb, more jsonb)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  one record;
begin
  for one in
    select q.pos as at, q.run, q.token, q.effects
    from pgflow.question_rows_(questions) q where q.pos = any(positions) and q.effects is not null order by q.pos
  loop
    pos := one.at;
    select i.seq, i.units, case when i.refused <> '[]'
      then jsonb_build_object('refused', i.refused, 'terms', i.terms) end into seq, units, more
    from pgflow.intend_(one.run, one.token, one.effects, t, seqs[one.at]) i;
    return next;
  end loop;
end
$$;
comment on function pgflow.intend_all_(jsonb, int[], int[], timestamptz)
  is 'Records the intents and further attempts of a batch: of each position the last seq then, its units, and what the '
     'policy does not let through';

create or replace function pgflow.leave_all_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns table (pos int, place text, to_wake bigint[], lanes int[])
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  one record;
begin
  for one in
    select q.pos as at, q.run, q.chain, q.hold, q.refused, q.gated, q.awaited, q.question
    from pgflow.question_rows_(questions) q
    where q.pos = any(positions) and (q.hold is not null or q.continue is not null) order by q.pos
  loop
    pos := one.at;
    to_wake := '{}';
    lanes := '{}';
    if one.hold is not null then
      place := 'held';
      perform pgflow.hold_(one.run, seqs[one.at], t, one.hold,
        case when one.refused is not null then pgflow.note_refused_(one.chain, one.refused, one.hold) end);
    else
      place := 'ended';
      lanes := lanes || pgflow.continue_(one.question, seqs[one.at], t);
      if one.gated then
        perform pgflow.close_gates_(array[one.run]);
      end if;
      if one.awaited then
        perform pgflow.forget_events_(array[one.chain]);
      end if;
      to_wake := pgflow.wind_up_(array[one.run], t);
    end if;
    to_wake := to_wake || pgflow.nudge_asked_(array[one.chain]);
    return next;
  end loop;
end
$$;
comment on function pgflow.leave_all_(jsonb, int[], int[], timestamptz)
  is 'Holds runs of a batch, or ends them as the next generations of their chains: of each its new place, and whom to '
     'wake';

create or replace function pgflow.stop_all_(
  questions jsonb, positions int[], pausing int[], seqs int[], t timestamptz
)
returns table (pos int, place text, to_wake bigint[])
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  one record;
begin
  for one in
    select q.pos as at, q.run, q.chain, q.token, q.stuck, q.pos = any(pausing) as is_pause
    from pgflow.question_rows_(questions) q
    where q.pos = any(positions)
      and case when q.pos = any(pausing) then q.idle else q.park and q.stuck is not null end
    order by q.pos
  loop
    pos := one.at;
    place := 'held';
    if one.is_pause then
      perform pgflow.pause_(one.run, one.chain, one.token, seqs[one.at], t);
    else
      perform pgflow.hold_(one.run, seqs[one.at], t, one.stuck);
    end if;
    to_wake := pgflow.nudge_asked_(array[one.chain]);
    return next;
  end loop;
end
$$;
comment on function pgflow.stop_all_(jsonb, int[], int[], int[], timestamptz)
  is 'Pauses idle runs of a batch, and holds those that only a person can continue instead of parking them';

create or replace function pgflow.mailed_(questions jsonb, positions int[])
returns int[]
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select coalesce(array_agg(q.pos order by q.pos), '{}') from pgflow.question_rows_(questions) q
  where q.pos = any(positions) and exists (select from pgflow.signal s where s.chain_id = q.chain offset 0)
$$;
comment on function pgflow.mailed_(jsonb, int[]) is 'Positions of the runs of a batch whose mailboxes are not empty';

create or replace function pgflow.answer_news_(
  kind text, questions jsonb, looking int[], quiet int[], mailed int[], pausing int[], seqs int[],
  t timestamptz
)
returns table (
  pos int, seq int, units jsonb, is_news boolean, place text, to_wake bigint[], lanes int[], more jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  case kind
    when 'force' then
      place := 'ended';
      for pos, to_wake in select f.* from pgflow.end_forced_(questions, mailed, seqs, t) f loop
        return next;
      end loop;
    when 'holds' then
      -- What a lost lock has protected is not gone on with: the code hears of the loss before anything else.
      for pos, seq, units, place, to_wake in
        select l.pos, l.seq, l.units, case when l.is_lost then 'leased' end, l.to_wake
        from pgflow.settle_locks_(questions, looking, seqs, t) l
      loop
        is_news := units <> '[]';
        more := case when place is not null then '{"postponed": true}' end;
        return next;
      end loop;
    when 'verdicts' then
      -- Before the effect could be tried again, and before the run could be held for want of it.
      for pos, seq, units in select v.* from pgflow.take_verdicts_(questions,
        array(select p from unnest(looking) p where p = any(mailed)), seqs, t) v
      loop
        is_news := units <> '[]';
        return next;
      end loop;
    when 'updates' then
      is_news := true;
      for pos, more in
        select o.pos, jsonb_build_object('offers', o.offers) from pgflow.offer_updates_(questions,
          array(select p from unnest(looking) p where p = any(mailed) and p <> all(pausing))) o
      loop
        return next;
      end loop;
    when 'locks' then
      for pos, seq, units, is_news, to_wake in select l.* from pgflow.ask_locks_(questions,
        array(select p from unnest(quiet) p where p <> all(pausing)), seqs, t) l
      loop
        return next;
      end loop;
    when 'stop' then
      for pos, place, to_wake in select s.* from pgflow.stop_all_(questions, quiet, pausing, seqs, t) s loop
        return next;
      end loop;
  end case;
end
$$;
comment on function pgflow.answer_news_(text, jsonb, int[], int[], int[], int[], int[], timestamptz)
  is 'Answers to one of the rarer kinds: force, locks, verdicts, updates and pauses';

create or replace function pgflow.answer_kind_(
  kind text, questions jsonb, present int[], looking int[], quiet int[], mailed int[], pausing int[], seqs int[],
  t timestamptz
)
returns table (
  pos int, seq int, units jsonb, is_news boolean, place text, to_wake bigint[], lanes int[], more jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  case kind
    when 'children' then
      for pos, seq, units, lanes in select c.* from pgflow.start_children_(questions, present, seqs, t) c loop
        return next;
      end loop;
    when 'new_gates' then
      for pos, seq, units in select g.* from pgflow.ask_gates_(questions, present, seqs, t) g loop
        return next;
      end loop;
    when 'admits' then
      is_news := true;
      for pos, seq, units in select a.* from pgflow.admit_all_(questions, present, seqs, t) a loop
        return next;
      end loop;
    when 'effects' then
      for pos, seq, units, more in select i.* from pgflow.intend_all_(questions, present, seqs, t) i loop
        return next;
      end loop;
    when 'leave' then
      for pos, place, to_wake, lanes in select l.* from pgflow.leave_all_(questions, present, seqs, t) l loop
        return next;
      end loop;
    when 'look' then
      is_news := true;
      for pos, seq, units in select l.* from pgflow.look_all_(questions, looking, seqs, mailed, t) l loop
        -- A verdict that is taken closes its gate: only an open one is owed, and may be answered.
        if units->0->>2 = 'G' then
          perform pgflow.close_gates_(array[(questions->(pos - 1)->'run')::bigint], array[(units->0->1)::int]);
        end if;
        return next;
      end loop;
    else
      return query
        select n.* from pgflow.answer_news_(kind, questions, looking, quiet, mailed, pausing, seqs, t) n;
  end case;
end
$$;
comment on function pgflow.answer_kind_(text, jsonb, int[], int[], int[], int[], int[], int[], timestamptz)
  is 'Answers to one kind of thing that questions of a batch ask for, by position: units, news that keeps a run from '
     'parking, and changes of place';

create or replace function pgflow.is_asked_(kind text, questions jsonb, has_mail boolean, is_pausing boolean)
returns boolean
language sql
immutable
return case kind
  when 'force' then has_mail
  when 'holds' then questions @? '$[*].locks'
  when 'mail' then questions @? '$[*].locks'
  when 'unwanted' then questions @? '$[*].unwanted[*]'
  when 'children' then questions @? '$[*].children[*]'
  when 'new_gates' then questions @? '$[*].new_gates'
  when 'late_locks' then questions @? '$[*].locks'
  when 'verdicts' then has_mail
  when 'admits' then questions @? '$[*].admits[*]'
  when 'effects' then questions @? '$[*].effects[*]'
  when 'leave' then questions @? '$[*].hold' or questions @? '$[*].continue'
  when 'pauses' then has_mail
  when 'late_gates' then questions @? '$[*].gates'
  when 'look' then has_mail or questions @? '$[*].timers[*]'
  when 'events' then questions @? '$[*].events'
  when 'updates' then has_mail and questions @? '$[*].updates'
  when 'locks' then questions @? '$[*].locks'
  when 'stop' then is_pausing or questions @? '$[*].stuck'
end;
comment on function pgflow.is_asked_(text, jsonb, boolean, boolean)
  is 'True if questions need answers of a kind';

create or replace function pgflow.answer_all_(
  questions jsonb, t timestamptz, out answers jsonb, out to_wake bigint[], out lanes int[]
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  kind text;
  done record;
  -- Of each run, by its position in the batch.
  seqs int[];
  units jsonb[];
  places text[];
  more jsonb[];
  -- Positions of runs that are here, that do not leave, to which nothing has happened, that have mail, ...
  present int[];
  looking int[];
  quiet int[];
  mailed int[];
  pausing int[] := '{}';
  parking int[];
begin
  lanes := '{}';
  to_wake := '{}';
  select array_agg(q.seq order by q.pos), array_agg(jsonb '[]'), array_agg(text 'leased'),
    array_agg(q.pos order by q.pos),
    array_agg(q.pos order by q.pos) filter (where q.hold is null and q.continue is null),
    array_agg(q.pos order by q.pos) filter (where exists (select from pgflow.signal s
      where s.chain_id = q.chain offset 0))
  into seqs, units, places, present, looking, mailed from pgflow.question_rows_(questions) q;
  looking := coalesce(looking, '{}');
  mailed := coalesce(mailed, '{}');
  quiet := looking;
  foreach kind in array array['force', 'holds', 'mail', 'unwanted', 'children', 'new_gates', 'late_locks', 'verdicts',
    'admits', 'effects', 'leave', 'pauses', 'late_gates', 'look', 'events', 'updates', 'locks', 'stop']
  loop
    continue when not pgflow.is_asked_(kind, questions, mailed <> '{}', pausing <> '{}');
    case kind
      when 'mail' then mailed := pgflow.mailed_(questions, present); -- another call may have won what was given back
      when 'unwanted' then to_wake := to_wake || pgflow.cancel_unwanted_(questions, present);
      when 'late_locks' then mailed := mailed || pgflow.time_out_locks_(questions, looking, t);
      when 'pauses' then
        pausing := pgflow.hear_(questions, array(select m from unnest(mailed) m where m = any(looking)));
      when 'late_gates' then mailed := mailed || pgflow.expire_gates_(questions, looking, t);
      when 'events' then perform pgflow.await_events_(questions, looking, units);
      else
        for done in
          select a.* from pgflow.answer_kind_(kind, questions, present, looking, quiet, mailed, pausing, seqs, t) a
        loop
          seqs[done.pos] := coalesce(done.seq, seqs[done.pos]);
          units[done.pos] := units[done.pos] || coalesce(done.units, '[]');
          to_wake := to_wake || done.to_wake;
          lanes := lanes || done.lanes;
          if done.more is not null then
            more[done.pos] := coalesce(more[done.pos], '{}') || done.more;
          end if;
          if done.is_news or done.place is not null then
            quiet := array_remove(quiet, done.pos);
          end if;
          if done.place is not null then
            places[done.pos] := done.place;
            present := array_remove(present, done.pos);
            looking := array_remove(looking, done.pos);
            mailed := array_remove(mailed, done.pos);
          end if;
        end loop;
    end case;
  end loop;
  parking := array(select q.pos from pgflow.question_rows_(questions) q
    where q.pos = any(quiet) and q.pos <> all(pausing) and q.park and q.stuck is null order by q.pos);
  if parking <> '{}' then
    to_wake := to_wake || pgflow.park_all_(questions, parking, seqs, t);
  end if;
  answers := (
    select jsonb_agg(case when more[q.pos] is null then a.answer else a.answer || more[q.pos] end order by q.pos)
    from pgflow.question_rows_(questions) q cross join lateral jsonb_build_object('run', q.run, 'units', units[q.pos],
      'at', pgflow.micros_(t), 'pause', q.pos = any(pausing),
      'place', case when q.pos = any(parking) then 'parked' else places[q.pos] end) as a (answer)
  );
end
$$;
comment on function pgflow.answer_all_(jsonb, timestamptz)
  is 'Answers the questions of the runs of a batch and changes their places, within commit_units';

comment on column pgflow.parked.run_id is 'The run that waits';
comment on column pgflow.parked.chain_id is 'Its chain, under which its mail comes';
comment on column pgflow.parked.parked_at is 'Time since which it waits';
comment on column pgflow.parked.lane_id is 'Its queue, workflow and version';
comment on column pgflow.parked.last_seq is 'Last unit of the run; 0 = it has not begun';
comment on column pgflow.parked.priority is 'Lower numbers are claimed first, within their lane';

comment on column pgflow.held.run_id is 'The run that is held';
comment on column pgflow.held.token is 'Token of the lease that held it; null where no worker did';
comment on column pgflow.held.held_at is 'Time since which it is held';
comment on column pgflow.held.lane_id is 'Its queue, workflow and version';
comment on column pgflow.held.last_seq is 'Last unit of the run; 0 = nothing is recorded';
comment on column pgflow.held.attempt is 'Claims since the run last made progress';
comment on column pgflow.held.priority is 'Lower numbers are claimed first, within their lane';
comment on column pgflow.held.state is 'paused = by an order, stuck = it needs help';
comment on column pgflow.held.reason is 'Reason in short: the one given for the pause, or the kind of trouble';
comment on column pgflow.held.held_by
  is 'Author of the pause, with the role of the session in brackets; pgflow if the engine paused it';
comment on column pgflow.held.detail is 'Details of the trouble, such as both sides of a divergence';
