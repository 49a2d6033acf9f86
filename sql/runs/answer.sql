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
-- A question is an object:
--   run, token, chain     whose
--   seq                   the last seq after the units of this flush
--   children              [[call, workflow, queue, input, key, priority, run_at_us, timeout_seconds, labels, metadata,
--                         close policy, version, pool, limits of a pool of its own], ...]
--   signals               [[call, name], ...]         waits for a signal
--   timers                [[call, seq of its start, "T" or "W"], ...]   sleeps (T) and time-outs of waits (W)
--   retries               [[call, seq of its failed attempt], ...]      reasons to wake, never an answer
--   child_calls           {[call,call],...}           ranges, as text, of calls that wait for a child; or [call, ...]
--   unwanted              [chain, ...]                children whose calls the code has given up: cancel them
--   cancelled             true once a cancel was delivered: further ones are dropped
--   idle                  true if no body runs and none may start: the run may be paused
--   park                  true: if nothing has happened, park
--   stuck                 the same as hold, for when it would park: nothing but a person can bring it on
--   hold                  [state, reason, code hash, detail]
--   refused               [[name, error, code hash], ...]   of a hold: signals that the code could not take
--   continue              input of the next generation
--   cancel                {why, by, reason} of a cancel that was taken after the code had ended, for the next
--                         generation
--   admits                [{call, name, pool, amounts, hard, licence}, ...]   calls that ask a pool, see admit_all_
--   effects               [{call, name, key, ...}, ...]   intents and further attempts, see intend_
--   open_effects          [call, ...]                 effects that may be settled while the run is parked,
--                         and obligations that it waits for before it ends
--   owes                  of `continue`: true if obligations are open
--   gates                 [[call, name], ...]         gates that the code waits for, see sql/ledgers/gates.sql
--   new_gates             [{call, name, key, ...}, ...]   those of them that are to be asked
--   gated                 true: a run that continues has open gates, which close
--   locks, holds, unlocks                             waits for locks, and blocks in them: see settle_locks_
--   updates               [[call], ...]               calls that take an update, if their code lets it through
--   events                [[call, name, ...], ...]    waits for events, which come as signals: see await_events_
--   awaited               true: a run that continues waits for no event any more
-- and the answer:
--   refused               [[call, version of the policy, name of a read that is too old], ...]
--   terms                 {call: terms, ...}      of the gates at which leave for those that are refused is asked
--   postponed             true: a lock that it rests on is lost, so nothing else of the question was done
--   offers                [[message, name, payload, ...], ...]   updates that wait, see offer_updates_
--   run
--   units                 [[seq, call, kind, name, payload, due_at of an effect], ...]
--   place                 "leased" | "parked" | "held" | "ended"
--   at, pause, wake, lanes

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
      select a.pos::int as pos, (a.q->'chain')::bigint as chain
      from jsonb_array_elements(questions) with ordinality as a (q, pos) where a.pos = any(mailed)
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
      select o.ctid from jsonb_array_elements(questions) with ordinality as a (q, pos)
      cross join lateral (select m.ctid from pgflow.signal m
        where m.chain_id = (a.q->'chain')::bigint and m.kind = 'x' offset 0) o
      where a.pos = any(mailed) and (a.q->'cancelled')::boolean
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
    select a.pos::int as pos, a.q, (a.q->'run')::bigint as me, (a.q->'chain')::bigint as chain,
      (a.q->'token')::bigint as token, a.pos = any(has_mail) as has_mail
    from jsonb_array_elements(questions) with ordinality as a (q, pos)
    where a.pos = any(positions) and (a.q ? 'timers' or a.pos = any(has_mail))
  ), happened as (
    select a.pos, a.me, a.token, h.*,
      -- what the code could not take before stands in nobody's way
      row_number() over (partition by a.pos order by h.is_refused, h.at, h.call, h.signal_id) as nth
    from asked a
    cross join lateral (
      select s.kind, 0 as call, s.name, s.sent_at as at, s.signal_id, s.payload, s.sent_by, false as is_refused,
        s.ctid as address
      from pgflow.signal s
      where a.has_mail and not coalesce((a.q->'cancelled')::boolean, false) and s.chain_id = a.chain and s.kind = 'x'
      union all
      select 'S', (w->>0)::int, w->>1, s.sent_at, s.signal_id, s.payload, s.sent_by, s.refusal is not null, s.address
      from jsonb_array_elements(a.q->'signals') w
      cross join lateral (
        select m.*, m.ctid as address from pgflow.signal m
        where a.has_mail and m.chain_id = a.chain and m.kind = 's' and m.name = w->>1
        order by m.signal_id limit 1
      ) s
      union all
      select 'K', s.call, s.name, s.sent_at, s.signal_id, s.payload, s.sent_by, false, s.address
      from (select pgflow.calls_of_(a.q->'child_calls') as calls where a.has_mail and a.q ? 'child_calls' offset 0) w
      cross join lateral (
        select m.*, m.ctid as address from pgflow.signal m where m.chain_id = a.chain and m.kind = 'c' offset 0
      ) s
      where s.run_id = a.me and s.call <@ w.calls
      union all
      select 'G', s.call, s.name, s.sent_at, s.signal_id, s.payload, s.sent_by, false, s.address
      from (select a.q->'gates' as gates where a.has_mail and a.q ? 'gates' offset 0) w
      cross join lateral (
        select m.*, m.ctid as address from pgflow.signal m where m.chain_id = a.chain and m.kind = 'g' offset 0
      ) s
      where s.run_id = a.me and w.gates @> jsonb_build_array(jsonb_build_array(s.call))
      union all
      select (case when s.payload->'fence' is not null then 'L' when s.payload->'refused' is not null then 'u'
        else 'W' end)::"char", s.call, s.name, s.sent_at, s.signal_id, s.payload, null, false, s.address
      from jsonb_array_elements(a.q->'locks') w
      cross join lateral (
        select m.*, m.ctid as address from pgflow.signal m
        where a.has_mail and m.chain_id = a.chain and m.kind = 'l' and m.name = w->>1 offset 0
      ) s
      where s.run_id = a.me and s.call = (w->>0)::int
      union all
      select (w->>2)::"char", (w->>0)::int, u.name, u.due_at, null, null, null, false, null
      from jsonb_array_elements(a.q->'timers') w
      cross join lateral (select n.name, n.due_at from pgflow.unit n
        where n.run_id = a.me and n.seq = (w->>1)::int offset 0) u
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
  select array_agg((a.q->'run')::bigint order by a.pos), array_agg((a.q->'chain')::bigint order by a.pos),
    array_agg(seqs[a.pos] order by a.pos)
  into ids, chains, last_seqs
  from jsonb_array_elements(questions) with ordinality as a (q, pos) where a.pos = any(positions);
  insert into pgflow.parked (run_id, chain_id, token, parked_at, lane_id, last_seq, priority)
  select a.me, a.chain, e.token, t, e.lane_id, a.seq, e.priority
  from unnest(ids, chains, last_seqs) as a (me, chain, seq)
  cross join lateral (select l.* from pgflow.lease l where l.run_id = a.me offset 0) e;
  delete from pgflow.lease e where e.run_id = any(ids);
  insert into pgflow.wait (run_id, call, kind, name, calls)
  select (a.q->'run')::bigint, w.*
  from jsonb_array_elements(questions) with ordinality as a (q, pos)
  cross join lateral (
    select (s->0)::int, 's'::"char", s->>1, null::int[] from jsonb_array_elements(a.q->'signals') s
    union all
    select lower(c.calls), 'c', 'child', array(select n from unnest(c.calls) r
      cross join lateral generate_series(lower(r), upper(r) - 1) n)
    from (select pgflow.calls_of_(a.q->'child_calls') as calls offset 0) c where not isempty(c.calls)
    union all
    select e::int, 'e', 'effect', null from jsonb_array_elements(a.q->'open_effects') e
    union all
    select (k->0)::int, 'l', k->>1, null from jsonb_array_elements(a.q->'locks') k
    union all
    select (p->0)::int, 'u', 'update', null from jsonb_array_elements(a.q->'updates') p
  ) w
  where a.pos = any(positions);
  insert into pgflow.timer (due_at, run_id, call)
  select u.due_at, (a.q->'run')::bigint, (w->0)::int
  from jsonb_array_elements(questions) with ordinality as a (q, pos)
  cross join lateral jsonb_array_elements(coalesce(a.q->'timers', '[]') || coalesce(a.q->'retries', '[]')) w
  cross join lateral (select n.due_at from pgflow.unit n
    where n.run_id = (a.q->'run')::bigint and n.seq = (w->1)::int offset 0) u
  where a.pos = any(positions);
  return array(
    select (a.q->'chain')::bigint from jsonb_array_elements(questions) with ordinality as a (q, pos)
    where a.pos = any(positions)
      and (a.q ?| array['signals', 'child_calls', 'open_effects', 'gates', 'updates']
        or a.q->'locks' <> '[]') order by a.pos
  );
end
$$;
comment on function pgflow.park_all_(jsonb, int[], int[], timestamptz)
  is 'Lease -> parked, for runs of a batch, with their reasons to wake; answers the chains for which a message that '
     'crossed it should be looked for at once';

create or replace function pgflow.hold_(q jsonb, seq int, t timestamptz)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from pgflow.lease where run_id = (q->'run')::bigint returning *
  )
  insert into pgflow.held (run_id, token, held_at, lane_id, last_seq, attempt, priority, has_begun, state, reason,
    code_hash, held_by, detail)
  select run_id, token, t, lane_id, seq, attempt, priority, true, q->'hold'->>0, q->'hold'->>1, q->'hold'->>2,
    q->'hold'->>4, nullif(q->'hold'->3, 'null')
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
    perform pgflow.append_((q->'run')::bigint, seq, 0, 'o', request.name,
      json_build_object('why', request.payload->'why', 'by', request.sent_by), (q->'token')::bigint, t, t);
    continue when request.kind <> 'p';
    q := q || jsonb_build_object(
      'hold', jsonb_build_array('paused', coalesce(left(request.payload->>'why', 255), 'paused'), null, null,
        request.sent_by));
  end loop;
  perform pgflow.hold_(q, seq, t);
end
$$;
comment on function pgflow.pause_(jsonb, timestamptz, int)
  is 'Takes the requests to pause, records who asked and why, and holds the run';

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
  begins_at int := 0;
begin
  if q ? 'owes' then
    begins_at := pgflow.adopt_obligations_(me, 0, next_id, (q->'token')::bigint, false, t, 0);
    seq := (select max(u.seq) from pgflow.unit u where u.run_id = me);
  end if;
  perform pgflow.append_(me, seq + 1, 0, 'n', null, json_build_object('run_id', next_id), (q->'token')::bigint, t, t);
  insert into pgflow.run (
    run_id, chain_id, root_run_id, parent_run_id, created_at, deadline_at, root, generation, lane_id, parent_call,
    priority, close_policy, tenant, key, input, labels, metadata, pool
  )
  select next_id, chain_id, case when parent_run_id is null then next_id else root_run_id end, parent_run_id, t,
    deadline_at, root,
    generation + 1, lane_id, parent_call, priority, close_policy, tenant, key, (q->>'continue')::json, labels, metadata,
    pool
  from pgflow.run where run_id = me
  returning lane_id, generation into lane, next_generation;
  if q ? 'saga' or q ? 'of_children' then
    perform pgflow.hand_on_saga_(me, (q->'chain')::bigint, next_generation - 1, coalesce(q->'saga', '[]'),
      q->'of_children');
  end if;
  if q ? 'locks' then
    perform pgflow.carry_locks_(me, next_id, t);
  end if;
  if q ? 'cancel' then
    perform pgflow.post_((q->'chain')::bigint,
      'x', 'cancel', json_strip_nulls(json_build_object('why', q->'cancel'->'why', 'reason', q->'cancel'->'reason')),
      q->'cancel'->>'by');
  end if;
  insert into pgflow.deadline (run_id, due_at) select next_id, deadline_at from pgflow.run
  where run_id = me and deadline_at is not null;
  insert into pgflow.outcome (run_id, token, finished_at, status) values (me, (q->'token')::bigint, t, 'continued');
  with gone as (
    delete from pgflow.lease where run_id = me returning *
  )
  -- What has something to take back is never ended without its code.
  insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority, has_begun)
  select next_id, t, lane_id, begins_at, 0, priority,
    case when pgflow.carried_saga_((q->'chain')::bigint, next_generation) is not null then true end from gone;
  return lane;
end
$$;
comment on function pgflow.continue_(jsonb, int, timestamptz)
  is 'Ends a run as the next generation of its chain, which is ready at once; answers the lane';

create or replace function pgflow.answer_all_(
  questions jsonb, t timestamptz, out answers jsonb, out to_wake bigint[], out lanes int[]
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  -- Of each run, by its position in the batch.
  seqs int[];
  units jsonb[];
  refused jsonb[];
  places text[];
  -- Positions.
  present int[];
  mailed int[];
  looking int[];
  quiet int[];
  pausing int[] := '{}';
  parking int[];
  settled int[] := '{}';
  postponed int[] := '{}';
  has_locks boolean := questions @? '$[*].locks';
  offers jsonb[];
  one record;
  done record;
  is_gated boolean := questions @? '$[*].gates';
begin
  to_wake := '{}';
  lanes := '{}';
  select array_agg((a.q->'seq')::int order by a.pos), array_agg(jsonb '[]'), array_agg(null::jsonb),
    array_agg(text 'leased'), array_agg(a.pos::int order by a.pos),
    coalesce(array_agg(a.pos::int
      order by a.pos) filter (where exists (select from pgflow.signal s
        where s.chain_id = (a.q->'chain')::bigint offset 0)), '{}')
  into seqs, units, refused, places, present, mailed
  from jsonb_array_elements(questions) with ordinality as a (q, pos);

  if mailed <> '{}' then
    for one in
      select a.pos::int as pos, a.q, (a.q->'run')::bigint as me, (a.q->'chain')::bigint as chain
      from jsonb_array_elements(questions) with ordinality as a (q, pos)
      where a.pos = any(mailed) and exists (select from pgflow.signal s where s.chain_id = (a.q->'chain')::bigint
        and s.kind = 'x' and s.name = 'force' offset 0)
      order by a.pos
    loop
      perform pgflow.end_by_force_(one.me, one.chain, seqs[one.pos], (one.q->'token')::bigint, t);
      delete from pgflow.lease where run_id = one.me;
      if one.q ? 'children' then
        perform pgflow.leave_keys_(one.q);
      end if;
      to_wake := to_wake || pgflow.wind_up_(array[one.me], t);
      perform pgflow.return_reservations_(array[one.me]);
      places[one.pos] := 'ended';
      present := array_remove(present, one.pos);
      mailed := array_remove(mailed, one.pos);
    end loop;
  end if;

  if has_locks then
    -- What a lost lock has protected is not gone on with: the code hears of the loss before anything else.
    for done in
      select l.* from pgflow.settle_locks_(questions, array(
        select a.pos::int from jsonb_array_elements(questions) with ordinality as a (q, pos)
        where a.pos = any(present) and not a.q ?| array['hold', 'continue']
      ), seqs, t) l
    loop
      seqs[done.pos] := done.seq;
      units[done.pos] := done.units;
      to_wake := to_wake || done.to_wake;
      if done.is_lost then
        if questions->(done.pos - 1) ? 'children' then
          perform pgflow.leave_keys_(questions->(done.pos - 1));
        end if;
        postponed := postponed || done.pos;
        present := array_remove(present, done.pos);
        mailed := array_remove(mailed, done.pos);
      elsif done.units <> '[]' then
        settled := settled || done.pos;
      end if;
    end loop;
    -- What has been given back may have been won by another call of the batch.
    mailed := array(
      select a.pos::int from jsonb_array_elements(questions) with ordinality as a (q, pos)
      where a.pos = any(present) and exists (select from pgflow.signal s
        where s.chain_id = (a.q->'chain')::bigint offset 0)
      order by a.pos
    );
  end if;

  if questions @? '$[*].unwanted[*]' then
    for one in
      select c.id::bigint as chain from jsonb_array_elements(questions) with ordinality as a (q, pos)
      cross join lateral jsonb_array_elements_text(a.q->'unwanted') c (id) where a.pos = any(present) order by a.pos
    loop
      perform pgflow.post_(one.chain, 'x', 'cancel', json_build_object('why', 'the parent gave up waiting for it',
        'reason', 'parent_gave_up'), 'pgflow');
      to_wake := to_wake || one.chain;
    end loop;
  end if;
  if questions @? '$[*].children[*]' then
    for done in select c.* from pgflow.start_children_(questions, present, seqs, t) c loop
      seqs[done.pos] := done.seq;
      units[done.pos] := units[done.pos] || done.units;
      lanes := lanes || done.lanes;
    end loop;
  end if;

  if is_gated then
    for done in select g.* from pgflow.ask_gates_(questions, present, seqs, t) g loop
      seqs[done.pos] := done.seq;
      units[done.pos] := units[done.pos] || done.units;
    end loop;
  end if;

  looking := array(
    select a.pos::int from jsonb_array_elements(questions) with ordinality as a (q, pos)
    where a.pos = any(present) and not a.q ?| array['hold', 'continue'] order by a.pos
  );
  quiet := looking;
  if has_locks then
    quiet := array(select p from unnest(looking) p where p <> all(settled));
    mailed := mailed || pgflow.time_out_locks_(questions, looking, t);
  end if;
  if mailed <> '{}' then
    -- A verdict on an effect comes before it could be tried again, and before the run could be held for
    -- want of it.
    for one in
      select a.pos::int as pos, a.q, (a.q->'run')::bigint as me, (a.q->'chain')::bigint as chain
      from jsonb_array_elements(questions) with ordinality as a (q, pos)
      where a.pos = any(looking) and a.pos = any(mailed)
        and exists (select from pgflow.signal s where s.chain_id = (a.q->'chain')::bigint and s.kind = 'e'
          and (s.run_id = (a.q->'run')::bigint or s.payload->>'obligation' is not null) offset 0)
      order by a.pos
    loop
      select w.seq, w.units into done
      from pgflow.take_words_(one.me, one.chain, (one.q->'token')::bigint, t, false, seqs[one.pos]) w;
      seqs[one.pos] := done.seq;
      units[one.pos] := units[one.pos] || done.units;
      if done.units <> '[]' then
        quiet := array_remove(quiet, one.pos);
      end if;
    end loop;
  end if;
  if questions @? '$[*].admits[*]' then
    for done in select d.* from pgflow.admit_all_(questions, present, seqs, t) d loop
      seqs[done.pos] := done.seq;
      units[done.pos] := units[done.pos] || done.units;
      quiet := array_remove(quiet, done.pos);
    end loop;
  end if;
  if questions @? '$[*].effects[*]' then
    for one in
      select a.pos::int as pos, a.q from jsonb_array_elements(questions) with ordinality as a (q, pos)
      where a.pos = any(present) and a.q ? 'effects' order by a.pos
    loop
      select i.seq, i.units, i.refused into done from pgflow.intend_(one.q, t, seqs[one.pos]) i;
      seqs[one.pos] := done.seq;
      units[one.pos] := units[one.pos] || done.units;
      refused[one.pos] := nullif(done.refused, '[]');
    end loop;
  end if;

  if cardinality(looking) < cardinality(present) then
    for one in
      select a.pos::int as pos, a.q, (a.q->'run')::bigint as me, (a.q->'chain')::bigint as chain
      from jsonb_array_elements(questions) with ordinality as a (q, pos)
      where a.pos = any(present) and a.q ?| array['hold', 'continue'] order by a.pos
    loop
      if one.q ? 'hold' then
        perform pgflow.hold_(case when one.q ? 'refused' then pgflow.note_refused_(one.q)
          else one.q end, seqs[one.pos], t);
        places[one.pos] := 'held';
      else
        lanes := lanes || pgflow.continue_(one.q, seqs[one.pos], t);
        if one.q ? 'gated' then
          perform pgflow.close_gates_(array[one.me]);
        end if;
        if one.q ? 'awaited' then
          perform pgflow.forget_events_(array[one.chain]);
        end if;
        to_wake := to_wake || pgflow.wind_up_(array[one.me], t);
        places[one.pos] := 'ended';
      end if;
      to_wake := to_wake || pgflow.nudge_asked_(array[one.chain]);
    end loop;
  end if;

  if mailed <> '{}' then
    pausing := pgflow.hear_(questions, array(select m from unnest(mailed) m where m = any(looking)));
  end if;
  if is_gated then
    mailed := mailed || pgflow.expire_gates_(questions, looking, t);
  end if;
  if mailed <> '{}' or questions @? '$[*].timers[*]' then
    for done in select l.* from pgflow.look_all_(questions, looking, seqs, mailed, t) l loop
      seqs[done.pos] := done.seq;
      units[done.pos] := units[done.pos] || done.units;
      quiet := array_remove(quiet, done.pos);
      if is_gated and done.units->0->>2 = 'G' then
        perform pgflow.close_gates_(array[(questions->(done.pos - 1)->'run')::bigint],
          array[(done.units->0->1)::int]);
      end if;
    end loop;
  end if;

  if questions @? '$[*].events' then
    perform pgflow.await_events_(questions, looking, units);
  end if;

  if mailed <> '{}' and questions @? '$[*].updates' then
    for done in
      select o.* from pgflow.offer_updates_(questions, array(
        select p from unnest(looking) p where p = any(mailed) and p <> all(pausing)
      )) o
    loop
      offers[done.pos] := done.offers;
      quiet := array_remove(quiet, done.pos);
    end loop;
  end if;

  if has_locks then
    for done in
      select l.*
      from pgflow.ask_locks_(questions, array(select p from unnest(quiet) p where p <> all(pausing)), seqs, t) l
    loop
      seqs[done.pos] := done.seq;
      units[done.pos] := units[done.pos] || done.units;
      to_wake := to_wake || done.to_wake;
      if done.is_news then
        quiet := array_remove(quiet, done.pos);
      end if;
    end loop;
  end if;

  if pausing <> '{}' or questions @? '$[*].stuck' then
    for one in
      select a.pos::int as pos, a.q, (a.q->'chain')::bigint as chain, a.pos = any(pausing) as is_pause
      from jsonb_array_elements(questions) with ordinality as a (q, pos)
      where a.pos = any(quiet)
        and case when a.pos = any(pausing) then (a.q->'idle')::boolean else (a.q->'park')::boolean and a.q ? 'stuck' end
      order by a.pos
    loop
      if one.is_pause then
        perform pgflow.pause_(one.q, t, seqs[one.pos]);
      else
        perform pgflow.hold_(one.q || jsonb_build_object('hold', one.q->'stuck'), seqs[one.pos], t);
      end if;
      to_wake := to_wake || pgflow.nudge_asked_(array[one.chain]);
      places[one.pos] := 'held';
    end loop;
  end if;
  parking := array(
    select a.pos::int from jsonb_array_elements(questions) with ordinality as a (q, pos)
    where a.pos = any(quiet) and a.pos <> all(pausing) and (a.q->'park')::boolean and not a.q ? 'stuck' order by a.pos
  );
  if parking <> '{}' then
    to_wake := to_wake || pgflow.park_all_(questions, parking, seqs, t);
    if is_gated then
      perform pgflow.park_gates_(questions, parking, t);
    end if;
  end if;

  select jsonb_agg(case
      when g.pos = any(postponed) then jsonb_build_object('run', g.run, 'units', g.units, 'place', g.place,
        'at', pgflow.micros_(t), 'pause', false, 'postponed', true)
      when g.refused is null then jsonb_build_object('run', g.run, 'units', g.units, 'place', g.place,
        'at', pgflow.micros_(t), 'pause', g.is_pause)
      else jsonb_build_object('run', g.run, 'units', g.units, 'place', g.place, 'at', pgflow.micros_(t),
        'pause', g.is_pause, 'terms', (select jsonb_object_agg(e->>0, e->3) from jsonb_array_elements(g.refused) e),
        'refused', (select jsonb_agg(jsonb_build_array(e->0, e->1, e->2)) from jsonb_array_elements(g.refused) e))
    end order by g.pos)
  into answers
  from (
    select a.pos, a.q->'run' as run, units[a.pos] as units, refused[a.pos] as refused, a.pos = any(pausing) as is_pause,
      case when a.pos = any(parking) then 'parked' else places[a.pos] end as place
    from jsonb_array_elements(questions) with ordinality as a (q, pos)
  ) g;
  if offers is not null then
    select jsonb_agg(case when offers[a.pos] is null then a.x
      else a.x || jsonb_build_object('offers', offers[a.pos]) end order by a.pos)
    into answers
    from jsonb_array_elements(answers) with ordinality as a (x, pos);
  end if;
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
