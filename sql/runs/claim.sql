-- Claiming: `ready` -> `lease`, with everything a worker needs to go on in the same answer.
--
-- The heads of the served lanes are chosen without locks and then locked by ctid, SKIP LOCKED: locking
-- while merging lanes would lock every lane's heads and cost ten times the WAL, and a LIMIT inside an
-- IN (...) can be run again by the planner and claim more than was asked for. Arrays and ctids leave
-- no join whose plan could turn bad with stale statistics. A claim waits for nothing; it commits
-- asynchronously, since a lost claim only leaves the run where it was.
--
-- A claim may read on behind the last run that was claimed (`after`): at the front of a lane stand the
-- dead rows of all that were claimed before, until vacuum removes them, and a transaction that is held
-- open keeps it from that. Reading past 100,000 of them takes longer than all the rest of a claim.
--
-- Tokens are random numbers brought by the worker and compared for equality only: a sequence value
-- could be issued again after a crash under asynchronous commit and let a zombie pass.

create or replace function pgflow.journal_(run_id bigint, after_seq int, max_bytes int)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select json_agg(json_build_array(
      u.seq, u.call, u.kind, u.name, u.payload::text, u.starts, pgflow.micros_(u.at), pgflow.micros_(u.due_at)
    ) order by u.seq)::text
  from (
    select p.*, sum(coalesce(octet_length(p.payload::text), 0) + 100) over (order by p.seq) as upto
    from (
      select * from pgflow.unit where run_id = journal_.run_id and seq > after_seq order by seq limit 2000
    ) p
  ) u
  where u.upto <= max_bytes or u.seq = after_seq + 1
$$;
comment on function pgflow.journal_(bigint, int, int)
  is 'Units after a seq as JSON [[seq, call, kind, name, payload as exact text, starts, at, due_at], ...], at most '
     'about max_bytes of them';

create or replace function pgflow.load_units(run_id bigint, after_seq int)
returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.journal_(load_units.run_id, load_units.after_seq, 1048576)
$$;
comment on function pgflow.load_units(bigint, int)
  is 'The next page of a journal that was too long for the answer of the claim; null at its end';
--! grant load_units to pgflow_worker

create or replace function pgflow.pick_heads_(lanes int[], max int, suspects boolean, after bigint[])
returns tid[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
-- which has no order: statistics from when the table was empty would have it read and sort the whole backlog of a lane
set enable_bitmapscan = off
as $$
declare
  picked tid[];
  last_priority bigint := coalesce(after[1], -32769);
  last_run_id bigint := coalesce(after[2], 0);
begin
  if suspects then
    select array_agg(h.ctid) into picked from (
      select r.ctid from unnest(lanes) as l (id)
      cross join lateral (
        select ctid, suspect, priority, run_id from pgflow.ready
        where lane_id = l.id and suspect > 1 order by suspect, priority, run_id limit max
      ) r
      order by r.suspect, r.priority, r.run_id limit max
    ) h;
  elsif cardinality(lanes) = 1 then
    select array_agg(h.ctid) into picked from (
      select ctid from pgflow.ready
      where lane_id = lanes[1] and suspect < 2 and (priority, run_id) > (last_priority, last_run_id)
      order by priority, run_id limit max
      for update skip locked
    ) h;
  else
    select array_agg(h.ctid) into picked from (
      select r.ctid from unnest(lanes) as l (id)
      cross join lateral (
        select ctid, priority, run_id from pgflow.ready
        where lane_id = l.id and suspect < 2 and (priority, run_id) > (last_priority, last_run_id)
        order by priority, run_id limit max
      ) r
      order by r.priority, r.run_id limit max
    ) h;
  end if;
  return picked;
end
$$;
comment on function pgflow.pick_heads_(int[], int, boolean, bigint[])
  is 'First rows of these lanes, or the first behind {priority, run}, in the order of claiming; of one lane, locked. Or '
     'their suspects, those with the fewest deaths first';

create or replace function pgflow.take_heads_(
  lanes int[], max int, suspects boolean, worker_id int, tokens bigint[], after bigint[] default null
)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan -- else all is planned anew for each claim
as $$
#variable_conflict use_variable
declare
  heads tid[] := pgflow.pick_heads_(lanes, case when suspects then 4 * max else max end, suspects, after);
  locked tid[];
  ids bigint[];
begin
  if heads is null then
    return null;
  end if;
  if suspects then
    -- As many as each of them may have in its company.
    select array_agg(g.ctid) into locked from (
      select k.ctid, row_number() over least_first as n, min(k.company) over least_first as most
      from (
        select r.ctid, r.suspect, r.company, r.priority, r.run_id from pgflow.ready r
        where r.ctid = any(heads) and r.lane_id + 0 = any(lanes) for update skip locked
      ) k
      window least_first as (order by k.suspect, k.priority, k.run_id)
    ) g where g.n <= least(max, g.most);
  elsif cardinality(lanes) = 1 then
    locked := heads; -- as they were picked
  else
    -- By address alone; the sum keeps the planner from reading a whole lane that its statistics take for short.
    select array_agg(k.ctid) into locked from (
      select r.ctid from pgflow.ready r where r.ctid = any(heads) and r.lane_id + 0 = any(lanes) for update skip locked
    ) k;
  end if;
  if not suspects and coalesce(cardinality(locked), 0) < cardinality(heads) and cardinality(lanes) > 1 then
    -- Another worker stands at the same heads: look further down, still without waiting.
    heads := pgflow.pick_heads_(lanes, 4 * max, suspects, after);
    select (array_agg(k.ctid order by k.priority, k.run_id))[1:max] into locked from (
      select r.ctid, r.priority, r.run_id from pgflow.ready r
      where r.ctid = any(heads) and r.lane_id + 0 = any(lanes) for update skip locked
    ) k;
  end if;
  if locked is null then
    return null;
  end if;
  with taken as (
    delete from pgflow.ready r where r.ctid = any(locked) returning r.*
  ), leased as (
    insert into pgflow.lease (run_id, token, claimed_at, worker_id, lane_id, last_seq, attempt, priority, suspect,
      company)
    select n.run_id, tokens[n.rank], pgflow.now_(), worker_id, n.lane_id, n.last_seq, n.attempt + 1,
      n.priority, n.suspect, n.company
    from (select t.*, row_number() over (order by t.priority, t.run_id) as rank from taken t) n
    returning run_id
  )
  select array_agg(run_id) into ids from leased;
  return ids;
end
$$;
comment on function pgflow.take_heads_(int[], int, boolean, int, bigint[], bigint[])
  is 'Moves up to max rows of `ready` to `lease`, or one group of suspects';

create or replace function pgflow.claim_(
  worker_id int, lanes int[], max int, tokens bigint[], take_suspect boolean, after bigint[]
)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  free_lanes int[];
  limited text[];
  is_known boolean;
  queue_name text;
  queue_lanes int[];
  policy pgflow.queue;
  quota int;
  taken bigint[] := '{}';
  more bigint[];
begin
  select array_agg(l.lane_id) filter (where coalesce(q.max_running, q.max_per_worker, q.is_lined::int) is null),
         array_agg(distinct l.queue order by l.queue)
           filter (where coalesce(q.max_running, q.max_per_worker, q.is_lined::int) is not null),
         exists (select from pgflow.worker w where w.worker_id = worker_id),
         take_suspect and coalesce(
           bool_or(q.is_lined or exists (
             select from pgflow.ready r where r.lane_id = l.lane_id and r.suspect > 1 offset 0)), false)
  into free_lanes, limited, is_known, take_suspect
  from pgflow.lane l join pgflow.queue q on q.queue = l.queue
  where l.lane_id = any(lanes) and l.paused_at is null and q.paused_at is null;
  if not is_known then
    raise exception using errcode = 'PF004',
      message = format('worker %s is not registered, or was declared dead', worker_id);
  end if;

  -- A limit over all workers holds only if claims of that queue go one after the other.
  foreach queue_name in array coalesce(limited, '{}') loop
    select q.* into policy from pgflow.queue q where q.queue = queue_name for no key update;
    select array_agg(l.lane_id) into queue_lanes from pgflow.lane l where l.queue = queue_name;
    quota := max - cardinality(taken);
    if coalesce(policy.max_running, policy.max_per_worker) is not null then
      select least(quota, policy.max_running - count(*), policy.max_per_worker - count(*) filter (
        where e.worker_id = worker_id)) into quota
      from pgflow.lease e where e.lane_id = any(queue_lanes);
    end if;
    queue_lanes := array(select l.lane_id from pgflow.lane l
      where l.queue = queue_name and l.lane_id = any(lanes) and l.paused_at is null);
    if policy.is_lined then
      more := pgflow.claim_line_(queue_name, queue_lanes, quota, worker_id, tokens[cardinality(taken) + 1:],
        take_suspect, pgflow.now_());
      taken := taken || more;
      take_suspect := take_suspect and not exists (
        select from pgflow.lease e where e.run_id = any(more) and e.suspect > 1);
      continue;
    end if;
    if quota > 0 and take_suspect then
      -- First, as below: behind a backlog that fills the limit its turn would never come.
      more := pgflow.take_heads_(queue_lanes, quota, true, worker_id, tokens[cardinality(taken) + 1:]);
      taken := taken || coalesce(more, '{}');
      take_suspect := more is null;
      quota := quota - coalesce(cardinality(more), 0);
    end if;
    if quota > 0 then
      more := pgflow.take_heads_(queue_lanes, quota, false, worker_id, tokens[cardinality(taken) + 1:], after);
      taken := taken || coalesce(more, '{}');
    end if;
  end loop;

  if free_lanes is not null and take_suspect and cardinality(taken) < max then
    more := pgflow.take_heads_(free_lanes, max - cardinality(taken), true, worker_id, tokens[cardinality(taken) + 1:]);
    taken := taken || coalesce(more, '{}');
  end if;
  if free_lanes is not null and cardinality(taken) < max then
    more := pgflow.take_heads_(free_lanes, max - cardinality(taken), false, worker_id,
      tokens[cardinality(taken) + 1:], after);
    taken := taken || coalesce(more, '{}');
  end if;
  return taken;
end
$$;
comment on function pgflow.claim_(int, int[], int, bigint[], boolean, bigint[])
  is 'Claims up to max runs of the lanes that are not paused, within the limits of their queues, and at most one '
     'group of suspects';

create or replace function pgflow.heritage_(run_id bigint, heritage jsonb)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  cut int;
begin
  if heritage is null then
    return null;
  end if;
  select r.origin_seq into cut from pgflow.run r where r.run_id = heritage_.run_id;
  return jsonb_build_object('seeds', heritage->'seeds', 'cut', cut, 'began_us', heritage->'began_us',
    'attempts', heritage->'attempts',
    'carried', (
      select jsonb_agg(jsonb_build_array(c.name, c.args_hash, c.is_done, c.key, c.payload::text) order by c.seq, c.call)
      from pgflow.carried c where c.run_id = heritage_.run_id and c.what = 'step'
    ), 'effects', (
      select jsonb_agg(jsonb_build_array(c.key, c.args_hash, c.payload::text, c.note) order by c.seq, c.call)
      from pgflow.carried c where c.run_id = heritage_.run_id and c.what = 'effect'
    ), 'children', pgflow.carried_children_(heritage_.run_id, heritage), 'undo',
      case when pgflow.is_undoing_(heritage_.run_id, cut) then (
      select jsonb_agg(jsonb_build_array(c.seq, c.call, c.name, c.key, c.args_hash, c.request::text, c.payload::text,
        c.note) order by c.seq desc)
      from pgflow.carried c where c.run_id = heritage_.run_id and c.what = 'undo'
    ) end);
end
$$;
comment on function pgflow.heritage_(bigint, jsonb)
  is 'Facts for a worker on a run that begins with the journal of another; null of any other run';

create or replace function pgflow.only_messages_(chains bigint[], runs bigint[])
returns table (chain bigint, message jsonb)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
begin
  return query
  select a.chain, case when s.kind = 's'
    then jsonb_build_array(s.signal_id, s.name, s.payload::text, pgflow.micros_(s.sent_at))
    else jsonb_build_array(s.signal_id, s.name, s.payload::text, pgflow.micros_(s.sent_at), s.call, c.workflow) end
  from unnest(chains, runs) as a (chain, me)
  cross join lateral (
    -- Of two, no matter how many: looking for another beside each would read a full mailbox once for each message.
    select m.*, count(*) over () as messages
    from (select f.* from pgflow.signal f where f.chain_id = a.chain limit 2) m
  ) s
  left join lateral (
    select r.run_id, r.chain_id, l.workflow from pgflow.run r join pgflow.lane l on l.lane_id = r.lane_id
    where s.kind = 'c' and r.run_id = (s.payload->>'run_id')::bigint offset 0
  ) c on true
  where s.messages = 1 and (s.kind = 's' or s.kind = 'c' and s.run_id = a.me
    and not (s.payload->>'status' = 'completed' and pgflow.leaves_effects_(c.run_id, c.chain_id)));
end
$$;
comment on function pgflow.only_messages_(bigint[], bigint[])
  is 'Of chains with their runs, the message that is all there is in the mailbox, which the holder may take without '
     'asking first: [number, name, payload, sent] of a signal; with call and workflow, the result of a child that '
     'leaves no effects to be taken back. Other chains are not answered';

create or replace function pgflow.claimed_(ids bigint[])
returns table (
  run_id bigint, token bigint, chain_id bigint, lane_id int, generation int, attempt int, suspect int, last_seq int,
  key text, root text, input text, units text, has_mail boolean, created_us bigint, now_us bigint, priority int,
  extra jsonb
)
language plpgsql
volatile -- a stable function would not see the leases that the same statement has just inserted
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
  t timestamptz := pgflow.now_();
begin
  return query
    select r.run_id, e.token, r.chain_id, e.lane_id, r.generation, e.attempt, e.suspect::int, e.last_seq,
      r.key, r.root::text, r.input::text,
      case when e.last_seq > 0 then pgflow.journal_(r.run_id, 0, 262144) end,
      b.has_mail and exists (select from pgflow.signal s
        where s.chain_id = r.chain_id and s.kind in ('x', 'p', 'e') offset 0),
      pgflow.micros_(greatest(r.created_at, r.run_at)), pgflow.micros_(t), e.priority::int,
      case when o.is_rich then jsonb_build_object(
          case jsonb_array_length(b.message) when 6 then 'result' else 'offer' end, b.message, 'saga', b.saga,
        'heritage', pgflow.heritage_(r.run_id, r.heritage),
          'beats', b.beats, 'labels', pgflow.labels_at_start_(r.run_id, r.labels), 'metadata', r.metadata,
          'parent_run_id', r.parent_run_id, 'leaves_saga', r.close_policy = 'c',
          'deadline_us', pgflow.micros_(r.deadline_at), 'tenant', r.tenant,
          'pool', case when r.pool is not null then pgflow.pool_for_claim_(r.pool) end)
        when jsonb_array_length(b.message) = 4 then jsonb_build_object('offer', b.message)
      end
    -- One by one in this order: a planner that saw no lease would else read all of them for each run.
    from unnest(ids) as i (id)
    cross join lateral (select l.* from pgflow.lease l where l.run_id = i.id offset 0) e
    cross join lateral (select n.* from pgflow.run n where n.run_id = i.id offset 0) r
    cross join lateral (select exists (select from pgflow.signal s
      where s.chain_id = r.chain_id offset 0) as has_mail offset 0) m
    cross join lateral (
      select m.has_mail, exists (select from pgflow.step_beat s where s.run_id = i.id offset 0) as beats,
        case when r.generation > 1 or r.heritage is not null
          then pgflow.carried_saga_(r.chain_id, r.generation) end as saga,
        case when m.has_mail then (
          select o.message from pgflow.only_messages_(array[r.chain_id], array[i.id]) o
        ) end as message
    ) b
    cross join lateral (
      select r.labels is not null or r.metadata is not null or r.parent_run_id is not null or r.deadline_at is not null
        or r.tenant <> '' or r.pool is not null
        or r.heritage is not null or b.beats or b.saga is not null or jsonb_array_length(b.message) = 6 as is_rich
    ) o;
end
$$;
comment on function pgflow.claimed_(bigint[])
  is 'Facts for a worker on the runs it has just claimed, with the first page of each journal';

create or replace function pgflow.claim_runs(
  worker_id int, lanes int[], max int, tokens bigint[], take_suspect boolean default true, after bigint[] default null
)
returns table (
  run_id bigint, token bigint, chain_id bigint, lane_id int, generation int, attempt int, suspect int, last_seq int,
  key text, root text, input text, units text, has_mail boolean, created_us bigint, now_us bigint, priority int,
  extra jsonb,
  took_us bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  began timestamptz := clock_timestamp();
  ids bigint[];
begin
  perform set_config('synchronous_commit', 'off', true);
  ids := pgflow.claim_(worker_id, lanes, max, tokens, take_suspect, after);
  took_us := pgflow.micros_(clock_timestamp()) - pgflow.micros_(began);
  return query select c.*, took_us from pgflow.claimed_(ids) c;
end
$$;
comment on function pgflow.claim_runs(int, int[], int, bigint[], boolean, bigint[])
  is 'Claims up to max runs for a worker, only those behind {priority, run} if `after` is given; tokens are max random '
     'numbers that it will fence its writes with; took_us: how long it looked for them';
--! grant claim_runs to pgflow_worker

create or replace function pgflow.release_runs(run_ids bigint[], tokens bigint[])
returns bigint[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  freed bigint[];
begin
  -- What batches of the holder are just committing is waited for: it says how far the runs are.
  perform pg_advisory_xact_lock(pgflow.latch_('worker ' || w.worker_id)) from (
    select distinct e.worker_id from pgflow.lease e where e.run_id = any(run_ids) and e.token = any(tokens) order by 1
  ) w;
  perform from pgflow.lease e where e.run_id = any(run_ids) and e.token = any(tokens) order by e.run_id for update;
  with gone as (
    delete from pgflow.lease e using unnest(run_ids, tokens) as g (id, tk)
    where e.run_id = g.id and e.token = g.tk
    returning e.*
  ), judged as (
    select g.*, n.newest, n.newest > g.last_seq as progressed
    from gone g
    cross join lateral (select coalesce(max(u.seq), 0) as newest from pgflow.unit u where u.run_id = g.run_id) n
  ), back as (
    insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority, suspect, company, has_begun)
    select j.run_id, pgflow.now_(), j.lane_id, j.newest, case when j.progressed then 0
      else greatest(j.attempt - 1, 0) end,
      j.priority, case when j.progressed then 0 else j.suspect end, case when j.progressed then 0 else j.company end,
      true
    from judged j order by j.run_id
    returning run_id
  )
  select array_agg(run_id) into freed from back;
  perform pgflow.nudge_asked_(array(select r.chain_id from pgflow.run r where r.run_id = any(freed)));
  return coalesce(freed, '{}');
end
$$;
comment on function pgflow.release_runs(bigint[], bigint[])
  is 'Hands runs back for others to claim, without counting it against them; answers those that were still held';
--! grant release_runs to pgflow_worker

create or replace function pgflow.release_strays(
  worker_id int, known bigint[], claimed_before timestamptz, out strays int, out seen_at timestamptz
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  ids bigint[];
  tokens bigint[];
begin
  seen_at := pgflow.now_();
  select array_agg(e.run_id), array_agg(e.token) into ids, tokens
  from pgflow.lease e
  where e.worker_id = worker_id and e.run_id <> all(known) and e.claimed_at < claimed_before;
  strays := case when ids is null then 0 else cardinality(pgflow.release_runs(ids, tokens)) end;
end
$$;
comment on function pgflow.release_strays(int, bigint[], timestamptz)
  is 'Hands back leases that a worker does not know it has: the answer to its claim was lost. Only those from before '
     'a time that it names, since when each of its claims was answered; seen_at is such a time for its next look';
--! grant release_strays to pgflow_worker

create or replace function pgflow.places_()
returns table (run_id bigint, place text, last_seq int, lane_id int)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select run_id, 'ready', last_seq, abs(lane_id) from pgflow.ready
  union all select run_id, 'lease', last_seq, lane_id from pgflow.lease
  union all select run_id, 'parked', last_seq, lane_id from pgflow.parked
  union all select run_id, 'held', last_seq, lane_id from pgflow.held
$$;
comment on function pgflow.places_() is 'The place of every open run';

create or replace function pgflow.check_places_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  with place as (
    select p.run_id, p.place, p.last_seq, p.lane_id from pgflow.places_() p
  ), newest as (
    select run_id, max(seq) as seq, min(seq) as first_seq, count(*) as units from pgflow.unit group by run_id
  )
  select 'an open run has exactly one place', format('run %s has %s', r.run_id, count(p.run_id))
  from pgflow.run r left join place p on p.run_id = r.run_id
  where not exists (select from pgflow.outcome o where o.run_id = r.run_id)
  group by r.run_id having count(p.run_id) <> 1
  union all
  select 'a finished run has no place', format('run %s is in %s', p.run_id, p.place)
  from place p join pgflow.outcome o on o.run_id = p.run_id
  union all
  select 'a place belongs to a run', format('run %s in %s', p.run_id, p.place)
  from place p where not exists (select from pgflow.run r where r.run_id = p.run_id)
  union all
  select 'a place stands in a lane', format('run %s in %s stands in lane %s', p.run_id, p.place, p.lane_id)
  from place p where not exists (select from pgflow.lane l where l.lane_id = p.lane_id)
  union all
  select 'a place knows the last unit', format('run %s in %s says %s, the journal %s', p.run_id, p.place, p.last_seq,
    coalesce(n.seq, 0))
  from place p left join newest n on n.run_id = p.run_id
  where case when p.place = 'lease' then p.last_seq > coalesce(n.seq, 0) else p.last_seq <> coalesce(n.seq, 0) end;
end
$$;
comment on function pgflow.check_places_() is 'A run that is open has one place, which agrees with its journal';

comment on column pgflow.ready.run_id is 'The run that may be claimed';
comment on column pgflow.ready.ready_at is 'Time since which it is ready';
comment on column pgflow.ready.lane_id is 'Its queue, workflow and version; negative, if it stands in a line';
comment on column pgflow.ready.priority is 'Lower numbers are claimed first, within their lane';

comment on column pgflow.lease.run_id is 'The run that is held';
comment on column pgflow.lease.token is 'Random number of this lease, compared for equality only';
comment on column pgflow.lease.claimed_at is 'Time of the claim';
comment on column pgflow.lease.worker_id is 'The worker that holds it';
comment on column pgflow.lease.lane_id is 'Its queue, workflow and version';
comment on column pgflow.lease.attempt is 'Claims since the run last made progress, this one included';
comment on column pgflow.lease.priority is 'Lower numbers are claimed first, within their lane';
comment on column pgflow.lease.suspect is 'Workers that died holding this run without a new unit';
comment on column pgflow.lease.company is 'Most suspects that its worker was to begin with it; see ready.company';
