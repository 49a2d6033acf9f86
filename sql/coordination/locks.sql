-- Locks: mutual exclusion among runs and plain code, for as long as a block of code lasts.
--
-- A waiting run is parked, with a row in `lock_wait`; a holder has a row in `lock`. A lock is won by a commit, and
-- the death of a worker changes nothing: the run still holds it, and ends or releases it in a commit of its own.
-- Plain code holds a lock for a limited time, which it renews. Each win of a lock has a number, the fence. The
-- protected system may refuse a smaller fence than the largest it has seen: that makes a holder harmless that was
-- frozen past its time.
--
-- Decisions about a key are exclusive: an advisory lock, that is tried and never waited for, and only in READ
-- COMMITTED, so that each later statement sees earlier decisions. A session that does not get it leaves a row in
-- `lock_nudge` beside its change, and a sweep decides instead. So no waiter is missed: of two sessions that change a
-- key at once, either one comes after the other, or one leaves a nudge that is found after its commit. And no commit
-- waits for the transaction of another that takes or releases a lock.
--
-- The queue of a key is served in the order of its tickets. Adjacent waiters that share it are served together. A
-- holder whose time is over, or whose run has ended, does not count: the next look at the key removes the row. A wait
-- inside the block of another lock could deadlock with other runs. The fences around it are in its row, so the circle
-- is found by walking from keys to holders, and from them to the waits inside their blocks. The walk excludes other
-- walks (another advisory lock), since two waits that close a circle at the same time would not see each other.
--
-- The name of a holder is in a view, so it proves nothing. Plain code presents a secret when it takes, renews or
-- releases a lock; only a hash of the secret is kept, and no view has it. Without a secret, the session identifies
-- the holder. A holder that asks again, since the answer was lost, gets a new fence: no two answers ever have the
-- same.
--
-- Locks in a question (`answer_all_`):
--   locks      [[call, key, is shared, seconds, seq of its time-out, [fence, ...]], ...]   waits; there, perhaps empty,
--              if any of the three is
--   holds      [[call, key, fence, is given back], ...]   blocks that are open, each the call that ends with it
--   unlocks    [call, ...]   waits that the code has given up, or that came too late for it

create or replace function pgflow.try_key_(key text)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  return current_setting('transaction_isolation') = 'read committed'
    and pg_try_advisory_xact_lock(pgflow.latch_('lock ' || key));
end
$$;
comment on function pgflow.try_key_(text)
  is 'Takes a key to decide about it, until this transaction ends; false if it cannot';

create or replace function pgflow.next_fence_()
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  -- A sweep need not be durable, but who reads a fence relies on it: after a crash it would be given again.
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  return nextval('pgflow.lock_fence_seq');
end
$$;
comment on function pgflow.next_fence_()
  is 'Draws the number of a lock that is won: greater than that of every holder before, once this is committed';

create or replace function pgflow.nudge_key_(key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
begin
  -- Who has the key sees everybody who has asked before; who asks later sees what this transaction has changed, or
  -- cannot have the key and leaves a nudge of its own.
  if not pgflow.try_key_(key) or exists (select from pgflow.lock_wait w where w.key = key) then
    insert into pgflow.lock_nudge (nudged_at, key) values (pgflow.now_(), key);
  end if;
end
$$;
comment on function pgflow.nudge_key_(text)
  is 'After plain code has changed who holds a key, or waits for it: leaves it to the sweep to let the next one in, if '
     'there may be one';

create or replace function pgflow.try_circles_()
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  return current_setting('transaction_isolation') = 'read committed'
    and pg_try_advisory_xact_lock(pgflow.latch_('lock_circle'));
end
$$;
comment on function pgflow.try_circles_()
  is 'Takes the right to look for circles of runs that wait for each other, until this transaction ends; false if it '
     'cannot';

create or replace function pgflow.is_open_to_(key text, shared boolean)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
begin
  -- Two questions, each with an index of its own: many may share a key.
  return not exists (select from pgflow.lock l where l.key = key and not l.is_shared)
    and (shared or not exists (select from pgflow.lock l where l.key = key));
end
$$;
comment on function pgflow.is_open_to_(text, boolean)
  is 'True if a key is free, or shared by all holders and the next one';

create or replace function pgflow.grant_key_(wanted text, t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  waiter pgflow.lock_wait;
  last_ticket bigint := 0;
  chain bigint;
  won bigint;
  chains bigint[] := '{}';
begin
  -- A locked row is being released.
  delete from pgflow.lock l where l.ctid = any(array(
    select k.ctid from pgflow.lock k
    where k.key = wanted
      and (k.expires_at <= t or exists (select from pgflow.outcome o where o.run_id = k.run_id offset 0))
    for update skip locked
  ));
  loop
    select w.* into waiter from pgflow.lock_wait w
    where w.key = wanted and w.ticket > last_ticket order by w.ticket limit 1 for update skip locked;
    exit when not found;
    last_ticket := waiter.ticket;
    if waiter.expires_at <= t then
      delete from pgflow.lock_wait w where w.ticket = waiter.ticket;
      continue;
    end if;
    exit when not pgflow.is_open_to_(wanted, waiter.is_shared);
    delete from pgflow.lock_wait w where w.ticket = waiter.ticket;
    insert into pgflow.lock (fence, run_id, since, expires_at, call, is_shared, key, holder, proof)
    values (pgflow.next_fence_(), waiter.run_id, t, t + waiter.ttl, waiter.call, waiter.is_shared, wanted,
      waiter.holder, waiter.proof)
    returning fence into won;
    if waiter.run_id is not null then
      chain := pgflow.tell_waiter_(waiter, json_build_object('fence', won), t);
      chains := chains || chain;
    end if;
  end loop;
  if not exists (select from pgflow.lock l where l.key = wanted)
    and exists (select from pgflow.lock_wait w where w.key = wanted) then
    -- Who waits has its place in its hands, and may keep it.
    insert into pgflow.lock_nudge (nudged_at, key) values (t, wanted);
  end if;
  return chains;
end
$$;
comment on function pgflow.grant_key_(text, timestamptz)
  is 'Serves the queue of a key that this transaction has to itself, as far as it goes; answers the chains to wake';

create or replace function pgflow.tell_waiter_(waiter pgflow.lock_wait, said json, at timestamptz)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint;
begin
  select r.chain_id into strict chain from pgflow.run r where r.run_id = waiter.run_id;
  insert into pgflow.signal (chain_id, run_id, sent_at, call, kind, name, sent_by, payload)
  values (chain, waiter.run_id, at, waiter.call, 'l', waiter.key, 'pgflow', said);
  insert into pgflow.nudge (chain_id) values (chain);
  return chain;
end
$$;
comment on function pgflow.tell_waiter_(pgflow.lock_wait, json, timestamptz)
  is 'Posts the outcome of its wait for a lock to a run; returns its chain';

create or replace function pgflow.free_key_(key text, t timestamptz, out to_wake bigint[], out is_put_off boolean)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  to_wake := '{}';
  is_put_off := not pgflow.try_key_(key);
  if is_put_off then
    insert into pgflow.lock_nudge (nudged_at, key) values (t, free_key_.key);
  else
    to_wake := pgflow.grant_key_(key, t);
  end if;
end
$$;
comment on function pgflow.free_key_(text, timestamptz)
  is 'After a holder has gone: lets the next one in, or leaves that to the sweep';

create or replace function pgflow.leave_queues_(run_ids bigint[], calls int[], t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  -- Before the same transaction lets a waiter in: one that leaves may wait for one that lets it
  -- in, and one that lets others in waits for none.
  with gone as (
    delete from pgflow.lock_wait w using unnest(run_ids, calls) as g (run_id, call)
    where w.run_id = g.run_id and (g.call is null or w.call = g.call)
    returning w.ticket, w.key, w.is_shared
  )
  insert into pgflow.lock_nudge (nudged_at, key)
  select distinct t, g.key from gone g
  where not g.is_shared
    and exists (select from pgflow.lock_wait w where w.key = g.key and w.ticket > g.ticket and w.is_shared);
end
$$;
comment on function pgflow.leave_queues_(bigint[], int[], timestamptz)
  is 'Takes waits of runs out of their queues, all of a run where no call is named; nudges where those behind may '
     'share what they wait for';

create or replace function pgflow.closes_circle_(ticket bigint)
returns boolean
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  with recursive mine as (
    select w.key, w.within from pgflow.lock_wait w where w.ticket = closes_circle_.ticket
  ), in_the_way (fence) as (
    select l.fence from mine m join pgflow.lock l on l.key = m.key
    union
    select l.fence
    from in_the_way i
    join pgflow.lock_wait w on w.within <> '{}' and w.within @> array[i.fence]
    join pgflow.lock l on l.key = w.key
  )
  select exists (select from mine m join in_the_way i on i.fence = any(m.within))
$$;
comment on function pgflow.closes_circle_(bigint)
  is 'True if what is waited for is not given back before what the waiter holds';

create or replace function pgflow.settle_locks_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns table (pos int, seq int, units jsonb, is_lost boolean, to_wake bigint[])
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  one record;
  part record;
  held pgflow.lock;
  freed text[];
  given text;
  said json;
  done record;
begin
  perform pgflow.leave_queues_(array_agg(q.run), array_agg(e::int), t)
  from pgflow.question_rows_(questions) q cross join lateral jsonb_array_elements(q.unlocks) e
  where q.pos = any(positions);
  for one in
    select q.pos, q.run as me, q.chain, q.token, q.holds, q.unlocks, q.children
    from pgflow.question_rows_(questions) q
    where q.pos = any(positions) and (q.holds is not null or q.unlocks is not null) order by q.pos
  loop
    pos := one.pos;
    seq := seqs[one.pos];
    units := '[]';
    is_lost := false;
    to_wake := '{}';
    freed := '{}';
    for part in select e::int as call from jsonb_array_elements(one.unlocks) e loop
      delete from pgflow.lock l where l.ctid = (
        select k.ctid from pgflow.lock k where k.run_id = one.me and k.call = part.call for update skip locked
      ) returning l.key into given;
      if found then
        freed := freed || given;
      end if;
      delete from pgflow.signal s
      where s.chain_id = one.chain and s.kind = 'l' and s.run_id = one.me and s.call = part.call;
    end loop;
    for part in
      select h.* from pgflow.hold_rows_(one.holds) h
    loop
      -- A locked one is over: it expired, or is being taken away.
      select l.* into held from pgflow.lock l
      where l.fence = part.fence and l.run_id = one.me for update skip locked;
      if held.fence is not null then
        continue when (held.expires_at <= t) is not true and not part.is_given_back;
        delete from pgflow.lock l where l.fence = part.fence;
        freed := freed || part.key;
      end if;
      said := json_build_object('fence', part.fence);
      if held.fence is null or held.expires_at <= t then
        said := coalesce((
          select json_build_object('fence', part.fence, 'lost', 'broken', 'by', b.broken_by, 'why', b.why)
          from pgflow.lock_broken b where b.fence = part.fence and b.run_id = one.me
        ), json_build_object('fence', part.fence, 'lost', 'expired'));
        is_lost := is_lost or not part.is_given_back;
      end if;
      seq := seq + 1;
      perform pgflow.append_(one.me, seq, part.call, 'u', part.key, said, one.token, t, t);
      units := units || jsonb_build_array(pgflow.unit_json_(seq, part.call, 'u', part.key, said));
    end loop;
    foreach given in array freed loop
      select f.* into done from pgflow.free_key_(given, t) f;
      -- The wake of the session that postponed it finds the sweep.
      to_wake := to_wake || done.to_wake || case when done.is_put_off then array[one.chain] end;
    end loop;
    if is_lost and one.children is not null then
      perform pgflow.leave_keys_(one.me, one.children);
    end if;
    return next;
  end loop;
end
$$;
comment on function pgflow.settle_locks_(jsonb, int[], int[], timestamptz)
  is 'Takes back what runs of a batch give back, and says which of the locks they rest on are lost, before anything '
     'else of them is decided: of each position the last seq then and its units';

create or replace function pgflow.time_out_locks_(questions jsonb, positions int[], t timestamptz)
returns int[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  late record;
  waiter pgflow.lock_wait;
  told int[] := '{}';
begin
  for late in
    select q.pos, q.run as me, w.call, u.due_at
    from pgflow.question_rows_(questions) q cross join lateral pgflow.lock_rows_(q.locks) w
    cross join lateral (select n.due_at from pgflow.unit n where n.run_id = q.run and n.seq = w.seq offset 0) u
    where q.pos = any(positions) and u.due_at <= t
    order by q.pos
  loop
    -- One that is locked is just being served.
    delete from pgflow.lock_wait w where w.ticket = (
      select k.ticket from pgflow.lock_wait k where k.run_id = late.me and k.call = late.call for update skip locked
    ) returning w.* into waiter;
    if found then
      perform pgflow.tell_waiter_(waiter, '{"timed_out": true}', late.due_at);
      if not waiter.is_shared then
        insert into pgflow.lock_nudge (nudged_at, key) values (t, waiter.key);
      end if;
      told := told || late.pos;
    end if;
  end loop;
  return told;
end
$$;
comment on function pgflow.time_out_locks_(jsonb, int[], timestamptz)
  is 'Takes runs of a batch out of queues in which they have waited for as long as they wanted; answers the positions '
     'of those that have mail of it now';

create or replace function pgflow.ask_lock_(
  me bigint, chain bigint, call int, key text, is_shared boolean, ttl interval, within bigint[], t timestamptz,
  out fence bigint, out refused text, out is_new boolean, out to_wake bigint[]
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  held pgflow.lock;
  place bigint;
  is_mine boolean;
begin
  to_wake := '{}';
  is_new := false;
  -- It may come from the generation before.
  select l.* into held from pgflow.lock l
  where l.run_id = me and l.call = 0 and l.key = key and l.is_shared = is_shared
    and (l.expires_at <= t) is not true limit 1 for update skip locked;
  if held.fence is not null then
    update pgflow.lock l set call = call where l.fence = held.fence;
    fence := held.fence;
    return;
  end if;
  -- In another mode it is another lock: that one is given back first.
  delete from pgflow.lock l where l.ctid = any(array(
    select k.ctid from pgflow.lock k where k.run_id = me and k.call = 0 and k.key = key for update skip locked
  ));
  if exists (select from pgflow.lock_wait w where w.run_id = me and w.call = call)
    or exists (select from pgflow.lock l where l.run_id = me and l.call = call) then
    return;
  end if;
  is_new := true;
  is_mine := pgflow.try_key_(key);
  if is_mine and not exists (select from pgflow.lock l where l.key = key)
    and not exists (select from pgflow.lock_wait w where w.key = key) then
    insert into pgflow.lock (fence, run_id, since, expires_at, call, is_shared, key, holder)
    select pgflow.next_fence_(), me, t, t + ttl, call, is_shared, key, r.key
    from pgflow.run r where r.run_id = me
    returning pgflow.lock.fence into fence;
    return;
  end if;
  insert into pgflow.lock_wait (run_id, asked_at, ttl, call, is_shared, is_checked, key, holder, within)
  select me, t, ttl, call, is_shared, within = '{}', key, r.key, within from pgflow.run r where r.run_id = me
  returning ticket into place;
  if not is_mine then
    insert into pgflow.lock_nudge (nudged_at, key) values (t, key);
    to_wake := array[chain];
    return;
  end if;
  to_wake := pgflow.grant_key_(key, t);
  -- It was its turn, so it needs no mail.
  delete from pgflow.signal s
  where s.chain_id = chain and s.kind = 'l' and s.name = key and s.run_id = me and s.call = call;
  if found then
    select l.fence into strict fence from pgflow.lock l where l.run_id = me and l.call = call;
    to_wake := array_remove(to_wake, chain);
  elsif within <> '{}' then
    if not pgflow.try_circles_() then
      insert into pgflow.lock_nudge (nudged_at, key) values (t, key);
      to_wake := to_wake || chain;
    elsif pgflow.closes_circle_(place) then
      delete from pgflow.lock_wait w where w.ticket = place;
      refused := 'deadlock';
    else
      update pgflow.lock_wait w set is_checked = true where w.ticket = place;
    end if;
  end if;
end
$$;
comment on function pgflow.ask_lock_(bigint, bigint, int, text, boolean, interval, bigint[], timestamptz)
  is 'Asks for a lock: returns its fence if it is won at once, or the reason of a refusal; else the run waits in the '
     'queue, perhaps already since before (is_new)';

create or replace function pgflow.ask_locks_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns table (pos int, seq int, units jsonb, is_news boolean, to_wake bigint[])
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  one record;
  ask record;
  got record;
  kind "char";
  said json;
begin
  for one in
    select q.pos, q.run as me, q.chain, q.token, q.locks
    from pgflow.question_rows_(questions) q
    where q.pos = any(positions) and q.locks <> '[]' order by q.pos
  loop
    pos := one.pos;
    seq := seqs[one.pos];
    units := '[]';
    is_news := false;
    to_wake := '{}';
    for ask in
      select w.* from pgflow.lock_rows_(one.locks) w order by w.n
    loop
      select g.* into got from pgflow.ask_lock_(one.me, one.chain, ask.call, ask.key, ask.is_shared, ask.ttl,
        ask.within, t) g;
      to_wake := to_wake || got.to_wake;
      if got.fence is not null then
        kind := 'L';
        said := json_build_object('fence', got.fence);
      elsif got.refused is not null then
        kind := 'u';
        said := json_build_object('refused', got.refused);
      else
        continue when not got.is_new;
        kind := 'l';
        said := json_build_object('shared', ask.is_shared);
      end if;
      is_news := is_news or kind <> 'l';
      seq := seq + 1;
      perform pgflow.append_(one.me, seq, ask.call, kind, ask.key, said, one.token, t, t);
      units := units || jsonb_build_array(pgflow.unit_json_(seq, ask.call, kind, ask.key, said));
    end loop;
    return next;
  end loop;
end
$$;
comment on function pgflow.ask_locks_(jsonb, int[], int[], timestamptz)
  is 'Asks for the locks that runs of a batch wait for, if nothing else has happened to them: of each position the '
     'last seq then, its units, and whether they say more than that it waits';

create or replace function pgflow.end_locks_(run_ids bigint[], t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  freed text[];
  given text;
  done record;
  to_wake bigint[] := '{}';
begin
  if not exists (select from pgflow.lock l where l.run_id = any(run_ids))
    and not exists (select from pgflow.lock_wait w where w.run_id = any(run_ids))
    and not exists (select from pgflow.run r
      cross join lateral (select from pgflow.signal m where m.chain_id = r.chain_id and m.kind = 'l' offset 0) s
      where r.run_id = any(run_ids)) then
    return to_wake;
  end if;
  perform pgflow.leave_queues_(run_ids, null, t);
  -- A locked one has expired and is being taken: do not wait for it.
  with gone as (
    delete from pgflow.lock l where l.ctid = any(array(
      select k.ctid from pgflow.lock k where k.run_id = any(run_ids) for update skip locked
    )) returning l.key
  )
  select array_agg(distinct g.key order by g.key) into freed from gone g;
  insert into pgflow.lock_nudge (nudged_at, key)
  select distinct t, l.key from pgflow.lock l where l.run_id = any(run_ids);
  delete from pgflow.signal s
  where s.kind = 'l' and s.run_id = any(run_ids)
    and s.chain_id = any(array(select r.chain_id from pgflow.run r where r.run_id = any(run_ids)));
  foreach given in array coalesce(freed, '{}') loop
    select f.* into done from pgflow.free_key_(given, t) f;
    to_wake := to_wake || done.to_wake || case when done.is_put_off
      then (select r.chain_id from pgflow.run r where r.run_id = run_ids[1]) end;
  end loop;
  return array_remove(to_wake, null);
end
$$;
comment on function pgflow.end_locks_(bigint[], timestamptz)
  is 'Gives back all that runs hold, and takes them out of every queue, as they end; answers the chains to wake';

create or replace function pgflow.carry_locks_(me bigint, next_id bigint, t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  -- A lock that was won without the code's knowledge is free. So is one that is being taken away.
  update pgflow.lock l set run_id = next_id, call = 0
  where l.ctid = any(array(
    select k.ctid from pgflow.lock k
    where k.run_id = me and (k.expires_at <= t) is not true and not exists (
      select from pgflow.run r
      cross join lateral (
        select m.run_id, m.call from pgflow.signal m where m.chain_id = r.chain_id and m.kind = 'l' offset 0
      ) s
      where r.run_id = me and s.run_id = me and s.call = k.call
    )
    for update skip locked
  ));
  return pgflow.end_locks_(array[me], t);
end
$$;
comment on function pgflow.carry_locks_(bigint, bigint, timestamptz)
  is 'Hands the locks of a run to the next generation, which has them when it asks for them; answers the chains to '
     'wake';

create or replace function pgflow.left_locks_(run_id bigint, cut int, is_fork boolean)
returns table (seq int, key text, given_back_at int)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  -- A run of a file asks for its folder again: see pgflow/declare/durable/lease.py.
  return query
    select w.seq, w.name::text, g.seq
    from pgflow.unit w
    left join pgflow.unit g on g.run_id = w.run_id and g.kind = 'u' and g.payload->>'fence' = w.payload->>'fence'
    where w.run_id = left_locks_.run_id and w.kind = 'L' and w.seq <= cut and coalesce(g.seq, cut + 1) > cut
      and not exists (select from pgflow.unit x where x.run_id = w.run_id and x.call = w.call and x.kind = 'x')
      and (is_fork or not exists (
        select from pgflow.lock l where l.fence = (w.payload->>'fence')::bigint and l.run_id = w.run_id
      ))
      and not pgflow.is_of_file_(w.run_id)
    order by w.seq;
end
$$;
comment on function pgflow.left_locks_(bigint, int, boolean)
  is 'Locks in whose blocks a cut stands, and that the run which goes on from there would not hold';

create or replace function pgflow.move_locks_(origin bigint, cut int, heir bigint, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  update pgflow.lock l set run_id = heir
  where l.run_id = origin and (l.call = 0 or exists (
    select from pgflow.unit u where u.run_id = origin and u.call = l.call and u.kind = 'L' and u.seq <= cut
  ));
  perform pgflow.end_locks_(array[origin], t);
end
$$;
comment on function pgflow.move_locks_(bigint, int, bigint, timestamptz)
  is 'Hands the locks that a run had won before a cut to the generation that goes on from there, and gives back the '
     'others';

create or replace function pgflow.check_fences_(run_id bigint, fences bigint[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  held int;
  t timestamptz;
begin
  -- Until this commits, the lock is neither taken away nor won by another.
  select count(*) into held from (
    select from pgflow.lock l where l.fence = any(fences) and l.run_id = run_id order by l.fence for key share
  ) k;
  t := pgflow.now_();
  if held < cardinality(fences)
    or exists (select from pgflow.lock l where l.fence = any(fences) and l.expires_at <= t) then
    raise exception using errcode = 'PF025',
      message = format('run %s does not hold the lock any more in whose block the step was called', run_id),
      hint = 'Its time was over, or it was taken away.';
  end if;
end
$$;
comment on function pgflow.check_fences_(bigint, bigint[])
  is 'Refuses (PF025) a run that does not hold these locks any more; it keeps them until the end of the transaction';

create or replace function pgflow.sweep_locks_(max int, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  nudges bigint[];
  nudged text[];
  wanted text;
  waiter pgflow.lock_wait;
  is_done boolean;
begin
  with gone as (
    delete from pgflow.lock_wait w where w.ticket = any(array(
      select k.ticket from pgflow.lock_wait k where k.expires_at <= t order by k.expires_at limit max
      for update skip locked
    )) returning w.key
  )
  insert into pgflow.lock_nudge (nudged_at, key) select distinct t, g.key from gone g;
  select array_agg(k.nudge_id), array_agg(k.key) into nudges, nudged from (
    select n.nudge_id, n.key from pgflow.lock_nudge n order by n.nudge_id limit max for update skip locked
  ) k;
  for wanted in
    select distinct k.key from (
      select n.key from unnest(nudged) as n (key)
      union all
      (select l.key from pgflow.lock l where l.expires_at <= t order by l.expires_at limit max)
    ) k order by k.key
  loop
    continue when not pgflow.try_key_(wanted);
    perform pgflow.grant_key_(wanted, t);
    is_done := true;
    for waiter in
      select w.* from pgflow.lock_wait w where w.key = wanted and not w.is_checked order by w.ticket
      for update skip locked
    loop
      if not pgflow.try_circles_() then
        is_done := false;
        exit;
      elsif pgflow.closes_circle_(waiter.ticket) then
        delete from pgflow.lock_wait w where w.ticket = waiter.ticket;
        perform pgflow.tell_waiter_(waiter, '{"refused": "deadlock"}', t);
      else
        update pgflow.lock_wait w set is_checked = true where w.ticket = waiter.ticket;
      end if;
    end loop;
    if is_done and not exists (select from pgflow.lock_wait w where w.key = wanted and not w.is_checked) then
      delete from pgflow.lock_nudge n using unnest(nudges, nudged) as g (id, key)
      where n.nudge_id = g.id and g.key = wanted;
    end if;
  end loop;
end
$$;
comment on function pgflow.sweep_locks_(int, timestamptz)
  is 'Decides what others could not: forgets waits whose time is over, serves the keys that were nudged or have '
     'expired, and looks for circles';

create or replace function pgflow.sweep_locks(max int default 1000)
returns table (lanes int[], mail bigint[], ended bigint[], busy int)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  durably text;
begin
  perform pgflow.sweep_locks_(pgflow.at_most_(max), pgflow.now_());
  durably := current_setting('synchronous_commit');
  return query select w.lanes, w.mail, w.ended, w.busy from pgflow.wake(null, max) w;
  perform set_config('synchronous_commit', durably, true);
end
$$;
comment on function pgflow.sweep_locks(int)
  is 'Lets in who waits for a lock that was given back, as every poll of a worker does; in a READ COMMITTED '
     'transaction of its own';
--! grant sweep_locks to pgflow_client, pgflow_worker, pgflow_operator

-- ---------------------------------------------------------------- plain code

create or replace function pgflow.check_lock_(key text, holder text, ttl interval)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pgflow.check_name_(key, 'the key of a lock'), pgflow.check_name_(holder, 'the holder of a lock', 512);
  if ttl is null or ttl <= interval '0' or ttl > interval '100 years' then
    raise exception using errcode = 'PF003',
      message = format('the time for which lock %s is held must be above zero, not %s', quote_literal(key),
        coalesce(quote_literal(ttl), 'null')),
      hint = 'Only a run holds a lock without a limit.';
  end if;
end
$$;
comment on function pgflow.check_lock_(text, text, interval)
  is 'Refuses (PF003) a lock without a key, a holder or a limit of time';

create or replace function pgflow.proof_of_(secret text)
returns bytea
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  -- The two forms differ in their first word, so no secret is that of a session.
  select sha256(convert_to(coalesce('secret ' || proof_of_.secret, (
    select format('session %s %s', a.pid, extract(epoch from a.backend_start))
    from pg_stat_get_activity(pg_backend_pid()) a
  )), 'UTF8'))
$$;
comment on function pgflow.proof_of_(text)
  is 'Hash of the secret by which plain code shows that it is the holder of a lock; without one, of its session';

create or replace function pgflow.take_lock(
  key text, holder text, ttl interval, shared boolean default false, patience interval default null,
  secret text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  held pgflow.lock;
  place pgflow.lock_wait;
  won bigint;
  is_mine boolean;
  is_freed boolean := false;
  mine constant bytea := pgflow.proof_of_(secret);
  t timestamptz;
begin
  perform pgflow.check_lock_(key, holder, ttl);
  if shared is null or patience <= interval '0' then
    raise exception using errcode = 'PF003',
      message = format('lock %s: shared must be true or false, and patience above zero', quote_literal(key));
  end if;
  is_mine := pgflow.try_key_(key);
  t := pgflow.now_();
  select l.* into held from pgflow.lock l
  where l.key = key and l.holder = holder and l.proof = mine and l.expires_at > t for update;
  if held.fence is not null then
    if held.is_shared <> shared then
      raise exception using errcode = 'PF006',
        message = format('%s holds lock %s already, and %s', quote_literal(holder), quote_literal(key),
          case when shared then 'holds it alone' else 'shares it with others' end),
        hint = 'Release it first, or take it under the name of another holder.';
    end if;
    -- What it was answered before is lost, or it would not ask.
    update pgflow.lock l set fence = pgflow.next_fence_() where l.fence = held.fence returning l.fence into won;
    return won;
  end if;
  select w.* into place from pgflow.lock_wait w where w.key = key and w.holder = holder and w.proof = mine;
  if is_mine then
    delete from pgflow.lock l where l.ctid = any(array(
      select k.ctid from pgflow.lock k
      where k.key = key
        and (k.expires_at <= t or exists (select from pgflow.outcome o where o.run_id = k.run_id offset 0))
      for update skip locked
    ));
    is_freed := found;
    if pgflow.is_open_to_(key, shared)
      and not exists (select from pgflow.lock_wait w where w.key = key
        and (place.ticket is null or w.ticket < place.ticket) and (w.expires_at <= t) is not true) then
      delete from pgflow.lock_wait w where w.ticket = place.ticket;
      insert into pgflow.lock (fence, since, expires_at, is_shared, key, holder, proof)
      values (pgflow.next_fence_(), t, t + ttl, shared, key, holder, mine)
      returning fence into won;
      return won;
    end if;
  end if;
  if is_freed then
    insert into pgflow.lock_nudge (nudged_at, key) values (t, key);
  end if;
  -- A row of the queue is left alone while it is good: who serves the queue passes over one that is locked.
  if place.ticket is null and patience is not null then
    insert into pgflow.lock_wait (asked_at, expires_at, ttl, is_shared, is_checked, key, holder, proof)
    values (t, t + 1.5 * patience, ttl, shared, true, key, holder, mine)
    on conflict do nothing;
    insert into pgflow.lock_nudge (nudged_at, key) values (t, key);
  elsif place.ticket is not null and patience is null then
    delete from pgflow.lock_wait w where w.ticket = (
      select k.ticket from pgflow.lock_wait k where k.ticket = place.ticket for update skip locked
    );
    insert into pgflow.lock_nudge (nudged_at, key) values (t, key);
  elsif place.expires_at < t + patience or place.ttl <> ttl or place.is_shared <> shared then
    update pgflow.lock_wait w set expires_at = t + 1.5 * patience, ttl = ttl, is_shared = shared where w.ticket = (
      select k.ticket from pgflow.lock_wait k where k.ticket = place.ticket for update skip locked
    );
  end if;
  return null;
end
$$;
comment on function pgflow.take_lock(text, text, interval, boolean, interval, text)
  is 'Takes a lock for plain code, for a limited time: answers the fence, or null if it is held or others wait for it. '
     'With patience the holder stands in the queue, and must ask again within that time. secret = what the holder '
     'shows to renew the lock or give it back; without one, only this session can. The same holder who asks again '
     'with it goes on holding, under a new fence. PF003 without a limit of time; PF006 if the holder has it in the '
     'other mode';
--! grant take_lock to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.renew_lock(key text, fence bigint, ttl interval, secret text default null)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  until timestamptz;
begin
  perform pgflow.check_lock_(key, 'holder', ttl);
  select l.expires_at into until from pgflow.lock l
  where l.fence = fence and l.key = key and l.proof = pgflow.proof_of_(secret) for update;
  if not found or until <= pgflow.now_() then
    return false;
  end if;
  update pgflow.lock l set expires_at = pgflow.now_() + ttl where l.fence = fence;
  return true;
end
$$;
comment on function pgflow.renew_lock(text, bigint, interval, text)
  is 'Holds a lock of plain code for longer, from now on; false if it is lost, or was not taken with this secret';
--! grant renew_lock to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.release_lock(key text, fence bigint, secret text default null)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  until timestamptz;
  holder text;
  mine constant bytea := pgflow.proof_of_(secret);
begin
  delete from pgflow.lock l where l.fence = fence and l.key = key and l.proof = mine
  returning l.expires_at, l.holder into until, holder;
  if not found then
    return false;
  end if;
  -- What was asked twice, since the answer was lost, may have left a place in the queue.
  delete from pgflow.lock_wait w where w.key = key and w.holder = holder and w.proof = mine;
  perform pgflow.nudge_key_(key);
  return until > pgflow.now_();
end
$$;
comment on function pgflow.release_lock(text, bigint, text)
  is 'Gives a lock of plain code back; false if it was lost before, or was not taken with this secret. The next one in '
     'the queue is let in by sweep_locks(), or by the next poll of a worker';
--! grant release_lock to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.leave_lock(key text, holder text, secret text default null)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  mine constant bytea := pgflow.proof_of_(secret);
begin
  delete from pgflow.lock_wait w where w.key = key and w.holder = holder and w.proof = mine;
  delete from pgflow.lock l where l.key = key and l.holder = holder and l.proof = mine;
  perform pgflow.nudge_key_(key);
end
$$;
comment on function pgflow.leave_lock(text, text, text)
  is 'Removes plain code from the queue of a lock, or releases the lock if its turn has just come. It needs the '
     'secret; without it, nothing changes';
--! grant leave_lock to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.break_lock(key text, why text, sent_by text default null)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  fences bigint[];
begin
  perform pgflow.check_name_(key, 'the key of a lock');
  if coalesce(why, '') = '' then
    raise exception using errcode = 'PF003', message = format('lock %s is taken from its holder without a reason',
      quote_literal(key)), hint = 'Say why.';
  end if;
  with gone as (
    delete from pgflow.lock l where l.key = key returning l.*
  ), broken as (
    insert into pgflow.lock_broken as b (fence, run_id, broken_at, key, holder, broken_by, why)
    select g.fence, g.run_id, pgflow.now_(), g.key, g.holder, pgflow.sender_(sent_by), pgflow.told_(why, 4096)
    from gone g
    returning b.fence
  )
  select coalesce(array_agg(b.fence order by b.fence), '{}') into fences from broken b;
  perform pgflow.note_evidence_('lock_broken', json_build_array(f)) from unnest(fences) f;
  perform pgflow.nudge_key_(key);
  return cardinality(fences);
end
$$;
comment on function pgflow.break_lock(text, text, text)
  is 'Takes a lock away from its holders, and records author and reason; returns their number. A run gets LockLost '
     'at its next durable call in the block. For operators';
--! grant break_lock to pgflow_operator

-- ---------------------------------------------------------------- reading

drop view if exists pgflow.locks;
create view pgflow.locks as
select l.key, l.fence, l.holder, l.is_shared, l.since, l.expires_at,
  (select count(*) from pgflow.lock_wait w where w.key = l.key) as waiters, l.run_id
from pgflow.lock l;
comment on view pgflow.locks is 'Locks that are held, and how many wait for each';
--! grant locks to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.locks.key is 'Name of what is locked';
comment on column pgflow.locks.fence
  is 'The number of this time that it was won: greater than that of every holder of the key before';
comment on column pgflow.locks.holder is 'Key of the run that holds it, or the name that plain code gave';
comment on column pgflow.locks.is_shared is 'True if others may hold it too that share it';
comment on column pgflow.locks.since is 'Time at which it was won';
comment on column pgflow.locks.expires_at is 'Time from which it counts no more; null = as long as its run holds it';
comment on column pgflow.locks.waiters is 'Number of runs and of plain code that wait for it';
comment on column pgflow.locks.run_id is 'The number of the run; null = plain code';

drop view if exists pgflow.broken_locks;
create view pgflow.broken_locks as
select b.key, b.fence, b.holder, b.broken_at, b.broken_by, b.why, b.run_id from pgflow.lock_broken b;
comment on view pgflow.broken_locks is 'Locks that an operator took from their holders';
--! grant broken_locks to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.broken_locks.key is 'Name of what was locked';
comment on column pgflow.broken_locks.fence is 'The number of the time that it had been won';
comment on column pgflow.broken_locks.holder is 'Key of the run, or the name that plain code gave';
comment on column pgflow.broken_locks.broken_at is 'Time at which it was taken away';
comment on column pgflow.broken_locks.broken_by
  is 'Name of the operator who took it away, with the role of the session in brackets';
comment on column pgflow.broken_locks.why is 'Reason given by the operator';
comment on column pgflow.broken_locks.run_id is 'The number of the run; null = plain code';

create or replace function pgflow.check_locks_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'a lock has one holder, or several that share it', format('lock %s', l.key)
  from pgflow.lock l group by l.key having count(*) > 1 and not bool_and(l.is_shared)
  union all
  select 'a fence is given once', format('fence %s', u.fence)
  from (
    select u.payload->>'fence' as fence, r.chain_id, r.key
    from pgflow.unit u join pgflow.run r on r.run_id = u.run_id
    where u.kind = 'L' and u.seq > coalesce(r.origin_seq, 0)
      and not exists (select from pgflow.imported i where i.run_id = u.run_id)
  ) u group by u.fence having count(distinct u.chain_id) > 1
  union all
  select 'locks are held by open runs', format('lock %s, run %s', l.key, l.run_id)
  from pgflow.lock l
  where l.run_id is not null and not exists (select from pgflow.places_() p where p.run_id = l.run_id)
  union all
  select 'only open runs wait for locks', format('lock %s, run %s', w.key, w.run_id)
  from pgflow.lock_wait w
  where w.run_id is not null and not exists (select from pgflow.places_() p where p.run_id = w.run_id)
  union all
  select 'a lock that is free is not waited for', format('lock %s, ticket %s', w.key, w.ticket)
  from pgflow.lock_wait w
  where not exists (select from pgflow.lock l where l.key = w.key)
    and not exists (select from pgflow.lock_nudge n where n.key = w.key)
  union all
  select 'who waits for a lock stands in its queue, or has word of it', format('call %s of run %s', w.call, w.run_id)
  from pgflow.wait w
  where w.kind = 'l' and not exists (select from pgflow.lock_wait q where q.run_id = w.run_id and q.call = w.call)
    and not exists (select from pgflow.signal s where s.kind = 'l' and s.run_id = w.run_id and s.call = w.call);
end
$$;
comment on function pgflow.check_locks_() is 'Locks have one holder, whose run is open, and no waiter is forgotten';
